"""Reads ranks in all steps at once, after it is known how all ranks met: each file is opened twice, not once a step.

Nesting, launches, self time and a rank's account need nothing of other ranks but what it met them in. So communication
of many steps is read and matched first, and then some ranks at a time all that they did. Views and profiles read so.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final, TypeVar

import numpy as np

from kair_engine.arrays import NONE, Bools, Ints, is_one_of
from kair_engine.cancelling import checkpoint
from kair_engine.frozen import dataclass
from kair_engine.timeline.clocks import Synchronisation, synchronise
from kair_engine.timeline.step_parts import collective_own_ns
from kair_engine.trace.batches import ROWS_AT_A_TIME, operations_of_steps, step_batches
from kair_engine.trace.columns import Columns, joined
from kair_engine.trace.large_steps import large_steps, parts_by_rank, some_ranks_of_step
from kair_engine.trace.loading import Cells, cells_of, each_step, operations_of, read_rows
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import COLLECTIVE, RECV, SCOPE, SEND, Operations

Thing = TypeVar("Thing")

AT_A_TIME: Final = 250_000
"""Operations of some ranks that are read together."""
WINDOW: Final = 10_000_000
"""Operations of steps that are read together, rank by rank: their communication is held at one time."""


@dataclass(frozen=True)
class SomeRanks:
    """All that some ranks did in some steps, and how they met the others."""

    ops: Operations
    """Positions in its ranks are cells: a rank in a step. Those of a rank follow one another in the steps' order."""
    step: Ints
    rank: Ints
    origin_ns: Ints
    """Per cell, like those before: what its times count from."""
    own_ns: Ints
    """Per operation: self time of the collective that it is a member of, NONE where it is of none."""
    wait_ns: Ints
    """Per operation: what it waited in that collective, 0 where it is of none."""

    @classmethod
    def of_step(cls, ops: Operations, sync: Synchronisation) -> "SomeRanks":
        """Return all ranks of one step."""
        cells, wait = len(ops.ranks), np.zeros(len(ops), dtype=np.int64)
        # As blame has it: a send that does not block is over when its thread goes on.
        wait[sync.collectives.row] = sync.collectives.wait_ns
        step, origin = np.full(cells, ops.step), np.full(cells, ops.origin_ns)
        return cls(ops, step, ops.ranks, origin, collective_own_ns(ops, sync), wait)


def some_ranks_each(
    trace: Trace, meet: Callable[[Synchronisation], None], ranks: Collection[int] | None = None
) -> Iterator[SomeRanks]:
    """Yield the chosen steps, all of them of some ranks at a time, or one after another where that takes less.

    `meet` is given how the ranks of each step met before any rank of that step is yielded. Only `ranks` need be
    yielded where they are given. A consumer that drops one before it takes the next (`map` does) holds one in memory.
    """

    def whole(ops: Operations) -> SomeRanks:
        sync = synchronise(ops)
        meet(sync)
        return SomeRanks.of_step(ops, sync)

    if not large_steps(trace) and not pays(trace):
        yield from map(whole, each_step(trace))
        return
    for steps in step_batches(trace, WINDOW):
        window = replace(trace, steps=tuple(steps))
        known = _Meetings.of(window, meet)
        for apart, some in groupby(steps, known.matched.__contains__):
            part = replace(window, steps=tuple(some))
            if apart:
                yield from map(known.seen_by, _cells(part if ranks is None else part.of_ranks(ranks)))
            else:
                yield from map(whole, each_step(part))


def pays(trace: Trace) -> bool:
    """Return whether reading rank by rank takes less: a small job is read at once.

    Without devices, which threads nobody waits for is decided over all ranks together.
    """
    large = operations_of_steps(trace)
    return trace.job.has_device and trace.memory is None and sum(large.values()) > ROWS_AT_A_TIME


