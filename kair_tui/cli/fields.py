"""Fields of answers: from `$worst.rank` to a value, and in advance to a type.

Shorthands are additional names of an answer, such as `straggler` for a triage.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from dataclasses import fields as record_fields
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from kair_engine.causes import CAUSES
from kair_engine.errors import UsageError
from kair_tui.cli.words import Reference, literal

COUNT: Final = "count"
"""The length of a list, as a field of the list."""
UNKNOWN: Final = object()
"""A value that is known only after a command has run."""
_MOST_OFFERED: Final = 16
_CAUSE: Final = "cause"


@dataclass(frozen=True)
class NamedType:
    """What is known of a name before any command ran."""

    type: Any
    """The type of the answer or value; None if unknown."""
    main: str | None = None
    """The field that is its main table."""
    shorthands: Mapping[str, Any] = field(default_factory=dict)
    """The types of its shorthands."""
    constant: Any = UNKNOWN
    """The value itself, if given from outside."""


@dataclass(frozen=True)
class Named:
    """A named answer: its data as in JSON, and the field of its main table."""

    data: Any
    main: str | None = None
    shorthands: Mapping[str, Any] = field(default_factory=dict)
    """The values of its shorthands."""
    described: NamedType | None = None
    """What was known of it before it ran; None for a plain value."""

    @property
    def type_now(self) -> NamedType:
        """What later lines know of it."""
        return self.described or NamedType(None, constant=self.data)


def field_of(reference: Reference, named: Named) -> Any:  # noqa: ANN401
    """Return the value at the path. Raises UsageError if it does not exist.

    A field that the answer itself lacks is taken from the first row of its main table: `$worst.rank` of localize.
    """
    value, path = named.data, reference.path
    if path and path[0] in named.shorthands:
        value, path = named.shorthands[str(path[0])], path[1:]
    elif path and named.main and isinstance(value, dict) and path[0] not in value:
        path = (named.main, 0, *path)
    for at, key in enumerate(path):
        value = _step(value, key, reference, path[:at])
    return value


def text_of(reference: Reference, value: Any) -> str:  # noqa: ANN401
    """Return the value as an argument of a command: lists of plain values with commas. Raises UsageError for others."""
    if value is None:
        raise UsageError(f"{reference} is null", f"guard the line with when {reference} != null:")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple) and value and not any(isinstance(one, dict | list | tuple) for one in value):
        return ",".join(map(str, value))
    if isinstance(value, dict | list | tuple):
        empty = "empty" if not value else "a record" if isinstance(value, dict) else "a list"
        raise UsageError(f"{reference} is {empty}, and no value", offer([*value] if isinstance(value, dict) else []))
    return str(value)


def field_type(reference: Reference, named: NamedType) -> Any:  # noqa: ANN401
    """Return the type of the value at the path, None if unknown. Raises UsageError if no such value can exist."""
    path, kind = reference.path, named.type
    fields = fields_of(kind)
    if path and path[0] in named.shorthands:
        kind, path = named.shorthands[str(path[0])], path[1:]
    elif path and named.main and fields is not None and path[0] not in fields:
        rows = fields_of(item_of(fields[named.main])) or ()
        _require(path[0], reference, (*fields, *rows, *named.shorthands))
        path = (named.main, 0, *path)
    for key in path:
        kind = _type_at(kind, key, reference)
        if kind is None:
            return None
    return kind


def fields_of(kind: Any) -> Mapping[str, Any] | None:  # noqa: ANN401
    """Return the types of a record's fields, None for other types; warnings stand next to the data in JSON.

    A cause is plain text to the type checker: the table of causes has the possible ones.
    """
    kind = plain(kind)
    return _of_record(kind) if isinstance(kind, type) and is_dataclass(kind) else None


@cache
def _of_record(kind: type) -> Mapping[str, Any]:
    of = get_type_hints(kind)
    hints = {one.name: of[one.name] for one in record_fields(kind) if one.name != "warnings"}
    if _CAUSE in hints and str in alternatives(hints[_CAUSE]):
        hints[_CAUSE] = Union[*([NoneType] if NoneType in alternatives(hints[_CAUSE]) else []), Literal[*CAUSES]]
    return hints


def item_of(kind: Any) -> Any:  # noqa: ANN401
    """Return the type of a list's entries; None if unknown."""
    arguments = get_args(plain(kind))
    return arguments[0] if arguments else None


def key_of(record: Any) -> Any:  # noqa: ANN401
    """Return the type of the key of a list's entries: the record's first field, or the plain value itself."""
    fields = fields_of(record)
    return record if fields is None else next(iter(fields.values()), None)


def plain(kind: Any) -> Any:  # noqa: ANN401
    """Return the type without `| None`, with type aliases resolved."""
    if get_origin(kind) in (Union, UnionType):
        others = [one for one in get_args(kind) if one is not NoneType]
        return plain(others[0]) if len(others) == 1 else kind
    return getattr(kind, "__supertype__", kind)


