"""Steps over JSON values in a text, compiled: each function takes the place where a value begins, and gives its end.

They refuse (-1) whatever they do not know for sure, so that what they take, every JSON parser takes. Where numba is not
installed they run as plain Python: good for tests, not for use.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

try:
    from numba import njit
except ImportError:

    def njit(**_: Any) -> Any:  # noqa: ANN401
        """Leaves a function as it is."""
        return lambda function: function


Text = npt.NDArray[np.uint8]

REFUSED: Final = -1
_DEEPEST: Final = 60
"""Levels of lists and objects; each takes a bit."""
_LONGEST_NUMBER: Final = 40
_MOST_DIGITS: Final = 18
_MOST_DIGITS_OF_TIME: Final = 15
_EXACT_DIGITS: Final = 25

QUOTE: Final = ord('"')
COMMA: Final = ord(",")
OPEN: Final = ord("{")
CLOSE: Final = ord("}")
_BACKSLASH: Final = ord("\\")
_COLON: Final = ord(":")
_OPEN_LIST: Final = ord("[")
_CLOSE_LIST: Final = ord("]")
_MINUS: Final = ord("-")
_PLUS: Final = ord("+")
_POINT: Final = ord(".")
_ZERO: Final = ord("0")
_NINE: Final = ord("9")
_EXPONENTS: Final = (ord("e"), ord("E"))
_SPACES: Final = (ord(" "), ord("\n"), ord("\r"), ord("\t"))
_ESCAPED: Final = tuple(b'"\\/bfnrt')
_LITERALS: Final = np.frombuffer(b"true false null ", np.uint8)


@njit(cache=True, nogil=True)
def after_space(text: Text, at: int, limit: int) -> int:
    """The first place from `at` on that is no white space."""
    while at < limit and text[at] in _SPACES:
        at += 1
    return at


@njit(cache=True, nogil=True)
def after_string(text: Text, at: int, limit: int) -> int:
    """Behind the text in quotes that begins at `at`. Texts with `\\u` are refused."""
    if at >= limit or text[at] != QUOTE:
        return REFUSED
    at += 1
    while at < limit:
        sign = text[at]
        if sign == QUOTE:
            return at + 1
        if sign < 32:
            return REFUSED
        if sign == _BACKSLASH:
            at += 1
            if at >= limit or text[at] not in _ESCAPED:
                return REFUSED
        at += 1
    return REFUSED


@njit(cache=True, nogil=True)
def after_plain_string(text: Text, at: int, limit: int) -> int:
    """The same of a text that stands for itself: of ASCII, and nothing in it is escaped."""
    if at >= limit or text[at] != QUOTE:
        return REFUSED
    at += 1
    while at < limit:
        sign = text[at]
        if sign == QUOTE:
            return at + 1
        if sign < 32 or sign > 126 or sign == _BACKSLASH:
            return REFUSED
        at += 1
    return REFUSED


@njit(cache=True, nogil=True)
def _after_digits(text: Text, at: int, limit: int) -> int:
    while at < limit and _ZERO <= text[at] <= _NINE:
        at += 1
    return at


@njit(cache=True, nogil=True)
def _after_whole(text: Text, at: int, limit: int) -> int:
    """Behind the digits before a number's point; no number begins with a zero that others follow."""
    end = _after_digits(text, at, limit)
    if end == at or (text[at] == _ZERO and end - at > 1):
        return REFUSED
    return end


@njit(cache=True, nogil=True)
def after_number(text: Text, at: int, limit: int) -> int:
    """Behind a number of moderate length."""
    begin = at
    if at < limit and text[at] == _MINUS:
        at += 1
    at = _after_whole(text, at, limit)
    if at == REFUSED:
        return REFUSED
    if at < limit and text[at] == _POINT:
        end = _after_digits(text, at + 1, limit)
        if end == at + 1:
            return REFUSED
        at = end
    if at < limit and text[at] in _EXPONENTS:
        at += 1
        if at < limit and (text[at] == _PLUS or text[at] == _MINUS):
            at += 1
        end = _after_digits(text, at, limit)
        if end == at:
            return REFUSED
        at = end
    return at if at - begin <= _LONGEST_NUMBER else REFUSED


@njit(cache=True, nogil=True)
def _after_literal(text: Text, at: int, limit: int) -> int:
    """Behind `true`, `false` or `null`."""
    begin = 0
    for end in range(len(_LITERALS)):
        if _LITERALS[end] != 32:
            continue
        size = end - begin
        if at + size <= limit:
            same = True
            for i in range(size):
                same = same and text[at + i] == _LITERALS[begin + i]
            if same:
                return at + size
        begin = end + 1
    return REFUSED


