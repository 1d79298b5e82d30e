"""The keys of events and of their arguments that are looked at."""

from typing import Final, NamedTuple

import numpy as np

from kair_engine.numba_or_not import Int64s, Text
from kair_engine.readers.kineto.compiled import scanned

_OF_EVENT: Final = {
    "ph": scanned.PH,
    "ts": scanned.TS,
    "cat": scanned.CAT,
    "dur": scanned.DUR,
    "pid": scanned.PID,
    "tid": scanned.TID,
    "args": scanned.ARGS,
    "name": scanned.NAME,
}
ARGUMENTS: Final = {
    "bytes": scanned.SIZE,
    "correlation": scanned.CORRELATION,
    "External id": scanned.EXTERNAL_ID,
    "Seq": scanned.MAYBE_INTEGER,
    "Src Rank": scanned.MAYBE_INTEGER,
    "Dst Rank": scanned.MAYBE_INTEGER,
    "In msg nelems": scanned.MAYBE_INTEGER,
    "Out msg nelems": scanned.MAYBE_INTEGER,
    "dtype": scanned.MAYBE_TEXT,
    "Collective name": scanned.MAYBE_TEXT,
    "Process Group Name": scanned.MAYBE_TEXT,
    "Process Group Ranks": scanned.MAYBE_TEXT,
    "Concrete Inputs": scanned.INPUTS,
}
"""The arguments whose types are looked at: those that `EventArgs` decodes."""
_ALL: Final = [*_OF_EVENT.items(), *sorted(ARGUMENTS.items(), key=lambda item: len(item[0]))]
_LONGEST: Final = max(map(len, ARGUMENTS))


class Keys(NamedTuple):
    """The keys of both tables end to end, the short ones of each first."""

    texts: Text
    begins: Int64s
    """Where each begins."""
    fields: Int64s
    """The column of each, or of arguments their type."""
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
