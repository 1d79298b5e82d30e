"""What of a step's time no finding explains, item by item: a verdict of no straggler may leave none of them large.

The budget of a triage: what ranks lose is explained by findings, or is here, with whom and in which steps it is.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.causes import CAUSES, Cause
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.localization import Localization, steps_needed
from kair_engine.localize.moments import Moment
from kair_engine.localize.since import MOST_OF_ROLE
from kair_engine.ranks import Position, Rank, as_positions, ranks_at
from kair_engine.results import SMALLEST_SHARE
from kair_engine.results.blame import BlameResult
from kair_engine.results.evidence_kinds import PriceRange, Ticks
from kair_engine.results.triage import Finding, OpenItem, OpenKind
from kair_engine.results.warning_kinds import GiantStep, GraphsNotRecorded, GroupsDiffer
from kair_engine.stats import median
from kair_engine.step_bar import StepPartsTally
from kair_engine.timeline.coverage import NOT_COMPARED
from kair_engine.timeline.host_activity import CALLS, HOST_KINDS, HostKind, host_time, idle_stretches
from kair_engine.timeline.step_parts import PARTS, UNKNOWN
from kair_engine.timeline.unrecorded import Unrecorded
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.trace.operations import COMPUTE, SCOPE, STEP_SCOPE, Operations
from kair_engine.triage.gate import Gated
from kair_engine.triage.look import Looked
from kair_engine.triage.waiting import Waiting

EXPLAINED: Final = 0.5
"""Findings that began within the recording explain how steps became longer if they cost this part of it."""
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

    seen: Looked
    blamed: BlameResult
    gated: Gated
    missing: Unrecorded | None
    may_all_be_waiting: bool
    """Whether so much communication with ranks that are not recorded is exposed that all of it is in doubt."""

    @property
    def trace(self) -> Trace:
        """What is judged."""
        return self.seen.trace

    @property
    def job(self) -> JobExcess:
        """Its excesses."""
        return self.seen.found.job

    @property
    def parts(self) -> StepPartsTally:
        """The account of the steps, added up."""
        return self.seen.tables.parts

    def items(self, warnings: Sequence[KairWarning], more: Iterable[OpenItem]) -> tuple[OpenItem, ...]:
        """Return what the findings leave open, the largest first, without what costs less than any reported rank.

        `warnings` are the recording's limits, and `more` are items that others found.
        """
        uncompared = tuple(self._uncompared(warnings))
        every = (
            *self._untestable(warnings),
            *uncompared,
            *self._undecided(),
            *self._unrecorded(),
            *self._unmatched(),
            *self._of_moments(self.gated.findings),
            *self._waiting(self.gated, ranks_of(uncompared)),
            *self._giant_steps(),
            *_of_warnings(warnings, self.job),
            *more,
        )
        large = [one for one in every if one.share_of_step >= SMALLEST_SHARE]
        return tuple(sorted(large, key=lambda one: -one.share_of_step))

    def _item(self, kind: str, ns: float, **of: object) -> OpenItem:
        given = {"ranks": (), "steps": (), **of}
        return OpenItem(kind=kind, us_per_step=ns / 1e3, share_of_step=ns / self._mean_ns, **given)  # type: ignore[arg-type]

    @property
    def _mean_ns(self) -> float:
        return max(float(self.job.step_times_ns.mean()), 1.0)

    @property
    def _steps_lacking(self) -> int | None:
        """How many more steps a test needs; None where enough are recorded, or no rank has a peer."""
        needed = steps_needed(self.job)
        return None if needed is None or len(self.job.steps) >= needed else needed - len(self.job.steps)

    def _untestable(self, warnings: Sequence[KairWarning]) -> Iterator[OpenItem]:
        """Yield that no rank can be tested at all: then anything of the step may be a rank's fault."""
        if any(one.code == "several_runs" for one in warnings) or steps_needed(self.job) is None:
            alone = ranks_at(self.job.ranks, (Position(0),)) if len(self.job.ranks) == 1 else ()
            yield self._item("no_peer", self._mean_ns, ranks=alone)
        elif (more := self._steps_lacking) is not None:
            yield self._item("few_steps", self._mean_ns, more_steps=more)

    def _uncompared(self, warnings: Sequence[KairWarning]) -> Iterator[OpenItem]:
        """Yield who was not compared: what is waited for them or, where that is not seen, all that may be waiting."""
        accused = {rank for one in self.gated.findings for rank in one.ranks}
        seen, unseen = set[Rank](), set[Rank]()
        for one in warnings:
            if one.code == "no_peer":
                seen.update(one.ranks)
            elif one.code in NOT_COMPARED or one.code == "other_run":
                unseen.update(one.ranks)
        if not self.parts.waited_for_ns.any():
            seen, unseen = set(), seen | unseen
        seen -= accused | unseen
        if seen:
            of, others = self._positions(seen), self._of_others(seen)
            waited = float(self.parts.waited_for_ns[:, of].sum())
            yield self._item("no_peer", float(waited / others.sum()) * self._mean_ns, ranks=tuple(sorted(seen)))
        if unseen - accused:
            yield self._item("no_peer", self._may_wait_ns(unseen), ranks=tuple(sorted(unseen - accused)))

    def _may_wait_ns(self, ranks: Collection[Rank]) -> float:
        """Return how long the others may wait for ranks in a step, where not all that these did is recorded."""
        others = self._of_others(ranks)
        return float(others[[*_MAY_BE_WAITING]].sum() / others.sum()) * self._mean_ns

    def _of_others(self, ranks: Collection[Rank]) -> Floats:
        """Return what the time of all other ranks went to."""
        others: Floats = np.delete(self.parts.parts_ns, self._positions(ranks), axis=1).sum(axis=1)
        return np.maximum(others, 1.0)

    def _positions(self, ranks: Collection[Rank]) -> Ints:
        return np.flatnonzero(np.isin(self.job.ranks, sorted(ranks)))

    def _undecided(self) -> Iterator[OpenItem]:
        """Yield who was slower in all of too few steps, where it is not seen how long others wait for them."""
        for one in self.seen.found.undecided if not self.parts.waited_for_ns.any() else ():
            ranks, cause = ranks_at(self.job.ranks, one.positions), _cause_of_class(one.class_index)
            yield self._item("few_steps", one.excess_ns, ranks=ranks, cause=cause, more_steps=self._steps_lacking)

    def _unrecorded(self) -> Iterator[OpenItem]:
        if self.missing is not None:
            of, waited, cause = self.missing, self.missing.waited_ns, None
            if self.may_all_be_waiting or of.in_doubt_ns > of.waited_ns:
                waited = of.at_most_ns if self.may_all_be_waiting else of.waited_ns + of.in_doubt_ns
                cause = "exposed_communication"
            yield self._item("unrecorded", waited, ranks=self.missing.ranks, cause=cause)
        elif (ranks := self.trace.job.missing_ranks) and len(self.job.ranks) > 1:
            # Threads' transfers vary too much for what they take without waiting to be known.
            yield self._item("unrecorded", self._may_wait_ns(ranks), ranks=ranks, cause="exposed_communication")

    def _unmatched(self) -> Iterator[OpenItem]:
        """Communication whose members were not found: any part of it may be waiting."""
        spent = self.parts.parts_ns
        if len(self.job.ranks) > 1 and spent.sum() > 0:
            yield self._item("unmatched", float(spent[UNKNOWN].sum() / spent.sum()) * self._mean_ns)

    def _of_moments(self, findings: Sequence[Finding]) -> Iterator[OpenItem]:
        found = self.seen.found
        accused, late_ns = {rank for one in findings for rank in one.ranks}, self._shared_ns(lateness=True)
        # Delays that fall on another rank each time are a finding of their own.
        in_turns = (one for one in findings if any(of.kind in _IN_TURNS for of in one.evidence))
        accused.update(*(one.seen_on for one in in_turns))
        events = (one for one in found.events if accused.isdisjoint(ranks_at(self.job.ranks, one.positions)))
        # In its own steps, a delay must be longer than what all ranks share.
        steps = len(self.job.steps)
        moments = [one for one in events if one.lost_ns * steps / len(one.hit) > late_ns]
        moments += [one for one in found.shared if len(one.hit) == 1]
        moments.sort(key=lambda one: -one.lost_ns)
        for at, one in enumerate(moments):
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
            lost_ns = of.lost_ns * len(self.job.steps) / len(of.hit)
            cause, operator = self._ran(self.job.steps[longest].step, of.positions[0], of.class_index, lost_ns)
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

    def _giant_steps(self) -> Iterator[OpenItem]:
        """Yield the steps that were set aside as each outweighs all others."""
        for one in self.seen.set_aside:
            if isinstance(one, GiantStep):
                took, usual, steps = one.length_us, one.others_us / one.others, one.others + 1
                lost, mean = (took - usual) / steps, (took + one.others_us) / steps
                item = OpenItem("event", one.ranks, (one.step,), lost, lost / mean, took_us=took, usual_us=usual)
                if one.ranks and one.about is not None:
                    place = as_positions(self._positions(one.ranks))[0]
                    lost_ns = (took - usual) * 1e3
                    cause, operator = self._ran(one.step, place, CLASSES.index(one.about), lost_ns)
                    item = replace(item, cause=cause, operator=operator)
                yield item

    def _ran(self, step: int, position: Position, class_index: int, lost_ns: float) -> tuple[Cause, str | None]:
        """Return the cause and the operator of what a rank did longer in a step, by so much."""
        usual = _cause_of_class(class_index)
        ops = next(iter(each_step(self.trace.select([step]))), None)
        if ops is None:
            return usual, None
        rank = int(np.searchsorted(ops.ranks, self.job.ranks[position]))
        if CLASSES[class_index] == "host" and (did := _while_idle(ops, rank, lost_ns)) is not None:
            return did
        return usual, None if CLASSES[class_index] == "host" and ops.has_device else _scope_around(ops, rank)

    def _waiting(self, gated: Gated, uncompared: Collection[Rank]) -> Iterator[OpenItem]:
        """Yield whom others of their role wait for: who stands out at no price, and the first of all others.

        What all ranks share makes each of them late now and then: only more than that is open.
        """
        least = self._shared_ns(lateness=True)
        named = {*uncompared}.union(*(one.ranks for one in gated.findings), *(one.ranks for one in self.seen.explained))
        # A finding about all ranks that shows on some of them says whom the others wait for.
        named.update(*(one.seen_on for one in gated.findings if len(one.seen_on) < len(self.job.ranks)))
        for one in gated.worthless:
            waited = max(self._waited_for_ns(self._positions(one.ranks)), self._waited_at_all_ns(one.ranks))
            if named.isdisjoint(one.ranks) and waited > least:
                named.update(one.ranks)
                price, cause, operator = one.time_lost_us_per_step, one.cause, one.operator
                yield self._item("waiting", waited, ranks=one.ranks, cause=cause, operator=operator, replayed_us=price)
        if any(one.ranks for one in gated.findings):
            return  # whoever waits for an accused rank in one group comes late to another, and is waited for there
        waited_ns = self._waited_for_each_ns()
        for event in self.seen.found.events:
            waited_ns[list(event.positions)] -= event.lost_ns  # that much is an item of its own
        for at in np.argsort(-waited_ns, kind="stable").tolist():
            rank = Rank(int(self.job.ranks[at]))
            if rank not in named:
                if (waited := float(waited_ns[at])) > least:
                    yield self._item("waiting", waited, ranks=(rank,), more_steps=self._steps_lacking)
                return

    @property
    def shared_us(self) -> float:
        """What all ranks lose together in a step, for sure."""
        return self._shared_ns() / 1e3

    def _shared_ns(self, *, lateness: bool = False) -> float:
        shared = (one for one in self.gated.findings if one.pattern == "job_wide")
        counted = (one for one in shared if not lateness or one.cause not in _NOBODY_WAITS)
        return 1e3 * sum(_surely_us(one) if self.job.on_device else one.time_lost_us_per_step for one in counted)

    def _waited_for_each_ns(self) -> Floats:
        """Return the same of every rank by itself."""
        spent, role = self.parts.parts_ns.sum(axis=0), self.job.role
        others = np.bincount(role, weights=spent)[role] - spent
        return np.asarray(self.parts.waited_for_ns[0] / np.maximum(others, 1.0) * self._mean_ns)

    def _waited_at_all_ns(self, ranks: Sequence[Rank]) -> float:
        """Return the same with what goes by while the others compute: who spins there slows what else it runs.

        Where hosts run ahead of their devices, that is no loss by itself.
        """
        if self.seen.tables.parts.leads is not None:
            return 0.0
        return min(Waiting(self.job, self.blamed).share_for(ranks) or 0.0, 1.0) * self._mean_ns

    def _waited_for_ns(self, of: Ints) -> float:
        """Return how long each of the others of their role waits for some ranks in a step."""
        peers = np.isin(self.job.role, self.job.role[of])
        peers[of] = False
        spent = float(self.parts.parts_ns[:, peers].sum())
        return float(self.parts.waited_for_ns[0, of].sum()) / max(spent, 1.0) * self._mean_ns


