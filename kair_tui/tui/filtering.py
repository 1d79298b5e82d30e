"""Parses filters typed after `/`: words that all have to hold of a row. Quotes keep blanks together."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kair_engine.errors import UsageError

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
    """What was to be found, as it was typed."""
    field: str | None = None
    inverse: bool = False

    def holds(self, row: Mapping[str, object]) -> bool:
        """Whether the row has it, or with `!` has it not."""
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
    """What was typed, and the words of it; no words let every row through."""

    text: str
    terms: tuple[Term, ...]

    def matches(self, row: Mapping[str, object]) -> bool:
        """Whether every word holds of a row, given as its fields."""
        return all(term.holds(row) for term in self.terms)


def parse_filter(text: str, fields: tuple[str, ...]) -> Filter:
    """The filter that `text` describes, over rows that have `fields`. Raises UsageError, naming the word."""
    try:
        words = shlex.split(text.replace("\\", "\\\\"))
    except ValueError:
        raise UsageError(f"a quote is not closed in {text!r}") from None
    return Filter(text, tuple(_term(word, fields) for word in words))


def compares(value: float, wanted: str) -> bool:
    """Whether a number is `3`, `>3`, `>=3`, `<3`, `<=3` or within `3-7`."""
    if span := _RANGE.fullmatch(wanted):
        return float(span[1]) <= value <= float(span[2])
    compared = _COMPARED.fullmatch(wanted)
    return compared is not None and _ORDERS[compared[1] or "="](value, float(compared[2]))


def _term(word: str, fields: tuple[str, ...]) -> Term:
    inverse = word.startswith("!") and len(word) > 1
    body = word[1:] if inverse else word
    named = _FIELD.fullmatch(body)
    # `aten::add` and `C:\…` are text: only a name that a field has makes a field of it.
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
