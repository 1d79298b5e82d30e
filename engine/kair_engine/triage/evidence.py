"""Evidence for findings: the figures that speak for each, and the analyses that show the same."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kair_engine.localize.anomalies import FEWEST_STEPS, Anomaly
from kair_engine.localize.compared import Compared
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.links import SlowLink
from kair_engine.localize.localization import Localization
from kair_engine.localize.placement import carried_together
from kair_engine.localize.since import SlowerRole
from kair_engine.ranks import Rank, ranks_at
from kair_engine.results import evidence_kinds as kinds
from kair_engine.results.blame import BlameResult
from kair_engine.results.evidence_kinds import Evidence, ShownBy
from kair_engine.results.localize import JobPattern
from kair_engine.results.triage import Finding
from kair_engine.results.whatif import Fix, FixPrice, HostStops
from kair_engine.step_bar import StepPartsTally
from kair_engine.timeline.account import KINDS
from kair_engine.timeline.host_time import ProcessorTimes
from kair_engine.trace.model import Job

COVERED_FRACTION = 0.25
"""A finding is covered by others that would be as late if it is worth less than this part of its excess."""
SAME_EXCESS = 0.005
"""The excess of a class that is one operator: equal to it, but for what is rounded away in print."""
MIN_STOPS = 0.05
"""Fewer stops a step than this of the average rank, by signals or a quota, are not reported, as that rounds to none."""
LINKS_SHOWN, CAUSES_SHOWN, FILES_SHOWN = 4, 4, 4
_LOCALIZE = ShownBy("localize")


def rank_evidence(
    found: Localization,
    blamed: BlameResult,
    anomalies: Sequence[Anomaly],
    *,
    ranks: tuple[Rank, ...],
    operator: str | None,
    step_time_ns: float,
) -> tuple[Evidence, ...]:
    """Return what speaks against ranks: the tests they failed, who waited for them, and what made them late."""
    tested = any(anomaly.operator == operator for anomaly in anomalies)
    return (
        *(_anomaly(found, anomaly, step_time_ns) for anomaly in _telling(found, anomalies)),
        *_waiting(blamed, ranks),
        *_behind(blamed, ranks, operator, named=tested),
    )


def link_evidence(links: Sequence[SlowLink], ranks: tuple[Rank, ...], step_time_ns: float) -> tuple[Evidence, ...]:
    """Return what speaks against process groups or pipeline edges."""
    shown: list[Evidence] = [_slow_link(slow, step_time_ns) for slow in links[:LINKS_SHOWN]]
    if len(links) > 1:
        shown.append(kinds.LinksInCommon(len(links), shown_by=_LOCALIZE, ranks=ranks))
    elif links[0].link.group is not None:
        shown.append(kinds.GroupNotRank())
    return tuple(shown)


def role_evidence(job: JobExcess, slower: SlowerRole) -> tuple[Evidence, ...]:
    """Return what each rank of a role spends on its own work since it became slower, and before."""
    change, numbers = slower.change, [step.step for step in job.steps]
    shown = kinds.ThanBefore(
        before_us=change.before / 1e3,
        after_us=change.since / 1e3,
        steps=change.end - change.begin,
        of_steps=len(numbers),
        step=numbers[change.begin],
        until=numbers[change.end - 1] if change.end < len(numbers) else None,
        ranks=ranks_at(job.ranks, slower.positions),
        about=CLASSES[slower.class_index],
    )
    return (shown,)


def before_evidence(slow: SlowLink, steps: int, all_steps: int) -> tuple[Evidence, ...]:
    """Return what a link takes since it became slow, and before; and which transfers only queue behind it."""
    before = kinds.ThanBefore(
        before_us=slow.expected_ns / 1e3,
        after_us=slow.own_ns / 1e3,
        steps=steps,
        of_steps=all_steps,
        step=slow.since,
        until=slow.until,
        ranks=slow.link.ranks,
        about=slow.link.name,
    )
    behind = [link for link in slow.followers if set(link.ranks) != slow.ends]
    if behind:
        ranks = tuple(sorted({rank for link in behind for rank in link.ranks}))
        return before, kinds.QueuedBehind(ranks=ranks, about=", ".join(link.name for link in behind[:LINKS_SHOWN]))
    return (before,)


def pattern_evidence(pattern: JobPattern, steps: int, step_time_us: float) -> tuple[Evidence, ...]:
    """Return what speaks for a pattern of the whole job."""
    share, figures, ranks = pattern.lost_us / step_time_us, pattern.figures, pattern.ranks
    if pattern.cause == "stage_imbalance":
        slowest, own = max(figures.items(), key=lambda item: item[1])
        mean = sum(figures.values()) / len(figures)
        return (kinds.UnevenStages(own, mean, len(figures), share, shown_by=_LOCALIZE, about=slowest),)
    if pattern.cause == "sequence_imbalance":
        batches = kinds.UnevenBatches(figures["correlation"], figures["variation"], shown_by=_LOCALIZE)
        return batches, kinds.LongestBatch(share, shown_by=_LOCALIZE)
    if pattern.cause == "position_imbalance":
        what = "" if pattern.operator is None else carried_together(pattern.operator)
        about = "; ".join((what, pattern.group or ""))
        uneven = kinds.UnevenPositions(share, shown_by=_LOCALIZE, ranks=ranks, about=about)
        return (uneven.changed(figures=figures | uneven.figures),)
    if "every" in figures:
        return (kinds.AllPause(figures["delays"], figures["every"], steps, share, shown_by=_LOCALIZE, ranks=ranks),)
    if "rate" not in figures:
        return (
            kinds.LongestChanges(figures["ranks"], figures["steps"], steps, share, shown_by=_LOCALIZE, ranks=ranks),
        )
    delays, hit = figures["delays"], len(pattern.steps)
    return (
        kinds.DelaysOnChangingRanks(
            delays, len(ranks), hit, steps, shown_by=_LOCALIZE, ranks=ranks, about=pattern.cause
        ),
        kinds.LongestDelays(share, shown_by=_LOCALIZE),
    )


def since_evidence(job: JobExcess, anomaly: Anomaly) -> tuple[Evidence, ...]:
    """When it began, and by how much more of the step than before."""
    if anomaly.since is None:
        return ()
    of = Compared(job, anomaly)
    own = np.nan_to_num(job.by_step_ns[:, anomaly.class_index], nan=0.0)[:, of.mine].mean(axis=1)
    before, after = (float(np.median(own[steps])) / 1e3 for steps in (~of.later, of.later))
    return (kinds.Since(before, after, anomaly.since, ranks=of.ranks),)


MOSTLY_AT_END = 0.5
"""Of a host's excess, the part after a step's last operation from which on that is where it is."""


def at_step_end_evidence(job: JobExcess, parts: StepPartsTally, anomaly: Anomaly) -> tuple[Evidence, ...]:
    """Return that ranks are idle after a step's last operation, where most of their host's excess is there."""
    mine, usual = Compared(job, anomaly).means(parts.by_step_ns(KINDS, ("after",)), parts.divided)
    if mine - usual < MOSTLY_AT_END * anomaly.excess_ns or mine <= 0:
        return ()
    return (kinds.AtStepEnd(mine / 1e3, usual / 1e3, ranks=ranks_at(job.ranks, anomaly.positions)),)


def file_evidence(job: Job, ranks: Sequence[Rank]) -> Iterator[Evidence]:
    """Which files ranks are whose numbers are those of their files' order."""
    named = [rank for rank in ranks if rank in job.by_order]
    for rank in named[:FILES_SHOWN]:
        yield kinds.RankByOrder(ranks=(rank,), about=job.by_order[rank])