def parts_of(trace: Trace) -> Iterator[Trace]:
    """Yield the trace as of some ranks each, in order, which are read together; where they lie together, some steps."""
    for some, operations in parts_by_rank(trace, AT_A_TIME):
        if operations <= 2 * AT_A_TIME:
            yield some
        else:
            all_ranks = sum(operations_of_steps(some).values())
            batches = step_batches(some, max(AT_A_TIME * all_ranks // operations, 1))
            yield from (replace(some, steps=tuple(steps)) for steps in batches)


def in_files_order(trace: Trace) -> list[Trace]:
    """Return the same parts in the files' order: names and groups are numbered as in a step that is read as a whole."""
    place = {fragment: at for at, fragment in enumerate(trace.fragments)}
    return sorted(parts_of(trace), key=lambda some: place[some.fragments[0]])


def meets(ops: Operations) -> Bools:
    """Return True for communication, scopes, and what shows how long a thread that sends waits: what it does next."""
    result = np.asarray(is_one_of(ops.kind, (COLLECTIVE, SEND, RECV, SCOPE)))
    sends = (ops.kind == SEND) & ~ops.on_stream
    if sends.any():
        work = np.flatnonzero(ops.kind != SCOPE)
        then = np.flatnonzero(sends[work[:-1]] & (ops.lane_key[work[:-1]] == ops.lane_key[work[1:]]))
        result[work[then + 1]] = True
    return result


def _cells(trace: Trace, parts: Callable[[Trace], Collection[Trace] | Iterator[Trace]] = parts_of) -> Iterator[Cells]:
    """Yield all cells; where steps are too large to be held whole, step by step."""
    if large_steps(trace):
        for step in trace.steps:
            yield from (cells_of(trace, rows) for rows in some_ranks_of_step(trace, step))
        return
    for part in parts(trace):
        checkpoint()
        yield cells_of(part, read_rows(part, part.steps))


def read_meetings(trace: Trace, look: Callable[[Cells], Thing]) -> tuple[list[Thing], Columns]:
    """Return what `look` says of all cells of some ranks at a time, and what all ranks meet in."""
    pieces, kept = list[Columns](), dict[str, str]()

    def take(cells: Cells) -> Thing:
        met = cells.rows.chosen(np.flatnonzero(meets(cells.ops)))
        # Texts that none of the meetings has give the others' codes their order; each is held once.
        texts = {name: [kept.setdefault(text, text) for text in of] for name, of in met.texts.items()}
        pieces.append(Columns(met.of, texts))
        return look(cells)

    # map, not a comprehension: that would hold some ranks while the next are read.
    looked = list(map(take, _cells(trace, in_files_order)))
    return looked, joined(pieces or [read_rows(trace, ())])


@dataclass(frozen=True)
class _Meetings:
    """What came of the communication of some steps: arrays in the order of ranks, then of steps, then of rows."""

    matched: frozenset[int]
    """Steps whose communication shows what threads waited for; for others all that their threads do is needed."""
    rank: Ints
    step: Ints
    own_ns: Ints
    wait_ns: Ints

    @classmethod
    def of(cls, trace: Trace, meet: Callable[[Synchronisation], None]) -> "_Meetings":
        """Read and match the communication of all chosen steps."""
        devices, rows = read_meetings(trace, lambda cells: cells.step[np.unique(cells.ops.rank[cells.ops.on_stream])])
        matched = {*large_steps(trace), *(step for steps in devices for step in steps.tolist())}
        nothing: Ints = np.zeros(0, dtype=np.int64)
        found = [(nothing, nothing, nothing, nothing)]
        for at in sorted(matched):
            checkpoint()
            of_step = rows.chosen(np.flatnonzero(rows.of["step"] == at))
            ops = replace(operations_of(trace, of_step, at), in_device_job=trace.job.has_device)
            sync = synchronise(ops)
            meet(sync)
            seen, members = SomeRanks.of_step(ops, sync), np.flatnonzero(ops.communication)
            of_rank = seen.rank[ops.rank[members]]
            found.append((of_rank, np.full(len(members), at), seen.own_ns[members], seen.wait_ns[members]))
        rank, step, own, wait = (np.concatenate(of) for of in zip(*found, strict=True))
        order = np.lexsort((step, rank))
        return cls(frozenset(matched), rank[order], step[order], own[order], wait[order])

    def seen_by(self, cells: Cells) -> SomeRanks:
        """Return cells with what they met others in."""
        ops, low = cells.ops, int(self.step.min(initial=0))
        span = int(max(self.step.max(initial=0), cells.step.max(initial=0))) - low + 1
        mine = np.isin(self.rank * span + (self.step - low), cells.rank * span + (cells.step - low))
        own, wait = np.full(len(ops), NONE, dtype=np.int64), np.zeros(len(ops), dtype=np.int64)
        communicates = np.flatnonzero(ops.communication)
        own[communicates], wait[communicates] = self.own_ns[mine], self.wait_ns[mine]
        return SomeRanks(ops, cells.step, cells.rank, cells.begin_ns, own, wait)