_IN_TURNS: Final = ("delays_on_changing_ranks", "longest_changes")
"""Evidence that another rank is late each time."""
_NOBODY_WAITS: Final = ("exposed_communication", "input_bound", "copies", "launch_bound", "allocator")
"""Causes of the whole job that make no rank later than the others."""
_MAY_BE_WAITING: Final = (PARTS.index("communication"), PARTS.index("waiting"), UNKNOWN)
"""Parts of a step that may be waiting where not all that others did is recorded."""


def _surely_us(finding: Finding) -> float:
    """Return what it costs at least, where a device hides which it is. All that lasts ticks is late by up to one."""
    least_us = [one.least_us for one in finding.evidence if isinstance(one, PriceRange)]
    ticks = any(isinstance(one, Ticks) for one in finding.evidence)
    return finding.time_lost_us_per_step if ticks else min(finding.time_lost_us_per_step, *least_us[-1:], math.inf)


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


def explains_the_rest(item: OpenItem) -> bool:
    """Return whether what a replay finds besides would repeat an item: a test names its ranks, or parts are unknown."""
    return item.kind == "idle" or item.replayed_us is not None or (item.kind == "few_steps" and bool(item.ranks))


def smallest_share(items: Sequence[OpenItem]) -> float:
    """Return the smallest share of the step of which nothing is hidden in the recording."""
    return max((SMALLEST_SHARE, *(one.share_of_step for one in items)))


