"""Windows of time as letters: for each the one that takes most of it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from kair_engine.arrays import NONE, Ints, SmallInts
from kair_engine.results.timeline import ARRIVED, ARRIVED_LAST, LETTERS, NO_ARRIVAL
from kair_engine.views.step_parts import PARTS

NAMES: Final = (*PARTS, "unknown", "operation", "synchronisation")
CODES: Final[dict[str, int]] = {name: code for code, name in enumerate(NAMES)}
"""The parts of a step by their places, as `step_parts` counts them, then what is drawn of lanes alone."""
_NOTHING: Final = len(NAMES)
_SIGNS: Final = np.frombuffer(
    "".join(LETTERS[name] for name in (*NAMES, "nothing")).encode("ascii"),  # type: ignore[index]
    dtype=np.uint8,
)
_ARRIVALS: Final = np.frombuffer((NO_ARRIVAL + ARRIVED + ARRIVED_LAST).encode("ascii"), dtype=np.uint8)


_NO_CODE: Final = np.array([NONE], dtype=np.int8)


class Doings(NamedTuple):
    """What one row does: from each time (ns, the job's clock) to the next a code; nothing before the first."""

    time: Ints
    code: SmallInts


def letters(rows: Sequence[Doings], edges: Ints) -> list[str]:
    """Of every row a letter per window between two `edges` (ascending, in ns): what most of it goes into."""
    if not rows:
        return []
    windows = len(edges) - 1
    time, code, row = _in_view(rows, int(edges[0]), int(edges[-1]))
    # Every moment is cut at the edges of windows, and its pieces are added up by window and code.
    span = int(edges[-1] - edges[0]) + 1
    begin = np.concatenate((row * span + (time - edges[0]), _at_edges(edges, len(rows), span)))
    of_piece = np.concatenate((code, np.full(len(rows) * len(edges), -2)))
    order = np.argsort(begin, kind="stable")
    begin, of_piece = begin[order], of_piece[order]
    known = np.where(of_piece == -2, 0, np.arange(len(of_piece)))
    np.maximum.accumulate(known, out=known)
    doing = of_piece[known]
    length = np.diff(begin, append=begin[-1])
    which = np.searchsorted(edges - edges[0], begin % span, side="right") - 1
    inside = (which < windows) & (length > 0)
    cell = ((begin // span)[inside] * windows + which[inside]) * (_NOTHING + 1) + np.where(
        doing[inside] < 0, _NOTHING, doing[inside]
    )
    spent = np.bincount(cell, weights=length[inside], minlength=len(rows) * windows * (_NOTHING + 1)).astype(float)
    # What is nothing counts for less than anything: a short operation alone in its window is seen.
    spent = spent.reshape(len(rows), windows, _NOTHING + 1)
    spent[..., _NOTHING] /= 2
    signs = _SIGNS[spent.argmax(axis=2)]
    return [line.tobytes().decode("ascii") for line in signs]


def arrival_letters(rows: int, edges: Ints, row: Ints, time: Ints, last: Ints) -> list[str]:
    """Of every row a letter per window; arrivals are of a row (place), at a time in ns, `last` 1 or 0 each."""
    windows = len(edges) - 1
    marks = np.zeros((rows, windows), dtype=np.int64)
    inside = (time >= edges[0]) & (time < edges[-1])
    which = np.searchsorted(edges, time[inside], side="right") - 1
    np.maximum.at(marks, (row[inside], which), 1 + last[inside])
    return [line.tobytes().decode("ascii") for line in _ARRIVALS[marks]]


def _in_view(rows: Sequence[Doings], begin: int, end: int) -> tuple[Ints, Ints, Ints]:
    """(time, code, row) of all moments in view, each row's first one at the left edge."""
    times: list[Ints] = []
    codes: list[SmallInts] = []
    for one in rows:
        first = int(np.searchsorted(one.time, begin, side="right"))
        stop = max(int(np.searchsorted(one.time, end, side="left")), first)
        times += [np.array([begin]), one.time[first:stop]]
        codes += [one.code[first - 1 : first] if first else _NO_CODE, one.code[first:stop]]
    return (
        np.concatenate(times).astype(np.int64),
        np.concatenate(codes).astype(np.int64),
        np.repeat(np.arange(len(rows)), [1 + len(time) for time in times[1::2]]),
    )


def _at_edges(edges: Ints, rows: int, span: int) -> Ints:
    return np.asarray((np.arange(rows)[:, None] * span + (edges - edges[0])[None, :]).reshape(-1))
