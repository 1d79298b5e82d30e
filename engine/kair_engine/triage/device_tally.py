"""Adds up over steps what devices waited for; of the first steps that fit into a sample.

Where the time of a device goes: it runs something, or idles for want of a launch, or though something is launched.

The balance of a step goes from the end of the device's operations of the step before to the end of its own, so that
those of all steps add up to the recording. What triage claims of idle devices is held against it.

Finds launches one after the other: the device has run each kernel before the next is launched, and idles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.timeline.host_time import Lead, Leads, lead
from kair_engine.timeline.spans import Clock, Spans
from kair_engine.trace.batches import operations_of_steps
from kair_engine.trace.model import NOT_TOLD, Trace
from kair_engine.trace.operations import SCOPE, SYNC, Operations
from kair_engine.whatif.operators.stops import LONGEST_LATENCY_NS

COPIES: Final = ("cudaMemcpy", "hipMemcpy")
"""What the names of host calls begin with that copy, and wait for that where the memory is not pinned."""


@dataclass(frozen=True)
class Balance:
    """Of a step, per rank, in ns. The first four add up to `length_ns`."""

    busy_ns: Floats
    """Some stream of it runs something, if only to wait for other ranks."""
    unlaunched_ns: Floats
    """Idle, and what it runs next had not been launched."""
    ready_ns: Floats
    """Idle for longer than a launch takes, though what it runs next was launched: another process may have it."""
    unknown_ns: Floats
    """Idle for as long as launches take, or before what nobody is known to have launched."""
    length_ns: Floats
    unknown_inside_ns: Floats
    """Of the busy time, in CUDA graphs of which only begin and end are recorded."""
    waits: Floats
    """How often it was idle though something was launched."""
    longest_ns: float
    """The longest of these, on any rank."""
    awaited_ns: Floats
    """How long threads waited for the device in calls that do nothing else: who never does loses nothing."""


def balance(ops: Operations, free_ns: Ints) -> Balance:
    """Of a step with a device; `free_ns` is when each rank's device was done with the step before.

    A gap is idle time in which no stream of the rank runs anything: what a stream waits for on another one runs then.
    """
    ranks = len(ops.ranks)
    rows = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE))
    done = ops.begin_ns + ops.length_ns
    np.maximum.at(done, ops.rank[rows], ops.end_ns[rows])
    begin = np.minimum(np.maximum(ops.begin_ns, free_ns), done)
    clock = Clock.of(ops)
    edges = np.arange(ranks)
    first, last = clock.at(edges, begin), clock.at(edges, done)
    start, end = (clock.at(ops.rank[rows], of[rows]) for of in (ops.start_ns, ops.end_ns))
    inside = end > first[ops.rank[rows]]
    start, end, rows = np.maximum(start, first[ops.rank[rows]])[inside], end[inside], rows[inside]
    order = np.argsort(start, kind="stable")
    start, end, rows = start[order], end[order], rows[order]
    busy = Spans.united(start, end)
    whole = ops.inside_unknown[rows]
    graphs = Spans.united(start[whole], end[whole])
    # Idle are the times before each span of work, and after the last.
    rank = clock.rank(busy.begin)
    opens = np.concatenate(([True], rank[1:] != rank[:-1])) if len(rank) else np.zeros(0, dtype=bool)
    since = np.where(opens, first[rank], np.concatenate(([0], busy.end[:-1])) if len(rank) else rank)
    launch = ops.launch[rows[np.searchsorted(start, busy.begin)]]
    known = launch != NONE
    launched = np.where(known, clock.at(rank, ops.end_ns[launch]), busy.begin)
    ready = busy.begin - np.clip(launched, since, busy.begin)
    long = known & (ready > LONGEST_LATENCY_NS)
    unlaunched = np.where(known, busy.begin - since - ready, 0)

    def by_rank(of: Ints) -> Floats:
        return np.bincount(rank, weights=of, minlength=ranks).astype(float)

    length, ran = (last - first).astype(float), by_rank(busy.length_ns)
    held = by_rank(np.where(long, ready, 0))
    before = by_rank(busy.begin - since)
    late = by_rank(unlaunched) + np.maximum(length - ran - before, 0.0)
    return Balance(
        busy_ns=ran,
        unlaunched_ns=late,
        ready_ns=held,
        unknown_ns=length - ran - late - held,
        length_ns=length,
        unknown_inside_ns=graphs.by_rank(clock, ranks, graphs.length_ns),
        waits=by_rank(long.astype(np.int64)),
        longest_ns=float(ready[long].max(initial=0)),
        awaited_ns=_awaited_ns(ops),
    )


def _awaited_ns(ops: Operations) -> Floats:
    """(ranks): in synchronising calls, and in copies that take longer than to issue them."""
    copies = [code for code, name in ops.name_text.items() if name.startswith(COPIES)]
    blocking = np.isin(ops.name, copies) & (ops.duration_ns > LONGEST_LATENCY_NS)
    rows = np.flatnonzero(~ops.on_stream & ((ops.kind == SYNC) | blocking))
    return np.bincount(ops.rank[rows], weights=ops.duration_ns[rows], minlength=len(ops.ranks)).astype(float)


APART_NS: Final = 50_000
"""From one launch to the next: with more in between the host does something else than launch."""
FEWEST: Final = 5
"""Launches in a row."""


@dataclass(frozen=True)
class Launching:
    """A step's stretches in which the host launches all the while; figures per rank."""

    idle_ns: Floats
    """How long the device idled in them: no longer than launching took beyond what the kernels themselves do."""
    launches: Floats
    """How many there were in them."""
    length_ns: Floats
    """How long they last."""
    kernel_ns: Floats
    """The median of what was launched in them, over all ranks: one number."""
    device_idle_ns: Floats
    """How long the device idled in the whole step."""


