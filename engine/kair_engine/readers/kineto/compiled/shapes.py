"""Events that differ from an earlier one in nothing but numbers, taken without being parsed; compiled by numba.

Profilers write the calls of one operator alike. The text of an event that was parsed is kept as a chain of pieces,
between which stands what changes: times, ids, other numbers of its arguments; a name stands alone, and is found by its
content. A later event of the same pieces, with whole numbers in the same places, is as valid as that one, and has the
same name, category, process and thread: all this is its shape. What is compiled together stands in one file.
"""

from typing import Final, NamedTuple

import numpy as np

from kair_engine.numba_or_not import Int32s, Int64s, Text, same_block, unsigned, word
from kair_engine.numba_or_not import njit_without_arrays as njit
from kair_engine.readers.kineto.compiled.marks import (
    A_NAME,
    A_NUMBER,
    A_TEXT,
    AN_INTEGER,
    ARGS_BEGIN,
    ARGS_END,
    BEGIN,
    END,
    NO_ROW,
    NOTHING,
    ROW,
    ROW_NUMBER,
    WHAT,
    WITHOUT,
)
from kair_engine.readers.kineto.compiled.scanned import (
    ARGS,
    CORRELATION,
    DONE,
    DURATION,
    EVENT,
    EXTERNAL_ID,
    NO_ROOM,
    NUMBER,
    ODD,
    PARSED,
    SHAPE,
    SIZE,
    START,
)

UNLIKE: Final = 4
"""The next event has to be parsed."""

# Columns of pieces: where its text begins, its size, what follows, the first piece behind it, the next one in its
# place, how many stand behind it, its event's times that are not there, and where in it arguments begin and end.
# Of an event's last piece also whether no numbers but ids tell of a collective.
_FIRST: Final = 0
_LENGTH: Final = 1
_THEN: Final = 2
_CHILD: Final = 3
_OTHER: Final = 4
_CHILDREN: Final = 5
_WITHOUT: Final = 6
_OPENS: Final = 7
_CLOSES: Final = 8
SAYS_ALL: Final = 9
_PIECE: Final = 10
_NONE: Final = -1

_MOST_CHILDREN: Final = 64
"""Pieces that are looked at in turn; the one that was met last comes first."""
_MOST_PROBES: Final = 8
_HASH_PRIME: Final = 16777619
_HASH_BITS: Final = (1 << 32) - 1
_QUOTES: Final = 0x2222222222222222
_ONES: Final = 0x0101010101010101
_HIGHEST: Final = -0x7F7F7F7F7F7F7F80
_LOWER: Final = (1 << 57) - 1
_ZEROS: Final = 0x3030303030303030
_SIXES: Final = 0x0606060606060606
_HIGH_HALVES: Final = -0x0F0F0F0F0F0F0F10
_LOW_HALVES: Final = 0x0F0F0F0F0F0F0F0F
_PAIRS: Final = 0x00FF00FF00FF00FF
_FOURS: Final = 0x0000FFFF0000FFFF
_MINUS, _POINT, _COMMA, _ZERO, _QUOTE = b'-.,0"'
_SPACES: Final = tuple(b" \n\r\t")
_MOST_DIGITS: Final = 18
_MOST_DECIMALS: Final = 20
_TIME_DIGITS: Final = 16
_LATEST: Final = 4 * 10**15


class Shapes(NamedTuple):
    """The pieces that are known: a tree, whose root stands before an event."""

    texts: Text
    pieces: Int32s
    names: Int32s
    """Of a table by a name's text and the piece before it: the piece that is this name, 0 for a free place."""
    counts: Int64s
    """How many pieces there are, and how long their texts are together."""


def no_shapes(pieces: int, names: int, text: int) -> Shapes:
    """Room for so many pieces, names (a power of two), and bytes of both."""
    known = Shapes(
        texts=np.empty(text, np.uint8),
        pieces=np.empty((pieces, _PIECE), np.int32),
        names=np.zeros(names, np.int32),
        counts=np.zeros(2, np.int64),
    )
    forget(known)
    return known


