"""What of a step's time no finding explains, item by item: a verdict of no straggler may leave none of them large.

The budget of a triage: what ranks lose is explained by findings, or is here, with whom and in which steps it is.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.causes import CAUSES, Cause
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import SMALLEST_SHARE
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.link_changes import GROUPS_DIFFER
from kair_engine.localize.moments import Moment
from kair_engine.ranks import Rank, ranks_at
from kair_engine.results.triage import Finding, OpenItem, OpenKind
from kair_engine.stats import median
from kair_engine.step_bar import StepPartsTally
from kair_engine.timeline.host_activity import HOST_KINDS, HostKind, host_time, idle_stretches
from kair_engine.timeline.step_parts import UNKNOWN
from kair_engine.timeline.unrecorded import Unrecorded
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.trace.operations import COMPUTE, SCOPE, STEP_SCOPE, Operations
from kair_engine.triage.gate import Gated
from kair_engine.triage.job_wide import LONGER_STEPS
from kair_engine.triage.unrecorded_graphs import GRAPHS_NOT_RECORDED

LEAVES_OPEN: Final = 0.05
"""Of the step: an item as large leaves a verdict open that would otherwise be that there is no straggler."""
_MOST_LOOKED_AT: Final = 4
"""Events whose steps are read again for what ran in them."""
_CAUSE_OF: Final[dict[HostKind, Cause]] = {
    "garbage_collection": "garbage_collection",
    "compilation": "compilation",
    "allocator": "allocator",
    "input": "input",
    "profiler": "profiler",
}


@dataclass(frozen=True)
class Budget:
    """What is known of a step's time that findings need not explain."""

    trace: Trace
    job: JobExcess
    events: Sequence[Moment]
    """Large delays of ranks that no test accuses."""
    shared: Sequence[Moment]
    """Steps that took all ranks longer."""
    parts: StepPartsTally
    """The account of the steps, added up."""
    missing: Unrecorded | None
    may_all_be_waiting: bool
    """Whether so much communication with ranks that are not recorded is exposed that all of it is in doubt."""
    explained: frozenset[Rank]
    """Ranks that take no longer than for the samples that the job gives them."""

    def items(self, findings: Sequence[Finding], warnings: Sequence[KairWarning]) -> tuple[OpenItem, ...]:
        """Return what the findings leave open, the largest first, without what costs less than any rank is told for."""
        every = (
            *self._unrecorded(),
            *self._unmatched(),
            *self._of_moments(findings),
            *self._waiting(findings),
            *_of_warnings(warnings, self.job),
        )
        large = [one for one in every if one.share_of_step >= SMALLEST_SHARE]
        return tuple(sorted(large, key=lambda one: -one.share_of_step))

    def _item(self, kind: str, ns: float, **of: object) -> OpenItem:
        given = {"ranks": (), "steps": (), **of}
        return OpenItem(kind=kind, us_per_step=ns / 1e3, share_of_step=ns / self._mean_ns, **given)  # type: ignore[arg-type]

    @property
    def _mean_ns(self) -> float:
        return max(float(self.job.step_times_ns.mean()), 1.0)

    def _unrecorded(self) -> Iterator[OpenItem]:
        if self.missing is not None:
            cause = "exposed_communication" if self.may_all_be_waiting else None
            waited = self.missing.at_most_ns if self.may_all_be_waiting else self.missing.waited_ns
            yield self._item("unrecorded", waited, ranks=self.missing.ranks, cause=cause)

    def _unmatched(self) -> Iterator[OpenItem]:
        """Communication whose members were not found: any part of it may be waiting."""
        spent = self.parts.parts_ns
        if len(self.job.ranks) > 1 and spent.sum() > 0:
            yield self._item("unmatched", float(spent[UNKNOWN].sum() / spent.sum()) * self._mean_ns)

    def _of_moments(self, findings: Sequence[Finding]) -> Iterator[OpenItem]:
        accused = {rank for one in findings for rank in (*one.ranks, *one.seen_on)}
        told = [one for one in self.events if not accused & set(ranks_at(self.job.ranks, one.positions))]
        told += [one for one in self.shared if len(one.hit) == 1]
        told.sort(key=lambda one: -one.lost_ns)
        for at, one in enumerate(told):
            yield self._event(one, looked_at=at < _MOST_LOOKED_AT)

    def _event(self, of: Moment, *, looked_at: bool) -> OpenItem:
        steps = tuple(self.job.steps[at].step for at in of.hit)
        took = self._took_ns(of)
        longest = max(of.hit, key=lambda at: took[at])
        others = np.delete(took, list(of.hit))
        # Where steps are marked at one time on all ranks, their lengths do not show who was late.
        is_longer = len(others) > 0 and took[longest] - median(others) > of.lost_ns
        cause, operator = _cause_of_class(of.class_index), None
        if looked_at and of.positions:
            cause, operator = self._ran(self.job.steps[longest].step, of)
        return self._item(
            "event",
            of.lost_ns,
            ranks=ranks_at(self.job.ranks, of.positions),
            steps=steps,
            cause=cause,
            operator=operator,
            took_us=float(took[longest]) / 1e3 if is_longer else None,
            usual_us=float(median(others)) / 1e3 if is_longer else None,
        )

    def _took_ns(self, of: Moment) -> Floats:
        """Return how long each step took the rank: what it does at a step's end others wait for in the next one."""
        if not of.positions:
            return self.job.step_times_ns
        rank, known = int(self.job.ranks[of.positions[0]]), self.trace.job.times_of
        usual = self.job.step_times_ns.tolist()
        lengths = (
            known.get((rank, one.step), (0, length))[1] for one, length in zip(self.job.steps, usual, strict=True)
        )
        return np.array([*lengths], dtype=float)

    def _ran(self, step: int, of: Moment) -> tuple[Cause, str | None]:
        """Return the cause and the operator of what a rank did longer in a step."""
        usual = _cause_of_class(of.class_index)
        ops = next(iter(each_step(self.trace.select([step]))), None)
        if ops is None:
            return usual, None
        rank = int(np.searchsorted(ops.ranks, self.job.ranks[of.positions[0]]))
        if CLASSES[of.class_index] == "host" and ops.has_device:
            return _while_idle(ops, rank) or (usual, None)
        return usual, _scope_around(ops, rank)

    def _waiting(self, findings: Sequence[Finding]) -> Iterator[OpenItem]:
        """Whoever the others of its role wait for most, of those that no finding is about."""
        told = self.explained.union(*(one.ranks for one in findings))
        told |= {rank for one in self.events for rank in ranks_at(self.job.ranks, one.positions)}
        if any(one.pattern == "job_wide" and one.cause not in _NOBODY_WAITS for one in findings):
            return  # what all ranks share makes each of them late now and then
        for at in np.argsort(-self.parts.waited_for_ns, kind="stable").tolist():
            rank = Rank(int(self.job.ranks[at]))
            if rank not in told:
                peers = (self.job.role == self.job.role[at]) & (np.arange(len(self.job.ranks)) != at)
                spent = float(self.parts.parts_ns[:, peers].sum())
                share = float(self.parts.waited_for_ns[at]) / max(spent, 1.0)
                yield self._item("waiting", share * self._mean_ns, ranks=(rank,))
                return


