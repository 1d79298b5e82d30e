"""Defines the keys of events and of their arguments that have a meaning."""

from typing import Final

import numpy as np

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
"""The arguments that `EventArgs` decodes, and the types of their values."""
_ALL: Final = [*_OF_EVENT.items(), *sorted(ARGUMENTS.items(), key=lambda item: len(item[0]))]
_LONGEST: Final = max(map(len, ARGUMENTS))
TEXTS: Final = np.frombuffer("".join(key for key, _ in _ALL).encode(), np.uint8)
"""The keys of both tables end to end, sorted by length within each."""
BEGINS: Final = np.cumsum([0, *(len(key) for key, _ in _ALL)])
FIELDS: Final = np.array([field for _, field in _ALL])
"""The column of each, or an argument's type."""
OF_LENGTH: Final = np.array(
    [
        [before + sum(len(key) < size for key in keys) for size in range(_LONGEST + 2)]
        for before, keys in ((0, _OF_EVENT), (len(_OF_EVENT), ARGUMENTS))
    ]
)
"""(table × length): the first key of a table that is as long, or longer."""