def forget(shapes: Shapes) -> None:
    """Begins anew."""
    shapes.names[:] = 0
    shapes.pieces[0] = [0, 0, NOTHING, _NONE, _NONE, 0, 0, _NONE, _NONE, 0]
    shapes.counts[:] = [1, 0]


@njit(cache=True, nogil=True)
def take_alike(text: Text, limit: int, rows: Int64s, ended: Int64s, shapes: Shapes) -> int:
    """Takes events of known shapes, as `scan_events` takes any: from where `ended` says on, behind the rows it has."""
    texts, pieces, names = shapes.texts, shapes.pieces, shapes.names
    count, at = ended[0], ended[1]
    while True:
        ended[0], ended[1] = count, at
        if count == rows.shape[1]:
            return NO_ROOM
        rows[EVENT, count] = at
        rows[START, count] = rows[DURATION, count] = rows[ARGS, count] = rows[ARGS + 1, count] = 0
        rows[CORRELATION, count] = rows[EXTERNAL_ID, count] = rows[SIZE, count] = -1
        rows[PARSED, count], rows[NUMBER, count] = 0, -1
        piece = 0
        what = NOTHING
        while what < ROW:
            piece = _piece_behind(text, at, limit, piece, texts, pieces)
            if piece == _NONE:
                return UNLIKE
            if pieces[piece, _OPENS] != _NONE:
                rows[ARGS, count] = at + pieces[piece, _OPENS]
            if pieces[piece, _CLOSES] != _NONE:
                rows[ARGS + 1, count] = at + pieces[piece, _CLOSES]
            at += pieces[piece, _LENGTH]
            what = pieces[piece, _THEN]
            if what <= DURATION:
                rows[what, count], at = _time(text, at, limit)
            elif what <= SIZE:
                rows[what, count], at = _whole(text, at, limit)
            elif what == AN_INTEGER:
                _, at = _whole(text, at, limit)
            elif what == A_NUMBER:
                at = _after_number(text, at, limit)
            elif what == A_TEXT:
                rows[NUMBER, count], at = _after_digits(text, at, limit)
            elif what == A_NAME:
                size, hashed = _name(text, at, limit, piece)
                piece = _named(text, at, size, hashed, piece, texts, pieces, names)
                if piece == _NONE:
                    return UNLIKE
                at += size
            if at == _NONE:
                return UNLIKE
        rows[ODD, count] = pieces[piece, _WITHOUT]
        rows[SHAPE, count] = piece
        if what == ROW:
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
def _piece_behind(text: Text, at: int, limit: int, piece: int, texts: Text, pieces: Int32s) -> int:
    """The piece that stands at `at`, of those behind `piece`; it is looked for first the next time."""
    before, one = _NONE, pieces[piece, _CHILD]
    while one != _NONE:
        size = pieces[one, _LENGTH]
        is_it = at + size <= limit and _is_same(text, at, texts, pieces[one, _FIRST], size)
        if is_it and pieces[one, _THEN] == A_TEXT:
            # The quote before a number is any text's.
            _, end = _after_digits(text, at + size, limit)
            is_it = end != _NONE and end < limit and text[unsigned(end)] == _QUOTE
        if is_it:
            if before != _NONE:
                pieces[before, _OTHER] = pieces[one, _OTHER]
                pieces[one, _OTHER] = pieces[piece, _CHILD]
                pieces[piece, _CHILD] = one
            return int(one)
        before, one = one, pieces[one, _OTHER]
    return _NONE


@njit(nogil=True)
def _is_same(text: Text, at: int, texts: Text, first: int, size: int) -> bool:
    if size < 8:
        for i in range(size):
            if text[unsigned(at + i)] != texts[unsigned(first + i)]:
                return False
        return True
    if size >= 32:
        for i in range(0, size - 32, 32):
            if not same_block(text, at + i, texts, first + i):
                return False
        return bool(same_block(text, at + size - 32, texts, first + size - 32))
    for i in range(0, size - 8, 8):
        if word(text, at + i) != word(texts, first + i):
            return False
    return bool(word(text, at + size - 8) == word(texts, first + size - 8))


