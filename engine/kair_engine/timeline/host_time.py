"""What hosts do with their time: computing, ready without a core, pausing, running ahead of their devices.

What the kernel measured of ranks' training threads: how long they computed, and were ready without a core.

How far hosts are ahead of their devices: what a delay of a host may last before its device notices.

A kernel's lead is how long after its launch it begins. Where the smallest lead of a rank is larger than a launch takes,
none of its kernels waited for its launch, and whatever its host was late by, cost nothing.

Host pauses between the collectives of one step: the sample where too few steps were recorded.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.trace.large_steps import of_steps
from kair_engine.trace.model import NOT_RECORDED, Trace
from kair_engine.trace.operations import SCOPE, STEP_SCOPE, SYNC, Operations

UNMEASURED_SHARE = 0.5
"""A rank is not compared if more than this share of its steps were not measured."""

MEASURED: Final = ("cpu_ns", "delay_ns", "throttled", "communication_delay_ns", "halted", "helpers_cpu_ns")
"""Matrices of `ProcessorTimes`, and columns of `StepTimes`."""


@dataclass(frozen=True)
class ProcessorTimes:
    """Matrices (ranks × steps) in the order of `ranks` and `steps`; NaN where nothing was measured."""

    ranks: Ints
    steps: Ints
    cpu_ns: Floats
    delay_ns: Floats
    """Ready, and without a core."""
    throttled: Floats
    """How often a quota stopped the rank's process."""
    communication_delay_ns: Floats
    """The same as `delay_ns` of the thread that communicates and lacked a core longest."""
    halted: Floats
    """How often a signal stopped the rank's process."""
    helpers_cpu_ns: Floats
    """What its other threads computed, without those that communicate."""

    def of_step(self, step: int, ranks: Ints) -> "ProcessorTimes":
        """Of one of the steps and these of the ranks: vectors (ranks)."""
        row, column = np.searchsorted(self.ranks, ranks), int(np.searchsorted(self.steps, step))
        matrices = (getattr(self, name) for name in MEASURED)
        return ProcessorTimes(ranks, np.array([step]), *(matrix[row, column] for matrix in matrices))

    @property
    def tells_all(self) -> bool:
        """Whether of every rank at least half of the steps are measured: else they cannot be compared."""
        return bool((np.mean(np.isnan(self.delay_ns), axis=1) <= UNMEASURED_SHARE).all())

    @property
    def ready_ns(self) -> Floats:
        """Per rank, how long its training thread was ready without a core in the mean step."""
        return np.asarray(np.nan_to_num(self.delay_ns).mean(axis=1))

    @property
    def lacked_ns(self) -> Floats:
        """The same of it or the thread that communicates, whichever lacked a core for longer."""
        of_steps = np.maximum(np.nan_to_num(self.delay_ns), np.nan_to_num(self.communication_delay_ns))
        return np.asarray(of_steps.mean(axis=1))

    @property
    def throttled_per_step(self) -> float:
        """How often a quota stopped the mean rank in a step."""
        return float(np.nan_to_num(self.throttled).mean())

    @property
    def halted_per_step(self) -> float:
        """The same of signals."""
        return float(np.nan_to_num(self.halted).mean())


def processor_times(trace: Trace) -> ProcessorTimes | None:
    """Return the times of the chosen steps; None if none was measured, as with a device, where threads wait busily."""
    return with_both_times(counted_times(trace))


def with_both_times(counted: ProcessorTimes | None) -> ProcessorTimes | None:
    """Return the counted steps for which both computing and waiting are known; None if no step has both."""
    if counted is None:
        return None
    # One without the other says nothing: what was not computed may have been waiting.
    lacks_one = np.isnan(counted.cpu_ns) | np.isnan(counted.delay_ns)
    if lacks_one.all():
        return None
    cpu_ns, delay_ns = (np.where(lacks_one, np.nan, of) for of in (counted.cpu_ns, counted.delay_ns))
    return replace(counted, cpu_ns=cpu_ns, delay_ns=delay_ns)


