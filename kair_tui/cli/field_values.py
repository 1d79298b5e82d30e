"""Checks whether a condition can hold or fail at all, by comparing its values with the types of fields.

A misspelt value is never equal, and always `!=`: both are refused before anything runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final

from kair_engine.errors import UsageError
from kair_tui.cli.conditions import ORDERS, Comparison, Condition, Joined, listed_values
from kair_tui.cli.fields import (
    UNKNOWN,
    NamedType,
    alternatives,
    field_type,
    fields_of,
    is_list,
    is_mapping,
    item_of,
    key_of,
    listed,
    nearest_of,
    offer,
)
from kair_tui.cli.words import Reference, Word, literal

KnownOf = Callable[[Reference], NamedType]
"""Returns what is known of a name. Raises UsageError for an unknown one."""
_NUMBERS: Final = (int, float)


@dataclass(frozen=True)
class _Field:
    """A field of an answer that is not there yet."""

    called: str
    kind: Any

    @property
    def kinds(self) -> tuple[Any, ...]:
        return alternatives(self.kind)

    @property
    def is_known(self) -> bool:
        """Whether its type limits its values."""
        return self.kind is not None and Any not in self.kinds and object not in self.kinds


@dataclass(frozen=True)
class _Constant:
    """A value in the line, or from outside."""

    value: Any
    source: Reference | None = None

    def shown(self, value: Any) -> str:  # noqa: ANN401
        """Return `"stragler"` or `3`, with the name it came by."""
        text = f'"{value}"' if isinstance(value, str) else literal_text(value)
        return f"{text} ({self.source})" if self.source is not None else text


def literal_text(value: Any) -> str:  # noqa: ANN401
    """Return a plain value's text: `true`, `null`, `1.05`."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def check_condition(condition: Condition, known_of: KnownOf) -> None:
    """Raise UsageError for an unknown field, or a value that a field never has."""
    if isinstance(condition, Joined):
        for part in condition.parts:
            check_condition(part, known_of)
        return
    left = _operand(condition.left, known_of)
    if condition.right is None or condition.sign is None:
        _check_alone(left)
        return
    right = _operand(condition.right, known_of)
    _check(condition, left, right)


def _operand(word: Word, known_of: KnownOf) -> _Field | _Constant | None:
    """Return a field or a constant; None if it is composed of parts, and known only at run time."""
    types = [(known_of(one), field_type(one, known_of(one))) for one in word.references]
    if (reference := word.reference) is not None:
        known, kind = types[0]
        if known.constant is not UNKNOWN and not reference.path:
            return _Constant(known.constant, reference)
        return _Field(str(reference), kind)
    if word.references:
        return None
    return _Constant(word.text if word.quoted else literal(word.text or ""))


def _check_alone(one: _Field | _Constant | None) -> None:
    """Raise UsageError for a bare operand that is always true."""
    if isinstance(one, _Constant) and one.source is None and isinstance(one.value, str):
        raise UsageError(f"{one.shown(one.value)} is text, and no field: nothing is asked", _NAME_A_FIELD)
    if isinstance(one, _Field) and one.is_known and all(isinstance(value, str) and value for value in one.kinds):
        raise UsageError(f"{one.called} is never empty: nothing is asked", _values_in_words(one))


_NAME_A_FIELD: Final = "a field is written $NAME.FIELD"


def _check(comparison: Comparison, left: _Field | _Constant | None, right: _Field | _Constant | None) -> None:
    sign = comparison.sign or ""
    if isinstance(left, _Constant) and isinstance(right, _Constant):
        if left.source is None and isinstance(left.value, str) and right.source is None:
            raise UsageError(f"{left.shown(left.value)} is text, and no field: nothing is compared", _NAME_A_FIELD)
        return
    if sign in ORDERS:
        for one in (left, right):
            _require_number(one)
        return
    if isinstance(left, _Field) and isinstance(right, _Constant) and left.is_known:
        if sign == "in" and right.value is not None:
            for value in listed_values(right.value):
                _require_value(left, left.kind, value, right)
        elif sign == "contains":
            _require_part(left, right)
        else:
            _require_value(left, left.kind, right.value, right)
    elif isinstance(left, _Constant) and isinstance(right, _Field) and right.is_known:
        if sign == "in" and _only(right, is_list):
            _require_part(right, left)
        elif sign in ("==", "!="):
            _require_value(right, right.kind, left.value, left)