def launching(ops: Operations) -> Launching:
    """Of a step with a device.

    A queue that fills up while another process has the device, and is empty again soon, is no sign of a device that
    cannot follow: so what counts is how long launching took, beside the time that the kernels took.
    """
    ranks = len(ops.ranks)
    clock = Clock.of(ops)
    busy, calls = _busy(ops, clock), _Calls.of(ops, clock)
    first, last, stretch = _in_a_row(calls.begin)
    launches = last - first + 1
    begin, end = calls.begin[first], calls.end[last]
    beyond = end - begin - np.bincount(stretch, weights=calls.work_ns, minlength=len(first))
    chosen = launches >= FEWEST
    idle = np.maximum(np.minimum(end - begin - busy.within(begin, end), beyond), 0.0) * chosen
    kernels = calls.kernel_ns[chosen[stretch][calls.of_kernel]]
    rank = clock.rank(begin)

    def by_rank(values: Floats | Ints) -> Floats:
        return np.bincount(rank, weights=values * chosen, minlength=ranks).astype(float)

    return Launching(
        idle_ns=by_rank(idle),
        launches=by_rank(launches),
        length_ns=by_rank(end - begin),
        kernel_ns=np.full(ranks, float(np.median(kernels)) if len(kernels) else np.nan),
        device_idle_ns=np.maximum(ops.length_ns - busy.by_rank(clock, ranks, busy.length_ns), 0.0),
    )


