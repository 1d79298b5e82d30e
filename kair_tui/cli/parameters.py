"""Makes Click's parameters of annotated ones: a type and a default are declared once, in the signature."""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import click
from click.shell_completion import CompletionItem

from kair_engine.frozen import dataclass

LARGEST: Final = 1e12
"""Of a number that need not be whole: what is worked out of larger ones may leave the floats."""


@dataclass(frozen=True)
class Option:
    """What the command line adds to a parameter's type and default: its flags, as the help writes them, and a text."""

    flags: str
    help: str
    metavar: str | None = None
    minimum: int | None = None


@dataclass(frozen=True)
class Argument:
    """The same for a positional parameter; `offers` completes a half-typed one, a file name where that offers none.

    `verbatim`: the words of another command, which may be empty.
    """

    help: str
    offers: Callable[[str], list[str]] | None = None
    verbatim: bool = False


class Number(click.ParamType[float]):
    """A finite number, whole or not, of at least `minimum`."""

    def __init__(self, kind: type[int] | type[float], minimum: int | None) -> None:
        self.name = "integer" if kind is int else "number"
        self._kind = kind
        self.minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """The number that was typed; what is wrong with it stands after the option's name."""
        number = self._read(value)
        if number is None:
            self.fail(f"must be a {'whole ' if self._kind is int else ''}number, got {value!r}", param, ctx)
        if self.minimum is not None and number < self.minimum:
            self.fail(f"must be {self.minimum} or more, got {value}", param, ctx)
        if self._kind is float and abs(number) > LARGEST:
            self.fail(f"must be {LARGEST:,.0f} or less, got {value}", param, ctx)
        return number

    def _read(self, value: str | float) -> float | None:
        with suppress(ValueError, OverflowError):
            number = self._kind(value)
            return number if math.isfinite(number) else None
        return None


class Name(click.ParamType[str]):
    """A name, which is not empty: an empty one is a variable that is not set."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401
        """The name as it was typed."""
        if not value.strip():
            self.fail("is an empty name", param, ctx)
        return str(value)


class NamedPath(click.Path):
    """A path that names something: an empty one, of a variable that is not set, is not the current directory.

    An unreadable path is unreadable input, which the reader turns down, not wrong usage.
    """

    def __init__(self) -> None:
        super().__init__(readable=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """The path as it was typed."""
        if value == "":
            self.fail("is an empty name", param, ctx)
        return super().convert(value, param, ctx)


def declared(source: Callable[..., Any]) -> Iterator[click.Parameter]:
    """Every parameter of a function, or field of a dataclass, that is annotated with an Option or an Argument."""
    hints = get_type_hints(source, include_extras=True)
    for parameter in inspect.signature(source).parameters.values():
        if get_origin(hint := hints[parameter.name]) is Annotated:
            annotation, declaration = get_args(hint)
            yield _parameter(parameter.name, annotation, declaration, parameter.default)


def written_as(parameter: click.Parameter) -> str:
    """`--rank`, the long way of writing an option; of an argument, `JOB`."""
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name


def _parameter(name: str, annotation: Any, declaration: Option | Argument, default: Any) -> click.Parameter:  # noqa: ANN401
    kind, repeats = _kind(annotation)
    shared: dict[str, Any] = {"help": declaration.help, "required": default is inspect.Parameter.empty}
    if not (shared["required"] or repeats):
        shared["default"] = default
    if isinstance(declaration, Argument):
        shared |= {"nargs": -1 if repeats else 1, "shell_complete": _completion(declaration.offers)}
        named = kind is str and not declaration.verbatim
        return click.Argument([name], type=Name() if named else _type(kind), **shared)
    shared |= {"multiple": repeats, "is_flag": kind is bool or None, "metavar": declaration.metavar}
    return click.Option([name, *declaration.flags.split(", ")], type=_type(kind, declaration.minimum), **shared)


def _kind(annotation: Any) -> tuple[Any, bool]:  # noqa: ANN401
    """The type of one value, without `| None`, and whether there can be several."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not NoneType)
    return (get_args(annotation)[0], True) if get_origin(annotation) is Sequence else (annotation, False)


def _type(kind: Any, minimum: int | None = None) -> click.ParamType[Any]:  # noqa: ANN401
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind in (int, float):
        return Number(kind, minimum)
    # Each path looks for the translations of its errors on disk.
    return NamedPath() if kind is Path else {str: click.STRING, bool: click.BOOL}[kind]


def _completion(offers: Callable[[str], list[str]] | None) -> Any:  # noqa: ANN401
    def completed(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        known = [CompletionItem(name) for name in (offers(incomplete) if offers else ())]
        return known or [CompletionItem(incomplete, type="file")]

    return completed