_NOBODY_WAITS: Final = ("exposed_communication", "input_bound", "copies", "launch_bound", "allocator")
"""Causes of the whole job that make no rank later than the others."""


def without_unrecorded(gated: Gated, missing: Unrecorded | None) -> Gated:
    """Return what stands without exposed communication that goes by with a rank that is not recorded.

    How much of that is waiting for this rank, nobody knows: it is no finding about the whole job.
    """
    if missing is None:
        return gated
    kept = (
        one
        for one in gated.findings
        if one.cause != "exposed_communication" or one.time_lost_us_per_step * 1e3 > 2 * missing.at_most_ns
    )
    return replace(gated, findings=tuple(kept))


def leaves_open(items: Sequence[OpenItem]) -> bool:
    """Return whether an item is so large that nobody may say there is no straggler."""
    return any(one.share_of_step >= LEAVES_OPEN for one in items)


def smallest_share(items: Sequence[OpenItem]) -> float:
    """Return the smallest share of the step of which nothing is hidden in the recording."""
    return max((SMALLEST_SHARE, *(one.share_of_step for one in items)))


_ITEM_OF: Final[dict[str, OpenKind]] = {
    "unexplained": "uneven",
    GRAPHS_NOT_RECORDED: "idle",
    GROUPS_DIFFER: "groups_differ",
}
"""Codes of warnings that are items of their own."""


def _of_warnings(warnings: Sequence[KairWarning], job: JobExcess) -> Iterator[OpenItem]:
    """What warnings say of time that nothing explains."""
    step_us = job.step_time_ns / 1e3
    for one in warnings:
        if one.code in _ITEM_OF:
            share = one.figures["share_of_step"]
            cause = one.about if one.code == "unexplained" else None
            where = one.about if one.code == GROUPS_DIFFER else None
            yield OpenItem(_ITEM_OF[one.code], one.ranks, (), share * step_us, share, cause=cause, where=where)
        elif one.code == LONGER_STEPS:
            since, until = (int(one.figures.get(name, job.steps[-1].step)) for name in ("step", "until"))
            steps = tuple(of.step for of in job.steps if since <= of.step <= until)
            took, usual = one.figures["after_us"], one.figures["before_us"]
            lost = (took - usual) * len(steps) / len(job.steps)
            yield OpenItem("changed", (), steps, lost, lost / step_us, took_us=took, usual_us=usual)


def _cause_of_class(class_index: int) -> Cause:
    name = CLASSES[class_index]
    return name if name in CAUSES else "unknown"


def _while_idle(ops: Operations, rank: int) -> tuple[Cause, str | None] | None:
    """Return what the host did for most of the time in which the rank's device idled; None where it never did."""
    of, begin, end = idle_stretches(ops)
    mine: Ints = np.flatnonzero(of == rank)
    found = host_time(ops, of[mine], begin[mine], end[mine])
    spent = found.spent_ns.sum(axis=0)
    if not spent.any():
        return None
    kind = int(spent.argmax())
    code = int(found.operator[rank, kind])
    return _CAUSE_OF.get(HOST_KINDS[kind], "host"), ops.name_text.get(code)


def _scope_around(ops: Operations, rank: int) -> str | None:
    """Return the script's own range that most of a rank's computing lies in, by time; else its longest operator."""
    scopes = np.flatnonzero((ops.rank == rank) & (ops.kind == SCOPE))
    named = [row for row in scopes.tolist() if ops.operator(row) != STEP_SCOPE]
    if named:
        longest = max(named, key=lambda row: int(ops.duration_ns[row]))
        if 2 * int(ops.duration_ns[longest]) >= int(ops.length_ns[rank]):
            return ops.operator(longest)
    rows = np.flatnonzero((ops.rank == rank) & (ops.kind == COMPUTE))
    if not len(rows):
        return None
    spent = np.bincount(ops.name[rows], weights=ops.duration_ns[rows])
    return ops.name_text[int(spent.argmax())]


def ranks_of(items: Collection[OpenItem]) -> set[Rank]:
    """Return everybody that an item is about."""
    return {rank for one in items for rank in one.ranks}
