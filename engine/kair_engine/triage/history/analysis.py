"""The verdict of the history of steps, alone and joined with what sampled steps say.

rows -> who, since when     slow.py
who -> why, and where       reasons.py
who -> price, gate          here: the rows without what the ranks take longer
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.causes import Cause
from kair_engine.ranks import Rank
from kair_engine.results import SMALLEST_SHARE
from kair_engine.results.evidence_kinds import EveryStep, Evidence, Grew, NoCore, Noticed, Periodic, Replayed, Since
from kair_engine.results.triage import Finding, OpenItem, PricedBy, RankedRank, SmallestSeen, TriageResult
from kair_engine.results.whatif import FixPrice
from kair_engine.stats import TRIM, role_medians, trimmed_mean
from kair_engine.trace.model import Job
from kair_engine.triage.findings import new_finding
from kair_engine.triage.history.changed import longer_steps
from kair_engine.triage.history.longer import Growth, growth, longer_us
from kair_engine.triage.history.reasons import Reason, reason
from kair_engine.triage.history.rows import StepHistory
from kair_engine.triage.history.slow import Slow, beside, slow_ranks
from kair_engine.triage.open_items import smallest_share
from kair_engine.triage.pricing import with_price
from kair_engine.triage.shared_costs import NOTABLE_SHARE, STOPPED_SHARE
from kair_engine.triage.verdict import not_contradicting, verdict, with_verdict
from kair_engine.whatif.prices import price

_SHARED: Final[dict[Cause, tuple[str, float]]] = {
    "input_bound": ("input", NOTABLE_SHARE["input_bound"]),
    "garbage_collection": ("gc", NOTABLE_SHARE["garbage_collection"]),
    "contention": ("delay", STOPPED_SHARE),
}
"""What all ranks spend alike, its column, and the share of the step from which on it is reported."""
_FINER: Final = frozenset({"compilation", "garbage_collection", "input", "contention"})
"""Causes that a column states, and a sampled step may only show as idle time or longer operators."""
_OPEN_BY_STEPS: Final = frozenset({"few_steps", "waiting"})
"""Kinds of items that too few sampled steps leave open, and that all steps settle."""
_VICTIMS: Final = 4
"""The bound is asked of the fastest ranks, which are seen last."""
_SIZES: Final = 49
"""Sizes that are tried for the bound, a tenth apart, from the smallest that is reported to a whole step."""


def judge(
    history: StepHistory, job: Job, gpu_cost: float | None = None
) -> tuple[tuple[Finding, ...], SmallestSeen | None]:
    """Return who is slow by the history, with a price each; else the smallest fault that would have been seen."""
    found = [_finding(history, job, *one, gpu_cost) for one in _standing(history)]
    findings = tuple(sorted(found, key=lambda one: (-one.time_lost_us_per_step, one.ranks)))
    return findings, None if findings else _smallest_seen(history)


def shared_by_all(history: StepHistory, job: Job, gpu_cost: float | None = None) -> tuple[Finding, ...]:
    """Return what all ranks spend alike, by the rows: fetching input, collecting garbage, waiting for a core."""
    found, every = [], np.ones(len(history.steps), np.bool_)
    for cause, (column, share) in _SHARED.items():
        own, spent = history.us["self"], history.us[column]
        saved = float((own.max(axis=1) - (own - np.minimum(spent, own)).max(axis=1)).mean()) if len(own) else 0.0
        if saved > 0 and min(saved, float(np.median(spent.mean(axis=0)))) >= share * history.step_us:
            cost, seen_on = _price(history, job, every, saved, gpu_cost), tuple(map(Rank, history.ranks.tolist()))
            evidence: tuple[Evidence, ...] = ()
            if cause == "contention":
                lacked = spent.mean(axis=0)
                step_us = float(history.us["step"].mean())
                evidence = (NoCore(float(lacked.mean()), step_us, float(lacked.min()), float(lacked.max())),)
            found.append(_priced(history, job, cost, "replay", every, cause=cause, seen_on=seen_on, evidence=evidence))
    return tuple(sorted(found, key=lambda one: -one.time_lost_us_per_step))


def triage_of_rows(history: StepHistory, job: Job, gpu_cost: float | None = None) -> TriageResult:
    """Return the verdict of a job of which nothing was sampled."""
    of_ranks, unseen = judge(history, job, gpu_cost)
    findings = (*of_ranks, *shared_by_all(history, job, gpu_cost))
    step_us = float(history.us["step"].mean()) if len(history.steps) else 0.0
    untested = () if history.can_judge else (OpenItem("few_steps", (), (), step_us, 1.0),)
    if history.hides_waiting:
        share = min(history.unseen_us / history.step_us, 1.0)
        untested = (*untested, OpenItem("unseen_waiting", (), (), history.unseen_us, share))
    untested = (*untested, *longer_steps(history, findings))
    return TriageResult(
        verdict=verdict(findings, untested, 0.0),
        findings=findings,
        ranking=_ranking(history, job, of_ranks),
        step_time_us=step_us,
        waiting_us_per_step=float(history.us["waited"].sum(axis=1).mean()) if history.sees_waiting else None,
        unattributed_us_per_step=None,
        steps=tuple(history.steps.tolist()),
        warnings=(),
        unseen=unseen,
        open=untested,
        history_steps=len(history.steps),
        is_sampled=False,
    )


def joined(sampled: TriageResult, history: StepHistory, job: Job, gpu_cost: float | None = None) -> TriageResult:
    """Return what sampled steps say, with what all steps do.

    Of the same ranks the history gives since when and in which part of the step, and a cause that a column states;
    operators and evidence stay the sampled steps', and so does the price where the history has no steps without the
    fault: sampled steps have it in all of them, and do not show what the job's step grew by.
    """
    of_ranks, unseen = judge(history, job, gpu_cost)
    whole = {one.ranks: one for one in reversed(of_ranks)}
    found = []
    for one in sampled.findings:
        same = whole.pop(one.ranks, None) if one.ranks else None
        found.append(replace(one, framework=history.framework) if same is None else _both(one, same))
    alone = [one for one in of_ranks if one.ranks in whole]
    is_measured = any(one.priced_by == "growth" for one in found)
    if is_measured:  # with the others as they are: no part of what a replay of sampled steps saves
        found = [replace(one, least_us_per_step=None, most_us_per_step=None) for one in found]
    findings = tuple(sorted((*found, *alone), key=lambda one: -one.costs_us))
    accused = {rank for one in findings for rank in one.ranks}
    left = tuple(one for one in sampled.open if accused.isdisjoint(one.ranks))
    if history.can_judge and any(one.kind == "few_steps" for one in left):
        left = tuple(one for one in left if one.kind not in _OPEN_BY_STEPS)
    if all(one.kind != "changed" for one in left):
        left = (*left, *longer_steps(history, findings))
    decided = verdict(findings, left, sum(one.time_lost_us_per_step for one in findings))
    warnings = not_contradicting(sampled.warnings, findings)
    if of_ranks:
        warnings = tuple(one for one in warnings if one.code != "few_steps")  # the history has enough
    return replace(
        sampled,
        verdict=decided,
        bar=with_verdict(sampled.bar, decided),
        warnings=warnings,
        findings=findings,
        accused_together=None if is_measured else sampled.accused_together,
        open=left,
        smallest_share=smallest_share(left),
        ranking=tuple(replace(one, flagged=one.rank in accused) for one in sampled.ranking),
        unseen=None if accused else unseen,
        history_steps=len(history.steps),
    )


def _both(sampled: Finding, whole: Finding) -> Finding:
    """One finding of two about the same ranks."""
    states = whole.cause in _FINER and sampled.cause != whole.cause
    told = {one.kind for one in whole.evidence}
    merged = replace(
        sampled,
        since=whole.since if whole.since is not None or whole.until is not None else sampled.since,
        until=whole.until,
        every=whole.every,
        time_lost_us_per_slow_step=whole.time_lost_us_per_slow_step,
        scope=whole.scope,
        framework=whole.framework,
        evidence=(*whole.evidence, *(one for one in sampled.evidence if one.kind not in told)),
    )
    is_spread = whole.time_lost_us_per_slow_step is not None and sampled.most_us_per_step is None
    if whole.priced_by == "growth" or is_spread:
        merged = replace(
            merged,
            evidence=tuple(one.changed(of_samples=1) if isinstance(one, Replayed) else one for one in merged.evidence),
            time_lost_us_per_step=whole.time_lost_us_per_step,
            slowdown=whole.slowdown,
            throughput_gain=whole.throughput_gain,
            gpu_hours_per_day=whole.gpu_hours_per_day,
            cost_per_day=whole.cost_per_day,
            currency=whole.currency,
            priced_by=whole.priced_by,
        )
    return replace(merged, cause=whole.cause, operator=None, edge=None) if states else merged


_Standing = tuple[Slow, Reason, float, PricedBy, Growth | None]


def _standing(history: StepHistory) -> list[_Standing]:
    if not history.can_judge:
        return []
    found = slow_ranks(history)
    # If several change, how much each of them makes the steps grow is unknown.
    alone = sum(slow.is_change for slow in found) == 1
    return [one for slow in found if (one := _stands(history, slow, growth(history, slow) if alone else None))]


def _stands(history: StepHistory, slow: Slow, grown: Growth | None = None) -> _Standing | None:
    """Those that pass the gate: they cost the smallest share of the step, and lack nothing that all ranks lack."""
    saved, by = _saved_us(history, slow, grown)
    if not saved >= SMALLEST_SHARE * history.step_us:  # nor what is no number
        return None
    why = reason(history, slow)
    return None if why.is_shared else (slow, why, saved, by, grown)


def _saved_us(history: StepHistory, slow: Slow, grown: Growth | None) -> tuple[float, PricedBy]:
    """Return what a step in which they are slow would be shorter by, were they like their peers.

    Where all ranks meet in every step it ends for whoever takes longest by itself: the rows say how much later that is,
    and, where there were steps before, by how much the others wait longer since. Stages of a pipeline wait for one
    another: there it is what the ranks take longer, but no more than the job's step became longer by since then.
    """
    own, more = history.us["self"][slow.later], longer_us(history, slow)
    share = float(slow.later.mean()) if slow.is_of_all_steps else 1.0
    if len(history.role_names) <= 1:
        less = own.copy()
        less[:, list(slow.positions)] -= more
        saved = float((own.max(axis=1) - less.max(axis=1)).mean())
        return (saved * share, "replay") if grown is None else (grown.joined_with(saved) * share, "growth")
    most = np.inf
    if slow.is_change:
        step = np.median(history.us["step"], axis=1)
        most = float(trimmed_mean(step[slow.later], TRIM) - trimmed_mean(step[~slow.later], TRIM)) * share
    return max(min(float(more.mean()) * share, most), 0.0), "excess"


def _finding(  # noqa: PLR0917  (one call)
    history: StepHistory,
    job: Job,
    slow: Slow,
    why: Reason,
    saved: float,
    by: PricedBy,
    grown: Growth | None,
    gpu_cost: float | None,
) -> Finding:
    paid = np.ones_like(slow.later) if slow.is_of_all_steps else slow.later
    cost = _price(history, job, paid, saved, gpu_cost)
    ranks = history.numbers(slow.positions)
    over = beside(history, history.own, slow.positions)
    share = slow.excess_us / max(float(np.median(history.us["step"][slow.later])), 1e-3)
    evidence: list[Evidence] = [
        EveryStep(float(len(history.steps)), slow.excess_us, share, ranks=ranks, about=why.scope)
    ]
    if slow.is_change:
        before, after = (float(np.median(over[of])) for of in (~slow.later, slow.later))
        evidence.append(Since(before, after, slow.since, slow.until, ranks=ranks))
    if grown is not None and by == "growth":
        evidence.append(Grew(grown.us, grown.error_us, ranks=ranks))
    if slow.every is not None:
        evidence.append(Periodic(slow.every, int(np.count_nonzero(slow.later)), ranks=ranks))
    noticed = [history.alerts[rank] for rank in ranks if rank in history.alerts]
    if noticed:
        evidence.append(Noticed(min(noticed), ranks=ranks))
    found = _priced(
        history,
        job,
        cost,
        by,
        slow.later,
        cause=why.cause,
        pattern="group" if len(ranks) > 1 else "intermittent" if slow.is_intermittent else "persistent",
        ranks=ranks,
        p_value=slow.p_value,
        evidence=(*evidence, *why.evidence),
        since=slow.since,
    )
    is_spread = slow.until is not None or slow.every is not None
    in_steps = found.time_lost_us_per_step / float(slow.later.mean()) if is_spread else None
    return replace(found, scope=why.scope, until=slow.until, every=slow.every, time_lost_us_per_slow_step=in_steps)


def _priced(
    history: StepHistory,
    job: Job,
    cost: FixPrice,
    by: PricedBy,
    later: Bools,
    **of: Any,  # noqa: ANN401
) -> Finding:
    """Return a finding at its price; `of` is what `new_finding` is given besides."""
    lost_ns, steps = cost.saved_us * 1e3, tuple(history.steps[later].tolist())
    found = new_finding(job, lost_ns=lost_ns, step_time_ns=lost_ns + cost.step_time_us * 1e3, steps=steps, **of)
    return replace(with_price(found, cost, by, ()), framework=history.framework)


def _price(history: StepHistory, job: Job, later: Bools, saved_us: float, gpu_cost: float | None) -> FixPrice:
    """Return what saving `saved_us` of each of the `later` steps is worth, from their mean."""
    step_ns = float(np.median(history.us["step"][later], axis=1).mean()) * 1e3
    return price("", step_ns, max(step_ns - saved_us * 1e3, 1.0), devices=job.world_size, gpu_cost=gpu_cost)


def _smallest_seen(history: StepHistory) -> SmallestSeen | None:
    """Return the smallest of some sizes that is seen on each of the fastest ranks, put into these very rows.

    Return None if no rank has a peer, if waiting is hidden, or if not even a rank that takes the whole step longer
    would be seen.
    """
    sizes = np.bincount(history.role)
    able = np.flatnonzero(sizes[history.role] > 1)
    if not history.can_judge or history.hides_waiting or not len(able):
        return None
    own = trimmed_mean(history.own - role_medians(history.own, history.role), TRIM)
    tried, smallest = history.step_us * np.geomspace(SMALLEST_SHARE, 1.0, _SIZES), 0
    # The fastest is seen last: of the others mostly that size is tried only. All are to be seen at one size.
    for victim in able[np.argsort(own[able])][:_VICTIMS].tolist():

        def is_seen(size: int, victim: int = victim) -> bool:
            return _sees(history, victim, float(tried[size]))

        if smallest < _SIZES and not is_seen(smallest):
            smallest = bisect_left(range(_SIZES), True, lo=smallest + 1, key=is_seen)
    if smallest == _SIZES:
        return None
    return SmallestSeen(float(tried[smallest]), float(tried[smallest]) / history.step_us, len(history.steps))


def _sees(history: StepHistory, victim: int, us: float) -> bool:
    """Return whether it is slower in all steps: what became longer is not asked, which takes most of the time of many
    ranks.
    """
    slower = history.slower(victim, us)
    alone = [one for one in slow_ranks(slower, changes=False) if one.positions == (victim,)]
    return any(_stands(slower, one) is not None for one in alone)


def _ranking(history: StepHistory, job: Job, findings: Sequence[Finding]) -> tuple[RankedRank, ...]:
    if not len(history.steps):
        return ()
    excess: Floats = trimmed_mean(history.own - role_medians(history.own, history.role), TRIM)
    longest = history.us["self"].argmax(axis=1)
    waits = history.us["waited"].sum(axis=1)
    imposed = np.array([waits[longest == at].sum() for at in range(len(history.ranks))]) / len(history.steps)
    accused = {rank for one in findings for rank in one.ranks}
    names = [history.role_names[code] if history.role_names else "all" for code in history.role.tolist()]
    order = sorted(range(len(excess)), key=lambda at: (history.numbers([at])[0] not in accused, -excess[at]))
    return tuple(
        RankedRank(
            rank=history.numbers([at])[0],
            host=job.hosts.get(int(history.ranks[at])),
            role=names[at],
            score=float(excess[at] / history.step_us * 100),
            flagged=history.numbers([at])[0] in accused,
            self_time_excess_us=float(excess[at]),
            wait_imposed_us=float(imposed[at]) if history.sees_waiting else None,
        )
        for at in order
    )