@njit(cache=True, nogil=True)
def after_key(text: Text, at: int, limit: int) -> int:
    """From the quote of a key to its value."""
    at = after_string(text, at, limit)
    return at if at == REFUSED else to_value(text, at, limit)


@njit(cache=True, nogil=True)
def to_value(text: Text, at: int, limit: int) -> int:
    """From a key's end to its value."""
    at = after_space(text, at, limit)
    if at >= limit or text[at] != _COLON:
        return REFUSED
    return after_space(text, at + 1, limit)


@njit(cache=True, nogil=True)
def after_value(text: Text, at: int, limit: int) -> int:
    """Behind any value."""
    depth = 0
    in_object = 0  # a bit for each level that is open, the innermost is the last
    while True:
        if at >= limit:
            return REFUSED
        sign = text[at]
        if sign == QUOTE:
            at = after_string(text, at, limit)
        elif sign in (OPEN, _OPEN_LIST):
            of_object = 1 if sign == OPEN else 0
            at = after_space(text, at + 1, limit)
            if at < limit and text[at] == (CLOSE if of_object else _CLOSE_LIST):
                at += 1
            else:
                if depth == _DEEPEST:
                    return REFUSED
                depth += 1
                in_object = in_object * 2 + of_object
                if of_object:
                    at = after_key(text, at, limit)
                    if at == REFUSED:
                        return REFUSED
                continue
        elif sign == _MINUS or _ZERO <= sign <= _NINE:
            at = after_number(text, at, limit)
        else:
            at = _after_literal(text, at, limit)
        if at == REFUSED:
            return REFUSED
        while depth:
            at = after_space(text, at, limit)
            if at >= limit:
                return REFUSED
            of_object = in_object % 2
            if text[at] == COMMA:
                at = after_space(text, at + 1, limit)
                if of_object:
                    at = after_key(text, at, limit)
                    if at == REFUSED:
                        return REFUSED
                break
            if text[at] != (CLOSE if of_object else _CLOSE_LIST):
                return REFUSED
            at += 1
            depth -= 1
            in_object //= 2
        if depth == 0:
            return at


@njit(cache=True, nogil=True)
def integer(text: Text, at: int, limit: int) -> tuple[int, int]:
    """A whole number of up to 18 digits, and the place behind it."""
    negative = at < limit and text[at] == _MINUS
    begin = at + 1 if negative else at
    end = _after_whole(text, begin, limit)
    if end == REFUSED or end - begin > _MOST_DIGITS:
        return 0, REFUSED
    if end < limit and (text[end] == _POINT or text[end] in _EXPONENTS):
        return 0, REFUSED
    value = 0
    for i in range(begin, end):
        value = value * 10 + (text[i] - _ZERO)
    return -value if negative else value, end


@njit(cache=True, nogil=True)
def thousandths(text: Text, at: int, limit: int) -> tuple[int, int]:
    """A decimal number times 1000, halves to the even one, and the place behind it.

    Numbers with exponents, and of more digits than are needed, are refused.
    """
    negative = at < limit and text[at] == _MINUS
    begin = at + 1 if negative else at
    point = _after_whole(text, begin, limit)
    if point == REFUSED or point - begin > _MOST_DIGITS_OF_TIME:
        return 0, REFUSED
    end = point
    if point < limit and text[point] == _POINT:
        end = _after_digits(text, point + 1, limit)
        if end == point + 1 or end - begin > _EXACT_DIGITS:
            return 0, REFUSED
    if end < limit and text[end] in _EXPONENTS:
        return 0, REFUSED
    value = 0
    for i in range(begin, point):
        value = value * 10 + (text[i] - _ZERO)
    for i in range(point + 1, point + 4):
        value = value * 10 + (text[i] - _ZERO if i < end else 0)
    if end > point + 4 and _rounds_up(text, point + 4, end, value % 2 == 1):
        value += 1
    return -value if negative else value, end


@njit(cache=True, nogil=True)
def _rounds_up(text: Text, begin: int, end: int, is_odd: bool) -> bool:
    """Whether the digits after the last one that counts are more than half, or half and that one is odd."""
    if text[begin] != _ZERO + 5:
        return bool(text[begin] > _ZERO + 5)
    for i in range(begin + 1, end):
        if text[i] != _ZERO:
            return True
    return is_odd
