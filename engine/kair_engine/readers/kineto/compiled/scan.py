"""The events of a text as columns, compiled by numba: numbers, and which texts stand where.

What is not known for sure is refused, so that what is taken, every JSON parser takes, and understands alike. All that is
compiled stands in this one file: numba finds that kept machine code is out of date by the file of its function alone.
Where numba is not installed these are plain functions: good for tests, not for use.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

try:
    from numba import njit
    from numba import uintp as _unsigned  # else each place would be looked at for being counted from the end
except ImportError:
    _unsigned = int

    def njit(**_: Any) -> Any:  # noqa: ANN401
        """Leaves a function as it is."""
        return lambda function: function


Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Text = npt.NDArray[np.uint8]

# What became of a scan.
DONE: Final = 0
NO_ROOM: Final = 1
"""The columns are full: what is in them has to be taken, and the scan goes on."""
UNKNOWN: Final = 2
"""Something in the text is not known for sure."""

# Columns of rows: numbers of an event, the places of its texts and of its arguments, and its own.
START: Final = 0
DURATION: Final = 1
CORRELATION: Final = 2
EXTERNAL_ID: Final = 3
SIZE: Final = 4
ODD: Final = 5
"""Which times are not written as plain numbers or not there, in bits: 1 the start, 2 the duration."""
TS: Final = 6
DUR: Final = 8
NAME: Final = 10
CAT: Final = 12
PID: Final = 14
TID: Final = 16
ARGS: Final = 18
PH: Final = 20
EVENT: Final = 22
COLUMNS: Final = 23
"""From TS on two for each: begin and end."""
_OTHER: Final = -1
_MAYBE_INTEGER: Final = -2
_MAYBE_TEXT: Final = -3

# Columns of tokens.
TOKEN_NAME: Final = 0
TOKEN_TRACK: Final = 4

ARGUMENTS: Final = {
    "bytes": SIZE,
    "correlation": CORRELATION,
    "External id": EXTERNAL_ID,
    "Seq": _MAYBE_INTEGER,
    "Src Rank": _MAYBE_INTEGER,
    "Dst Rank": _MAYBE_INTEGER,
    "In msg nelems": _MAYBE_INTEGER,
    "Out msg nelems": _MAYBE_INTEGER,
    "dtype": _MAYBE_TEXT,
    "Collective name": _MAYBE_TEXT,
    "Process Group Name": _MAYBE_TEXT,
    "Process Group Ranks": _MAYBE_TEXT,
}
"""The arguments whose types are looked at."""
_BY_LENGTH: Final = sorted(ARGUMENTS, key=len)
_LENGTHS: Final = [len(key) for key in _BY_LENGTH]
_LONGEST_KEY: Final = max(_LENGTHS)
_KEY_TEXTS: Final = np.frombuffer("".join(_BY_LENGTH).encode(), np.uint8)
_KEY_BEGINS: Final = np.cumsum([0, *_LENGTHS])
_KEY_FIELDS: Final = np.array([ARGUMENTS[key] for key in _BY_LENGTH])
_KEYS_OF_LENGTH: Final = np.searchsorted(_LENGTHS, np.arange(_LONGEST_KEY + 2))

_MOST_PROBES: Final = 64
_HASH_BITS: Final = (1 << 32) - 1
_FNV_PRIME: Final = 16777619
_FNV_BASIS: Final = 2166136261

_REFUSED: Final = -1
_DEEPEST: Final = 60
"""Levels of lists and objects; each takes a bit."""
_LONGEST_NUMBER: Final = 40
_MOST_DIGITS: Final = 18
_LATEST: Final = 4 * 10**15
"""Microseconds whose thousandths fit 64 bits; they have 16 digits, and those since 1970 as many."""
_EXACT_DIGITS: Final = 25

_QUOTE: Final = ord('"')
_COMMA: Final = ord(",")
_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")
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
_X: Final = ord("X")
_PAIRED: Final = (ord("B"), ord("E"))
_NULL: Final = ord("n")
_A: Final = ord("a")
_C: Final = ord("c")
_D: Final = ord("d")
_E: Final = ord("e")
_G: Final = ord("g")
_H: Final = ord("h")
_I: Final = ord("i")
_M: Final = ord("m")
_N: Final = ord("n")
_P: Final = ord("p")
_R: Final = ord("r")
_S: Final = ord("s")
_T: Final = ord("t")
_U: Final = ord("u")


class Tokens(NamedTuple):
    """Different texts, and different tracks (category, process, thread), by the order in which they came.

    A text is kept with its quotes: a thread "7" is not thread 7.
    """

    slots: Int32s
    """Of a table by the texts' content; 0 is a free one."""
    texts: Text
    ends: Int64s
    track_slots: Int32s
    tracks: Int32s
    counts: Int64s
    """How many texts there are, and how many tracks. Text 0 is empty: it stands for a field that is not there."""


