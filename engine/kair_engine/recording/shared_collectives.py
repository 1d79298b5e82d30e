"""Whether recordings can be of one run: a constant offset of their clocks must fit all collectives that they share.

Nobody leaves a collective before its last member came. So each one that two recordings share bounds by how much one's
clock can be ahead of the other's, from both sides, and in one run one offset is within the bounds of all. Recordings of
two runs drift apart with every step that took longer in one of them, and no offset fits more than a few.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints, dense
from kair_engine.frozen import dataclass
from kair_engine.stats import median
from kair_engine.timeline.collectives import ordinal
from kair_engine.trace.columns import Columns, read_columns
from kair_engine.trace.format import STREAM_PREFIX
from kair_engine.trace.model import Trace

# Of the others (a broadcast, a reduce) a member may leave before the last one came.
_LEFT_TOGETHER: Final = re.compile(r"(?i)all[-_]?(reduce|gather)|reduce[-_]?scatter|all[-_]?to[-_]?all|barrier")
_TOLERANCE_NS: Final = 50_000
"""50 µs by which members may miss each other, as in synchronisation.py."""
_DRIFT: Final = 500e-6
"""No clock that is kept in time runs faster or slower by more: NTP's own limit."""
_MOST_MISFITS: Final = 0.25
"""Of what two recordings share: single ends are closed late or early, two runs had 0.4 and more of misfits."""
_FEWEST: Final = 3
"""Collectives in common that tell anything: some offset fits two of any."""
_ONCE: Final = 0.1
"""Of what ends lie apart: so little is left where a clock was set once in between."""
_LOOKED_AT: Final = 100
_PARTNERS: Final = 3
"""Next members in the order of ranks that each member is compared with: of 7 ranks all."""

Pair = tuple[int, int]
"""Two files, by their places."""


@dataclass(frozen=True)
class Shared:
    """How well the collectives of two files fit each other."""

    misfits: float
    """The share that the best offset of their clocks does not fit."""
    fits: bool
    in_known_group: bool


def shared(
    trace: Trace, steps: Sequence[int], files: Mapping[tuple[int, int], int], marked: Collection[int]
) -> dict[Pair, Shared]:
    """Pairs of files that share collectives in `steps`; `files` has the place of that of each (rank, step).

    The k-th of a name and group in a step is one collective, where all ranks' steps are `marked`; else those of one
    number in a group are. In what group an operation ran that names none is not known: two files fit then if any call
    of a step does.
    """
    rows = _rows(trace, steps)
    if not len(rows):
        return {}
    file = np.array([files.get(cell, NONE) for cell in zip(*_lists(rows, "rank", "step"), strict=True)], dtype=np.int64)
    by_number = not set(np.unique(rows.of["rank"]).tolist()) <= set(marked)
    call, block = _by_number(rows) if by_number else _by_order(rows)
    known = (file != NONE) & (call != NONE)
    start = rows.of["start_ns"].astype(np.int64)
    columns = np.stack((call, file, block, start, start + rows.of["duration_ns"]))[:, known]
    if not known.any():
        return {}
    found = ((pair, _fit(times)) for pair, times in _of_pairs(columns))
    return {pair: fit for pair, fit in found if fit is not None}


def _lists(rows: Columns, *names: str) -> list[list[int]]:
    return [rows.of[name].tolist() for name in names]


def _rows(trace: Trace, steps: Sequence[int]) -> Columns:
    """The collectives that all members leave together, in order of (rank, step, start).

    Without calls on threads, which stand for collectives where nothing times these: they return at once.
    """
    rows = read_columns(trace, ("kind", "lane", "name", "group", "group_seq", "start_ns", "duration_ns"), steps)
    streams = [lane for lane in rows.texts["lane"] if lane.startswith(STREAM_PREFIX)]
    together = [name for name in rows.texts["name"] if _LEFT_TOGETHER.search(name)]
    timed = [name for name in together if name.startswith("gloo:")]
    telling = rows.is_any("name", together) & (rows.is_any("lane", streams) | rows.is_any("name", timed))
    rows = rows.chosen(rows.is_any("kind", ("collective",)) & telling)
    return rows.chosen(np.lexsort((rows.of["start_ns"], rows.of["step"], rows.of["rank"])))


def _by_order(rows: Columns) -> tuple[Ints, Ints]:
    """(the collective of each row, what of its step it is: 0 of a known group) by their order in the step."""
    rank, step, name, group = (rows.of[of].astype(np.int64) for of in ("rank", "step", "name", "group"))
    cell = dense(np.stack((rank, step, name, group)))
    turn, count = ordinal(cell[None]), np.bincount(cell)[cell]
    # In order, one too few would shift all that follow.
    call = dense(np.stack((step, name, group, turn, count)))
    return call, np.where(group == NONE, 1 + dense(np.stack((name, turn))), 0)


