"""Makes frozen dataclasses quickly: a command defines 90 to 170 of them before it can answer.

The standard library compiles six methods for each class, 0.8 ms with a busy core. All but `__init__` say the same of
every class, so here they are shared: commands start sooner (benchmarks/README.md, Start-up), instances take longer to
make. To `dataclasses` and to type checkers nothing is different.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

__all__ = ["dataclass"]


def _quick(cls: type[Any] | None = None, /, *, frozen: bool = False, kw_only: bool = False) -> Any:  # noqa: ANN401
    """As `dataclasses.dataclass` with these options, which are all that it takes."""
    if cls is None:
        return lambda given: _quick(given, frozen=frozen, kw_only=kw_only)
    if not frozen:
        return dataclasses.dataclass(cls, kw_only=kw_only)
    own = frozenset(vars(cls))
    made = dataclasses.dataclass(cls, eq=False, repr=False, kw_only=kw_only)
    for method in _SHARED:
        if method.__name__ not in own:
            setattr(made, method.__name__, method)
    return made


def __setattr__(self: Any, name: str, value: object) -> None:  # noqa: ANN401, N807
    """`__init__` gives every field its value; nobody does later."""
    held = self.__dict__
    if name in held or name not in self.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    held[name] = value


def __delattr__(_: Any, name: str) -> NoReturn:  # noqa: ANN401, N807
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def __eq__(self: Any, other: Any) -> bool:  # noqa: ANN401, N807
    if other.__class__ is not self.__class__:
        return NotImplemented
    names = [of.name for of in dataclasses.fields(self) if of.compare]
    return tuple(getattr(self, name) for name in names) == tuple(getattr(other, name) for name in names)


def __hash__(self: Any) -> int:  # noqa: ANN401, N807
    counted = (of.name for of in dataclasses.fields(self) if (of.compare if of.hash is None else of.hash))
    return hash(tuple(getattr(self, name) for name in counted))


def __repr__(self: Any) -> str:  # noqa: ANN401, N807
    shown = (f"{of.name}={getattr(self, of.name)!r}" for of in dataclasses.fields(self) if of.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


_SHARED: Final[tuple[Callable[..., Any], ...]] = (__setattr__, __delattr__, __eq__, __hash__, __repr__)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _quick
