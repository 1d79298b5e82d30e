"""Takes events that differ from earlier ones only in numbers, without parsing them; compiled by numba.

Code that is compiled together stands in one file: numba decides by that file alone whether its cached code is out of
date.
"""

from typing import Final

from kair_engine.numba_or_not import Int32s, Int64s, Text, lowest, unsigned, word
from kair_engine.numba_or_not import njit_without_arrays as njit
from kair_engine.readers.kineto.compiled.scan_columns import (
    A_NAME,
    A_NUMBER,
    A_TEXT,
    AN_INTEGER,
    ARGS,
    CORRELATION,
    DONE,
    DURATION,
    EVENT,
    EXTERNAL_ID,
    NO_ROOM,
    NOTHING,
    NUMBER,
    ODD,
    PARSED,
    ROW,
    SHAPE,
    SIZE,
    START,
)
from kair_engine.readers.kineto.compiled.template_store import (
    CHILD,
    CLOSES,
    FIRST,
    HIGHEST,
    LENGTH,
    LOW_HALF,
    NONE,
    OPENS,
    OTHER,
    THEN,
    TIMELESS,
    WHOLE,
    Shapes,
    is_same,
    known_name,
    name_at,
)

UNLIKE: Final = 4
"""The next event has to be parsed."""

_OF_EACH: Final = 4
"""Bits of each earlier shape in the key of the next event: the key has the last three."""
_ZEROS: Final = 0x3030303030303030
_BEYOND_NINE: Final = 0x7676767676767676
_PAIRS: Final = 0x00FF00FF00FF00FF
_FOURS: Final = 0x0000FFFF0000FFFF
_MINUS, _POINT, _COMMA, _ZERO, _QUOTE = b'-.,0"'
_SPACES: Final = tuple(b" \n\r\t")
_MOST_DIGITS: Final = 18
_POWERS: Final = tuple(10**digits for digits in range(9))
_MOST_DECIMALS: Final = 20
_TIME_DIGITS: Final = 16
_LATEST: Final = 4 * 10**15


@njit(cache=True, nogil=True)
def take_alike(text: Text, limit: int, rows: Int64s, ended: Int64s, shapes: Shapes) -> int:
    """Take events of known shapes, as `scan_events` takes any: from the position in `ended` on, after its rows."""
    pieces, expected = shapes.pieces, shapes.expected
    count, at, before = ended[0], ended[1], 0
    while True:
        ended[0], ended[1] = count, at
        if count == rows.shape[1]:
            return NO_ROOM
        _clear(rows, count, at)
        shape = expected[before]
        end = _as_expected(text, at, limit, rows, count, pieces[shape, WHOLE], shapes)
        if end == NONE:
            _clear(rows, count, at)
            shape, end = _walk(text, at, limit, rows, count, shapes)
            if end == NONE:
                return UNLIKE
            expected[before] = shape
        before = (before << _OF_EACH ^ shape) & (len(expected) - 1)
        at = end
        rows[ODD, count] = pieces[shape, TIMELESS]
        rows[SHAPE, count] = shape
        if pieces[shape, THEN] == ROW:
            count += 1
        while at < limit and text[unsigned(at)] in _SPACES:
            at += 1
        if at < limit and text[unsigned(at)] == _COMMA:
            at += 1
            while at < limit and text[unsigned(at)] in _SPACES:
                at += 1
            if at >= limit:
                return UNLIKE
        if at >= limit:
            ended[0], ended[1] = count, limit
            return DONE


@njit(nogil=True)
def _clear(rows: Int64s, row: int, at: int) -> None:
    """Clear the row of an event that begins at `at`."""
    rows[EVENT, row] = at
    rows[START, row] = rows[DURATION, row] = rows[ARGS, row] = rows[ARGS + 1, row] = 0
    rows[CORRELATION, row] = rows[EXTERNAL_ID, row] = rows[SIZE, row] = -1
    rows[PARSED, row], rows[NUMBER, row] = 0, -1