def _only(one: _Field, kind_is: Callable[[Any], bool]) -> bool:
    """Return whether all its possible values, except null, are of that kind."""
    return all(kind_is(kind) for kind in one.kinds if kind is not NoneType)


def _require_number(one: _Field | _Constant | None) -> None:
    """Raise UsageError for an operand without an order. A null from outside is left to the line's guard."""
    if isinstance(one, _Constant) and not (one.source is not None and one.value is None):
        if isinstance(one.value, bool) or not isinstance(one.value, int | float):
            raise UsageError(f"{one.shown(one.value)} is no number, which is neither less nor more")
    elif isinstance(one, _Field) and one.is_known and not any(kind in _NUMBERS for kind in one.kinds):
        way = f"{one.called}.count is how many there are" if _only(one, is_list) else None
        raise UsageError(f"{one.called} is {_what(one.kind)}, which is neither less nor more", way)


def _require_part(whole: _Field, part: _Constant) -> None:
    """Check `contains`: a value of a list, the key of one of its records, or a part of a text."""
    if _only(whole, is_list):
        items = [item_of(kind) for kind in whole.kinds if kind is not NoneType]
        for item in items:
            if item is not None:
                key = key_of(item)
                _require_value(_Field(f"what {whole.called} holds", key), key, part.value, part)
        return
    texts = [kind for kind in whole.kinds if isinstance(kind, str)]
    if texts and str not in whole.kinds and not any(str(part.value) in text for text in texts):
        _refuse_text(whole, str(part.value), part, texts)


def _require_value(one: _Field, kind: Any, value: Any, given: _Constant) -> None:  # noqa: ANN401
    """Raise UsageError if the field never has that value. A comparison with null is always allowed."""
    kinds = alternatives(kind)
    if value is None or not one.is_known:
        return
    texts = [other for other in kinds if isinstance(other, str)]
    if isinstance(value, str) and (str in kinds or value in texts):
        return
    if not isinstance(value, str) and any(_is_value(value, other) for other in kinds):
        return
    if isinstance(value, str) and texts:
        _refuse_text(one, value, given, texts)
    raise UsageError(f"{one.called} is {_what(kind)}, and never {given.shown(value)}", _way(kind, value))


def _is_value(value: Any, kind: Any) -> bool:  # noqa: ANN401
    """Return whether a number, true or false can be a value of the type, or equals the value."""
    if isinstance(value, bool) or isinstance(kind, bool) or kind is bool:
        return isinstance(value, bool) and (kind is bool or kind is value)
    if kind in _NUMBERS:
        return kind is float or isinstance(value, int) or value.is_integer()
    return isinstance(kind, int | float) and kind == value


def _refuse_text(one: _Field, value: str, given: _Constant, texts: list[str]) -> None:
    near = nearest_of(value, [text for text in texts if text])
    meant = f" (did you mean {near}?)" if near else ""
    raise UsageError(f"{one.called} is never {given.shown(value)}{meant}", _values_in_words(one))


def _values_in_words(one: _Field) -> str:
    """Write `it is straggler, job_wide or no_straggler`."""
    texts = [kind or '""' for kind in one.kinds if isinstance(kind, str)]
    return f"it is {listed([*texts, *(['null'] if NoneType in one.kinds else [])], ' or ')}"


def _what(kind: Any) -> str:  # noqa: ANN401
    """Return a description of the type's values."""
    others = [one for one in alternatives(kind) if one is not NoneType]
    if all(isinstance(one, str) or one is str for one in others):
        return "text"
    if all(one is bool or isinstance(one, bool) for one in others):
        return "true or false"
    if all(one is int for one in others):
        return "a whole number"
    if all(one in _NUMBERS for one in others):
        return "a number"
    return "a list" if all(map(is_list, others)) else "a record"


def _way(kind: Any, value: Any) -> str | None:  # noqa: ANN401
    """Return a hint with a possible comparison."""
    others = [other for other in alternatives(kind) if other is not NoneType]
    if isinstance(value, str):
        if any(other in _NUMBERS or other is bool for other in others) and not isinstance(literal(value), str):
            return f"without quotes it is no text: {value}"
        if all(map(is_list, others)):
            return "contains asks for one of its values, .count for how many"
    elif str in others or any(isinstance(other, str) for other in others):
        return f'in quotes it is text: "{literal_text(value)}"'
    fields = fields_of(kind)
    return offer([*fields]) if fields and not any(map(is_mapping, others)) else None
