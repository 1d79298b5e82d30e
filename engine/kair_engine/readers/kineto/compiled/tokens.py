"""Numbers the texts of events, compiled by numba: each different text is kept once, and found by its content.

Defines also the relevant keys of events and of their arguments.
"""

from typing import Final, NamedTuple

import numpy as np

from kair_engine.numba_or_not import Int32s, Int64s, Text, njit, unsigned
from kair_engine.readers.kineto.compiled import scan_columns

# Columns of tokens.
NAME: Final = 0
TRACK: Final = 4

_MOST_PROBES: Final = 64
_HASH_BITS: Final = (1 << 32) - 1
_FNV_PRIME: Final = 16777619
_FNV_BASIS: Final = 2166136261


class Tokens(NamedTuple):
    """Different texts, and different tracks (category, process, thread), in the order of arrival.

    A text is kept with its quotes: a thread "7" is not thread 7.
    """

    slots: Int32s
    """Hash table by the texts' content; 0 is a free slot."""
    texts: Text
    ends: Int64s
    track_slots: Int32s
    tracks: Int32s
    counts: Int64s
    """The numbers of texts and of tracks. Text 0 is empty: it stands for a missing field."""


@njit(cache=True, nogil=True)
def find_tokens(text: Text, places: Int64s, tokens: Tokens, found: Int32s) -> int:
    """Give numbers to the texts of each row (name, category, process, thread), and the track of the last three.

    `places` are their begins and ends in the text, in turn.

    Returns the number of rows that had room.
    """
    slots, texts, ends = tokens.slots, tokens.texts, tokens.ends
    last = np.zeros(TRACK, np.int64)
    for row in range(len(places)):
        for column in range(TRACK):
            begin, end = places[row, 2 * column], places[row, 2 * column + 1]
            number = last[column]
            if begin == end:
                number = 0
            elif number == 0 or not _is_token(text, begin, end, texts, ends[number - 1], ends[number]):
                hashed = _FNV_BASIS
                for i in range(begin, end):
                    hashed = ((hashed ^ text[unsigned(i)]) * _FNV_PRIME) & _HASH_BITS
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
        found[row, TRACK] = track
    return len(places)


@njit(nogil=True)
def _is_token(text: Text, begin: int, end: int, texts: Text, first: int, last: int) -> bool:
    if last - first != end - begin:
        return False
    for i in range(end - begin):
        if texts[unsigned(first + i)] != text[unsigned(begin + i)]:
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


_OF_EVENT: Final = {
    "ph": scan_columns.PH,
    "ts": scan_columns.TS,
    "cat": scan_columns.CAT,
    "dur": scan_columns.DUR,
    "pid": scan_columns.PID,
    "tid": scan_columns.TID,
    "args": scan_columns.ARGS,
    "name": scan_columns.NAME,
}
ARGUMENTS: Final = {
    "bytes": scan_columns.SIZE,
    "correlation": scan_columns.CORRELATION,
    "External id": scan_columns.EXTERNAL_ID,
    "Seq": scan_columns.MAYBE_INTEGER,
    "Src Rank": scan_columns.MAYBE_INTEGER,
    "Dst Rank": scan_columns.MAYBE_INTEGER,
    "In msg nelems": scan_columns.MAYBE_INTEGER,
    "Out msg nelems": scan_columns.MAYBE_INTEGER,
    "dtype": scan_columns.MAYBE_TEXT,
    "Collective name": scan_columns.MAYBE_TEXT,
    "Process Group Name": scan_columns.MAYBE_TEXT,
    "Process Group Ranks": scan_columns.MAYBE_TEXT,
    "Concrete Inputs": scan_columns.INPUTS,
}
"""The arguments that `EventArgs` decodes, and the types of their values."""
_ALL: Final = [*_OF_EVENT.items(), *sorted(ARGUMENTS.items(), key=lambda item: len(item[0]))]
_LONGEST: Final = max(map(len, ARGUMENTS))


class Keys(NamedTuple):
    """The keys of both tables end to end, sorted by length within each."""

    texts: Text
    begins: Int64s
    """Where each begins."""
    fields: Int64s
    """The column of each, or an argument's type."""
    of_length: Int64s
    """(table × length): the first key of a table that is as long, or longer."""


KEYS: Final = Keys(
    texts=np.frombuffer("".join(key for key, _ in _ALL).encode(), np.uint8),
    begins=np.cumsum([0, *(len(key) for key, _ in _ALL)]),
    fields=np.array([field for _, field in _ALL]),
    of_length=np.array(
        [
            [before + sum(len(key) < size for key in keys) for size in range(_LONGEST + 2)]
            for before, keys in ((0, _OF_EVENT), (len(_OF_EVENT), ARGUMENTS))
        ]
    ),
)