@njit(nogil=True)
def _as_expected(text: Text, at: int, limit: int, rows: Int64s, row: int, piece: int, shapes: Shapes) -> int:
    """Return the end of the event at `at` if it consists of `piece` and its successors."""
    texts, pieces = shapes.texts, shapes.pieces
    while piece != NONE:
        size, what = pieces[piece, LENGTH], pieces[piece, THEN]
        if at + size > limit or not is_same(text, at, texts, pieces[piece, FIRST], size):
            return NONE
        _see_arguments(rows, row, at, pieces[piece])
        at += size
        if what >= ROW:
            return at
        at = _after_value(text, at, limit, what, rows, row)
        if at == NONE:
            return NONE
        piece += 1
    return NONE


@njit(nogil=True)
def _walk(text: Text, at: int, limit: int, rows: Int64s, row: int, shapes: Shapes) -> tuple[int, int]:
    """Return the shape of the event at `at`, found piece by piece, and its end."""
    texts, pieces, path = shapes.texts, shapes.pieces, shapes.path
    piece, met, what = 0, 0, NOTHING
    while what < ROW:
        piece = _piece_behind(text, at, limit, piece, texts, pieces)
        if piece == NONE:
            return NONE, NONE
        _see_arguments(rows, row, at, pieces[piece])
        met = _note_piece(path, met, piece)
        at += pieces[piece, LENGTH]
        what = pieces[piece, THEN]
        if what == A_NAME:
            size, hashed = name_at(text, at, limit, piece)
            piece = known_name(text, at, size, hashed, piece, shapes)
            if piece == NONE:
                return NONE, NONE
            met = _note_piece(path, met, piece)
            at += size
        elif what < ROW:
            at = _after_value(text, at, limit, what, rows, row)
        if at == NONE:
            return NONE, NONE
    if pieces[piece, WHOLE] == NONE and met < len(path):
        pieces[piece, WHOLE] = _learn_whole(met, shapes)
    return piece, at


@njit(nogil=True)
def _note_piece(path: Int32s, met: int, piece: int) -> int:
    if met < len(path):
        path[met] = piece
        met += 1
    return met


@njit(nogil=True)
def _see_arguments(rows: Int64s, row: int, at: int, piece: Int32s) -> None:
    """Set the begin or end of the row's arguments if the piece at `at` contains them."""
    if piece[OPENS] & piece[CLOSES] != NONE:
        if piece[OPENS] != NONE:
            rows[ARGS, row] = at + piece[OPENS]
        if piece[CLOSES] != NONE:
            rows[ARGS + 1, row] = at + piece[CLOSES]


@njit(nogil=True)
def _after_value(text: Text, at: int, limit: int, what: int, rows: Int64s, row: int) -> int:
    """Return the end of a changing value, after storing it in its column of the row."""
    if what <= DURATION:
        rows[what, row], at = _time(text, at, limit)
    elif what <= SIZE:
        rows[what, row], at = _whole(text, at, limit)
    elif what == AN_INTEGER:
        _, at = _whole(text, at, limit)
    elif what == A_NUMBER:
        at = _after_number(text, at, limit)
    elif what == A_TEXT:
        rows[NUMBER, row], at = _after_digits(text, at, limit)
    return at


@njit(nogil=True)
def _piece_behind(text: Text, at: int, limit: int, piece: int, texts: Text, pieces: Int32s) -> int:
    """Return the piece at `at` among the children of `piece`, and move it to the front of them."""
    before, one = NONE, pieces[piece, CHILD]
    while one != NONE:
        size = pieces[one, LENGTH]
        is_it = at + size <= limit and is_same(text, at, texts, pieces[one, FIRST], size)
        if is_it and pieces[one, THEN] == A_TEXT:
            # Any text begins with the quote before a number.
            _, end = _after_digits(text, at + size, limit)
            is_it = end != NONE and end < limit and text[unsigned(end)] == _QUOTE
        if is_it:
            if before != NONE:
                pieces[before, OTHER] = pieces[one, OTHER]
                pieces[one, OTHER] = pieces[piece, CHILD]
                pieces[piece, CHILD] = one
            return int(one)
        before, one = one, pieces[one, OTHER]
    return NONE