def counted_times(trace: Trace) -> ProcessorTimes | None:
    """Return the same of whatever was measured: what threads lacked, and what stopped them, is known with a device,
    too.
    """
    times = trace.job.step_times
    if not any(getattr(times, name) for name in MEASURED):
        return None
    ranks, steps = np.array(sorted(trace.job.ranks), np.int64), np.array(sorted(trace.steps), np.int64)
    rank, step = np.array(times.rank, np.int64), np.array(times.step, np.int64)
    chosen = np.flatnonzero(np.isin(step, steps) & np.isin(rank, ranks))
    at = np.searchsorted(ranks, rank[chosen]), np.searchsorted(steps, step[chosen])
    matrices = {name: np.full((len(ranks), len(steps)), np.nan) for name in MEASURED}
    for name, matrix in matrices.items():
        if column := getattr(times, name):
            values = np.array(column, float)[chosen]
            matrix[at] = np.where(values == NOT_RECORDED, np.nan, values)
    return ProcessorTimes(ranks, steps, **matrices)


AT_LEAST_NS = 50_000
"""A lead is one from here on: a launch on an idle device takes less."""


@dataclass(frozen=True)
class Lead:
    """Of a step, per rank, ns; NaN where a rank launched nothing."""

    smallest_ns: Floats
    """From a launch's return to the begin of what it launched, the shortest of all."""
    host_ns: Floats
    """What its host took for the step without waiting for the device or for a place in the launch queue."""
    period_ns: Floats
    """What the step took."""

    @property
    def slack_ns(self) -> Floats:
        """By how much longer the host could take in every step."""
        return np.asarray(np.maximum(self.period_ns - self.host_ns, 0.0))

    def of(self, ranks: Ints) -> "Lead":
        """Return those of some of the ranks, by their positions."""
        return Lead(self.smallest_ns[ranks], self.host_ns[ranks], self.period_ns[ranks])


def lead(ops: Operations) -> Lead:
    """Of a step with a device."""
    ranks = len(ops.ranks)
    rows = np.flatnonzero(ops.on_stream & (ops.launch != NONE) & ~ops.of_side_streams)
    smallest = np.full(ranks, np.inf)
    np.minimum.at(smallest, ops.rank[rows], (ops.start_ns[rows] - ops.end_ns[ops.launch[rows]]).astype(float))
    steps = [code for code, text in ops.name_text.items() if text == STEP_SCOPE]
    marks = np.flatnonzero((ops.kind == SCOPE) & np.isin(ops.name, steps))
    waits = np.flatnonzero((ops.kind == SYNC) & ~ops.on_stream & ops.of_program)
    took = np.full(ranks, np.nan)
    took[ops.rank[marks]] = ops.duration_ns[marks]
    waited = np.bincount(ops.rank[waits], weights=ops.duration_ns[waits], minlength=ranks)
    return Lead(
        smallest_ns=np.where(np.isinf(smallest), np.nan, smallest),
        host_ns=np.maximum(took - waited, 0.0),
        period_ns=ops.length_ns.astype(float),
    )


@dataclass(frozen=True)
class Leads:
    """How far the hosts of a job that run ahead are ahead of their devices, in all steps that were looked at."""

    ranks: Ints
    smallest_ns: Floats
    """Per rank the smallest lead of all; NaN of a rank that launched nothing."""
    slack_of_rank_ns: Floats
    """Per rank by how much longer its host could take in the mean step; NaN of the same."""

    @classmethod
    def of(cls, ranks: Ints, steps: Sequence[tuple[Ints, Lead]]) -> "Leads":
        """Of steps: (the positions of their ranks among `ranks`, what they recorded)."""
        smallest, slack, seen = np.full(len(ranks), np.inf), np.zeros(len(ranks)), np.zeros(len(ranks))
        for place, of_step in steps:
            np.fmin.at(smallest, place, of_step.smallest_ns)
            np.add.at(slack, place, np.nan_to_num(of_step.slack_ns))
            np.add.at(seen, place, 1)
        launched = np.isfinite(smallest)
        return cls(ranks, np.where(launched, smallest, np.nan), np.where(launched, slack / np.maximum(seen, 1), np.nan))

    def ahead_us(self, ranks: Sequence[int]) -> float | None:
        """Return the smallest lead of these ranks; None where it is no longer than a launch takes: then devices wait
        for launches now and then.
        """
        smallest = self._least(self.smallest_ns, ranks)
        return smallest / 1e3 if smallest >= AT_LEAST_NS else None

    def slack_us(self, ranks: Sequence[int]) -> float:
        """So much longer the hosts of these ranks could take in every step."""
        return self._least(self.slack_of_rank_ns, ranks) / 1e3

    def _least(self, values: Floats, ranks: Sequence[int]) -> float:
        """Of these ranks', of those that launched anything; 0 where none did."""
        known = values[np.searchsorted(self.ranks, ranks)]
        return float(known[~np.isnan(known)].min(initial=np.inf)) if not np.isnan(known).all() else 0.0