@njit(cache=True, nogil=True)
def scan_events(text: Text, at: int, limit: int, rows: Int64s, ended: Int64s) -> int:
    """Takes the complete events of `text[at:limit]` into `rows`, as far as there is room; says why it ended.

    Where it ended goes to `ended`, with the number of rows: all events before that place are taken.
    """
    count = 0
    row = np.empty(COLUMNS, np.int64)
    while True:
        ended[0], ended[1] = count, at
        if count == len(rows):
            return NO_ROOM
        # Slices take longer: they make arrays.
        for column in range(COLUMNS):
            row[column] = 0
        for column in range(CORRELATION, SIZE + 1):
            row[column] = -1
        row[ODD] = 3
        row[EVENT] = at
        at = _event(text, at, limit, row)
        if at == _REFUSED:
            return UNKNOWN
        if row[PH + 1] - row[PH] == 3:
            phase = text[_unsigned(row[PH] + 1)]
            if phase == _X:
                for column in range(COLUMNS):
                    rows[count, column] = row[column]
                count += 1
            elif phase in _PAIRED:
                return UNKNOWN
        at = _after_space(text, at, limit)
        # Some write one event a line, without commas.
        if at < limit and text[_unsigned(at)] == _COMMA:
            at = _after_space(text, at + 1, limit)
            if at >= limit:
                return UNKNOWN
        if at >= limit:
            ended[0], ended[1] = count, limit
            return DONE


@njit(nogil=True)
def _event(text: Text, at: int, limit: int, row: Int64s) -> int:
    """Behind the event that begins at `at`."""
    if at >= limit or text[_unsigned(at)] != _OPEN:
        return _REFUSED
    at = _after_space(text, at + 1, limit)
    if at < limit and text[_unsigned(at)] == _CLOSE:
        return at + 1
    while True:
        key = at + 1
        at = _after_plain_string(text, at, limit)
        if at == _REFUSED:
            return _REFUSED
        field = _field(text, key, at - 1)
        begin = _to_value(text, at, limit)
        if begin == _REFUSED:
            return _REFUSED
        at = _value_of(text, begin, limit, field, row)
        if at == _REFUSED:
            return _REFUSED
        if field != _OTHER:
            row[field], row[field + 1] = begin, at
        at = _after_space(text, at, limit)
        if at >= limit:
            return _REFUSED
        if text[_unsigned(at)] == _CLOSE:
            return at + 1
        if text[_unsigned(at)] != _COMMA:
            return _REFUSED
        at = _after_space(text, at + 1, limit)


@njit(nogil=True)
def _field(text: Text, begin: int, end: int) -> int:
    """The columns of the field with the key `text[begin:end]`."""
    size = end - begin
    if size < 2 or size > 4:
        return _OTHER
    first, second, last = text[_unsigned(begin)], text[_unsigned(begin + 1)], text[_unsigned(end - 1)]
    field = _OTHER
    if size == 2:
        if first == _T and last == _S:
            field = TS
        elif first == _P and last == _H:
            field = PH
    elif size == 3:
        if first == _D and second == _U and last == _R:
            field = DUR
        elif first == _C and second == _A and last == _T:
            field = CAT
        elif second == _I and last == _D:
            field = PID if first == _P else TID if first == _T else _OTHER
    elif first == _N and second == _A and text[_unsigned(begin + 2)] == _M and last == _E:
        field = NAME
    elif first == _A and second == _R and text[_unsigned(begin + 2)] == _G and last == _S:
        field = ARGS
    return field


@njit(nogil=True)
def _value_of(text: Text, at: int, limit: int, field: int, row: Int64s) -> int:
    """Behind the value of an event's field."""
    if field in (TS, DUR):
        return _time(text, at, limit, START if field == TS else DURATION, row)
    if field in (PID, TID):
        end = _after_string(text, at, limit)
        if end == _REFUSED:
            _, end = _integer(text, at, limit)
        return end
    if field == PH:
        return _after_plain_string(text, at, limit)
    if field in (NAME, CAT):
        return _after_string(text, at, limit)
    if field == ARGS:
        return _arguments(text, at, limit, row)
    return _after_value(text, at, limit)


