"""Reads what stage 1 needs of many steps rank by rank: each file once, for all steps of its ranks.

Nesting, self time, launches and gaps need one rank only. They are computed for all steps of some ranks at once, and
only sums, communication and the times when devices compute are kept. Read step by step, every step would open every
file. This holds for jobs with devices; without devices, finding threads that nobody waits for takes all ranks together.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from kair_engine.arrays import NONE, Bools, Ints
from kair_engine.cancelling import checkpoint
from kair_engine.frozen import dataclass
from kair_engine.localize.rank_times import RankTimes, joined, of_some, rank_times
from kair_engine.progress import counted
from kair_engine.timeline.clocks import Synchronisation, synchronise
from kair_engine.timeline.exposed_waiting import Computing
from kair_engine.timeline.self_time import by_operator
from kair_engine.timeline.some_ranks import WINDOW, pays, read_meetings
from kair_engine.trace.batches import step_batches
from kair_engine.trace.large_steps import large_steps, of_steps
from kair_engine.trace.loading import Cells, load_step, operations_of
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import INPUT, Operations


@dataclass(frozen=True)
class StepByRank:
    """A step as stage 1 needs it."""

    times: RankTimes
    sync: Synchronisation
    """Of what ranks meet in."""
    computing: Computing | None
    """None where `sync` is of all operations, or nobody knows."""


def summed_steps(trace: Trace) -> Iterator[StepByRank]:
    """Yield the chosen steps in order, read rank by rank where that takes less and comes to the same.

    A consumer that drops one before it takes the next (`map` does) holds one step in memory, or sums of more.
    """
    if pays(trace) and not large_steps(trace):
        for steps in step_batches(trace, WINDOW):
            yield from _by_rank(replace(trace, steps=tuple(steps)))
        return
    yield from of_steps(
        trace,
        lambda ops: StepByRank(rank_times(ops), synchronise(ops), None),
        rank_times,
        lambda step, times: StepByRank(joined(times), synchronise(step.operations()), None),
    )


@dataclass(frozen=True)
class _Part:
    """Some ranks in some steps."""

    step: Ints
    rank: Ints
    """Per cell."""
    times: RankTimes
    fetches: Bools
    """(names in `times.fetching` × cells)."""
    fetching: tuple[str, ...]
    computing: Computing
    on_stream: Bools
    """Per cell, whether anything of it ran on a device."""


def _by_rank(trace: Trace) -> Iterator[StepByRank]:
    parts, held = read_meetings(trace, _part)
    order = {name: at for at, name in enumerate(held.texts["name"])}
    parts.sort(key=lambda part: part.rank[:1].tolist())
    for step in counted(trace.steps, f"comparing the ranks of {len(trace.steps):,} steps"):
        checkpoint()
        chosen = [(part, np.flatnonzero(part.step == step)) for part in parts]
        chosen = [(part, cells) for part, cells in chosen if len(cells)]
        if not any(part.on_stream[cells].any() for part, cells in chosen):
            # In a step without devices, what its threads waited for is found in another way.
            ops = load_step(trace, step)
            yield StepByRank(rank_times(ops), synchronise(ops), None)
            continue
        rows = held.chosen(np.flatnonzero(held.of["step"] == step))
        ops = replace(operations_of(trace, rows, step), in_device_job=True)
        yield StepByRank(_times(chosen, order), synchronise(ops), _computing(chosen, ops))


def _part(cells: Cells) -> _Part:
    """Return what is kept of some ranks in addition to their meetings."""
    ops = cells.ops
    fetched = by_operator(ops, np.flatnonzero(ops.kind == INPUT))
    on_stream = np.bincount(ops.rank, weights=ops.on_stream, minlength=len(ops.ranks)) > 0
    times = rank_times(ops)
    return _Part(cells.step, cells.rank, times, fetched.values > 0, fetched.names, Computing.of(ops), on_stream)


def _times(chosen: Iterable[tuple[_Part, Ints]], order: dict[str, int]) -> RankTimes:
    parts, fetching = list[RankTimes](), set[str]()
    for part, cells in chosen:
        parts.append(of_some(part.times, cells, part.rank[cells]))
        fetching |= {part.fetching[at] for at in np.flatnonzero(part.fetches[:, cells].any(axis=1)).tolist()}
    return replace(joined(parts, order), fetching=frozenset(fetching))


def _computing(chosen: Sequence[tuple[_Part, Ints]], ops: Operations) -> Computing:
    """On the step's ranks and clock."""
    ranks, begins, ends = list[Ints](), list[Ints](), list[Ints]()
    for part, cells in chosen:
        place = np.full(len(part.step), NONE)
        place[cells] = np.searchsorted(ops.ranks, part.rank[cells])
        rank = place[part.computing.rank]
        held = np.flatnonzero(rank != NONE)
        ranks.append(rank[held])
        begins.append(part.computing.begin_ns[held] + ops.begin_ns[rank[held]])
        ends.append(part.computing.end_ns[held] + ops.begin_ns[rank[held]])
    known = np.concatenate([part.computing.known[cells] for part, cells in chosen])
    return Computing(np.concatenate(ranks), np.concatenate(begins), np.concatenate(ends), known)