def _of_warnings(warnings: Sequence[KairWarning], job: JobExcess) -> Iterator[OpenItem]:
    """Yield what warnings say of time that nothing explains."""
    step_us = job.step_time_ns / 1e3
    for one in warnings:
        if isinstance(one, GraphsNotRecorded | GroupsDiffer):
            kind: OpenKind = "idle" if isinstance(one, GraphsNotRecorded) else "groups_differ"
            yield OpenItem(kind, one.ranks, (), one.share_of_step * step_us, one.share_of_step, where=one.about)


def longer_steps(found: Localization, findings: Sequence[Finding]) -> Iterator[OpenItem]:
    """Yield that all steps became longer, where no finding explains half of that."""
    if (longer := found.longer) is None:
        return
    change, steps = longer.change, [step.step for step in found.job.steps]
    lost_us = (change.since - change.before) * (change.end - change.begin) / len(steps) / 1e3
    if sum(one.time_lost_us_per_step for one in findings if one.since is not None) >= EXPLAINED * lost_us:
        return
    most = ranks_at(found.job.ranks, longer.positions)
    on_all = len(most) > MOST_OF_ROLE * len(found.job.ranks)
    yield OpenItem(
        "changed",
        () if on_all else most,
        tuple(steps[change.begin : change.end]),
        lost_us,
        lost_us * 1e3 / max(found.job.step_time_ns, 1.0),
        cause=longer.kind if longer.kind in CAUSES else None,
        took_us=change.since / 1e3,
        usual_us=change.before / 1e3,
    )


def _cause_of_class(class_index: int) -> Cause:
    name = CLASSES[class_index]
    return name if name in CAUSES else "unknown"


def _while_idle(ops: Operations, rank: int, lost_ns: float) -> tuple[Cause, str | None] | None:
    """Return what the host did for most of the time in which the rank's device idled; None where it never did.

    Without a device hosts compute, too: then it is a compiler's or an allocator's call, if it took most of `lost_ns`.
    """
    of, begin, end = idle_stretches(ops)
    mine: Ints = np.flatnonzero(of == rank)
    found = host_time(ops, of[mine], begin[mine], end[mine])
    spent = found.spent_ns.sum(axis=0)
    if not ops.has_device:
        spent[[kind for kind, name in enumerate(HOST_KINDS) if name not in CALLS]] = 0
    kind = int(spent.argmax())
    if spent[kind] <= (0 if ops.has_device else lost_ns / 2):
        return None
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