@njit(nogil=True)
def _time(text: Text, at: int, limit: int, column: int, row: Int64s) -> int:
    """Behind a time, a number or a text."""
    row[column], end = _thousandths(text, at, limit)
    if end != _REFUSED:
        row[ODD] &= ~(1 << column)
        return end
    row[ODD] |= 1 << column
    end = _after_string(text, at, limit)
    return _after_number(text, at, limit) if end == _REFUSED else end


@njit(nogil=True)
def _arguments(text: Text, at: int, limit: int, row: Int64s) -> int:
    """Behind the arguments of an event, an object or null."""
    for column in range(CORRELATION, SIZE + 1):
        row[column] = -1
    if at < limit and text[_unsigned(at)] == _NULL:
        return _after_literal(text, at, limit)
    if at >= limit or text[_unsigned(at)] != _OPEN:
        return _REFUSED
    at = _after_space(text, at + 1, limit)
    if at < limit and text[_unsigned(at)] == _CLOSE:
        return at + 1
    while True:
        key = at + 1
        at = _after_plain_string(text, at, limit)
        if at == _REFUSED:
            return _REFUSED
        field = _argument(text, key, at - 1)
        at = _to_value(text, at, limit)
        if at == _REFUSED or at >= limit:
            return _REFUSED
        if field >= 0:
            row[field], at = _integer(text, at, limit)
        elif field == _OTHER or text[_unsigned(at)] == _NULL:
            at = _after_value(text, at, limit)
        elif field == _MAYBE_INTEGER:
            _, at = _integer(text, at, limit)
        else:
            at = _after_plain_string(text, at, limit)
        if at == _REFUSED:
            return _REFUSED
        at = _after_space(text, at, limit)
        if at >= limit:
            return _REFUSED
        if text[_unsigned(at)] == _CLOSE:
            return at + 1
        if text[_unsigned(at)] != _COMMA:
            return _REFUSED
        at = _after_space(text, at + 1, limit)


@njit(nogil=True)
def _argument(text: Text, begin: int, end: int) -> int:
    """What is known of the argument with the key `text[begin:end]`: its column, or its type."""
    size = end - begin
    if size > _LONGEST_KEY:
        return _OTHER
    for key in range(_KEYS_OF_LENGTH[size], _KEYS_OF_LENGTH[size + 1]):
        first = _KEY_BEGINS[key]
        i = 0
        while i < size and text[_unsigned(begin + i)] == _KEY_TEXTS[_unsigned(first + i)]:
            i += 1
        if i == size:
            return int(_KEY_FIELDS[key])
    return _OTHER


@njit(nogil=True)
def _after_space(text: Text, at: int, limit: int) -> int:
    """The first place from `at` on that is no white space."""
    while at < limit and text[_unsigned(at)] <= 32 and text[_unsigned(at)] in _SPACES:
        at += 1
    return at


@njit(nogil=True)
def _after_string(text: Text, at: int, limit: int) -> int:
    """Behind the text in quotes that begins at `at`. Texts with `\\u` are refused."""
    if at >= limit or text[_unsigned(at)] != _QUOTE:
        return _REFUSED
    at += 1
    while at < limit:
        sign = text[_unsigned(at)]
        if sign == _QUOTE:
            return at + 1
        if sign < 32:
            return _REFUSED
        if sign == _BACKSLASH:
            at += 1
            if at >= limit or text[_unsigned(at)] not in _ESCAPED:
                return _REFUSED
        at += 1
    return _REFUSED


@njit(nogil=True)
def _after_plain_string(text: Text, at: int, limit: int) -> int:
    """The same of a text that stands for itself: of ASCII, and nothing in it is escaped."""
    if at >= limit or text[_unsigned(at)] != _QUOTE:
        return _REFUSED
    at += 1
    while at < limit:
        sign = text[_unsigned(at)]
        if sign == _QUOTE:
            return at + 1
        if sign < 32 or sign > 126 or sign == _BACKSLASH:
            return _REFUSED
        at += 1
    return _REFUSED


@njit(nogil=True)
def _after_digits(text: Text, at: int, limit: int) -> int:
    while at < limit and _ZERO <= text[_unsigned(at)] <= _NINE:
        at += 1
    return at


@njit(nogil=True)
def _after_whole(text: Text, at: int, limit: int) -> int:
    """Behind the digits before a number's point; no number begins with a zero that others follow."""
    end = _after_digits(text, at, limit)
    if end == at or (text[_unsigned(at)] == _ZERO and end - at > 1):
        return _REFUSED
    return end


