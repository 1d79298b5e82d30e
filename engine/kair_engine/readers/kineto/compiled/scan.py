"""Scans a text's events into columns, compiled by numba: numbers, and the positions of texts.

Anything uncertain is refused, so that all accepted text is valid JSON that every parser reads alike. Code that is
compiled together stands in one file: numba decides by that file alone whether its cached code is out of date.
"""

from typing import TYPE_CHECKING, Final

import numpy as np

from kair_engine.numba_or_not import Int64s, Text, unsigned
from kair_engine.numba_or_not import njit_without_arrays as njit
from kair_engine.readers.kineto.compiled import scan_columns
from kair_engine.readers.kineto.compiled import scan_columns as field_marks
from kair_engine.readers.kineto.compiled.scan_columns import ARGS, CORRELATION, DURATION, NAME, ODD

if TYPE_CHECKING:
    from kair_engine.readers.kineto.compiled.tokens import Keys

_REFUSED: Final = -1
_DEEPEST: Final = 60
"""Levels of lists and objects; each takes a bit."""
_LONGEST_NUMBER: Final = 40
_MOST_DIGITS: Final = 18
_LATEST: Final = 4 * 10**15
"""Microseconds whose thousandths fit 64 bits; they have 16 digits, as do those since 1970."""
_EXACT_DIGITS: Final = 25
_QUOTE, _COMMA, _COLON, _BACKSLASH = b'",:\\'
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = b"{}[]"
_MINUS, _PLUS, _POINT, _ZERO, _NINE = b"-+.09"
_EXPONENTS: Final = tuple(b"eE")
_SPACES: Final = tuple(b" \n\r\t")
_ESCAPED: Final = tuple(b'"\\/bfnrt')
_LITERALS: Final = np.frombuffer(b"true false null ", np.uint8)
_NULL, _COMPLETE = b"nX"
_PAIRED: Final = tuple(b"BE")


@njit(cache=True, nogil=True)
def scan_events(text: Text, limit: int, rows: Int64s, ended: Int64s, most: int, noted: Int64s, keys: "Keys") -> int:
    """Take the complete events of `text[:limit]` into `rows` while there is room, and return why it ended.

    `ended` has the number of rows and the begin of the next event, before and after. At most `most` events are parsed;
    for them `noted` gets the positions of numbers and names, after a first entry with their count.
    """
    count, at = ended[0], ended[1]
    noted[0, 0] = 1
    for parsed in range(most + 1):
        ended[0], ended[1] = count, at
        if count == rows.shape[1]:
            return scan_columns.NO_ROOM
        if parsed == most:
            break
        marked = noted[0, 0]
        row = rows[:, count]
        for column in range(scan_columns.COLUMNS):
            row[column] = 0
        for column in range(CORRELATION, scan_columns.SIZE + 1):
            row[column] = -1
        row[ODD] = 3
        row[scan_columns.EVENT], row[scan_columns.NUMBER] = at, -1
        row[scan_columns.SHAPE], row[scan_columns.PARSED] = -1, 1
        at = _event(text, at, limit, row, noted, keys)
        if at == _REFUSED:
            return scan_columns.UNKNOWN
        follows = field_marks.NO_ROW
        if row[scan_columns.PH + 1] - row[scan_columns.PH] == 3:
            phase = text[unsigned(row[scan_columns.PH] + 1)]
            if phase == _COMPLETE:
                count += 1
                follows = field_marks.ROW
            elif phase in _PAIRED:
                return scan_columns.UNKNOWN
        _note_event(noted, marked, at, follows, row, count - 1)
        at = _to_next(text, at, limit)
        if at == _REFUSED:
            return scan_columns.UNKNOWN
        if at == limit:
            ended[0], ended[1] = count, limit
            return scan_columns.DONE
    return scan_columns.ENOUGH


@njit(nogil=True)
def _note(noted: Int64s, begin: int, end: int, follows: int) -> None:
    """Note a number or a name, while there is room."""
    number = noted[0, 0]
    if number < len(noted):
        noted[number, 0], noted[number, 1], noted[number, 2] = begin, end, follows
        noted[0, 0] = number + 1


@njit(nogil=True)
def _note_event(noted: Int64s, first: int, end: int, follows: int, row: Int64s, number: int) -> None:
    """Note the end of the event whose marks begin at `first`; an unusual event leaves no marks."""
    odd = row[ODD]
    odd_times = (odd & 1 and row[scan_columns.TS + 1]) or (odd & 2 and row[scan_columns.DUR + 1])
    _note(noted, row[scan_columns.EVENT], end, follows)
    if odd_times or noted[0, 0] == len(noted):
        noted[0, 0] = first
        return
    last = noted[noted[0, 0] - 1]
    last[field_marks.ARGS_BEGIN], last[field_marks.ARGS_END] = (row[ARGS], row[ARGS + 1]) if row[ARGS + 1] else (-1, -1)
    last[field_marks.WITHOUT], last[field_marks.ROW_NUMBER] = odd, number


