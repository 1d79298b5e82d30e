"""Field paths: from `$worst.rank` to a value, and before anything ran, whether there can be such a field."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from kair_engine.errors import UsageError
from kair_tui.shell.lexer import Reference

COUNT = "count"
"""The length of a list, as a field of it."""


@dataclass(frozen=True)
class Named:
    """An answer that was given a name: its data as in JSON, and which of its fields is the main table."""

    data: Any
    main: str | None = None


@dataclass(frozen=True)
class NamedType:
    """The same before the command ran."""

    type: Any
    main: str | None = None


def field_of(reference: Reference, named: Named) -> Any:  # noqa: ANN401
    """The value at the path. Raises UsageError where there is none.

    A field that an answer itself lacks is looked for in the first row of its main table: `$worst.rank` of localize.
    """
    value, path = named.data, reference.path
    if path and named.main and isinstance(value, dict) and path[0] not in value:
        path = (named.main, 0, *path)
    for at, key in enumerate(path):
        value = _step(value, key, reference, path[:at])
    return value


def text_of(reference: Reference, value: Any) -> str:  # noqa: ANN401
    """The value as an argument of a command: lists of plain values with commas. Raises UsageError for others."""
    if value is None:
        raise UsageError(f"{reference} is null", f"guard the line with when {reference} != null:")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple) and value and not any(isinstance(one, dict | list | tuple) for one in value):
        return ",".join(map(str, value))
    if isinstance(value, dict | list | tuple):
        empty = "empty" if not value else "a record" if isinstance(value, dict) else "a list"
        raise UsageError(f"{reference} is {empty}, and no value", _offer(_names(value)))
    return str(value)


def check_field(reference: Reference, named: NamedType) -> None:
    """Raises UsageError for a path that the type of the answer does not have."""
    path = reference.path
    fields = _fields(named.type)
    if path and named.main and fields is not None and path[0] not in fields:
        _require(path[0], reference, (*fields, *(_fields(_item(fields[named.main])) or ())))
        path = (named.main, 0, *path)
    kind = named.type
    for key in path:
        kind = _type_at(kind, key, reference)
        if kind is None:
            return


def fields_below(named: NamedType | None, path: Sequence[str | int]) -> tuple[str, ...]:
    """The fields that can follow on the path, for completion."""
    if named is None:
        return ()
    kind = named.type
    try:
        for key in path:
            kind = _type_at(kind, key, Reference("", tuple(path)))
    except UsageError:
        return ()
    below = _fields(kind)
    rows = _fields(_item(below[named.main])) if not path and below and named.main else None
    return tuple(dict.fromkeys([*(below or ()), *(rows or ())]))


def _step(value: Any, key: str | int, reference: Reference, before: Sequence[str | int]) -> Any:  # noqa: ANN401
    here = Reference(reference.name, tuple(before))
    if value is None:
        raise UsageError(f"{here} is null, and has no {key}", f"guard the line with when {here} != null:")
    if isinstance(value, list | tuple):
        if key == COUNT:
            return len(value)
        if not isinstance(key, int):
            return _entry(value, key, here)
        if not -len(value) <= key < len(value):
            raise UsageError(f"{here} has {len(value) or 'no'} entries: {here}[{key}] is not there")
        return value[key]
    if isinstance(value, dict):
        if str(key) not in value:
            raise UsageError(f"{here} has no field {key!r}", _offer(list(value), str(key)))
        return value[str(key)]
    raise UsageError(f"{here} is a plain value, and has no {key!r}")


def _entry(rows: Sequence[Any], key: str, here: Reference) -> Any:  # noqa: ANN401
    """The record whose first field is `key`: `$profile.parts.input.share`, `$ranks.scores.16.score`."""
    records = [row for row in rows if isinstance(row, dict) and row]
    for row in records:
        if str(next(iter(row.values()))) == key:
            return row
    there = [str(next(iter(row.values()))) for row in records]
    raise UsageError(f"{here} has no entry {key!r}", _offer(there, key) if there else f"name one: {here}[0].{key}")


def _type_at(kind: Any, key: str | int, reference: Reference) -> Any:  # noqa: ANN401
    """The type of a field; None where it is not known."""
    kind = _plain(kind)
    fields = _fields(kind)
    if fields is not None:
        _require(key, reference, fields)
        return fields[str(key)]
    if get_origin(kind) in (tuple, list, Sequence):
        if key == COUNT:
            return int
        if isinstance(key, str) and key in (_fields(_item(kind)) or ()):
            raise UsageError(f"{reference}: {key!r} is a field of a list's entries", f"name one of them: [0].{key}")
        return _item(kind)
    if get_origin(kind) in (dict, Mapping):
        return get_args(kind)[1]
    if kind in (str, int, float, bool):
        raise UsageError(f"{reference}: what has the field {key!r} is a plain value")
    return None


def _fields(kind: Any) -> dict[str, Any] | None:  # noqa: ANN401
    """The fields of a record, without the warnings, which stand beside the data in JSON."""
    kind = _plain(kind)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return None
    return {name: hint for name, hint in get_type_hints(kind).items() if name != "warnings"}


def _item(kind: Any) -> Any:  # noqa: ANN401
    arguments = get_args(_plain(kind))
    return arguments[0] if arguments else None


def _plain(kind: Any) -> Any:  # noqa: ANN401
    """The type without `| None`, and what a name for a type stands for."""
    if get_origin(kind) in (Union, UnionType):
        others = [one for one in get_args(kind) if one is not NoneType]
        return _plain(others[0]) if len(others) == 1 else kind
    return getattr(kind, "__supertype__", kind)


def _require(key: str | int, reference: Reference, fields: Iterable[str]) -> None:
    known = list(dict.fromkeys(fields))
    if str(key) not in known:
        raise UsageError(f"{reference}: there is no field {key!r}", _offer(known, str(key)))


def _names(value: Any) -> list[str]:  # noqa: ANN401
    return list(value) if isinstance(value, dict) else []


def _offer(names: Sequence[str], meant: str = "") -> str | None:
    near = get_close_matches(meant, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}" if names else None