@njit(nogil=True)
def _after_number(text: Text, at: int, limit: int) -> int:
    """Behind a number of moderate length."""
    begin = at
    if at < limit and text[_unsigned(at)] == _MINUS:
        at += 1
    at = _after_whole(text, at, limit)
    if at == _REFUSED:
        return _REFUSED
    if at < limit and text[_unsigned(at)] == _POINT:
        end = _after_digits(text, at + 1, limit)
        if end == at + 1:
            return _REFUSED
        at = end
    if at < limit and text[_unsigned(at)] in _EXPONENTS:
        at += 1
        if at < limit and (text[_unsigned(at)] == _PLUS or text[_unsigned(at)] == _MINUS):
            at += 1
        end = _after_digits(text, at, limit)
        if end == at:
            return _REFUSED
        at = end
    return at if at - begin <= _LONGEST_NUMBER else _REFUSED


@njit(nogil=True)
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
                same = same and text[_unsigned(at + i)] == _LITERALS[begin + i]
            if same:
                return at + size
        begin = end + 1
    return _REFUSED


@njit(nogil=True)
def _after_key(text: Text, at: int, limit: int) -> int:
    """From the quote of a key to its value."""
    at = _after_string(text, at, limit)
    return at if at == _REFUSED else _to_value(text, at, limit)


@njit(nogil=True)
def _to_value(text: Text, at: int, limit: int) -> int:
    """From a key's end to its value."""
    at = _after_space(text, at, limit)
    if at >= limit or text[_unsigned(at)] != _COLON:
        return _REFUSED
    return _after_space(text, at + 1, limit)


@njit(nogil=True)
def _after_value(text: Text, at: int, limit: int) -> int:
    """Behind any value."""
    depth = 0
    in_object = 0  # a bit for each level that is open, the innermost is the last
    while True:
        if at >= limit:
            return _REFUSED
        sign = text[_unsigned(at)]
        if sign == _QUOTE:
            at = _after_string(text, at, limit)
        elif sign in (_OPEN, _OPEN_LIST):
            of_object = 1 if sign == _OPEN else 0
            at = _after_space(text, at + 1, limit)
            if at < limit and text[_unsigned(at)] == (_CLOSE if of_object else _CLOSE_LIST):
                at += 1
            else:
                if depth == _DEEPEST:
                    return _REFUSED
                depth += 1
                in_object = in_object * 2 + of_object
                if of_object:
                    at = _after_key(text, at, limit)
                    if at == _REFUSED:
                        return _REFUSED
                continue
        elif sign == _MINUS or _ZERO <= sign <= _NINE:
            at = _after_number(text, at, limit)
        else:
            at = _after_literal(text, at, limit)
        if at == _REFUSED:
            return _REFUSED
        while depth:
            at = _after_space(text, at, limit)
            if at >= limit:
                return _REFUSED
            of_object = in_object % 2
            if text[_unsigned(at)] == _COMMA:
                at = _after_space(text, at + 1, limit)
                if of_object:
                    at = _after_key(text, at, limit)
                    if at == _REFUSED:
                        return _REFUSED
                break
            if text[_unsigned(at)] != (_CLOSE if of_object else _CLOSE_LIST):
                return _REFUSED
            at += 1
            depth -= 1
            in_object //= 2
        if depth == 0:
            return at


@njit(nogil=True)
def _integer(text: Text, at: int, limit: int) -> tuple[int, int]:
    """A whole number of up to 18 digits, and the place behind it."""
    negative = at < limit and text[_unsigned(at)] == _MINUS
    begin = at + 1 if negative else at
    end = _after_whole(text, begin, limit)
    if end == _REFUSED or end - begin > _MOST_DIGITS:
        return 0, _REFUSED
    if end < limit and (text[_unsigned(end)] == _POINT or text[_unsigned(end)] in _EXPONENTS):
        return 0, _REFUSED
    value = 0
    for i in range(begin, end):
        value = value * 10 + (text[_unsigned(i)] - _ZERO)
    return -value if negative else value, end