def _by_number(rows: Columns) -> tuple[Ints, Ints]:
    """The same by their numbers in their groups; NONE for those without."""
    group, number = (rows.of[of].astype(np.int64) for of in ("group", "group_seq"))
    call = dense(np.stack((group, number)))
    return np.where((group == NONE) | (number == NONE), NONE, call), np.zeros_like(call)


def _of_pairs(columns: Ints) -> Iterator[tuple[Pair, Ints]]:
    """Per pair of files (block, begin and end on the one, begin and end on the other) of what they share, by time."""
    columns = columns[:, np.lexsort((columns[1], columns[0]))]
    again = np.concatenate(([False], (np.diff(columns[:2], axis=1) == 0).all(axis=0)))
    columns = columns[:, ~again]
    first = np.flatnonzero(np.diff(columns[0], prepend=NONE))
    sizes = np.diff(np.concatenate((first, [columns.shape[1]])))
    found = []
    for size in np.unique(sizes[sizes > 1]).tolist():
        index = first[sizes == size][:, None] + np.arange(size)
        for distance in range(1, min(_PARTNERS, size // 2) + 1):
            other = np.roll(index, -distance, axis=1)
            if 2 * distance == size:  # each pair would be there twice
                index, other = index[:, :distance], other[:, :distance]
            here, there = columns[:, index.reshape(-1)], columns[:, other.reshape(-1)]
            swap = here[1] > there[1]
            one, two = np.where(swap, there, here), np.where(swap, here, there)
            found.append(np.stack((one[1], two[1], one[2], one[3], one[4], two[3], two[4])))
    if not found:
        return
    together = np.concatenate(found, axis=1)
    together = together[:, np.lexsort((together[3], together[1], together[0]))]
    bounds = np.flatnonzero((np.diff(together[:2], axis=1, prepend=NONE) != 0).any(axis=0))
    for begin, end in zip(bounds, [*bounds[1:], together.shape[1]], strict=True):
        yield (int(together[0, begin]), int(together[1, begin])), together[2:, begin:end]


def _fit(times: Ints) -> Shared | None:
    """Of a pair's collectives (block, begins and ends), in order of time; None where there are too few to tell."""
    blocks = np.unique(times[0]).tolist()
    of_block = [_fit_of(times[1:, times[0] == block].astype(float), in_known_group=block == 0) for block in blocks]
    if blocks[0] == 0 and of_block[0] is not None:
        return of_block[0]
    told = [one for one in of_block if one is not None]
    return min(told, key=lambda one: one.misfits, default=None)


def _fit_of(times: Floats, *, in_known_group: bool) -> Shared | None:
    """None where there are too few collectives to tell."""
    begin, end, other_begin, other_end = times
    if len(begin) < _FEWEST:
        return None
    drifted = _drift(end, other_end - end)
    apart = other_end - end - drifted
    least, most = other_begin - end - drifted - _TOLERANCE_NS, other_end - begin - drifted + _TOLERANCE_NS
    best = _most_covered(least, most)
    misfits = float(np.mean((least > best) | (most < best)))
    return Shared(misfits, misfits <= _MOST_MISFITS or _was_set_once(apart), in_known_group)


def _drift(at: Floats, apart: Floats) -> Floats:
    """What two clocks drift apart, as far as clocks do: a line through the medians of the recording's halves."""
    half = len(at) // 2
    between = float(median(at[half:]) - median(at[:half]))
    slope = float(median(apart[half:]) - median(apart[:half])) / between if between > 0 else 0.0
    return np.asarray(np.clip(slope, -_DRIFT, _DRIFT) * (at - at[0]))


def _most_covered(least: Floats, most: Floats) -> float:
    """The offset that lies within most of the bounds."""
    at = np.concatenate((least, most))
    order = np.lexsort((np.repeat((0, 1), len(least)), at))
    within = np.cumsum(np.repeat((1, -1), len(least))[order])
    return float(at[order][np.argmax(within)])


def _was_set_once(apart: Floats) -> bool:
    """Whether ends lie apart by one time up to some collective, and by another from there on."""
    apart = apart[:: -(-len(apart) // _LOOKED_AT)]
    spread = _spread(apart)
    places = range(1, len(apart))
    return any(_spread(apart[:at]) + _spread(apart[at:]) <= _ONCE * spread for at in places)


def _spread(apart: Floats) -> float:
    return float(np.abs(apart - median(apart)).sum())
