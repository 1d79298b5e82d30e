"""What threads lose because they stand still, by what operations look like.

Finds stops: moments at which a thread stood still, in operations that take far less at other times.

Peers show what one rank alone loses. What all lose, to a quota or to too many threads for the cores, shows against an
operation's own usual time: it takes 20 µs on all ranks and in all steps, and once 23 ms.

Decides from which parts of steps stops are taken: threads' own, or also what waits for threads that serve them.

Finds operations that end with the scheduler's tick: their threads wait for others, which have no core.

Where a job has more threads than cores, and the threads of a parallel operation wait for one another busily, it ends
when the last of them has had its turn. That is so on all ranks and at all times: no peer shows it, and no other time of
the operation. But turns end with ticks: what operations take gathers just below whole ticks, whatever they compute.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense, is_one_of
from kair_engine.frozen import dataclass
from kair_engine.results.whatif import FIX_KINDS, HostStops
from kair_engine.timeline.account import LONGEST_LATENCY_NS
from kair_engine.timeline.host_activity import in_calls, waits_for_own_copy
from kair_engine.timeline.host_time import ProcessorTimes
from kair_engine.trace.operations import RECV, SEND, Operations
from kair_engine.whatif.model import Undisturbed
from kair_engine.whatif.operators.dependencies import REST, NodeParts
from kair_engine.whatif.operators.measured_stops import CoresTally, MeasuredStops

TICKS_NS: Final = (10_000_000.0, 4_000_000.0, 1e9 / 300, 1_000_000.0)
"""Of kernels with 100, 250, 300 and 1000 ticks a second, which is all that Linux is configured with."""
SHORTEST: Final = 0.6
"""Of a tick: what is nearer to none than to one says nothing."""
SURELY: Final = 6.5
"""Of all of one phase: by chance e^-6.5 of the sets of operations whose phases have nothing to do with the tick."""
LIKELY: Final = 3.0
"""The same where it was measured that threads and helpers take turns and are always ready."""
PHASE: Final = (-0.15, 0.05)
"""Of a tick: a turn ends with a tick and the operation begins after one, so it takes a little less than whole ticks."""
_FEWEST_TIMES, _FEWEST_CELLS, _FEWEST_NAMES = 5, 8, 4
"""Times of an operation with so many ticks; of such; and of operators by name."""
_STEADY: Final = 0.6
"""The mean square of the phases' lengths: operators that take a time of their own each come to 1, and times that are
whole ticks to the microsecond; those of threads that wait come to 0.2 to 0.3, as seen."""

_COMPUTING: Final = tuple(FIX_KINDS.index(name) for name in ("compute", "host"))


@dataclass(frozen=True)
class Ticked:
    """What of some parts ended with ticks."""

    tick_ns: float
    value_ns: Floats
    """Per part of a thread what it took where that is as long as a tick, else 0. What of it is its own is not known."""


def ticked(parts: NodeParts, surely: float = SURELY) -> Ticked | None:
    """Return what threads did that is as long as a tick, if their operations gather at whole ones; the longest such
    tick.

    `surely`: how much phases must agree.
    """
    rows = np.flatnonzero(parts.thread & parts.own & is_one_of(parts.kind, _COMPUTING))
    rows = rows[parts.value_ns[rows] >= SHORTEST * min(TICKS_NS)]
    for tick in TICKS_NS:
        long = rows[parts.value_ns[rows] >= SHORTEST * tick]
        if _gathers(parts.value_ns[long], parts.name[long].astype(np.int64), tick, surely):
            waited = parts.thread & (parts.kind != NONE) & (parts.value_ns >= SHORTEST * tick)
            return Ticked(tick, np.where(waited, parts.value_ns, 0.0))
    return None


def _gathers(value: Floats, name: Ints, tick: float, surely: float) -> bool:
    """Whether times of several operators are just below whole ticks.

    One phase is that of an operator's times of so many ticks: of those near 4 ms, say, and of those near 8. An operator
    that always takes the same has one by itself, which can be any; one whose times spread has none; one that is slow
    seldom has phases that cancel out. Rayleigh's test asks whether phases agree, each as much as it is one.
    """
    if len(value) < _FEWEST_CELLS * _FEWEST_TIMES:
        return False
    whole = np.rint(value / tick).astype(np.int64)
    cell = dense(np.stack((name, whole)))
    times = np.bincount(cell)
    enough = times >= _FEWEST_TIMES
    if np.count_nonzero(enough) < _FEWEST_CELLS or len(np.unique(name[enough[cell]])) < _FEWEST_NAMES:
        return False
    angle = 2 * np.pi * (value / tick)
    real, imaginary = (np.bincount(cell, weights=of)[enough] / times[enough] for of in (np.cos(angle), np.sin(angle)))
    squares = float((real**2 + imaginary**2).sum())
    if squares > _STEADY * np.count_nonzero(enough):
        return False
    agree = (float(real.sum()) ** 2 + float(imaginary.sum()) ** 2) / max(squares, 1e-12)
    phase = float(np.arctan2(imaginary.sum(), real.sum())) / (2 * np.pi)
    return agree >= surely and PHASE[0] <= phase <= PHASE[1]


SHORTEST_NS = 1_000_000
"""Schedulers give a thread's core away for a millisecond at least; less can be anything."""
LONGER_BY, OUT_OF_NOISE = 0.5, 4.0
"""A stop is this part longer than usual, and this many times the distance of the fast ones from the usual."""
_FEWEST = 4
"""An operation must have been seen this many times."""
_USUAL, _FAST = 0.25, 0.05
"""Quantiles of its times: half of them can hold a stop."""
_OF_MANY: Final = 20
"""An operator whose calls are pooled must have been called this often for one of them to be a stop."""


