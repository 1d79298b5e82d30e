"""The keys of events and of their arguments that are looked at."""

from typing import Final, NamedTuple

import numpy as np

from kair_engine.numba_or_not import Int64s, Text
from kair_engine.readers.kineto.compiled import scan

_OF_EVENT: Final = {
    "ph": scan.PH,
    "ts": scan.TS,
    "cat": scan.CAT,
    "dur": scan.DUR,
    "pid": scan.PID,
    "tid": scan.TID,
    "args": scan.ARGS,
    "name": scan.NAME,
}
ARGUMENTS: Final = {
    "bytes": scan.SIZE,
    "correlation": scan.CORRELATION,
    "External id": scan.EXTERNAL_ID,
    "Seq": scan.MAYBE_INTEGER,
    "Src Rank": scan.MAYBE_INTEGER,
    "Dst Rank": scan.MAYBE_INTEGER,
    "In msg nelems": scan.MAYBE_INTEGER,
    "Out msg nelems": scan.MAYBE_INTEGER,
    "dtype": scan.MAYBE_TEXT,
    "Collective name": scan.MAYBE_TEXT,
    "Process Group Name": scan.MAYBE_TEXT,
    "Process Group Ranks": scan.MAYBE_TEXT,
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