@njit(nogil=True)
def _thousandths(text: Text, at: int, limit: int) -> tuple[int, int]:
    """A decimal number times 1000, halves to the even one, and the place behind it.

    Numbers with exponents, and of more digits than are needed, are refused.
    """
    negative = at < limit and text[_unsigned(at)] == _MINUS
    begin = at + 1 if negative else at
    point = _after_whole(text, begin, limit)
    if point == _REFUSED or point - begin > _MOST_DIGITS:
        return 0, _REFUSED
    end = point
    if point < limit and text[_unsigned(point)] == _POINT:
        end = _after_digits(text, point + 1, limit)
        if end == point + 1 or end - begin > _EXACT_DIGITS:
            return 0, _REFUSED
    if end < limit and text[_unsigned(end)] in _EXPONENTS:
        return 0, _REFUSED
    value = 0
    for i in range(begin, point):
        value = value * 10 + (text[_unsigned(i)] - _ZERO)
    if value >= _LATEST:
        return 0, _REFUSED
    for i in range(point + 1, point + 4):
        value = value * 10 + (text[_unsigned(i)] - _ZERO if i < end else 0)
    if end > point + 4 and _rounds_up(text, point + 4, end, value % 2 == 1):
        value += 1
    return -value if negative else value, end


@njit(nogil=True)
def _rounds_up(text: Text, begin: int, end: int, is_odd: bool) -> bool:
    """Whether the digits after the last one that counts are more than half, or half and that one is odd."""
    if text[_unsigned(begin)] != _ZERO + 5:
        return bool(text[_unsigned(begin)] > _ZERO + 5)
    for i in range(begin + 1, end):
        if text[_unsigned(i)] != _ZERO:
            return True
    return is_odd


@njit(cache=True, nogil=True)
def find_tokens(text: Text, rows: Int64s, tokens: Tokens, found: Int32s) -> int:
    """Numbers the texts of each row: name, category, process and thread, and the track that these three are.

    Returns how many rows there was room for.
    """
    slots, texts, ends = tokens.slots, tokens.texts, tokens.ends
    last = np.zeros(TOKEN_TRACK, np.int64)
    for row in range(len(rows)):
        for column in range(TOKEN_TRACK):
            begin, end = rows[row, NAME + 2 * column], rows[row, NAME + 2 * column + 1]
            number = last[column]
            if begin == end:
                number = 0
            elif number == 0 or not _is_token(text, begin, end, texts, ends[number - 1], ends[number]):
                hashed = _FNV_BASIS
                for i in range(begin, end):
                    hashed = ((hashed ^ text[_unsigned(i)]) * _FNV_PRIME) & _HASH_BITS
                number = -1
                for probe in range(_MOST_PROBES):
                    slot = (hashed + probe) & (len(slots) - 1)
                    number = slots[slot]
                    if number == 0 or _is_token(text, begin, end, texts, ends[number - 1], ends[number]):
                        break
                    number = -1
                if number == 0:
                    number = _new_token(text, begin, end, tokens)
                    slots[slot] = max(number, 0)
                if number == -1:
                    return row
            last[column] = number
            found[row, column] = number
        track = _track(last[1], last[2], last[3], tokens)
        if track == -1:
            return row
        found[row, TOKEN_TRACK] = track
    return len(rows)


@njit(nogil=True)
def _is_token(text: Text, begin: int, end: int, texts: Text, first: int, last: int) -> bool:
    if last - first != end - begin:
        return False
    for i in range(end - begin):
        if texts[_unsigned(first + i)] != text[_unsigned(begin + i)]:
            return False
    return True


@njit(nogil=True)
def _new_token(text: Text, begin: int, end: int, tokens: Tokens) -> int:
    number = tokens.counts[0]
    first = tokens.ends[number - 1]
    if number == len(tokens.ends) or first + end - begin > len(tokens.texts):
        return -1
    for i in range(end - begin):
        tokens.texts[first + i] = text[begin + i]
    tokens.ends[number] = first + end - begin
    tokens.counts[0] = number + 1
    return int(number)


@njit(nogil=True)
def _track(category: int, process: int, thread: int, tokens: Tokens) -> int:
    slot = (category * 31 + process) * 1000003 + thread
    for _ in range(_MOST_PROBES):
        slot &= len(tokens.track_slots) - 1
        number = tokens.track_slots[slot] - 1
        if number < 0:
            number = tokens.counts[1]
            if number == len(tokens.tracks):
                return -1
            tokens.tracks[number, 0] = category
            tokens.tracks[number, 1] = process
            tokens.tracks[number, 2] = thread
            tokens.track_slots[slot] = number + 1
            tokens.counts[1] = number + 1
            return int(number)
        known = tokens.tracks[number]
        if known[0] == category and known[1] == process and known[2] == thread:
            return int(number)
        slot += 1
    return -1