def stops_ns(parts: NodeParts, among: Bools | None = None) -> Floats:
    """Per part, how much longer than usual for that operation its thread took; 0 where that is no stop.

    Usual is what the operation takes at most other times on any rank, and on this one: an operator that is slow on a
    rank in most steps is a slow operator. Looked at are the program's threads, or other parts, `among` which to look;
    never at fetches, which wait for whoever loads the data.
    """
    chosen = parts.thread & (parts.kind != NONE) if among is None else among
    chosen = chosen & (parts.kind != FIX_KINDS.index("input"))
    result = np.zeros(len(parts.value_ns))
    # What takes less than the shortest stop holds none: of most steps that leaves few operations to look at.
    long = np.unique(parts.key[chosen & (parts.value_ns > SHORTEST_NS)])
    if not len(long):
        return result
    rows = np.flatnonzero(chosen & np.isin(parts.key, long))
    value, anywhere = parts.value_ns[rows], _anywhere(parts, rows)
    result[rows] = np.where(anywhere.times >= _FEWEST, _beyond(value, _usual(parts, rows, anywhere), anywhere), 0.0)
    return result


def _beyond(value: Floats, usual: Floats, of: "_Quantiles") -> Floats:
    """Return what values are longer than usual, where that is out of their noise, and no less than a stop; else 0."""
    least = np.maximum(np.maximum(SHORTEST_NS, LONGER_BY * usual), OUT_OF_NOISE * (of.usual - of.fast))
    return np.where(value - usual > least, value - usual, 0.0)


