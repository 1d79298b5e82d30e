"""Keeps the shapes of events that were parsed, so that others like them need not be; compiled by numba.

What is compiled together stands in one file: by that file alone numba tells whether kept machine code is out of date.
"""

from typing import Final

from kair_engine.numba_or_not import Int64s, Text
from kair_engine.numba_or_not import njit_without_arrays as njit
from kair_engine.readers.kineto.compiled.field_marks import (
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
    WHAT,
    WITHOUT,
)
from kair_engine.readers.kineto.compiled.scan_columns import SHAPE
from kair_engine.readers.kineto.compiled.templates import (
    CHILD,
    CHILDREN,
    CLOSES,
    FIRST,
    LENGTH,
    MOST_PROBES,
    NONE,
    OPENS,
    OTHER,
    SAYS_ALL,
    THEN,
    TIMELESS,
    WHOLE,
    Shapes,
    is_same,
    known_name,
    name_at,
)

_MOST_CHILDREN: Final = 64
"""Pieces that are looked at in turn; the one that was met last comes first."""


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
    """The piece `text[begin:end]` behind `piece`."""
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
    """The piece that is the name `text[begin:end]` behind `piece`."""
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
    """A piece that stands nowhere yet; none where there is no room."""
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