@njit(nogil=True)
def _name(text: Text, at: int, limit: int, piece: int) -> tuple[int, int]:
    """The size of the text in quotes at `at`, if nothing in it is escaped, and a hash of it and the piece before."""
    hashed = piece
    end = at + 1
    while end + 8 <= limit:
        signs = word(text, end)
        marked = signs ^ _QUOTES
        quotes = (marked - _ONES) & ~marked & _HIGHEST
        if quotes:
            # The bits below the first quote's.
            signs &= ((quotes & -quotes) >> 7 & _LOWER) - 1
        hashed = ((hashed ^ (signs & _HASH_BITS)) * _HASH_PRIME) & _HASH_BITS
        hashed = ((hashed ^ ((signs >> 32) & _HASH_BITS)) * _HASH_PRIME) & _HASH_BITS
        if quotes:
            before = ((((quotes & -quotes) >> 7 & _LOWER) - 1 & _ONES) * _ONES >> 56) & 255
            return end + before + 1 - at, hashed ^ (hashed >> 15)
        end += 8
    return 0, 0


@njit(nogil=True)
def _named(text: Text, at: int, size: int, hashed: int, piece: int, texts: Text, pieces: Int32s, names: Int32s) -> int:
    """The piece that is this name, behind that piece."""
    for probe in range(_MOST_PROBES):
        one = names[(hashed + probe) & (len(names) - 1)]
        if one == 0:
            return _NONE
        of_piece = pieces[one, _OTHER] == piece and pieces[one, _LENGTH] == size
        if of_piece and _is_same(text, at, texts, pieces[one, _FIRST], size):
            return int(one)
    return _NONE


@njit(nogil=True)
def _after_digits(text: Text, at: int, limit: int) -> tuple[int, int]:
    """The value of the digits at `at`, which has to fit, and the place behind them; no zero begins several."""
    begin, value = at, 0
    while at + 8 <= limit:
        digits = word(text, at)
        if digits & _HIGH_HALVES != _ZEROS or (digits + _SIXES) & _HIGH_HALVES != _ZEROS:
            break
        # Each digit with its neighbour, then each two, then each four.
        digits = (digits & _LOW_HALVES) * (1 + (10 << 8)) >> 8
        digits = (digits & _PAIRS) * (1 + (100 << 16)) >> 16
        digits = (digits & _FOURS) * (1 + (10_000 << 32)) >> 32
        value = value * 100_000_000 + (digits & _HASH_BITS)
        at += 8
    while at < limit and _ZERO <= text[unsigned(at)] <= _ZERO + 9:
        value = value * 10 + (text[unsigned(at)] - _ZERO)
        at += 1
    size = at - begin
    if size == 0 or size > _MOST_DIGITS or (size > 1 and text[unsigned(begin)] == _ZERO):
        return 0, _NONE
    return value, at


@njit(nogil=True)
def _whole(text: Text, at: int, limit: int) -> tuple[int, int]:
    """A whole number, and the place behind it."""
    if at < limit and text[unsigned(at)] == _MINUS:
        value, at = _after_digits(text, at + 1, limit)
        return -value, at
    return _after_digits(text, at, limit)


@njit(nogil=True)
def _time(text: Text, at: int, limit: int) -> tuple[int, int]:
    """Microseconds of up to three decimals, as nanoseconds, and the place behind them."""
    value, end = _after_digits(text, at, limit)
    if end == _NONE or end - at > _TIME_DIGITS or value >= _LATEST:
        return 0, _NONE
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
    return (value, end) if 1 <= end - begin <= 3 else (0, _NONE)


@njit(nogil=True)
def _after_number(text: Text, at: int, limit: int) -> int:
    """Behind a number without an exponent."""
    _, at = _whole(text, at, limit)
    if at == _NONE or at >= limit or text[unsigned(at)] != _POINT:
        return at
    begin = at + 1
    at = begin
    while at < limit and _ZERO <= text[unsigned(at)] <= _ZERO + 9:
        at += 1
    return at if 1 <= at - begin <= _MOST_DECIMALS else _NONE


