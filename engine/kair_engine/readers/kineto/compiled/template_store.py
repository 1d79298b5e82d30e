"""Keeps the shapes of parsed events, so that similar ones need no parsing; compiled by numba.

Profilers write all calls of one operator alike. The text of a parsed event is kept as a chain of pieces, separated by
its changing parts: times, ids, other numbers of its arguments; a name stands alone and is found by its content. A later
event of the same pieces, with whole numbers in the same places, is as valid, and has the same name, category, process
and thread: all this is its shape.

Events tend to follow one another as before. So the shape that last followed the same three is tried first, in one go:
its pieces are kept once more, including names, one after another.

Code that is compiled together stands in one file: numba decides by that file alone whether its cached code is out of
date. After a change here, touch template_match.py and template_store.py.
"""

from typing import Final, NamedTuple

import numpy as np

from kair_engine.numba_or_not import Int32s, Int64s, Text, lowest, same_block, unsigned, word
from kair_engine.numba_or_not import njit_without_arrays as njit
from kair_engine.readers.kineto.compiled.scan_columns import (
    A_NAME,
    AN_INTEGER,
    ARGS_BEGIN,
    ARGS_END,
    BEGIN,
    END,
    NO_ROW,
    NOTHING,
    ROW,
    ROW_NUMBER,
    SHAPE,
    WHAT,
    WITHOUT,
)

# Columns of pieces: begin and size of its text, what follows, its first child, its next sibling, the number of its
# children, its event's missing times, and where arguments begin and end in it. The last piece of an event also has
# whether only numbers except ids identify a collective, and the first of the consecutive pieces of the whole event.
FIRST: Final = 0
LENGTH: Final = 1
THEN: Final = 2
CHILD: Final = 3
OTHER: Final = 4
CHILDREN: Final = 5
TIMELESS: Final = 6
OPENS: Final = 7
CLOSES: Final = 8
SAYS_ALL: Final = 9
WHOLE: Final = 10
_PIECE: Final = 11
NONE: Final = -1

_FOLLOWED: Final = 12
"""Bits of the key of earlier events: it predicts 93 of 100 events, with 16 bits 94."""
_LONGEST: Final = 256
"""Pieces of an event that is kept whole."""

MOST_PROBES: Final = 8
_HASH_PRIME: Final = 16777619
LOW_HALF: Final = (1 << 32) - 1
_QUOTES: Final = 0x2222222222222222
_ONES: Final = 0x0101010101010101
HIGHEST: Final = -0x7F7F7F7F7F7F7F80


class Shapes(NamedTuple):
    """The known pieces: a tree, whose root stands before an event."""

    texts: Text
    pieces: Int32s
    names: Int32s
    """Hash table by a name's text and the piece before it → the piece of this name; 0 if free."""
    counts: Int64s
    """The number of pieces, and the total length of their texts."""
    expected: Int32s
    """Key of earlier shapes → the shape that followed."""
    path: Int32s
    """The pieces of one event, as room for its walk."""


def no_shapes(pieces: int, names: int, text: int) -> Shapes:
    """Return room for so many pieces, names (a power of two), and bytes of both."""
    known = Shapes(
        texts=np.empty(text, np.uint8),
        pieces=np.empty((pieces, _PIECE), np.int32),
        names=np.zeros(names, np.int32),
        counts=np.zeros(2, np.int64),
        expected=np.zeros(1 << _FOLLOWED, np.int32),
        path=np.zeros(_LONGEST, np.int32),
    )
    forget(known)
    return known


def forget(shapes: Shapes) -> None:
    """Drop all shapes."""
    shapes.names[:] = shapes.expected[:] = 0
    shapes.pieces[0] = [0, 0, NOTHING, NONE, NONE, 0, 0, NONE, NONE, 0, NONE]
    shapes.counts[:] = [1, 0]


@njit(nogil=True)
def is_same(text: Text, at: int, texts: Text, first: int, size: int) -> bool:
    """Return whether the text at `at` equals a piece: `size` characters of `texts` from `first` on."""
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
def name_at(text: Text, at: int, limit: int, piece: int) -> tuple[int, int]:
    """Return the size of the quoted text at `at` if it has no escapes, and a hash of it and the piece before."""
    hashed = piece
    end = at + 1
    while end + 8 <= limit:
        signs = word(text, end)
        marked = signs ^ _QUOTES
        quotes = (marked - _ONES) & ~marked & HIGHEST
        if quotes:
            before = lowest(quotes) >> 3
            signs &= (1 << 8 * before) - 1
        hashed = ((hashed ^ (signs & LOW_HALF)) * _HASH_PRIME) & LOW_HALF
        hashed = ((hashed ^ ((signs >> 32) & LOW_HALF)) * _HASH_PRIME) & LOW_HALF
        if quotes:
            return end + before + 1 - at, hashed ^ (hashed >> 15)
        end += 8
    return 0, 0