@njit(nogil=True)
def _to_next(text: Text, at: int, limit: int) -> int:
    """Go from the end of an event to the next one, or the limit. Some writers put one event per line, without comma."""
    at = _after_space(text, at, limit)
    if at < limit and text[unsigned(at)] == _COMMA:
        at = _after_space(text, at + 1, limit)
        return _REFUSED if at >= limit else at
    return at


@njit(nogil=True)
def _event(text: Text, at: int, limit: int, row: Int64s, noted: Int64s, keys: "Keys") -> int:
    """Return the end of the event at `at`."""
    if at >= limit or text[unsigned(at)] != _OPEN:
        return _REFUSED
    at = _after_space(text, at + 1, limit)
    if at < limit and text[unsigned(at)] == _CLOSE:
        return at + 1
    while True:
        key = at + 1
        at = _after_string(text, at, limit, True)
        if at == _REFUSED:
            return _REFUSED
        field = _field(text, key, at - 1, 0, keys)
        begin = _to_value(text, at, limit)
        if begin == _REFUSED:
            return _REFUSED
        at = _value_of(text, begin, limit, field, row, noted, keys)
        if at == _REFUSED:
            return _REFUSED
        if field != scan_columns.OTHER:
            row[field], row[field + 1] = begin, at
        at = _after_space(text, at, limit)
        if at >= limit:
            return _REFUSED
        if text[unsigned(at)] == _CLOSE:
            return at + 1
        if text[unsigned(at)] != _COMMA:
            return _REFUSED
        at = _after_space(text, at + 1, limit)


@njit(nogil=True)
def _field(text: Text, begin: int, end: int, table: int, keys: "Keys") -> int:
    """Return the meaning of the key `text[begin:end]`: its column, or an argument's type."""
    size = end - begin
    if size >= keys.of_length.shape[1] - 1:
        return scan_columns.OTHER
    for key in range(keys.of_length[table, size], keys.of_length[table, size + 1]):
        first = keys.begins[key]
        i = 0
        while i < size and text[unsigned(begin + i)] == keys.texts[unsigned(first + i)]:
            i += 1
        if i == size:
            return int(keys.fields[key])
    return scan_columns.OTHER


@njit(nogil=True)
def _value_of(text: Text, at: int, limit: int, field: int, row: Int64s, noted: Int64s, keys: "Keys") -> int:
    """Return the end of the value of an event's field."""
    if field in (scan_columns.TS, scan_columns.DUR):
        return _time(text, at, limit, scan_columns.START if field == scan_columns.TS else DURATION, row, noted)
    if field in (scan_columns.PID, scan_columns.TID):
        end = _after_string(text, at, limit)
        if end == _REFUSED:
            _, end = _integer(text, at, limit)
        return end
    if field == scan_columns.PH:
        return _after_string(text, at, limit, True)
    if field in (NAME, scan_columns.CAT):
        end = _after_string(text, at, limit)
        if field == NAME:
            _note(noted, at, end, field_marks.A_NAME)
        return end
    if field == ARGS:
        return _arguments(text, at, limit, row, noted, keys)
    return _after_number_or_other(text, at, limit, noted)


@njit(nogil=True)
def _time(text: Text, at: int, limit: int, column: int, row: Int64s, noted: Int64s) -> int:
    """Return the end of a time, a number or a text."""
    row[column], end = _thousandths(text, at, limit)
    if end != _REFUSED:
        row[ODD] &= ~(1 << column)
        _note(noted, at, end, column)
        return end
    row[ODD] |= 1 << column
    end = _after_string(text, at, limit)
    return _after_number(text, at, limit) if end == _REFUSED else end


