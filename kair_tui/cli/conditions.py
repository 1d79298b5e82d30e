"""Conditions of `when`, `expect` and `--fail-on`: comparisons of fields and values, joined by and, or, not."""

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from kair_engine.errors import UsageError
from kair_tui.cli.words import Reference, Word, literal, read_word

ValueOf = Callable[[Reference], Any]

_SIGNS: Final = re.compile(r"==|!=|<=|>=|<|>|\(|\)")
ORDERS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MOST_NESTED: Final = 100
_COMPARISONS: Final = ("==", "!=", *ORDERS, "in", "contains")


@dataclass(frozen=True)
class Comparison:
    """`$job.slowdown > 1.05`; without a sign, whether there is anything: not null, false, nought or empty."""

    left: Word
    sign: str | None = None
    right: Word | None = None

    def holds(self, value_of: ValueOf) -> bool:
        """Whether it holds. Raises UsageError for values that cannot be compared so."""
        left = self.left.value(value_of)
        if self.right is None:
            return bool(left)
        right = self.right.value(value_of)
        if self.sign in ("==", "!="):
            return (left == right) is (self.sign == "==")
        if self.sign == "in":
            return _contains(listed_values(right), left)
        if self.sign == "contains":
            return _contains(left, right)
        for value, word in ((left, self.left), (right, self.right)):
            _require_number(value, word)
        return ORDERS[self.sign or ""](left, right)

    @property
    def references(self) -> tuple[Reference, ...]:
        """What it refers to."""
        return self.left.references + (self.right.references if self.right else ())


def _contains(whole: Any, part: Any) -> bool:  # noqa: ANN401
    """Text its parts, a list its values; a list of records those that go by this value, their first field."""
    if not isinstance(whole, list | tuple):
        return whole is not None and str(part) in str(whole)
    return part in whole or any(isinstance(one, dict) and next(iter(one.values()), None) == part for one in whole)


@dataclass(frozen=True)
class Joined:
    """Conditions of which all, any, or (`not`, of one) none must hold."""

    how: str
    parts: "tuple[Condition, ...]"

    def holds(self, value_of: ValueOf) -> bool:
        """Whether it holds; what comes after the part that decides is not looked at."""
        if self.how == "not":
            return not self.parts[0].holds(value_of)
        return (all if self.how == "and" else any)(part.holds(value_of) for part in self.parts)

    @property
    def references(self) -> tuple[Reference, ...]:
        """What it refers to."""
        return tuple(reference for part in self.parts for reference in part.references)


Condition = Comparison | Joined


def parse_condition(text: str) -> Condition:
    """`$t.verdict == straggler and not ($t.findings[0].slowdown < 1.05)`. Raises UsageError for anything else."""
    tokens = _Tokens(text)
    if tokens.next is None:
        raise UsageError("the condition is missing")
    condition = _any(tokens)
    if tokens.next is not None:
        raise UsageError(f"the condition {text.strip()!r} goes on after it is complete")
    return condition


def _any(tokens: "_Tokens") -> Condition:
    return _chain(tokens, "or", lambda: _chain(tokens, "and", lambda: _one(tokens)))


def _chain(tokens: "_Tokens", joint: str, part: Callable[[], Condition]) -> Condition:
    parts = [part()]
    while tokens.next == joint:
        tokens.take()
        parts.append(part())
    return parts[0] if len(parts) == 1 else Joined(joint, tuple(parts))


def _one(tokens: "_Tokens") -> Condition:
    if tokens.next in ("not", "("):
        tokens.nested += 1
        if tokens.nested > _MOST_NESTED:
            raise UsageError(f"a condition has {_MOST_NESTED} brackets and nots at most")
    if tokens.next == "not":
        tokens.take()
        return Joined("not", (_one(tokens),))
    if tokens.next == "(":
        tokens.take()
        inner = _any(tokens)
        if tokens.take() != ")":
            raise UsageError(f"a bracket is not closed in {tokens.text!r}")
        return inner
    left = tokens.operand()
    if tokens.next not in _COMPARISONS:
        return Comparison(left)
    sign = str(tokens.take())
    return Comparison(left, sign, _bracketed(tokens) if sign == "in" and tokens.next == "(" else tokens.operand())


def _bracketed(tokens: "_Tokens") -> Word:
    """`(straggler, job_wide)`, blanks or not: as a list with commas."""
    tokens.take()
    words = [tokens.operand()]
    while tokens.next != ")":
        words.append(tokens.operand())
    tokens.take()
    if any(word.references for word in words):
        raise UsageError(f"values in brackets are written out in {tokens.text!r}", "compare with $name by ==, and or")
    values = [one for word in words for one in (word.text or "").split(",") if one]
    return Word((",".join(values),), quoted=True)


class _Tokens:
    """The signs, keywords (text) and operands (words) of a condition, one ahead."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self.nested = 0
        """Brackets and nots so far."""
        self._rest = _tokens(self.text)
        self.next = next(self._rest, None)

    def take(self) -> str | Word | None:
        """The next one, which is then behind."""
        taken, self.next = self.next, next(self._rest, None)
        return taken

    def operand(self) -> Word:
        """The next one, which must be a value."""
        taken = self.take()
        if not isinstance(taken, Word):
            raise UsageError(
                f"a value is missing in the condition {self.text!r}", "write $name.field, a number, or text"
            )
        return taken


def _tokens(text: str) -> Iterator[str | Word]:
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif sign := _SIGNS.match(text, at):
            yield sign[0]
            at = sign.end()
        else:
            word, end = read_word(text, at, "()<>=!")
            if end == at:
                raise UsageError(f"{text[at]!r} is no comparison in {text!r}", f"use {', '.join(_COMPARISONS)}")
            at = end
            is_keyword = not word.quoted and word.text in ("and", "or", "not", "in", "contains")
            yield str(word.text) if is_keyword else word


def listed_values(value: Any) -> "list[Any] | tuple[Any, ...]":  # noqa: ANN401
    """A list as it is; text is a list with commas, whose numbers are numbers."""
    if isinstance(value, list | tuple):
        return value
    return [literal(one.strip()) for one in str(value).split(",")]


def _require_number(value: Any, word: Word) -> None:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, int | float):
        name = str(word.parts[0]) if word.references else repr(word.text)
        is_what = "null" if value is None else "no number"
        raise UsageError(f"{name} is {is_what}, which is neither less nor more", f"ask first: {name} != null")
