"""Finds ranks whose profiler began long after the others', and leaves out the steps in which these waited for it.

Opening a profiler can take seconds. The ranks that have theirs open begin the step, and wait in its first collective
for the last one, which loses nothing by itself. Triage asks this before it tests anything.
"""

from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, present
from kair_engine.results.warning_kinds import ProfilersBeganApart
from kair_engine.timeline.clocks import first_step, synchronise
from kair_engine.trace.model import KairWarning, Trace

_STEPS_BEHIND: Final = 1.0
"""A rank begins to be recorded later than this many usual steps after the first one, or is on time: ranks that meet in
every step are never a whole step apart."""


def without_staggered_begin(trace: Trace) -> tuple[Trace, tuple[KairWarning, ...]]:
    """Return the trace without the steps that began before the last rank's profiler did, and what is said of them.

    Return all of it if ranks began together, if no collective shows when, or if no step would be left.
    """
    steps = np.array(trace.steps)
    if len(trace.job.ranks) < 2 or len(steps) < 2:
        return trace, ()
    begin, length = _step_times(trace)
    usual = float(np.nanmedian(length[:, np.searchsorted(_recorded(trace), steps[1:])]))
    # Whoever waits a whole step for another one takes two.
    if not np.nanmax(length) > (1 + _STEPS_BEHIND) * usual:
        return trace, ()
    ops = first_step(trace)
    sync = synchronise(ops)
    meeting = present(ops.rank[sync.collectives.row])
    if not len(meeting):
        return trace, ()
    at = np.searchsorted(trace.job.ranks, ops.ranks[meeting])
    begin = begin[at] - sync.clocks.offset_ns[meeting, None]
    first = np.nanmin(begin, axis=1)
    behind = first - first.min()
    if behind.max() <= _STEPS_BEHIND * usual:
        return trace, ()
    late = np.nanmin(begin, axis=0) < first.max()
    kept = steps[~late[np.searchsorted(_recorded(trace), steps)]]
    if not len(kept):
        return trace, ()
    apart = ProfilersBeganApart(
        rank=int(trace.job.ranks[at[behind.argmax()]]),
        first_rank=int(trace.job.ranks[at[behind.argmin()]]),
        behind_us=float(behind.max()) / 1e3,
        others=int(np.count_nonzero(behind > _STEPS_BEHIND * usual)) - 1,
        step=int(steps[0]),
        steps=len(steps) - len(kept),
    )
    return trace.select(kept.tolist()), (apart,)


def _recorded(trace: Trace) -> Ints:
    return np.array(sorted(trace.job.recorded_steps))


def _step_times(trace: Trace) -> tuple[Floats, Floats]:
    """Begins and lengths of steps (ranks × recorded steps), NaN where a rank recorded none; begins from the first."""
    times, ranks, steps = trace.job.step_times, np.array(trace.job.ranks), _recorded(trace)
    begin = np.full((len(ranks), len(steps)), np.nan)
    length = begin.copy()
    rank, step = np.array(times.rank), np.array(times.step)
    known: Bools = np.isin(rank, ranks)
    cell = np.searchsorted(ranks, rank[known]), np.searchsorted(steps, step[known])
    starts = np.array(times.begin_ns, dtype=np.int64)[known]
    begin[cell], length[cell] = starts - starts.min(), np.array(times.duration_ns, dtype=np.int64)[known]
    return begin, length