def cores_evidence(stops: HostStops, step_time_ns: float, counted: ProcessorTimes | None) -> Iterator[Evidence]:
    """Yield what was measured of all ranks: how long they were ready without a core, and how often a quota stopped
    them.

    If nothing shows what they computed, as with a device, that is what was `counted`, if it was on all of them.
    """
    if stops.cores is not None:
        ready, shown = list(stops.cores.ready_by_rank_us.values()), ShownBy("whatif")
        throttled, halted = stops.cores.throttled, stops.cores.halted
    elif counted is not None and counted.tells_all:
        ready, shown = (counted.lacked_ns / 1e3).tolist(), None
        throttled, halted = counted.throttled_per_step, counted.halted_per_step
    else:
        return
    if max(ready) >= 1.0:
        yield kinds.NoCore(float(np.mean(ready)), step_time_ns / 1e3, min(ready), max(ready), shown_by=shown)
    if throttled >= MIN_STOPS:
        yield kinds.Throttled(throttled, shown_by=shown)
    if halted >= MIN_STOPS:
        yield kinds.Halted(halted, shown_by=shown)


def stops_evidence(stops: HostStops) -> Iterator[Evidence]:
    """Yield what speaks for threads that stand still."""
    if stops.per_step:
        yield kinds.HostStops(
            stops.per_step,
            stops.median_us,
            stops.longest_us,
            stops.share_of_step,
            stops.slowest_rank_us,
            stops.together,
            shown_by=ShownBy("whatif"),
        )
    if stops.tick_us is not None:
        yield kinds.Ticks(stops.tick_us, stops.ticked_share, shown_by=ShownBy("whatif"))


_OF_SAMPLE = ("replayed_steps", "steps", "plus_minus_us", "replayed_ranks", "ranks", "others_fixed")


def price_evidence(
    finding: Finding,
    cost: FixPrice,
    fixes: tuple[Fix, ...],
    *,
    sampled: Mapping[str, float],
    together: FixPrice | None,
    all_fixes: tuple[Fix, ...],
) -> tuple[Evidence, ...]:
    """Return what the replay says (of a sample of the steps, with how far off it is at most, or of the ranks); where
    that is far less than the finding's excess, why. No command replays some ranks for all.
    """
    before, after = cost.step_time_us + max(cost.saved_us, 0.0), cost.step_time_us + min(cost.saved_us, 0.0)
    replayed = kinds.Replayed(
        before,
        after,
        *(sampled.get(name) for name in _OF_SAMPLE),
        shown_by=ShownBy("whatif", fixes=fixes) if "replayed_ranks" not in sampled else None,
        ranks=finding.ranks,
        about=finding.cause,
    )
    if finding.pattern == "job_wide" or cost.saved_us >= COVERED_FRACTION * finding.time_lost_us_per_step:
        return (replayed,)
    if together is None or together.saved_us <= 0:
        return replayed, kinds.OthersNearlyAsLate()
    return replayed, kinds.OthersNearlyAsLate(together.saved_us, shown_by=ShownBy("whatif", fixes=all_fixes))