def leads_of(trace: Trace) -> Leads | None:
    """Of all chosen steps; None where hosts do not run ahead of their devices."""
    if trace.job.host_times is None:
        return None
    ranks = np.array(trace.job.ranks, dtype=np.int64)
    found: list[tuple[Ints, Lead]] = []

    def look(ops: Operations) -> None:
        found.append((np.searchsorted(ranks, ops.ranks), lead(ops)))

    for _ in of_steps(trace, look, look, lambda _step, _looked: None):
        pass
    return Leads.of(ranks, found)


EVENT_SHARE = 0.01
"""Idle time between two collectives counts as an event from this share of the step on."""


@dataclass(frozen=True)
class Pauses:
    """Per rank of the step: how many of its stretches between two collectives its host held up, and for how long."""

    count: Ints
    lost_ns: Floats


@dataclass(frozen=True)
class Stretches:
    """Those in which a host kept its device idle, of some ranks: entries of one length, in order."""

    rank: Ints
    """A position among the ranks that they are of."""
    number: Ints
    idle_ns: Floats

    @classmethod
    def of(cls, ops: Operations, gap_ns: Floats) -> "Stretches":
        """Return a stretch lies between the issue of two collectives; `gap_ns` says how long each operation was held
        up.
        """
        idle = np.flatnonzero(gap_ns > 0)
        if not len(idle):
            return cls(idle, idle, np.zeros(0))
        stretch = _stretch(ops, idle)
        width = int(stretch.max()) + 1
        cells, of_row = np.unique(ops.rank[idle] * width + stretch, return_inverse=True)
        total = np.bincount(of_row.reshape(-1), weights=gap_ns[idle])
        return cls(cells // width, cells % width, total.astype(float))


def pauses(stretches: Stretches, step_time_ns: float, role: Ints) -> Pauses:
    """Count the stretches of a rank's program in which its host alone kept it idle; `role` has a code per rank.

    One pause is one event, however many collectives it makes the rank late for. Where half of the role pauses, the
    program does.
    """
    long = stretches.idle_ns > EVENT_SHARE * step_time_ns
    rank, number, total = stretches.rank[long], stretches.number[long], stretches.idle_ns[long]
    width = int(number.max(initial=0)) + 1
    same, peers = np.unique(role[rank] * width + number, return_inverse=True)
    together = np.bincount(peers.reshape(-1), minlength=len(same))[peers.reshape(-1)]
    alone = 2 * together < np.bincount(role)[role[rank]]
    return Pauses(
        np.bincount(rank[alone], minlength=len(role)).astype(np.int64),
        np.bincount(rank[alone], weights=total[alone], minlength=len(role)).astype(float),
    )


def _stretch(ops: Operations, rows: Ints) -> Ints:
    """How many collectives each row's rank had issued before it."""
    issued = np.where(ops.launch == NONE, ops.start_ns, ops.start_ns[ops.launch])
    communication = np.flatnonzero(ops.communication)
    low = int(issued.min())
    span = int(issued.max()) - low + 1
    key = np.sort(ops.rank[communication] * span + (issued[communication] - low), kind="stable")
    before = np.searchsorted(key, ops.rank[rows] * span + (issued[rows] - low), side="left")
    return np.asarray(before - np.searchsorted(key, ops.rank[rows] * span, side="left"))
