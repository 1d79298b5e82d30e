"""Where all ranks of a job wait for the last of them, and how late each comes there."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import get_args

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, is_one_of
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import JobExcess, job_excess
from kair_engine.results.forecast import NoiseKind, SynchronisedBy
from kair_engine.results.localize import OwnKind
from kair_engine.stats import role_medians
from kair_engine.timeline.clocks import synchronise
from kair_engine.timeline.collectives import Collectives
from kair_engine.timeline.spans import Clock, Spans
from kair_engine.trace.batches import derived_once
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import COMPUTE, MEMORY, Operations
from kair_engine.triage.history.rows import StepHistory

_ONE_MEETING = 0.25
"""Where the least waiting rank of a step waits for less than this part of the mean, one rank holds up the others in
all of its collectives: they count as one."""
_MOST_WAITING = 0.9
"""Of all waiting, the part at least that must fall on collectives in which all ranks meet."""


@dataclass(frozen=True)
class Meetings:
    """How late ranks come; times in ns."""

    ranks: Ints
    late_ns: Floats
    """(steps × meetings × ranks): the later the larger; what is added to all ranks of a meeting means nothing."""
    step_ns: float
    """The mean step."""
    parts_ns: Mapping[NoiseKind, Floats]
    """Cause → (steps × ranks): how much of their own time ranks spent by it."""
    host: Ints | None
    """Per rank a number, equal for those of one host; None: unknown."""
    by: SynchronisedBy
    absolute: bool = False
    """Whether what is added to all ranks is known: `late_ns` is their own time."""

    @property
    def has_hosts(self) -> bool:
        """Whether ranks are known to be of several hosts."""
        return self.host is not None and len(np.unique(self.host)) > 1

    @cached_property
    def waited_ns(self) -> float:
        """How long the mean rank waits per step."""
        return float((self.late_ns.max(axis=2) - self.late_ns.mean(axis=2)).sum(axis=1).mean())

    def without(self, left_out: Bools) -> "Meetings":
        """Return the same without some of the ranks, whom nobody waits for."""
        kept = ~left_out
        late_ns = self.late_ns[:, :, kept]
        before = (self.late_ns.max(axis=2) - late_ns.max(axis=2)).sum(axis=1).mean()
        return replace(
            self,
            ranks=self.ranks[kept],
            late_ns=late_ns,
            step_ns=self.step_ns - float(before),
            parts_ns={name: one[:, kept] for name, one in self.parts_ns.items()},
            host=None if self.host is None else self.host[kept],
        )


def meetings_of(trace: Trace) -> Meetings:
    """Return the meetings of a recording: its collectives show where ranks waited; if some ranks meet in none, their
    own times do."""
    job = job_excess(trace)
    found = derived_once(trace, "waits", lambda: tuple(_waits(ops, len(job.ranks)) for ops in each_step(trace)))
    step_ns = float(np.mean(job.step_times_ns))
    complete = np.asarray(~np.isnan(job.by_step_ns).any(axis=(1, 2)))
    parts = {name: one[complete] for name, one in _parts(job).items()}
    waits = [one for one, whole in zip(found, complete.tolist(), strict=True) if whole and one is not None]
    if waits and len(waits) == np.count_nonzero(complete) and len({one.shape for one in waits}) == 1:
        late, by = _as_meetings(-np.stack(waits))
        return Meetings(job.ranks, late, step_ns, parts, job.host, by)
    # A transfer takes all of its members the same time: who is late in it shows as waiting of others.
    del parts["communication"]
    own = np.sum(list(parts.values()), axis=0)
    own = own - role_medians(own, job.role)
    return Meetings(job.ranks, own[:, None, :], step_ns, parts, job.host, "own_times")


def meetings_of_history(history: StepHistory) -> Meetings:
    """Of the steps that capture keeps of a job: one meeting a step, by ranks' own times."""
    us = history.us
    known: dict[NoiseKind, Floats] = {
        "input": us["input"],
        "garbage_collection": us["gc"],
        "no_core": us["delay"],
        "asleep": history.asleep,
    }
    known = {name: one for name, one in known.items() if one.any()}
    rest = np.maximum(history.own - np.sum([*known.values(), np.zeros_like(history.own)], axis=0), 0.0)
    own = history.own
    one_role = len(np.unique(history.role)) == 1
    late = own if one_role else own - role_medians(own, history.role)
    return Meetings(
        history.ranks,
        late[:, None, :] * 1e3,
        float(us["step"].mean()) * 1e3,
        {name: one * 1e3 for name, one in {**known, "compute": rest}.items()},
        history.host,
        "history",
        absolute=one_role,
    )


def _parts(job: JobExcess) -> dict[NoiseKind, Floats]:
    """Return (steps × ranks) each: the classes of stage 1, and of the host's the time that garbage was collected."""
    work = np.nan_to_num(np.stack([step.work_ns for step in job.steps]))
    parts: dict[NoiseKind, Floats] = {name: work[:, at] for at, name in enumerate(get_args(OwnKind))}
    garbage = np.nan_to_num(np.stack([step.garbage_ns for step in job.steps]))
    parts["host"] = np.maximum(parts["host"] - garbage, 0.0)
    return {**parts, "garbage_collection": garbage}


def _waits(ops: Operations, ranks: int) -> Floats | None:
    """(meetings × ranks): how long each waits in a step and does nothing else; None where not all ranks meet."""
    collectives = synchronise(ops).collectives
    if not len(collectives) or len(ops.ranks) != ranks:
        return None
    whole = collectives.sizes == ranks
    total = float(collectives.total_wait_ns.sum())
    if collectives.rejected or float(collectives.total_wait_ns[whole].sum()) < _MOST_WAITING * total:
        return None
    exposed = np.array(_exposed_ns(ops, collectives), dtype=float)
    number = np.cumsum(whole) - 1
    chosen = np.flatnonzero(whole[collectives.instance])
    result = np.zeros((int(whole.sum()), ranks))
    result[number[collectives.instance[chosen]], ops.rank[collectives.row[chosen]]] = exposed[chosen]
    return result


def _exposed_ns(ops: Operations, collectives: Collectives) -> Ints:
    """Return each member's waiting without the time in which its device computes, or its host if no device is used."""
    rows, waited = collectives.row, collectives.wait_ns
    computes_there = is_one_of(ops.kind, (COMPUTE, MEMORY)) & (ops.on_stream == ops.on_stream.any())
    computing = np.flatnonzero(computes_there)
    if not len(computing):
        return waited
    clock = Clock.of(ops)
    begin = clock.at(ops.rank[rows], ops.start_ns[rows])
    rank = ops.rank[computing]
    computes = Spans.united(clock.at(rank, ops.start_ns[computing]), clock.at(rank, ops.end_ns[computing]))
    hidden = np.where(ops.on_stream[rows] == ops.on_stream.any(), computes.within(begin, begin + waited), 0)
    return np.asarray(waited - hidden)


def _as_meetings(late_ns: Floats) -> tuple[Floats, SynchronisedBy]:
    """Return (steps × meetings × ranks): one for each collective, or for each step where one rank holds up all of a
    step's.
    """
    of_step = -late_ns.sum(axis=1)
    if float(of_step.min(axis=1).mean()) <= _ONE_MEETING * float(of_step.mean()):
        return -of_step[:, None, :], "step"
    # Those in which nobody waits are none.
    return late_ns[:, late_ns.any(axis=(0, 2))], "collective"