@njit(nogil=True)
def _eight(text: Text, at: int) -> tuple[int, int]:
    """Return the value and the number of the leading digits in the eight characters at `at`, which must exist."""
    signs = word(text, at) ^ _ZEROS
    others = (signs + _BEYOND_NINE | signs) & HIGHEST
    count = 8
    if others:
        count = lowest(others) >> 3
        if count == 0:
            return 0, 0
        # As if preceded by zeros.
        signs = (signs & ((1 << 8 * count) - 1)) << (64 - 8 * count)
    # Combine digits pairwise, then pairs, then fours.
    signs = signs * (1 + (10 << 8)) >> 8
    signs = (signs & _PAIRS) * (1 + (100 << 16)) >> 16
    signs = (signs & _FOURS) * (1 + (10_000 << 32)) >> 32
    return signs & LOW_HALF, count


@njit(nogil=True)
def _after_digits(text: Text, at: int, limit: int) -> tuple[int, int]:
    """Return the value of the digits at `at`, which has to fit, and their end; a leading zero must stand alone."""
    begin, value, count = at, 0, 8
    if at + 8 <= limit:
        value, count = _eight(text, at)
        at += count
    while count == 8 and at + 8 <= limit:
        more, count = _eight(text, at)
        value = value * _POWERS[count] + more
        at += count
    while count == 8 and at < limit and _ZERO <= text[unsigned(at)] <= _ZERO + 9:
        value = value * 10 + (text[unsigned(at)] - _ZERO)
        at += 1
    size = at - begin
    if size == 0 or size > _MOST_DIGITS or (size > 1 and text[unsigned(begin)] == _ZERO):
        return 0, NONE
    return value, at


@njit(nogil=True)
def _whole(text: Text, at: int, limit: int) -> tuple[int, int]:
    """Return a whole number and its end."""
    if at < limit and text[unsigned(at)] == _MINUS:
        value, at = _after_digits(text, at + 1, limit)
        return -value, at
    return _after_digits(text, at, limit)


@njit(nogil=True)
def _time(text: Text, at: int, limit: int) -> tuple[int, int]:
    """Return microseconds with up to three decimals as nanoseconds, and their end."""
    value, end = _after_digits(text, at, limit)
    if end == NONE or end - at > _TIME_DIGITS or value >= _LATEST:
        return 0, NONE
    value *= 1000
    if end >= limit or text[unsigned(end)] != _POINT:
        return value, end
    end += 1
    unit = 100
    begin = end
    while end < limit and _ZERO <= text[unsigned(end)] <= _ZERO + 9:
        value += unit * (text[unsigned(end)] - _ZERO)
        unit //= 10
        end += 1
    return (value, end) if 1 <= end - begin <= 3 else (0, NONE)


@njit(nogil=True)
def _after_number(text: Text, at: int, limit: int) -> int:
    """Return the end of a number without an exponent."""
    _, at = _whole(text, at, limit)
    if at == NONE or at >= limit or text[unsigned(at)] != _POINT:
        return at
    begin = at + 1
    at = begin
    while at < limit and _ZERO <= text[unsigned(at)] <= _ZERO + 9:
        at += 1
    return at if 1 <= at - begin <= _MOST_DECIMALS else NONE


@njit(nogil=True)
def _learn_whole(met: int, shapes: Shapes) -> int:
    """Return the first piece of the whole event whose path has `met` pieces; none beyond half of the room."""
    pieces, texts, path, counts = shapes.pieces, shapes.texts, shapes.path, shapes.counts
    number, at, size = counts[0], counts[1], 0
    for one in range(met):
        size += pieces[path[one], LENGTH]
    if 2 * (number + met) > len(pieces) or 2 * (at + size) > len(texts):
        return NONE
    first, is_new = number, True
    for one in range(met):
        known, new = pieces[path[one]], pieces[number]
        if is_new:
            new[FIRST], new[LENGTH], new[OPENS], new[CLOSES] = at, 0, NONE, NONE
        if known[OPENS] != NONE:
            new[OPENS] = new[LENGTH] + known[OPENS]
        if known[CLOSES] != NONE:
            new[CLOSES] = new[LENGTH] + known[CLOSES]
        for i in range(known[LENGTH]):
            texts[at + i] = texts[known[FIRST] + i]
        at += known[LENGTH]
        new[LENGTH] += known[LENGTH]
        new[THEN] = known[THEN]
        # A name and the text before it are plain text here.
        is_new = known[THEN] not in (A_NAME, NOTHING)
        if is_new:
            number += 1
    counts[0], counts[1] = number, at
    return int(first)