@njit(nogil=True)
def _arguments(text: Text, at: int, limit: int, row: Int64s, noted: Int64s, keys: "Keys") -> int:
    """Return the end of an event's arguments, an object or null."""
    if row[ARGS + 1]:
        noted[0, 0] = len(noted)  # only the last arguments count
    for column in range(CORRELATION, scan_columns.SIZE + 1):
        row[column] = -1
    row[scan_columns.NUMBER] = -1
    if at < limit and text[unsigned(at)] == _NULL:
        return _after_literal(text, at, limit)
    if at >= limit or text[unsigned(at)] != _OPEN:
        return _REFUSED
    at = _after_space(text, at + 1, limit)
    if at < limit and text[unsigned(at)] == _CLOSE:
        return at + 1
    while True:
        key = at + 1
        at = _after_string(text, at, limit, True)
        if at == _REFUSED:
            return _REFUSED
        field = _field(text, key, at - 1, 1, keys)
        at = _to_value(text, at, limit)
        if at == _REFUSED or at >= limit:
            return _REFUSED
        begin = at
        if field >= 0:
            row[field], at = _integer(text, at, limit)
            _note(noted, begin, at, field)
        elif field == scan_columns.INPUTS:
            at = _inputs(text, at, limit, row, noted)
        elif field == scan_columns.OTHER or text[unsigned(at)] == _NULL:
            at = _after_number_or_other(text, at, limit, noted)
        elif field == scan_columns.MAYBE_INTEGER:
            _, at = _integer(text, at, limit)
            _note(noted, begin, at, field_marks.AN_INTEGER)
        else:
            at = _after_string(text, at, limit, True)
        if at == _REFUSED:
            return _REFUSED
        at = _after_space(text, at, limit)
        if at >= limit:
            return _REFUSED
        if text[unsigned(at)] == _CLOSE:
            return at + 1
        if text[unsigned(at)] != _COMMA:
            return _REFUSED
        at = _after_space(text, at + 1, limit)


@njit(nogil=True)
def _inputs(text: Text, at: int, limit: int, row: Int64s, noted: Int64s) -> int:
    """Return the end of an operator's inputs; a number in the first text, or in the second after an empty one, is
    noted.
    """
    if row[scan_columns.NUMBER] >= 0:
        noted[0, 0] = len(noted)  # only the last inputs count
    row[scan_columns.NUMBER] = -1
    end = _after_value(text, at, limit)
    if end != _REFUSED and text[unsigned(at)] == _OPEN_LIST:
        begin = _after_space(text, at + 1, end)
        if text[unsigned(begin)] == _QUOTE and text[unsigned(begin + 1)] == _QUOTE:
            begin = _after_space(text, begin + 2, end)
            if text[unsigned(begin)] == _COMMA:
                begin = _after_space(text, begin + 1, end)
        last = _after_digits(text, begin + 1, end)
        if text[unsigned(begin)] == _QUOTE and text[unsigned(last)] == _QUOTE and 0 < last - begin - 1 <= _MOST_DIGITS:
            row[scan_columns.NUMBER] = _value(text, begin + 1, last)
            _note(noted, begin + 1, last, field_marks.A_TEXT)
    return end


@njit(nogil=True)
def _after_space(text: Text, at: int, limit: int) -> int:
    """Return the first position from `at` on that is no white space."""
    while at < limit and text[unsigned(at)] <= 32 and text[unsigned(at)] in _SPACES:
        at += 1
    return at


@njit(nogil=True)
def _after_string(text: Text, at: int, limit: int, is_plain: bool = False) -> int:
    """Return the end of the quoted text at `at`, without `\\u`. A plain one has no escapes and is ASCII."""
    if at >= limit or text[unsigned(at)] != _QUOTE:
        return _REFUSED
    at += 1
    while at < limit:
        sign = text[unsigned(at)]
        if sign == _QUOTE:
            return at + 1
        if sign < 32 or (is_plain and (sign > 126 or sign == _BACKSLASH)):
            return _REFUSED
        if sign == _BACKSLASH:
            at += 1
            if at >= limit or text[unsigned(at)] not in _ESCAPED:
                return _REFUSED
        at += 1
    return _REFUSED


@njit(nogil=True)
def _after_digits(text: Text, at: int, limit: int) -> int:
    while at < limit and _ZERO <= text[unsigned(at)] <= _NINE:
        at += 1
    return at


@njit(nogil=True)
def _after_whole(text: Text, at: int, limit: int) -> int:
    """Return the end of the digits before a number's point; a leading zero must stand alone."""
    end = _after_digits(text, at, limit)
    if end == at or (text[unsigned(at)] == _ZERO and end - at > 1):
        return _REFUSED
    return end


@njit(nogil=True)
def _after_number(text: Text, at: int, limit: int) -> int:
    """Return the end of a number of moderate length."""
    begin = at
    if at < limit and text[unsigned(at)] == _MINUS:
        at += 1
    at = _after_whole(text, at, limit)
    if at == _REFUSED:
        return _REFUSED
    if at < limit and text[unsigned(at)] == _POINT:
        end = _after_digits(text, at + 1, limit)
        if end == at + 1:
            return _REFUSED
        at = end
    if at < limit and text[unsigned(at)] in _EXPONENTS:
        at += 1
        if at < limit and (text[unsigned(at)] == _PLUS or text[unsigned(at)] == _MINUS):
            at += 1
        end = _after_digits(text, at, limit)
        if end == at:
            return _REFUSED
        at = end
    return at if at - begin <= _LONGEST_NUMBER else _REFUSED