def stops_among_calls_ns(
    parts: NodeParts,
    seldom: Callable[[Bools, int], Ints],
    operator: Callable[[Ints], Ints],
    calls_before: Callable[[Ints], Bools],
) -> Floats:
    """Per part, how much longer its thread took than for other calls of the operator; 0 where that is no stop.

    Of recordings of so few steps and ranks that no operation is seen often enough to know its usual time: one step of
    one rank. Of some parts `seldom` gives those whose operation is among them less often than so many times, `operator`
    gives numbers, equal for all calls in a phase, and `calls_before` says whether it was called before, as first calls
    load libraries. Only for threads that launch work for devices: what these take does not depend on how large that
    work is. A thread stands still wherever it is: where the long calls are of few operators, those are long themselves.
    """
    result = np.zeros(len(parts.value_ns))
    rows = seldom(parts.thread & (parts.kind != NONE), _FEWEST)
    if not len(rows):
        return result
    of_calls = _quantiles(operator(rows), parts.value_ns[rows])
    beyond = _beyond(parts.value_ns[rows], of_calls.usual, of_calls)
    stopped = (beyond > 0) & (of_calls.times >= _OF_MANY) & calls_before(rows)
    if len(np.unique(parts.name[rows[stopped]])) >= _FEWEST_NAMES:
        result[rows] = np.where(stopped, beyond, 0.0)
    return result


def beyond_usual_ns(parts: NodeParts, among: Bools) -> Floats:
    """Per part of `among`, how much longer it took than its operation usually does, be it by ever so little."""
    rows = np.flatnonzero(among)
    result = np.zeros(len(parts.value_ns))
    if len(rows):
        anywhere = _anywhere(parts, rows)
        beyond = parts.value_ns[rows] - _usual(parts, rows, anywhere)
        result[rows] = np.where(anywhere.times >= _FEWEST, np.maximum(beyond, 0.0), 0.0)
    return result


def _usual(parts: NodeParts, rows: Ints, anywhere: "_Quantiles") -> Floats:
    """Return what the operations usually take: on any rank, or on their own where that is longer."""
    here = _quantiles(dense(np.stack((parts.key[rows], parts.rank[rows]))), parts.value_ns[rows])
    return np.where(here.times >= _FEWEST, np.maximum(here.usual, anywhere.usual), anywhere.usual)


def _anywhere(parts: NodeParts, rows: Ints) -> "_Quantiles":
    return _quantiles(dense(parts.key[rows][None]), parts.value_ns[rows])


@dataclass(frozen=True)
class _Quantiles:
    """Of each value's group."""

    usual: Floats
    fast: Floats
    times: Ints