def estimate_evidence(finding: Finding, cost: FixPrice) -> tuple[Evidence, ...]:
    """Return what an excess says about the step. Patterns of the whole job say it themselves."""
    if finding.pattern == "job_wide":
        return ()
    return (kinds.Estimated(cost.step_time_us + cost.saved_us, cost.step_time_us),)


def _telling(found: Localization, anomalies: Sequence[Anomaly]) -> Iterator[Anomaly]:
    """Return those that add something.

    A rank that is slow in every step has large delays in many of them. If a class of time is one operator, the operator
    says it all: their excesses are equal but for rounding.
    """
    for anomaly in anomalies:
        of_class = [one for one in anomalies if one.class_index == anomaly.class_index and one.kind != "intermittent"]
        steady = [one for one in of_class if set(anomaly.positions) <= set(one.positions)]
        said = [one.excess_ns for one in steady if one.operator is not None]
        alike = anomaly.kind == "intermittent" or np.isclose(said, _excess_ns(found, anomaly), rtol=SAME_EXCESS).any()
        if anomaly.operator is not None or not (steady and alike):
            yield anomaly


def _anomaly(found: Localization, anomaly: Anomaly, step_time_ns: float) -> Evidence:
    job, of, about = found.job, Compared(found.job, anomaly), CLASSES[anomaly.class_index]
    if anomaly.kind == "intermittent":
        k, m = anomaly.events
        kind = kinds.HostPauses if len(job.steps) < FEWEST_STEPS else kinds.LargeDelays
        return kind(k, m, len(job.steps), shown_by=_LOCALIZE, ranks=of.ranks, about=about)
    excess = _excess_ns(found, anomaly)
    excess_us, share = excess / 1e3, excess / step_time_ns
    if anomaly.operator is not None:
        return kinds.SlowOperator(excess_us, share, shown_by=_LOCALIZE, ranks=of.ranks, about=anomaly.operator)
    others = len(of.peers) if len(of.mine) >= len(of.peers) else None
    return kinds.Excess(excess_us, share, others, shown_by=_LOCALIZE, ranks=of.ranks, about=about)


def _excess_ns(found: Localization, anomaly: Anomaly) -> float:
    """Per step and rank, over the role's median as stage 1 shows it; over the others' mean where half is slow."""
    if anomaly.operator is not None:
        return anomaly.excess_ns
    of, mean = Compared(found.job, anomaly), found.mean_ns[anomaly.class_index]
    over = float(mean[of.peers].mean()) if 0 < len(of.peers) <= len(of.mine) else 0.0
    return float(mean[of.mine].mean()) - over


def _slow_link(slow: SlowLink, step_time_ns: float) -> Evidence:
    group = slow.link.group
    return kinds.SlowLink(
        self_us=slow.own_ns / 1e3,
        expected_us=slow.expected_ns / 1e3,
        siblings=slow.siblings,
        share_of_step=(slow.own_ns - slow.expected_ns) / step_time_ns,
        shown_by=_LOCALIZE,
        ranks=slow.link.ranks,
        about=slow.link.name if group is None else f"process group {group}",
    )


def _waiting(blamed: BlameResult, ranks: tuple[Rank, ...]) -> Iterator[Evidence]:
    mine = [row for row in blamed.by_rank if row.rank in ranks]
    if not mine or not blamed.collectives:
        return
    yield kinds.CameLast(
        arrived_last=sum(row.arrived_last for row in mine),
        collectives=blamed.collectives,
        waited_us=sum(row.blamed_us for row in mine),
        share_of_waiting=sum(row.share for row in mine),
        shown_by=_blame(ranks),
        ranks=ranks,
    )


def _behind(blamed: BlameResult, ranks: tuple[Rank, ...], operator: str | None, *, named: bool) -> Iterator[Evidence]:
    """Yield what blame found on the way to the operator; `named`: whether the operator was said already."""
    if operator is None:
        return
    causes = tuple(c for c in blamed.root_causes if c.rank in ranks and c.operator is not None)[:CAUSES_SHOWN]
    if causes:
        waited_us = sum(cause.blamed_us for cause in causes)
        yield kinds.MadeLate(waited_us, shown_by=_blame(ranks), ranks=ranks, root_causes=causes)
    elif not named:
        yield kinds.OperatorBehind(shown_by=ShownBy("pinpoint", ranks[0]), ranks=ranks, about=operator)


def _blame(ranks: Sequence[Rank]) -> ShownBy:
    return ShownBy("blame", ranks[0] if len(ranks) == 1 else None)
