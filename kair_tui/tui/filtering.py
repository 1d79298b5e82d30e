"""Parses filters typed after `/`: words that must all match a row. Quotes keep blanks together.

Sorts and filters rows of a table for `s` and `/`, however many there are.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from kair_engine.errors import UsageError

if TYPE_CHECKING:
    from kair_engine.arrays import Floats, Ints


EXAMPLES: Final = (
    ("gemm", "rows with this text, capitals or not; a regular expression"),
    ("!gemm", "rows without it"),
    ("host:node1", "looked for in one field"),
    ("score:>3", "a number compared: also rank:2, rank:4-7, <, <=, >="),
    ("gemm !fp16", "all words have to hold; quotes keep blanks together"),
)

_FIELD = re.compile(r"([A-Za-z_]\w*):(.+)", re.DOTALL)
_COMPARED = re.compile(r"(>=|<=|>|<|=)?(-?\d+(?:\.\d+)?(?:e-?\d+)?)", re.IGNORECASE)
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)-(-?\d+(?:\.\d+)?)")
_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    ">": lambda value, limit: value > limit,
    ">=": lambda value, limit: value >= limit,
    "<": lambda value, limit: value < limit,
    "<=": lambda value, limit: value <= limit,
    "=": lambda value, limit: value == limit,
}


@dataclass(frozen=True)
class Term:
    """One word of a filter."""

    pattern: re.Pattern[str]
    text: str
    """The text to find, as typed."""
    field: str | None = None
    inverse: bool = False

    def holds(self, row: Mapping[str, object]) -> bool:
        """Return whether the row matches, or with `!` does not match."""
        if self.field is None:
            found = any(self.pattern.search(_text(value)) for value in row.values())
        else:
            found = self._in_field(row[self.field])
        return found != self.inverse

    def _in_field(self, value: object) -> bool:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return compares(value, self.text)
        return self.pattern.search(_text(value)) is not None


@dataclass(frozen=True)
class Filter:
    """The typed filter and its words; no words match every row."""

    text: str
    terms: tuple[Term, ...]

    def matches(self, row: Mapping[str, object]) -> bool:
        """Return whether every word matches a row, given as its fields."""
        return all(term.holds(row) for term in self.terms)


def parse_filter(text: str, fields: tuple[str, ...]) -> Filter:
    """Return the filter that `text` describes, over rows that have `fields`. Raises UsageError, naming the word."""
    try:
        words = shlex.split(text.replace("\\", "\\\\"))
    except ValueError:
        raise UsageError(f"a quote is not closed in {text!r}") from None
    return Filter(text, tuple(_term(word, fields) for word in words))


def compares(value: float, wanted: str) -> bool:
    """Return whether a number is `3`, `>3`, `>=3`, `<3`, `<=3` or within `3-7`."""
    if span := _RANGE.fullmatch(wanted):
        return float(span[1]) <= value <= float(span[2])
    compared = _COMPARED.fullmatch(wanted)
    return compared is not None and _ORDERS[compared[1] or "="](value, float(compared[2]))


def _term(word: str, fields: tuple[str, ...]) -> Term:
    inverse = word.startswith("!") and len(word) > 1
    body = word[1:] if inverse else word
    named = _FIELD.fullmatch(body)
    # `aten::add` and `C:\…` are text: only the name of a field makes a field.
    field = named[1] if named and named[1] in fields else None
    if named and field is None and not named[2].startswith(":"):
        raise UsageError(f"no field {named[1]!r} to filter by; there are: {', '.join(fields)}")
    text = named[2] if named and field is not None else body
    try:
        return Term(re.compile(text, re.IGNORECASE), text, field, inverse)
    except re.error as error:
        raise UsageError(f"{word!r} is no regular expression: {error}") from None


def _text(value: object) -> str:
    if value is None:
        return ""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


_AT_A_TIME = 50_000
"""Rows processed before other threads get their turn and cancellation is checked."""


@dataclass(frozen=True)
class Ordering:
    """Which rows are shown, and the field that orders them; None for their original order."""

    wanted: Filter | None = None
    field: str | None = None
    descending: bool = False


def ordered(
    rows: Sequence[Any], fields: Sequence[str], how: Ordering, stop: Callable[[], bool] = lambda: False
) -> "Ints | None":
    """Return the indices of the rows to show, in order; None once `stop` returns true.

    Rows have `fields` as attributes. A word without a field is searched in all but fractions. Equal rows keep their
    order; those without a value come last.
    """
    import numpy as np  # not for the first paint

    places = np.arange(len(rows))
    for term in how.wanted.terms if how.wanted is not None else ():
        held: list[int] = []
        for part in _parts(places.tolist()):
            if stop():
                return None
            held += _holding(term, rows, part, fields)
        places = np.array(held, dtype=np.int64)
    if how.field is not None:
        values: list[Any] = []
        for part in _parts(places.tolist()):
            if stop():
                return None
            values += _values(rows, part, how.field)
        keys = _keys(values)
        # numpy sorts without blocking other threads, and puts NaN last; list.sort would block the screen.
        places = places[np.argsort(-keys if how.descending else keys, kind="stable")]
    return None if stop() else places


def _parts(places: list[int]) -> Iterator[list[int]]:
    return (places[begin : begin + _AT_A_TIME] for begin in range(0, len(places), _AT_A_TIME))


def _values(rows: Sequence[Any], places: list[int], field: str) -> list[Any]:
    return list(map(attrgetter(field), map(rows.__getitem__, places)))


def _holding(term: Term, rows: Sequence[Any], places: list[int], fields: Sequence[str]) -> list[int]:
    """Return those of `places` whose rows match the word."""
    found = [False] * len(places)
    positive = replace(term, inverse=False)
    for field in fields if term.field is None else (term.field,):
        values = _values(rows, places, field)
        if term.field is None and set(map(type, values)) <= {float, NoneType}:
            continue
        # Names repeat: each is tested once.
        holds = {value: positive.holds({field: value}) for value in set(values)}
        found = [one or holds[value] for one, value in zip(found, values, strict=True)]
    return [place for place, one in zip(places, found, strict=True) if one != term.inverse]


def _keys(values: Sequence[Any]) -> "Floats":
    """Return numbers that sort as the values do; NaN for None."""
    import numpy as np

    texts = sorted({value for value in values if isinstance(value, str)})
    number: dict[Any, float] = {text: place for place, text in enumerate(texts)}
    number[None] = float("nan")
    return np.array([number.get(one, one) for one in values] if texts or None in values else values, dtype=np.float64)