def _quantiles(group: Ints, value: Floats) -> _Quantiles:
    order = np.lexsort((value, group))
    ordered = group[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    sizes = np.diff(np.concatenate((starts, [len(order)])))
    usual, fast = (value[order[starts + ((sizes - 1) * share).astype(np.int64)]] for share in (_USUAL, _FAST))
    return _Quantiles(usual[group], fast[group], sizes[group])


@dataclass
class StopTally:
    """What the stops of several steps add up to."""

    lengths: list[Floats] = field(default_factory=list)
    by_rank: dict[int, float] = field(default_factory=dict)
    inside_by_rank: dict[int, float] = field(default_factory=dict)
    steps: int = 0
    stopped_ns: float = 0.0
    any_stopped_ns: float = 0.0
    """Time in which at least one rank of a host stood still, summed over hosts and steps."""
    expected_ns: float = 0.0
    """The same if each rank stood still independently."""
    worst_ns: float = 0.0
    """Of the rank that stood still longest in each step."""
    tick_ns: float | None = None
    ticked_ns: float = 0.0
    """What was as long as ticks where threads wait for those."""
    cores: CoresTally = field(default_factory=CoresTally)

    def add(self, parts: NodeParts, stopped: Floats, steps: Sequence[Operations], host: Mapping[int, str]) -> None:
        """Add a batch of steps: per part how long its thread stood still."""
        rows = np.flatnonzero(stopped > 0)
        self.lengths.append(stopped[rows])
        for at, step in enumerate(steps):
            of_step, length = step.ranks, float(np.median(step.length_ns))
            mine = rows[parts.step[rows] == at]
            of_rank = np.bincount(parts.rank[mine], weights=stopped[mine], minlength=len(of_step)).astype(float)
            self.steps += 1
            self.worst_ns += float(of_rank.max(initial=0.0))
            self.stopped_ns += float(of_rank.sum())
            inside = np.bincount(
                parts.rank[mine], weights=np.where(parts.delay[mine], 0.0, stopped[mine]), minlength=len(of_step)
            )
            for rank, time, within in zip(of_step.tolist(), of_rank.tolist(), inside.tolist(), strict=True):
                self.by_rank[rank] = self.by_rank.get(rank, 0.0) + time
                self.inside_by_rank[rank] = self.inside_by_rank.get(rank, 0.0) + within
            hosts = np.array([host.get(rank, "") for rank in of_step.tolist()])
            for name in sorted(set(hosts.tolist())):
                places = np.flatnonzero(hosts == name)
                here = mine[np.isin(parts.rank[mine], places)]
                over = parts.node_over_ns[parts.node[here]]
                self.any_stopped_ns += _union(over - stopped[here], over)
                share = np.minimum(of_rank[places] / max(length, 1.0), 1.0)
                self.expected_ns += float((1 - np.prod(1 - share)) * length)

    def add_ticked(self, one: Ticked | None) -> None:
        """Add what waited for ticks in a batch."""
        if one is not None:
            self.tick_ns = one.tick_ns
            self.ticked_ns += float(one.value_ns.sum())

    def result(self, step_time_ns: float) -> HostStops | None:
        """None where no thread stood still, and nothing was measured."""
        lengths = np.concatenate(self.lengths) if self.lengths else np.zeros(0)
        cores = self.cores.result()
        if not len(lengths) and self.tick_ns is None and cores is None:
            return None
        ranks = max(len(self.by_rank), 1)
        by_rank, inside = (
            {rank: time / self.steps / 1e3 for rank, time in sorted(of.items())}
            for of in (self.by_rank, self.inside_by_rank)
        )
        return HostStops(
            per_step=len(lengths) / self.steps / ranks,
            median_us=float(np.median(lengths)) / 1e3 if len(lengths) else 0.0,
            longest_us=float(lengths.max(initial=0.0)) / 1e3,
            share_of_step=self.stopped_ns / self.steps / ranks / max(step_time_ns, 1.0),
            slowest_rank_us=self.worst_ns / self.steps / 1e3,
            together=self.expected_ns / max(self.any_stopped_ns, 1.0),
            by_rank_us=by_rank,
            inside_by_rank_us=inside,
            tick_us=None if self.tick_ns is None else self.tick_ns / 1e3,
            ticked_share=self.ticked_ns / self.steps / ranks / max(step_time_ns, 1.0),
            cores=cores,
        )


def _union(begin: Floats, end: Floats) -> float:
    """How long at least one of the intervals lasts."""
    order = np.argsort(begin)
    begin, end = begin[order], end[order]
    before = np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1])) if len(end) else end
    return float(np.maximum(end - np.maximum(begin, before), 0.0).sum())


