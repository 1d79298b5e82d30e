"""Conditions of `when`, `expect` and `--fail-on`: comparisons of fields and values, joined by and, or, not.

Each word is replaced by a name, so that the grammar is Python's: Python parses it, and evaluates nothing.
"""

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from kair_engine.errors import UsageError
from kair_tui.cli.words import Reference, Word, literal, read_word

ValueOf = Callable[[Reference], Any]


def _contains(whole: Any, part: Any) -> bool:  # noqa: ANN401
    """Return whether text contains a text, a list a value, or a list a record whose first field has the value."""
    if not isinstance(whole, list | tuple):
        return whole is not None and str(part) in str(whole)
    return part in whole or any(isinstance(one, dict) and next(iter(one.values()), None) == part for one in whole)


def listed_values(value: Any) -> "list[Any] | tuple[Any, ...]":  # noqa: ANN401
    """Return a list unchanged, and text as a list split at commas, with numbers converted."""
    if isinstance(value, list | tuple):
        return value
    return [literal(one.strip()) for one in str(value).split(",")]


ORDERS: Final = ("<", "<=", ">", ">=")
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda part, whole: _contains(listed_values(whole), part),
    "contains": _contains,
}
_SIGNS: Final = dict(zip((ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.Is), _COMPARE, strict=True))
_KEYWORDS: Final = {"and": "and", "or": "or", "not": "not", "in": "in", "contains": "is"}
"""Python's spelling of each: `is` stands for `contains`, and binds as `in` does."""
_SIGN: Final = re.compile(r"[=!<>]=|[<>()]")
_SIGN_OF_LIST: Final = re.compile(r"[=!<>]=|[<>(),]")
_MOST_NESTED: Final = 100


@dataclass(frozen=True)
class Comparison:
    """`$job.slowdown > 1.05`; without an operator, whether the value is not null, false, zero or empty."""

    left: Word
    sign: str | None = None
    right: Word | None = None

    def holds(self, value_of: ValueOf) -> bool:
        """Return whether it holds. Raises UsageError for incomparable values."""
        left = self.left.value(value_of)
        if self.right is None:
            return bool(left)
        right = self.right.value(value_of)
        for value, word in ((left, self.left), (right, self.right)) if self.sign in ORDERS else ():
            if isinstance(value, bool) or not isinstance(value, int | float):
                name = str(word.parts[0]) if word.references else repr(word.text)
                is_what = "null" if value is None else "no number"
                raise UsageError(f"{name} is {is_what}, which is neither less nor more", f"ask first: {name} != null")
        return _COMPARE[self.sign or ""](left, right)

    @property
    def references(self) -> tuple[Reference, ...]:
        """Return its references."""
        return self.left.references + (self.right.references if self.right else ())


@dataclass(frozen=True)
class Joined:
    """Conditions of which all, any, or (`not`, with one) none must hold."""

    how: str
    parts: "tuple[Condition, ...]"

    def holds(self, value_of: ValueOf) -> bool:
        """Return whether it holds; parts after the decisive one are not evaluated."""
        if self.how == "not":
            return not self.parts[0].holds(value_of)
        return (all if self.how == "and" else any)(part.holds(value_of) for part in self.parts)

    @property
    def references(self) -> tuple[Reference, ...]:
        """Return its references."""
        return tuple(reference for part in self.parts for reference in part.references)


Condition = Comparison | Joined


def parse_condition(text: str) -> Condition:
    """Parse `$t.verdict == straggler and not ($t.findings[0].slowdown < 1.05)`. Raises UsageError for anything else."""
    text = text.strip()
    if not text:
        raise UsageError("the condition is missing")
    words: dict[str, Word] = {}
    tokens = _tokens(text, words)
    if tokens.count("not") + tokens.count("(") > _MOST_NESTED:
        raise UsageError(f"a condition has {_MOST_NESTED} brackets and nots at most")
    try:
        return _condition(ast.parse(" ".join(tokens), mode="eval").body, words)
    except SyntaxError:
        raise _unread(text, tokens) from None


def _tokens(text: str, words: dict[str, Word]) -> list[str]:
    """Split a condition into Python's tokens; the names that replace its words are added to `words`."""
    tokens: list[str] = []
    at, is_list = 0, False
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif sign := (_SIGN_OF_LIST if is_list else _SIGN).match(text, at):
            is_list = sign[0] == "," or (sign[0] == "(" and tokens[-1:] in (["in"], ["=="], ["!="]))
            tokens.append(sign[0])
            at = sign.end()
        else:
            word, end = read_word(text, at, "()<>=!," if is_list else "()<>=!")
            if end == at:
                raise UsageError(f"{text[at]!r} is no comparison in {text!r}", f"use {', '.join(_SIGNS.values())}")
            at = end
            keyword = None if word.quoted else _KEYWORDS.get(word.text or "")
            tokens.append(keyword or f"_{len(words)}")
            if keyword is None:
                words[tokens[-1]] = word
    return tokens


def _condition(node: ast.expr, words: dict[str, Word]) -> Condition:
    """Build a condition from Python's syntax tree. Raises SyntaxError for Python that is no condition."""
    match node:
        case ast.BoolOp():
            how = "and" if isinstance(node.op, ast.And) else "or"
            return Joined(how, tuple(_condition(part, words) for part in node.values))
        case ast.UnaryOp(op=ast.Not()):
            return Joined("not", (_condition(node.operand, words),))
        case ast.Name():
            return Comparison(words[node.id])
        case ast.Compare(left=ast.Name(id=left), ops=[sign], comparators=[ast.Name(id=right)]) if type(sign) in _SIGNS:
            return Comparison(words[left], _SIGNS[type(sign)], words[right])
        case ast.Compare(left=ast.Name(id=left), ops=[ast.In()], comparators=[ast.Tuple(elts=[_, *_] as listed)]):
            values = [words[value.id] for value in listed if isinstance(value, ast.Name)]
            if any(value.references for value in values):
                raise UsageError("several values in brackets are written out", "compare with $name by ==, and or")
            if len(values) == len(listed):
                return Comparison(
                    words[left], "in", Word((",".join(value.text or "" for value in values),), quoted=True)
                )
    raise SyntaxError


def _unread(text: str, tokens: list[str]) -> UsageError:
    """Return why Python cannot parse it as a condition."""
    if tokens.count("(") > tokens.count(")"):
        return UsageError(f"a bracket is not closed in {text!r}")
    if any(left[0] not in "_)" and right[0] not in "_(n" for left, right in pairwise(("(", *tokens, ")"))):
        return UsageError(f"a value is missing in the condition {text!r}", "write $name.field, a number, or text")
    return UsageError(f"the condition {text!r} goes on after it is complete")
