"""Recordings that do not belong together: files of another run among those of a job, and which of them is the job's.

What tells is what they share: collectives of which no offset of clocks makes those of one run. Neither the hosts' names
nor the clocks do: containers are all called `localhost`, and a rank whose clock is a day off belongs all the same.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from statistics import median
from typing import TYPE_CHECKING, Final

from kair_engine.frozen import dataclass
from kair_engine.recording.spans import Span, overlap, span_of
from kair_engine.trace.model import ProcessGroup, StepTimes, Trace

if TYPE_CHECKING:
    from kair_engine.recording.shared_collectives import Pair

_APART: Final = 0.01
"""Of the step: ranks whose steps end as evenly apart as that are not looked at. If they are of two runs, these are so
much alike that it changes no price."""
_FAR_APART: Final = 0.1
"""The same where much would have to be read: in no run at hand ranks were more than 0.04 apart."""
_FEWEST_STEPS: Final = 3
"""In fewer any two ranks' end about evenly apart."""
_FEW_STEPS, _MOST_STEPS = 8, 32
"""Looked at, evenly: the few where a step is large."""
_MOST_READ: Final = 8_000_000
"""Operations."""


@dataclass(frozen=True)
class Sorted:
    """Of a job's files, by their places: those of other runs, and groups any of which may be the job."""

    others: tuple[int, ...] = ()
    misfits: Mapping[int, float] = field(default_factory=dict)
    """Per file of another run, what share of the collectives the best offset of clocks does not fit, the least one."""
    undecided: tuple[tuple[int, ...], ...] = ()


def sort_out(
    trace: Trace,
    of_file: Sequence[StepTimes],
    unmarked: frozenset[int],
    groups: Sequence[Collection[ProcessGroup]],
) -> Sorted:
    """Which of the files that make up `trace` are of other runs; `of_file` has each one's steps, by the job's numbers.

    `unmarked` are ranks whose steps are not numbered by the job itself, `groups` the process groups that each file
    lists where its operations do not say theirs.
    """
    if len(of_file) < 2:
        return Sorted()
    apart = _furthest_apart(trace)
    if apart <= _APART:
        return Sorted()
    steps = _looked_at(trace, of_file)
    if steps is None and apart <= _FAR_APART:
        return Sorted()
    from kair_engine.recording.shared_collectives import shared  # loads numpy and pyarrow

    cells = {cell: place for place, times in enumerate(of_file) for cell in zip(times.rank, times.step, strict=True)}
    marked = frozenset(trace.job.ranks) - unmarked
    found = shared(trace, steps or trace.steps[:: max(len(trace.steps) // _FEW_STEPS, 1)], cells, marked)
    spans = [span_of(times) for times in of_file]
    fitting = {file for pair, one in found.items() if one.fits for file in pair}
    told = {
        pair: one.fits
        for pair, one in found.items()
        if one.fits or one.in_known_group or _must_fit(pair, groups, fitting, spans, trace.job.world_size)
    }
    others, left = _minority(told, spans)
    misfits = {
        file: min(one.misfits for pair, one in found.items() if file in pair and not one.fits) for file in others
    }
    return Sorted(tuple(others), misfits, _groups(left))


def _must_fit(
    pair: "Pair",
    groups: Sequence[Collection[ProcessGroup]],
    fitting: Collection[int],
    spans: Sequence[Span],
    world: int,
) -> bool:
    """Whether two files whose collectives name no group share some: both list a group that is not the whole job.

    Parts of a job can run at paces of their own (replicas that serve), and then fit nobody outside. Where nothing is
    listed, only a file that fits no other at all tells, if it was recorded at another time besides.
    """
    one, other = pair
    if any(group in groups[other] and len(group.ranks) < world for group in groups[one]):
        return True
    alone = one not in fitting or other not in fitting
    return alone and not overlap(spans[one], spans[other])


def _furthest_apart(trace: Trace) -> float:
    """How unevenly steps end on the rank that is furthest from the others, as a share of the step: the median distance
    of their ends from what is usual of the two."""
    ends: dict[int, dict[int, int]] = {}
    times = trace.job.step_times
    wanted, cut = frozenset(trace.steps), trace.job.cut_off
    lengths = []
    for rank, step, begin, duration in zip(times.rank, times.step, times.begin_ns, times.duration_ns, strict=True):
        if step in wanted and rank not in cut.get(step, ()):
            ends.setdefault(rank, {})[step] = begin + duration
            lengths.append(duration)
    if len(ends) < 2:
        return 0.0
    usual = ends[max(ends, key=lambda rank: (len(ends[rank]), -rank))]
    return max(_uneven(of_rank, usual) for of_rank in ends.values()) / max(median(lengths), 1)


def _uneven(ends: Mapping[int, int], others: Mapping[int, int]) -> float:
    apart = [end - others[step] for step, end in ends.items() if step in others]
    if len(apart) < _FEWEST_STEPS:
        return math.inf if apart else 0.0
    middle = median(apart)
    return median(abs(one - middle) for one in apart)


def _looked_at(trace: Trace, of_file: Sequence[StepTimes]) -> list[int] | None:
    """As many steps as are looked at, evenly; None where even a few are too much to read unasked."""
    every = -(-len(trace.steps) // _MOST_STEPS)
    steps = list(trace.steps[::every])
    operations = sum(sum(times.operations) for times in of_file) / max(len(trace.job.recorded_steps), 1)
    fewer = int(_MOST_READ / max(operations, 1))
    if fewer >= len(steps):
        return steps
    return steps[:: -(-len(steps) // fewer)] if fewer >= _FEW_STEPS else None


def _minority(fits: Mapping["Pair", bool], spans: Sequence[Span]) -> tuple[list[int], dict["Pair", bool]]:
    """(the files of other runs, what is left of `fits` without them).

    One after another that which fits the fewest of those that it shares collectives with, as long as one of these fits
    more. Of equal ones it is the file that was recorded at another time than most.
    """
    left, others = dict(fits), list[int]()
    while not all(left.values()):
        misfit = {file: _misfit(file, left, spans) for pair in left for file in pair}
        worst = max(misfit, key=lambda file: (misfit[file], file))
        beside = [file for pair, fit in left.items() if worst in pair and not fit for file in pair if file != worst]
        if all(misfit[file] == misfit[worst] for file in beside):
            break
        others.append(worst)
        left = {pair: fit for pair, fit in left.items() if worst not in pair}
    return others, left


def _misfit(file: int, fits: Mapping["Pair", bool], spans: Sequence[Span]) -> tuple[float, float]:
    mine = [fit for pair, fit in fits.items() if file in pair]
    beside = {other for pair in fits for other in pair if other != file}
    elsewhen = [not overlap(spans[file], spans[other]) for other in beside]
    return 1 - sum(mine) / len(mine), sum(elsewhen) / max(len(elsewhen), 1)


def _groups(left: Mapping["Pair", bool]) -> tuple[tuple[int, ...], ...]:
    """The files that do not fit some others, with those that they fit; none where all do."""
    group = {file: {file} for pair in left for file in pair}
    for (one, other), fit in left.items():
        if fit and group[one] is not group[other]:
            group[one] |= group[other]
            for file in group[other]:
                group[file] = group[one]
    disputed = {file for pair, fit in left.items() if not fit for file in pair}
    return tuple(sorted({tuple(sorted(files)) for files in group.values() if files & disputed}))