class StoppedParts:
    """What stops take of the parts of some steps, and other delays that no peer shows.

    With a device, where threads communicate (gloo's), a stop of those leaves its mark on others: on what waits for
    them, and on what devices wait for. So there a fix of stops takes from all parts but kernels, whose length is the
    device's, and sends and receives, whose length is mostly the other end's.

    Where the kernel measured what threads had of the processor, it is that which counts, and not what stops look like.
    """

    def __init__(
        self,
        parts: NodeParts,
        seldom: Callable[[Bools, int], Ints],
        recorded: Sequence[Operations],
        processor: ProcessorTimes | None = None,
    ) -> None:
        """Take `seldom`: of some parts those whose operation is among them less often than so many times."""
        self._parts, self._seldom, self._recorded = parts, seldom, recorded
        self.measured = None if processor is None else MeasuredStops.beside(parts, recorded, processor)

    @cached_property
    def found_ns(self) -> Floats:
        """Per part, what of it is a stop of the program's own threads, as far as measurements bear it out."""
        found = stops_ns(self._parts)
        np.maximum(found, self._among_calls_ns, out=found)
        # How long these take goes by what they are asked for, and not by the cores.
        rows = np.flatnonzero(found)
        found[rows[self._of(lambda ops: ops.of_profiler | in_calls(ops) | waits_for_own_copy(ops), rows)]] = 0.0
        return found if self.measured is None else self.measured.borne_out_ns(found)

    @property
    def _among_calls_ns(self) -> Floats | float:
        """The same for operations that were seen too seldom, compared with other calls of their operators."""
        if not any(ops.has_device for ops in self._recorded):
            return 0.0
        parts = self._parts

        def operator(rows: Ints) -> Ints:
            phase = parts.of_operations(self._recorded, lambda ops: ops.phase, rows, otherwise=0)
            return dense(
                np.stack((parts.name[rows].astype(np.int64), phase, parts.role[rows], parts.key[rows] % (REST + 1)))
            )

        def called(rows: Ints) -> Bools:
            return self._of(lambda ops: ops.occurrence > 0, rows)

        return stops_among_calls_ns(parts, self._seldom, operator, called)

    @cached_property
    def of_threads_ns(self) -> Floats:
        """Per part, what of it the program's own threads stood still: found stops, or what was measured."""
        if self.measured is None:
            return self.found_ns
        return self.measured.of_threads_ns(self._parts.value_ns, self.found_ns)

    @cached_property
    def _lost_ns(self) -> Floats:
        """The same, and what transfers lose where all threads of a process stand still at once."""
        if self.measured is None:
            return self.of_threads_ns
        return self.of_threads_ns + self.measured.of_transfers_ns(self._parts.value_ns)

    @cached_property
    def ticked(self) -> Ticked | None:
        """What of them waited for the scheduler's ticks; None where that is nothing."""
        likely = self.measured is not None and self.measured.wait_busily
        return ticked(self._parts, LIKELY if likely else SURELY)

    @cached_property
    def ns(self) -> Floats:
        """Per part, what a fix of stops takes away; where threads wait for ticks, all that may be such a wait."""
        served = any(ops.has_device and bool((ops.communication & ~ops.on_stream).any()) for ops in self._recorded)
        stopped = stops_ns(self._parts, self._others) if served else self._lost_ns
        return stopped if self.ticked is None else np.maximum(stopped, self.ticked.value_ns)

    def disturbed_ns(self, by: Undisturbed) -> Floats:
        """Per part, what is taken away from it."""
        if by is Undisturbed.THREADS_RUN:
            return self._lost_ns
        if by is Undisturbed.ENOUGH_CORES:
            more = 0.0 if self.measured is None else self.measured.of_communication_ns(self._parts.value_ns)
            return self.of_threads_ns + more
        if by is Undisturbed.USUAL:
            return beyond_usual_ns(self._parts, self._others)
        if by is Undisturbed.UNQUEUED:
            return self._queued_ns
        return self._queued_ns + beyond_usual_ns(self._parts, self._kernels)

    @cached_property
    def _kernels(self) -> Bools:
        parts = self._parts
        return np.asarray(parts.own & ~parts.thread & (parts.kind == FIX_KINDS.index("compute")))

    @cached_property
    def _others(self) -> Bools:
        return ~self._kernels & ~self._of(lambda ops: is_one_of(ops.kind, (SEND, RECV)))

    @cached_property
    def _queued_ns(self) -> Floats:
        """Delays of what was launched and had all it waited for, beyond what a launch takes."""
        parts = self._parts
        queued = parts.delay & self._of(lambda ops: ops.on_stream & (ops.launch != NONE) & ~ops.communication)
        return np.where(queued & (parts.value_ns > LONGEST_LATENCY_NS), parts.value_ns, 0.0)

    def _of(self, holds: Callable[[Operations], Bools], rows: Ints | None = None) -> Bools:
        """Return per part, or of some of them, whether its operation is one of some sort."""
        return np.asarray(self._parts.of_operations(self._recorded, holds, rows))