@njit(nogil=True)
def _after_literal(text: Text, at: int, limit: int) -> int:
    """Return the end of `true`, `false` or `null`."""
    begin = 0
    for end in range(len(_LITERALS)):
        if _LITERALS[end] != 32:
            continue
        size = end - begin
        if at + size <= limit:
            same = True
            for i in range(size):
                same = same and text[unsigned(at + i)] == _LITERALS[begin + i]
            if same:
                return at + size
        begin = end + 1
    return _REFUSED


@njit(nogil=True)
def _after_key(text: Text, at: int, limit: int) -> int:
    """Go from the quote of a key to its value."""
    at = _after_string(text, at, limit)
    return at if at == _REFUSED else _to_value(text, at, limit)


@njit(nogil=True)
def _to_value(text: Text, at: int, limit: int) -> int:
    """Go from a key's end to its value."""
    at = _after_space(text, at, limit)
    if at >= limit or text[unsigned(at)] != _COLON:
        return _REFUSED
    return _after_space(text, at + 1, limit)


@njit(nogil=True)
def _after_number_or_other(text: Text, at: int, limit: int, noted: Int64s) -> int:
    """Return the end of any value; a number is noted."""
    if at < limit and (text[unsigned(at)] == _MINUS or _ZERO <= text[unsigned(at)] <= _NINE):
        end = _after_number(text, at, limit)
        _note(noted, at, end, field_marks.A_NUMBER)
        return end
    return _after_value(text, at, limit)


@njit(nogil=True)
def _after_value(text: Text, at: int, limit: int) -> int:
    """Return the end of any value."""
    depth = 0
    in_object = 0  # a bit per open level, the innermost last
    while True:
        if at >= limit:
            return _REFUSED
        sign = text[unsigned(at)]
        if sign == _QUOTE:
            at = _after_string(text, at, limit)
        elif sign in (_OPEN, _OPEN_LIST):
            of_object = 1 if sign == _OPEN else 0
            at = _after_space(text, at + 1, limit)
            if at < limit and text[unsigned(at)] == (_CLOSE if of_object else _CLOSE_LIST):
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
            if text[unsigned(at)] == _COMMA:
                at = _after_space(text, at + 1, limit)
                if of_object:
                    at = _after_key(text, at, limit)
                    if at == _REFUSED:
                        return _REFUSED
                break
            if text[unsigned(at)] != (_CLOSE if of_object else _CLOSE_LIST):
                return _REFUSED
            at += 1
            depth -= 1
            in_object //= 2
        if depth == 0:
            return at


@njit(nogil=True)
def _integer(text: Text, at: int, limit: int) -> tuple[int, int]:
    """Return a whole number of up to 18 digits, and its end."""
    negative = at < limit and text[unsigned(at)] == _MINUS
    begin = at + 1 if negative else at
    end = _after_whole(text, begin, limit)
    if end == _REFUSED or end - begin > _MOST_DIGITS:
        return 0, _REFUSED
    if end < limit and (text[unsigned(end)] == _POINT or text[unsigned(end)] in _EXPONENTS):
        return 0, _REFUSED
    value = _value(text, begin, end)
    return -value if negative else value, end


@njit(nogil=True)
def _value(text: Text, begin: int, end: int) -> int:
    """Return the value of digits."""
    value = 0
    for i in range(begin, end):
        value = value * 10 + (text[unsigned(i)] - _ZERO)
    return value


@njit(nogil=True)
def _thousandths(text: Text, at: int, limit: int) -> tuple[int, int]:
    """Return a decimal number times 1000, halves rounded to even, and its end.

    Numbers with exponents or with too many digits are refused.
    """
    negative = at < limit and text[unsigned(at)] == _MINUS
    begin = at + 1 if negative else at
    point = _after_whole(text, begin, limit)
    if point == _REFUSED or point - begin > _MOST_DIGITS:
        return 0, _REFUSED
    end = point
    if point < limit and text[unsigned(point)] == _POINT:
        end = _after_digits(text, point + 1, limit)
        if end == point + 1 or end - begin > _EXACT_DIGITS:
            return 0, _REFUSED
    if end < limit and text[unsigned(end)] in _EXPONENTS:
        return 0, _REFUSED
    value = _value(text, begin, point)
    if value >= _LATEST:
        return 0, _REFUSED
    for i in range(point + 1, point + 4):
        value = value * 10 + (text[unsigned(i)] - _ZERO if i < end else 0)
    if end > point + 4 and _rounds_up(text, point + 4, end, value % 2 == 1):
        value += 1
    return -value if negative else value, end


@njit(nogil=True)
def _rounds_up(text: Text, begin: int, end: int, is_odd: bool) -> bool:
    """Return whether the digits after the last kept one are more than half, or exactly half after an odd digit."""
    if text[unsigned(begin)] != _ZERO + 5:
        return bool(text[unsigned(begin)] > _ZERO + 5)
    for i in range(begin + 1, end):
        if text[unsigned(i)] != _ZERO:
            return True
    return is_odd