@njit(cache=True, nogil=True)
def learn(text: Text, marks: Int64s, rows: Int64s, shapes: Shapes) -> None:
    """Keeps the shapes of the events that `marks` are of, and tells each one's row."""
    first = 1
    for last in range(1, marks[0, 0]):
        what = marks[last, WHAT]
        if what in (ROW, NO_ROW):
            shape = _learn_event(text, marks, first, last, shapes)
            if what == ROW:
                rows[SHAPE, marks[last, ROW_NUMBER]] = shape
            first = last + 1


@njit(nogil=True)
def _learn_event(text: Text, marks: Int64s, first: int, last: int, shapes: Shapes) -> int:
    """The shape of the event with these marks, which is kept; none where there is no room."""
    at = marks[last, BEGIN]
    piece = 0
    says_all = 1
    for mark in range(first, last + 1):
        end = marks[mark, BEGIN] if mark < last else marks[last, END]
        piece = _learn_piece(text, at, end, marks[mark, WHAT], marks[last], piece, shapes)
        if piece == _NONE:
            return _NONE
        if marks[mark, WHAT] == A_NAME:
            piece = _learn_name(text, marks[mark, BEGIN], marks[mark, END], piece, shapes)
            if piece == _NONE:
                return _NONE
        if marks[mark, WHAT] == AN_INTEGER:
            says_all = 0
        at = marks[mark, END]
    shapes.pieces[piece, SAYS_ALL] = says_all
    return piece


@njit(nogil=True)
def _learn_piece(text: Text, begin: int, end: int, follows: int, event: Int64s, piece: int, shapes: Shapes) -> int:
    """The piece `text[begin:end]` behind `piece`."""
    pieces = shapes.pieces
    one = pieces[piece, _CHILD]
    while one != _NONE:
        alike = pieces[one, _LENGTH] == end - begin and pieces[one, _THEN] == follows
        if alike and _is_same(text, begin, shapes.texts, pieces[one, _FIRST], end - begin):
            return int(one)
        one = pieces[one, _OTHER]
    if pieces[piece, _CHILDREN] == _MOST_CHILDREN:
        return _NONE
    new = _new_piece(text, begin, end, follows, shapes)
    if new != _NONE:
        pieces[new, _OTHER] = pieces[piece, _CHILD]
        pieces[piece, _CHILD] = new
        pieces[piece, _CHILDREN] += 1
        pieces[new, _WITHOUT] = event[WITHOUT]
        if begin <= event[ARGS_BEGIN] < end:
            pieces[new, _OPENS] = event[ARGS_BEGIN] - begin
        if begin < event[ARGS_END] <= end:
            pieces[new, _CLOSES] = event[ARGS_END] - begin
    return new


@njit(nogil=True)
def _learn_name(text: Text, begin: int, end: int, piece: int, shapes: Shapes) -> int:
    """The piece that is the name `text[begin:end]` behind `piece`."""
    size, hashed = _name(text, begin, len(text), piece)
    known = _named(text, begin, end - begin, hashed, piece, shapes.texts, shapes.pieces, shapes.names)
    if known != _NONE or size != end - begin:
        return known
    for probe in range(_MOST_PROBES):
        slot = (hashed + probe) & (len(shapes.names) - 1)
        if shapes.names[slot] == 0:
            new = _new_piece(text, begin, end, NOTHING, shapes)
            if new != _NONE:
                shapes.names[slot] = new
                shapes.pieces[new, _OTHER] = piece
            return new
    return _NONE


@njit(nogil=True)
def _new_piece(text: Text, begin: int, end: int, follows: int, shapes: Shapes) -> int:
    """A piece that stands nowhere yet; none where there is no room."""
    number, first = shapes.counts[0], shapes.counts[1]
    if number == len(shapes.pieces) or first + end - begin > len(shapes.texts):
        return _NONE
    for i in range(end - begin):
        shapes.texts[first + i] = text[begin + i]
    piece = shapes.pieces[number]
    piece[_FIRST], piece[_LENGTH], piece[_THEN] = first, end - begin, follows
    piece[_CHILD] = piece[_OTHER] = piece[_OPENS] = piece[_CLOSES] = _NONE
    piece[_CHILDREN] = piece[_WITHOUT] = piece[SAYS_ALL] = 0
    shapes.counts[0], shapes.counts[1] = number + 1, first + end - begin
    return int(number)