@njit(nogil=True)
def known_name(text: Text, at: int, size: int, hashed: int, piece: int, shapes: Shapes) -> int:
    """Return the piece of this name after `piece`."""
    texts, pieces, names = shapes.texts, shapes.pieces, shapes.names
    for probe in range(MOST_PROBES):
        one = names[(hashed + probe) & (len(names) - 1)]
        if one == 0:
            return NONE
        of_piece = pieces[one, OTHER] == piece and pieces[one, LENGTH] == size
        if of_piece and is_same(text, at, texts, pieces[one, FIRST], size):
            return int(one)
    return NONE


_MOST_CHILDREN: Final = 64
"""Pieces that are tried in turn; the latest match comes first."""


@njit(cache=True, nogil=True)
def learn(text: Text, marks: Int64s, rows: Int64s, shapes: Shapes) -> None:
    """Keep the shapes of the events in `marks`, and write each one's shape into its row."""
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
    """Keep and return the shape of the event with these marks; none if there is no room."""
    at = marks[last, BEGIN]
    piece = 0
    says_all = 1
    for mark in range(first, last + 1):
        end = marks[mark, BEGIN] if mark < last else marks[last, END]
        piece = _learn_piece(text, at, end, marks[mark, WHAT], marks[last], piece, shapes)
        if piece == NONE:
            return NONE
        if marks[mark, WHAT] == A_NAME:
            piece = _learn_name(text, marks[mark, BEGIN], marks[mark, END], piece, shapes)
            if piece == NONE:
                return NONE
        if marks[mark, WHAT] == AN_INTEGER:
            says_all = 0
        at = marks[mark, END]
    shapes.pieces[piece, SAYS_ALL] = says_all
    return piece


@njit(nogil=True)
def _learn_piece(text: Text, begin: int, end: int, follows: int, event: Int64s, piece: int, shapes: Shapes) -> int:
    """Return the piece `text[begin:end]` after `piece`."""
    pieces = shapes.pieces
    one = pieces[piece, CHILD]
    while one != NONE:
        alike = pieces[one, LENGTH] == end - begin and pieces[one, THEN] == follows
        if alike and is_same(text, begin, shapes.texts, pieces[one, FIRST], end - begin):
            return int(one)
        one = pieces[one, OTHER]
    if pieces[piece, CHILDREN] == _MOST_CHILDREN:
        return NONE
    new = _new_piece(text, begin, end, follows, shapes)
    if new != NONE:
        pieces[new, OTHER] = pieces[piece, CHILD]
        pieces[piece, CHILD] = new
        pieces[piece, CHILDREN] += 1
        pieces[new, TIMELESS] = event[WITHOUT]
        if begin <= event[ARGS_BEGIN] < end:
            pieces[new, OPENS] = event[ARGS_BEGIN] - begin
        if begin < event[ARGS_END] <= end:
            pieces[new, CLOSES] = event[ARGS_END] - begin
    return new


@njit(nogil=True)
def _learn_name(text: Text, begin: int, end: int, piece: int, shapes: Shapes) -> int:
    """Return the piece that is the name `text[begin:end]` after `piece`."""
    size, hashed = name_at(text, begin, len(text), piece)
    known = known_name(text, begin, end - begin, hashed, piece, shapes)
    if known != NONE or size != end - begin:
        return known
    for probe in range(MOST_PROBES):
        slot = (hashed + probe) & (len(shapes.names) - 1)
        if shapes.names[slot] == 0:
            new = _new_piece(text, begin, end, NOTHING, shapes)
            if new != NONE:
                shapes.names[slot] = new
                shapes.pieces[new, OTHER] = piece
            return new
    return NONE


@njit(nogil=True)
def _new_piece(text: Text, begin: int, end: int, follows: int, shapes: Shapes) -> int:
    """Return a new, unlinked piece; none if there is no room."""
    number, first = shapes.counts[0], shapes.counts[1]
    if number == len(shapes.pieces) or first + end - begin > len(shapes.texts):
        return NONE
    for i in range(end - begin):
        shapes.texts[first + i] = text[begin + i]
    piece = shapes.pieces[number]
    piece[FIRST], piece[LENGTH], piece[THEN] = first, end - begin, follows
    piece[CHILD] = piece[OTHER] = piece[OPENS] = piece[CLOSES] = piece[WHOLE] = NONE
    piece[CHILDREN] = piece[TIMELESS] = piece[SAYS_ALL] = 0
    shapes.counts[0], shapes.counts[1] = number + 1, first + end - begin
    return int(number)