@dataclass(frozen=True)
class _Calls:
    """Launches in the order of ranks and time, on the clock's axis."""

    begin: Ints
    end: Ints
    work_ns: Floats
    """What each launched, in sum."""
    of_kernel: Ints
    """Per operation that was launched, its launch."""
    kernel_ns: Ints

    @classmethod
    def of(cls, ops: Operations, clock: Clock) -> "_Calls":
        kernels = np.flatnonzero(ops.on_stream & (ops.launch != NONE))
        rows, of_kernel = np.unique(ops.launch[kernels], return_inverse=True)
        begin = clock.at(ops.rank[rows], ops.start_ns[rows])
        order = np.argsort(begin, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        of_kernel, took = place[of_kernel], ops.duration_ns[kernels]
        work = np.bincount(of_kernel, weights=took, minlength=len(rows)).astype(float)
        return cls(begin[order], clock.at(ops.rank[rows], ops.end_ns[rows])[order], work, of_kernel, took)


def _in_a_row(begin: Ints) -> tuple[Ints, Ints, Ints]:
    """(the first and the last of each stretch, the stretch of each launch); ranks lie far apart."""
    new = np.concatenate(([True], np.diff(begin) > APART_NS)) if len(begin) else np.zeros(0, dtype=bool)
    first = np.flatnonzero(new)
    last = np.concatenate((first[1:], [len(begin)])) - 1 if len(first) else first
    return first, last, np.cumsum(new) - 1


def _busy(ops: Operations, clock: Clock) -> Spans:
    """When the ranks' devices ran anything."""
    rows = np.flatnonzero(ops.on_stream)
    return Spans.united(*(clock.at(ops.rank[rows], of[rows]) for of in (ops.start_ns, ops.end_ns)))


SAMPLE: Final = 1_000_000
"""Operations that are looked at, more or less: a step is looked at as a whole."""


@dataclass
class DeviceTally:
    """What is known of the ranks of a job from the steps that were looked at."""

    ranks: Ints
    chosen: frozenset[int]
    """The steps that are looked at."""
    done_ns: Mapping[tuple[int, int], int]
    """(rank, step) → when the device had done the step."""
    threads_communicate: bool = False
    """Whether threads carry the communication beside a device, as gloo's do."""
    _launching: list[tuple[int, Ints, Launching]] = field(default_factory=list)
    _balance: list[tuple[int, Ints, Balance]] = field(default_factory=list)
    _leads: list[tuple[int, Ints, Lead]] = field(default_factory=list)
    """(step, places among the ranks, what they came to): ranks of one step may be looked at in turns."""

    @classmethod
    def of(cls, trace: Trace) -> "DeviceTally":
        """An empty one for the first steps that fit into the sample, and one at least; for none without a device."""
        ranks, steps, held = np.array(trace.job.ranks, dtype=np.int64), list[int](), 0
        for step, of_step in operations_of_steps(trace).items() if trace.job.has_device else ():
            held += of_step
            if steps and held > SAMPLE:
                break
            steps.append(step)
        of = trace.job.step_times
        cells = zip(of.rank, of.step, strict=True)
        return cls(ranks, frozenset(steps), dict(zip(cells, of.device_end_ns, strict=False)))

    def empty(self) -> "DeviceTally":
        """Another one for the same steps."""
        return DeviceTally(self.ranks, self.chosen, self.done_ns)

    def add(self, other: "DeviceTally") -> None:
        """Adds what other steps came to."""
        self.threads_communicate |= other.threads_communicate
        self._launching += other._launching
        self._balance += other._balance
        self._leads += other._leads

    def look(self, ops: Operations) -> None:
        """Looks at a step, or at some of its ranks, if it is chosen."""
        if ops.step not in self.chosen or not ops.has_device:
            return
        self.threads_communicate |= bool((ops.communication & ~ops.on_stream).any())
        place = np.searchsorted(self.ranks, ops.ranks)
        self._launching.append((ops.step, place, launching(ops)))
        self._balance.append((ops.step, place, balance(ops, self._free_ns(ops))))
        if ops.runs_ahead:
            self._leads.append((ops.step, place, lead(ops)))

    def _free_ns(self, ops: Operations) -> Ints:
        """Per rank when its device was done with the step before; its begin of this one where that is not known."""
        ends = [self.done_ns.get((rank, ops.step - 1), NOT_TOLD) for rank in ops.ranks.tolist()]
        return np.where(np.array(ends) == NOT_TOLD, ops.begin_ns, np.array(ends) - ops.origin_ns)

    def launched(self, name: str) -> Floats:
        """(ranks): a figure of Launching, the median over steps; 0 where a rank has none."""
        return self._median([(step, place, getattr(of, name)) for step, place, of in self._launching])

    @property
    def leads(self) -> Leads | None:
        """How far hosts are ahead; None where they do not run ahead."""
        return Leads.of(self.ranks, [(place, of) for _, place, of in self._leads]) if self._leads else None

    def of_device(self, name: str) -> Floats:
        """(ranks): a figure of Balance, the mean over steps."""
        return self._mean([(step, place, getattr(of, name)) for step, place, of in self._balance])

    @property
    def longest_wait_ns(self) -> float:
        """Of all ranks: how long a device was idle at a time though something was launched."""
        return max((of.longest_ns for _, _, of in self._balance), default=0.0)

    def _mean(self, values: Sequence[tuple[int, Ints, Floats]]) -> Floats:
        return np.mean(self._stacked(values), axis=0) if values else np.zeros(len(self.ranks))

    def _median(self, values: Sequence[tuple[int, Ints, Floats]]) -> Floats:
        return np.median(self._stacked(values), axis=0) if values else np.zeros(len(self.ranks))

    def _stacked(self, values: Sequence[tuple[int, Ints, Floats]]) -> Floats:
        at = {step: row for row, step in enumerate(dict.fromkeys(step for step, _, _ in values))}
        result = np.zeros((len(at), len(self.ranks)))
        for step, place, of_ranks in values:
            result[at[step], place] = np.nan_to_num(of_ranks, nan=0.0)
        return result
