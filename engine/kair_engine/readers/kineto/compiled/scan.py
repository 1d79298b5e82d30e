"""The events of a text as columns, compiled: numbers, and which texts stand where.

Each different text is kept once, in a table by its content (`Tokens`), with its quotes: a thread "7" is not thread 7.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kair_engine.readers.kineto.compiled.json_text import (
    CLOSE,
    COMMA,
    OPEN,
    QUOTE,
    REFUSED,
    Text,
    after_number,
    after_plain_string,
    after_space,
    after_string,
    after_value,
    integer,
    njit,
    thousandths,
    to_value,
)

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

# What became of a scan.
DONE: Final = 0
NO_ROOM: Final = 1
"""The columns are full: what is in them has to be taken, and the scan goes on."""
NO_ROOM_FOR_TEXTS: Final = 2
UNKNOWN: Final = 3
"""Something in the text is not known for sure."""

# The fields of an event and of its arguments that are looked at, by number; 0 is any other.
PH: Final = 1
NAME: Final = 2
CAT: Final = 3
PID: Final = 4
TID: Final = 5
TS: Final = 6
DUR: Final = 7
ARGS: Final = 8
CORRELATION: Final = 9
EXTERNAL_ID: Final = 10
SIZE: Final = 11
MAYBE_INTEGER: Final = 12
MAYBE_TEXT: Final = 13

# Columns of numbers: START, DURATION, the ids and the size in the order of their fields, and places in the text.
START: Final = 0
DURATION: Final = 1
OF_ARGS: Final = 2
"""CORRELATION, EXTERNAL_ID and SIZE are columns 2, 3 and 4."""
ARGS_BEGIN: Final = 5
ARGS_END: Final = 6
EVENT_BEGIN: Final = 7
NUMBERS: Final = 8
_VALUES: Final = 6
_ODD: Final = 5
"""Which times are written in another way than as plain numbers, in bits: 1 the start, 2 the duration."""

# Columns of texts.
NAMES: Final = 0
TRACKS: Final = 1

_MOST_PROBES: Final = 64
_HASH_BITS: Final = (1 << 32) - 1
_FNV_PRIME: Final = 16777619
_FNV_BASIS: Final = 2166136261
# The places of an event's fields: begin and end of each, by twice the number of the field.
_PLACES: Final = 2 * (ARGS + 1)
_X: Final = ord("X")
_PAIRED: Final = (ord("B"), ord("E"))
_NULL: Final = ord("n")


class Keys(NamedTuple):
    """The keys that are looked at, the short ones first."""

    texts: Text
    begins: Int64s
    """Of each key among the texts, and where the last one ends."""
    fields: Int64s
    of_length: Int64s
    """The first key of each length, and of none that is longer."""


class Tokens(NamedTuple):
    """Different texts, and different tracks (category, process, thread), by the order in which they came."""

    slots: Int32s
    texts: Text
    ends: Int64s
    track_slots: Int32s
    tracks: Int32s
    counts: Int64s
    """How many texts there are, and how many tracks. Text 0 is empty: it stands for a field that is not there."""


class Columns(NamedTuple):
    """Room for rows."""

    numbers: Int64s
    texts: Int32s
    odd: Int64s
    """(row, column, begin, end) of times that are no plain numbers."""
    counts: Int64s
    """Rows, odd times, and the place in the text where the scan ended."""


@njit(cache=True, nogil=True)
def scan_events(
    text: Text, at: int, limit: int, event_keys: Keys, args_keys: Keys, tokens: Tokens, columns: Columns
) -> int:
    """Takes the events of `text[at:limit]` into columns, as far as there is room; says why it ended."""
    places = np.empty(_PLACES, np.int64)
    values = np.empty(_VALUES, np.int64)
    columns.counts[:] = 0
    while True:
        columns.counts[2] = at
        if columns.counts[0] == columns.numbers.shape[1]:
            return NO_ROOM
        places[:] = 0
        values[:] = -1
        values[_ODD] = 3
        at = _event(text, at, limit, event_keys, args_keys, places, values)
        if at == REFUSED:
            return UNKNOWN
        phase = places[2 * PH]
        if places[2 * PH + 1] - phase == 3:
            if text[phase + 1] == _X:
                status = _keep(text, tokens, columns, places, values)
                if status != DONE:
                    return status
            elif text[phase + 1] in _PAIRED:
                return UNKNOWN
        at = after_space(text, at, limit)
        if at >= limit:
            columns.counts[2] = limit
            return DONE
        # Some write one event a line, without commas.
        if text[at] == COMMA:
            at = after_space(text, at + 1, limit)


@njit(cache=True, nogil=True)
def _event(
    text: Text, at: int, limit: int, event_keys: Keys, args_keys: Keys, places: Int64s, values: Int64s
) -> int:
    """Behind the event that begins at `at`; where its fields are goes to `places`, and numbers to `values`."""
    if at >= limit or text[at] != OPEN:
        return REFUSED
    at = after_space(text, at + 1, limit)
    if at < limit and text[at] == CLOSE:
        return at + 1
    while True:
        begin = at
        at = after_plain_string(text, at, limit)
        if at == REFUSED:
            return REFUSED
        field = _field(text, begin + 1, at - 1, event_keys)
        begin = to_value(text, at, limit)
        if begin == REFUSED:
            return REFUSED
        if field in (TS, DUR):
            at = _time(text, begin, limit, field, values)
        elif field in (PID, TID):
            at = after_string(text, begin, limit)
            if at == REFUSED:
                _, at = integer(text, begin, limit)
        elif field == PH:
            at = after_plain_string(text, begin, limit)
        elif field in (NAME, CAT):
            at = after_string(text, begin, limit)
        elif field == ARGS:
            at = _args(text, begin, limit, args_keys, values)
        else:
            at = after_value(text, begin, limit)
        if at == REFUSED:
            return REFUSED
        if field:
            places[2 * field], places[2 * field + 1] = begin, at
        at = after_space(text, at, limit)
        if at >= limit:
            return REFUSED
        if text[at] == CLOSE:
            return at + 1
        if text[at] != COMMA:
            return REFUSED
        at = after_space(text, at + 1, limit)


@njit(cache=True, nogil=True)
def _time(text: Text, at: int, limit: int, field: int, values: Int64s) -> int:
    """Behind a time, a number or a text; of what is written in an unusual way only the place is kept."""
    column = START if field == TS else DURATION
    values[column], end = thousandths(text, at, limit)
    if end != REFUSED:
        values[_ODD] &= ~(1 << column)
        return end
    values[_ODD] |= 1 << column
    end = after_string(text, at, limit)
    return after_number(text, at, limit) if end == REFUSED else end


@njit(cache=True, nogil=True)
def _args(text: Text, at: int, limit: int, keys: Keys, values: Int64s) -> int:
    """Behind the arguments of an event, an object or null."""
    values[OF_ARGS:_ODD] = -1
    if at < limit and text[at] == _NULL:
        return after_value(text, at, limit)
    if at >= limit or text[at] != OPEN:
        return REFUSED
    at = after_space(text, at + 1, limit)
    if at < limit and text[at] == CLOSE:
        return at + 1
    while True:
        begin = at
        at = after_plain_string(text, at, limit)
        if at == REFUSED:
            return REFUSED
        field = _field(text, begin + 1, at - 1, keys)
        at = to_value(text, at, limit)
        if at == REFUSED or at >= limit:
            return REFUSED
        if field in (CORRELATION, EXTERNAL_ID, SIZE):
            values[field - CORRELATION + OF_ARGS], at = integer(text, at, limit)
        elif field == MAYBE_INTEGER and text[at] != _NULL:
            _, at = integer(text, at, limit)
        elif field == MAYBE_TEXT and text[at] != _NULL:
            at = after_plain_string(text, at, limit)
        else:
            at = after_value(text, at, limit)
        if at == REFUSED:
            return REFUSED
        at = after_space(text, at, limit)
        if at >= limit:
            return REFUSED
        if text[at] == CLOSE:
            return at + 1
        if text[at] != COMMA:
            return REFUSED
        at = after_space(text, at + 1, limit)


@njit(cache=True, nogil=True)
def _field(text: Text, begin: int, end: int, keys: Keys) -> int:
    """The number of the field with the key `text[begin:end]`, 0 of none that is looked at."""
    size = end - begin
    if size + 1 >= len(keys.of_length):
        return 0
    for key in range(keys.of_length[size], keys.of_length[size + 1]):
        first = keys.begins[key]
        same = True
        for i in range(size):
            if text[begin + i] != keys.texts[first + i]:
                same = False
                break
        if same:
            return int(keys.fields[key])
    return 0


@njit(cache=True, nogil=True)
def _keep(text: Text, tokens: Tokens, columns: Columns, places: Int64s, values: Int64s) -> int:
    """Makes an event a row."""
    row = columns.counts[0]
    name = _token(text, places[2 * NAME], places[2 * NAME + 1], tokens)
    category = _token(text, places[2 * CAT], places[2 * CAT + 1], tokens)
    process = _token(text, places[2 * PID], places[2 * PID + 1], tokens)
    thread = _token(text, places[2 * TID], places[2 * TID + 1], tokens)
    if min(name, category, process, thread) < 0:
        return NO_ROOM_FOR_TEXTS
    track = _track(category, process, thread, tokens)
    if track < 0:
        return NO_ROOM_FOR_TEXTS
    columns.texts[NAMES, row] = name
    columns.texts[TRACKS, row] = track
    for column in range(_ODD):
        columns.numbers[column, row] = values[column]
    columns.numbers[ARGS_BEGIN, row] = places[2 * ARGS]
    columns.numbers[ARGS_END, row] = places[2 * ARGS + 1]
    columns.numbers[EVENT_BEGIN, row] = columns.counts[2]
    for column in (START, DURATION):
        if values[_ODD] & (1 << column):
            field = TS if column == START else DUR
            if columns.counts[1] == len(columns.odd):
                return UNKNOWN
            columns.odd[columns.counts[1], 0] = row
            columns.odd[columns.counts[1], 1] = column
            columns.odd[columns.counts[1], 2] = places[2 * field]
            columns.odd[columns.counts[1], 3] = places[2 * field + 1]
            columns.counts[1] += 1
    columns.counts[0] = row + 1
    return DONE


@njit(cache=True, nogil=True)
def _token(text: Text, begin: int, end: int, tokens: Tokens) -> int:
    """The number of a text, a new one where it was not there; -1 where there is no room for it."""
    if begin == end:
        return 0
    hashed = _FNV_BASIS
    for i in range(begin, end):
        hashed = ((hashed ^ text[i]) * _FNV_PRIME) & _HASH_BITS
    slot, size = hashed & (len(tokens.slots) - 1), end - begin
    for _ in range(_MOST_PROBES):
        number = tokens.slots[slot]
        if number == 0:
            return _new_token(text, begin, end, slot, tokens)
        first = tokens.ends[number - 1]
        if tokens.ends[number] - first == size:
            same = True
            for i in range(size):
                if tokens.texts[first + i] != text[begin + i]:
                    same = False
                    break
            if same:
                return int(number)
        slot = (slot + 1) & (len(tokens.slots) - 1)
    return -1


@njit(cache=True, nogil=True)
def _new_token(text: Text, begin: int, end: int, slot: int, tokens: Tokens) -> int:
    number = tokens.counts[0]
    first = tokens.ends[number - 1]
    if number == len(tokens.ends) or first + end - begin > len(tokens.texts):
        return -1
    for i in range(end - begin):
        tokens.texts[first + i] = text[begin + i]
    tokens.ends[number] = first + end - begin
    tokens.slots[slot] = number
    tokens.counts[0] = number + 1
    return int(number)


@njit(cache=True, nogil=True)
def _track(category: int, process: int, thread: int, tokens: Tokens) -> int:
    slot = ((category * 31 + process) * 1000003 + thread) & (len(tokens.track_slots) - 1)
    for _ in range(_MOST_PROBES):
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
        slot = (slot + 1) & (len(tokens.track_slots) - 1)
    return -1