def alternatives(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Return the possible types of a value, with Literals as their values."""
    kind = getattr(kind, "__supertype__", kind)
    if get_origin(kind) in (Union, UnionType):
        return tuple(one for part in get_args(kind) for one in alternatives(part))
    return get_args(kind) if get_origin(kind) is Literal else (kind,)


def is_list(kind: Any) -> bool:  # noqa: ANN401
    """Return whether a value of the type is a list in JSON."""
    return get_origin(kind) in (tuple, list, Sequence, frozenset) or kind in (tuple, list, frozenset)


def is_mapping(kind: Any) -> bool:  # noqa: ANN401
    """Return whether a value of the type is an object with arbitrary keys."""
    return get_origin(kind) in (dict, Mapping) or kind in (dict, Mapping)


def offer(names: Sequence[str], meant: str = "") -> str | None:
    """Return a hint with the probable name; else with the existing ones, shortened if many."""
    near = nearest_of(meant, names)
    return f"did you mean {near}?" if near else f"there are: {listed(names)}" if names else None


def nearest_of(meant: str, names: Sequence[str]) -> str | None:
    """Return the probable name, preferring one that is a letter off; None if none is similar."""
    lowered = meant.lower()
    near = get_close_matches(lowered, names, n=3)
    return next((one for one in names if _one_letter_off(lowered, one)), near[0] if near else None)


def listed(names: Sequence[str], joint: str = ", ") -> str:
    """Return `a, b, c`; of more than sixteen the first ones, and the number of the others."""
    if len(names) <= _MOST_OFFERED:
        return f"{', '.join(names[:-1])}{joint}{names[-1]}" if len(names) > 1 else "".join(names)
    return f"{', '.join(names[:_MOST_OFFERED])} and {len(names) - _MOST_OFFERED} more"


def _one_letter_off(one: str, other: str) -> bool:
    """Return whether the two differ by one letter left out, inserted or replaced, or by two swapped neighbours."""
    if len(one) > len(other):
        one, other = other, one
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    if len(one) < len(other):
        return one[at:] == other[at + 1 :]
    swapped = one[at : at + 2] == other[at : at + 2][::-1] and one[at + 2 :] == other[at + 2 :]
    return swapped or one[at + 1 :] == other[at + 1 :]


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
            many = "1 entry" if len(value) == 1 else f"{len(value) or 'no'} entries"
            raise UsageError(f"{here} has {many}: {here}[{key}] is not there")
        return value[key]
    if isinstance(value, dict):
        if str(key) not in value:
            raise UsageError(f"{here} has no field {key!r}", offer(list(value), str(key)))
        return value[str(key)]
    raise UsageError(f"{here} is a plain value, and has no {key!r}")


def _entry(rows: Sequence[Any], key: str, here: Reference) -> Any:  # noqa: ANN401
    """Return the record whose first field is `key`: `$profile.parts.input.share`, `$ranks.scores.16.score`."""
    records = [row for row in rows if isinstance(row, dict) and row]
    for row in records:
        if str(next(iter(row.values()))) == key:
            return row
    there = [str(next(iter(row.values()))) for row in records]
    raise UsageError(f"{here} has no entry {key!r}", offer(there, key) if there else f"name one: {here}[0].{key}")


def _type_at(kind: Any, key: str | int, reference: Reference) -> Any:  # noqa: ANN401
    """Return the type of a field; None if unknown."""
    kind = plain(kind)
    fields = fields_of(kind)
    if fields is not None:
        _require(key, reference, fields)
        return fields[str(key)]
    if is_list(kind):
        if key == COUNT:
            return int
        if isinstance(key, str):
            _require_entry(key, item_of(kind), reference)
        return item_of(kind)
    if is_mapping(kind):
        keys, values = get_args(kind) or (None, None)
        limited = [str(one) for one in alternatives(keys)]
        if get_origin(keys) is Literal:
            _require(key, reference, limited)
        return values
    if kind in (str, int, float, bool) or get_origin(kind) is Literal:
        raise UsageError(f"{reference}: what has the field {key!r} is a plain value")
    return None


def _require_entry(key: str, item: Any, reference: Reference) -> None:  # noqa: ANN401
    """Raise UsageError if no entry of the list can have that key."""
    fields = fields_of(item)
    if fields is not None and key in fields:
        raise UsageError(f"{reference}: {key!r} is a field of a list's entries", f"name one of them: [0].{key}")
    known = alternatives(key_of(item)) if fields is not None else ()
    if not known or any(one in (str, Any, None) for one in known):
        return
    names = [one for one in known if isinstance(one, str)]
    if key not in names and not (isinstance(literal(key), int) and int in known):
        meant = [*names, *(fields or ())]
        raise UsageError(f"{reference}: there is no entry {key!r}", offer(meant if names else [*(fields or ())], key))


def _require(key: str | int, reference: Reference, fields: Iterable[str]) -> None:
    known = list(dict.fromkeys(fields))
    if str(key) not in known:
        raise UsageError(f"{reference}: there is no field {key!r}", offer(known, str(key)))
