"""From the strings of the command line to typed values.

Newer Typers convert through pydantic, whose import costs 60 ms of every command; the few types that Kair's
options have need none of it.
"""

import types
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from kair_engine.errors import UsageError


def convert_here(command: Any, annotations: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Gives every parameter of a Typer command or group its conversion, by its annotation."""
    for parameter in command.params:
        converted_here(parameter, annotations[parameter.name])


def converted_here(parameter: Any, annotation: Any) -> Any:  # noqa: ANN401
    """One Typer parameter, with its conversion by its annotation."""
    parameter.process_value = partial(_process, parameter, converter(annotation, _name(parameter)))
    return parameter


def converter(annotation: Any, name: str) -> Callable[[Any], Any]:  # noqa: ANN401
    """A function from what was typed (a string, a flag, several strings) to a value of the annotated type.

    It raises UsageError, naming the parameter `name`.
    """
    kind = bare(annotation)
    if get_origin(kind) is list:
        each = converter(get_args(kind)[0], name)
        return lambda values: [each(value) for value in values]
    if get_origin(kind) is Literal:
        return partial(_choice, name, get_args(kind))
    if kind is int:
        return partial(_number, name, minimum=_minimum(annotation))
    if kind is float:
        return partial(_decimal, name)
    return Path if kind is Path else lambda value: value


def bare(annotation: Any) -> Any:  # noqa: ANN401
    """The annotated type without its metadata and without `| None`."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(part for part in get_args(annotation) if part is not types.NoneType)
    return annotation


def _process(parameter: Any, convert: Callable[[Any], Any], context: Any, value: Any) -> Any:  # noqa: ANN401
    """What click's Parameter.process_value does: convert, insist on what is required, call back."""
    if value is not None:
        value = convert(value)
    if parameter.required and value in (None, [], ()):
        raise UsageError(f"missing {_name(parameter)}", f"{context.command_path} --help")
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


def _choice(name: str, choices: tuple[str, ...], value: str) -> str:
    if value not in choices:
        raise UsageError(f"{name} {value!r}: choose from {', '.join(choices)}")
    return value


def _number(name: str, value: str | int, *, minimum: int | None) -> int:
    try:
        number = int(value)
    except ValueError:
        raise UsageError(f"{name} {value!r}: not a whole number") from None
    if minimum is not None and number < minimum:
        raise UsageError(f"{name} {number}: must be {minimum} or more")
    return number


def _decimal(name: str, value: str | float) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"{name} {value!r}: not a number") from None


def _minimum(annotation: Any) -> int | None:  # noqa: ANN401
    metadata = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((int(item.min) for item in metadata if getattr(item, "min", None) is not None), None)


def _name(parameter: Any) -> str:  # noqa: ANN401
    """`--rank`, or an argument's `JOB`."""
    flags = [flag for flag in parameter.opts if flag.startswith("-")]
    return max(flags, key=len) if flags else str(parameter.metavar or parameter.name.upper())
