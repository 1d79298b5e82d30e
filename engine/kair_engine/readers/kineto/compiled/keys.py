"""The keys of events and of their arguments that are looked at."""

from typing import Final, NamedTuple

import numpy as np

from kair_engine.numba_or_not import Int64s, Text
from kair_engine.readers.kineto.compiled import scan_columns

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
