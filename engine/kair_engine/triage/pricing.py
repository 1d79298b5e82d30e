"""Prices triage's findings: the recorded steps replayed without each of them [W §3]."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Final

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.causes import CAUSES
from kair_engine.errors import InputError, UsageError
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.localization import Localization
from kair_engine.results.evidence_kinds import Evidence
from kair_engine.results.fixes import fix_text
from kair_engine.results.triage import Finding, PricedBy
from kair_engine.results.whatif import Fix, FixPrice
from kair_engine.trace.model import Trace
from kair_engine.triage.evidence import estimate_evidence, price_evidence
from kair_engine.triage.past_prices import PastPrice, is_by_past, past_prices
from kair_engine.triage.replays import Estimate, Replays, excess_of_steps
from kair_engine.triage.shared_costs import NOTABLE_SHARE
from kair_engine.triage.slow_network import network_price
from kair_engine.triage.undoing import FEWEST_TOGETHER, MOST_FINDINGS, Places, Question, without
from kair_engine.triage.unexplained import with_all_even
from kair_engine.whatif.model import Baseline, Model
from kair_engine.whatif.prices import price

_BY_REPLAY: Final[PricedBy] = "replay"


@dataclass(frozen=True)
class Priced:
    """Findings with their prices, the costliest first."""

    findings: tuple[Finding, ...]
    hidden_us: tuple[float, ...]
    """What each costs per step once all others are fixed; of those that were not replayed, what they cost anyway."""
    together: FixPrice | None
    """All that were replayed, fixed at once; None for fewer than two."""
    accused_together: FixPrice | None = None
    """Of them those that accuse somebody, fixed at once; None for fewer than two."""
    fixes: tuple[Fix, ...] = ()
    """What undoes all that were replayed, in the order in which it was."""


@dataclass(frozen=True)
class _Replayed:
    """What replays say of one finding."""

    fixes: tuple[Fix, ...] = ()
    """What undoes it; empty for a remedy."""
    cost: FixPrice | None = None
    """Undone by itself; None where no sample stands for it, or it was replayed with others at once."""
    sampled: Mapping[str, float] = field(default_factory=dict)
    """Figures of the sample, where not all steps were replayed."""
    hidden_us: float | None = None
    """What it costs once all others are fixed; of what all ranks spend alike, once those before it are."""
    part_us: float | None = None
    """What it costs once all others that accuse somebody are fixed; where several do."""
    at_once: FixPrice | None = None
    """What all cost together that were replayed at once, of which it is one."""
    after_others: tuple[FixPrice, tuple[Fix, ...]] | None = None
    """Of what is left once others are fixed: its price in the job with those fixed, and all of these fixes."""


@dataclass(frozen=True)
class _Prices:
    of: Mapping[int, _Replayed]
    """By the finding's place."""
    together: FixPrice | None = None
    accused_together: FixPrice | None = None
    all_fixes: tuple[Fix, ...] = ()
    """What undoes all that have a price."""


def priced(
    trace: Trace,
    replays: Replays,
    findings: Sequence[Finding],
    found: Localization,
    *,
    step_time_ns: float,
    gpu_cost: float | None = None,
) -> Priced:
    """Replace the findings' estimates by what the job saves, replayed without each.

    Of a finding about ranks, their part of its cause is brought down to their peers' ideal; uneven batches and stages
    (`found` knows the uneven one) are evened out. A slow network costs half-way between what the replay says and
    what its transfers take. What no replay can price keeps its estimate (Finding.priced_by), out of a step of
    `step_time_ns`. So does what is about ranks unless the recording shows waiting: nobody then gains by a replay of
    what was too late for others. What all ranks spend alike costs what is left of it once ranks and links are fixed,
    so that nothing is reported twice; if that is less than NOTABLE_SHARE, it is no finding.
    """
    ordered = sorted(findings, key=_costliest)
    prices = _replayed(trace, replays, ordered, found, gpu_cost)
    by_past = {at: one for at, one in enumerate(ordered[:MOST_FINDINGS]) if is_by_past(one)}
    past = past_prices(replays, by_past, found)
    of_fix = partial(price, devices=trace.job.world_size, gpu_cost=gpu_cost)
    done, hidden, more_us = list[Finding](), list[float](), dict[int, float]()
    for at, finding in enumerate(ordered):
        of, before = prices.of.get(at, _Replayed()), past.of.get(at)
        if of.cost is not None:
            cost, shown, by = of.cost, _shown(finding, of, prices), _BY_REPLAY
            if (measured := network_price(finding, cost.saved_us)) is not None:
                more_us[at], by = measured.us_per_step - cost.saved_us, measured.priced_by
                cost, shown = _saving_more(cost, more_us[at], of_fix), (*shown[:1], measured.between)
            priced_so = replace(with_price(finding, cost, by, shown), fix=of.fixes)
        elif before is not None:
            cost = of_fix("", past.before_us * 1e3, (past.before_us - before.saved_us) * 1e3)
            priced_so = with_price(finding, cost, _BY_REPLAY, before.shown)
        else:
            lost_us, fixes = finding.time_lost_us_per_step, finding.fix
            if of.at_once is not None:
                # Of findings that are replayed at once none costs more than all of them.
                lost_us, fixes = min(lost_us, max(of.at_once.saved_us, 0.0)), of.fixes
            cost = of_fix("", step_time_ns, step_time_ns - lost_us * 1e3)
            priced_so = replace(with_price(finding, cost, "excess", estimate_evidence(finding, cost)), fix=fixes)
        done.append(priced_so)
        hidden.append(_last_us(finding, priced_so, of, more_us.get(at, 0.0), before))
    together = prices.together
    if together is None and len(past.of) >= FEWEST_TOGETHER:
        together = of_fix("", past.before_us * 1e3, (past.before_us - past.together_us) * 1e3)
    together = _no_less(together, [done[at] for at in more_us], of_fix)
    accused = [done[at] for at in more_us if ordered[at].pattern != "job_wide"]
    accused_together = _no_less(prices.accused_together, accused, of_fix)
    if accused_together is not None:
        for at, of in prices.of.items():
            if of.part_us is not None:
                done[at] = _with_part(done[at], of.part_us + more_us.get(at, 0.0), accused_together.saved_us)
    worth = [
        (one, of)
        for at, (one, of) in enumerate(zip(done, hidden, strict=True))
        if _is_notable(one, step_time_ns, is_left=(known := prices.of.get(at, _Replayed())).after_others is not None)
        and (known.cost is not None or not _is_of_accused(one, done))
    ]
    by_cost = sorted(worth, key=lambda pair: _costliest(pair[0]))
    return Priced(
        tuple(one for one, _ in by_cost),
        tuple(of for _, of in by_cost),
        together,
        accused_together,
        prices.all_fixes,
    )


def _last_us(finding: Finding, priced_so: Finding, of: _Replayed, more_us: float, before: PastPrice | None) -> float:
    """Return what it costs once all others are fixed; of those that were not replayed, what they cost anyway."""
    if CAUSES[finding.cause].remedy is not None and not (of.cost is not None and any(fix.even for fix in of.fixes)):
        # Evening out moves work about: how much that saves says nothing of how uneven it is.
        return finding.time_lost_us_per_step
    if (last_us := of.hidden_us if before is None else before.hidden_us) is not None:
        return last_us + more_us
    # What those cost last that were replayed at once is not known: their excess is the best guess.
    return (priced_so if of.at_once is None else finding).time_lost_us_per_step


def _with_part(finding: Finding, last_us: float, all_us: float) -> Finding:
    """Return the finding with its part of `all_us`: fixed first, and fixed once all others are."""
    parts = [min(max(us, 0.0), max(all_us, 0.0)) for us in (finding.time_lost_us_per_step, last_us)]
    return replace(finding, least_us_per_step=min(parts), most_us_per_step=max(parts))


def _no_less(
    together: FixPrice | None, findings: Sequence[Finding], of_fix: Callable[[str, float, float], FixPrice]
) -> FixPrice | None:
    """Return what all cost together, and no less than any of those that cost more than their replay says."""
    if together is None or not findings:
        return together
    alone_us = max(one.time_lost_us_per_step for one in findings)
    return _saving_more(together, max(alone_us - together.saved_us, 0.0), of_fix)


def _shown(finding: Finding, of: _Replayed, prices: _Prices) -> tuple[Evidence, ...]:
    """Return what speaks for a price by a replay."""
    assert of.cost is not None
    cost, fixes = of.after_others or (of.cost, of.fixes)
    sampled = {**of.sampled, **({} if of.after_others is None else {"others_fixed": 1})}
    return price_evidence(finding, cost, fixes, sampled=sampled, together=prices.together, all_fixes=prices.all_fixes)


def _is_notable(finding: Finding, step_time_ns: float, *, is_left: bool) -> bool:
    """Whether what all ranks spend alike costs what it must, of what is left of it; long batches in any case.

    Delays on changing ranks, garbage collections among them, are reported by another pattern.
    """
    by_pattern = "delays_on_changing_ranks" in finding.shows
    if finding.cause != "sequence_imbalance" and (by_pattern or not is_left):
        return True
    return finding.time_lost_us_per_step * 1e3 >= NOTABLE_SHARE[finding.cause] * step_time_ns


def _is_of_accused(finding: Finding, findings: Sequence[Finding]) -> bool:
    """Return whether an estimate of what all ranks lose is what those lose that are accused of it anyway.

    Such an estimate is of the median rank: where half of the ranks are accused of the same class of time, theirs.
    """
    of_class = CAUSES[finding.cause].time_class
    if finding.pattern != "job_wide" or of_class is None:
        return False
    of_ranks = (one for one in findings if one.pattern != "job_wide" and CAUSES[one.cause].time_class == of_class)
    accused = {rank for one in of_ranks for rank in one.ranks}
    return 2 * len(accused.intersection(finding.seen_on)) >= max(len(finding.seen_on), 1)


def _saving_more(cost: FixPrice, more_us: float, of_fix: Callable[[str, float, float], FixPrice]) -> FixPrice:
    """Return the price of what saves so much more than a replay says."""
    return of_fix(cost.fix, (cost.step_time_us + cost.saved_us) * 1e3, (cost.step_time_us - more_us) * 1e3)


def scenarios(model: Model, findings: Sequence[Finding], found: Localization) -> list[tuple[Fix, ...]]:
    """Return what `priced` asks the model about these findings, to be replayed with what is asked before it; and, of
    all undone, what is left that no finding explains (unexplained.py).
    """
    question = Question.about(model, sorted(findings, key=_costliest), found)
    all_fixes = question.fixes(question.every)
    return [*map(question.fixes, question.asked), all_fixes, with_all_even(all_fixes)]


def _costliest(finding: Finding) -> tuple[float, tuple[int, ...]]:
    return -finding.costs_us, finding.ranks


def _replayed(
    trace: Trace, replays: Replays, ordered: Sequence[Finding], found: Localization, gpu_cost: float | None
) -> _Prices:
    """Return the prices of those that a replay can price; none if the recording cannot be replayed."""
    if not any(not finding.ranks or found.job.shows_waiting for finding in ordered[:MOST_FINDINGS]):
        return _Prices({})
    try:
        model, sample = replays.model(), replays.sample
        question = Question.about(model, ordered, found)
        if not (question.undone or model.remedy_names) or not model.fits_memory():
            return _Prices({})
        asked = question.asked
        replayed = model.replay([Baseline.RECORDED, *map(question.fixes, asked)])
    except (InputError, UsageError):
        return _Prices({})
    recorded, *fixed = replayed.times
    before_ns = sample.mean_ns(recorded, replayed.steps)
    each = {at: _cost_of_steps(found.job, ordered[at]) for at in question.undone}
    after: dict[Places, Estimate] = {}
    for places, times in zip(asked, fixed, strict=True):
        mean = sample.without_ns(recorded, times, replayed.steps, np.sum([each[at] for at in places], axis=0))
        if mean is not None:
            after[places] = mean

    def cost(what: str, then_ns: float, first_ns: float = before_ns) -> FixPrice:
        return price(what, first_ns, then_ns, devices=trace.job.world_size, gpu_cost=gpu_cost)

    def all_undone(places: Places) -> FixPrice | None:
        known = after.get(places) if len(places) >= FEWEST_TOGETHER else None
        return None if known is None else cost(_named(question.fixes(places)), known.mean_ns)

    left = dict[int, tuple[float, FixPrice, tuple[FixPrice, tuple[Fix, ...]]]]()
    for done, then_done in zip(question.left, question.left[1:], strict=False):
        at, later = then_done[-1], after.get(then_done)
        earlier = after.get(done) if done else Estimate(before_ns)
        if (at,) in after and at in question.singly and earlier is not None and later is not None:
            fix, saved_ns = _named(question.undone[at]), earlier.mean_ns - later.mean_ns
            chained = cost(fix, later.mean_ns, earlier.mean_ns), question.fixes(then_done)
            left[at] = saved_ns / 1e3, cost(fix, before_ns - saved_ns), chained
    hidden = _last_of(question.every, question.singly, after)
    parts = _last_of(question.accused, question.accused, after) if question.have_parts else {}
    rest = after.get(question.rest)
    of = dict[int, _Replayed]()
    for at, fixes in question.undone.items():
        alone = after.get((at,)) if at in question.singly else None
        one = _Replayed(fixes, hidden_us=hidden.get(at), part_us=parts.get(at))
        if alone is not None:
            sampled = {**sample.figures(replayed.steps, alone), **replays.figures}
            one = replace(one, cost=cost(_named(fixes), alone.mean_ns), sampled=sampled)
        elif rest is not None and at in question.rest:
            one = replace(one, at_once=cost(_named(question.fixes(question.rest)), rest.mean_ns))
        if at in left:
            saved_us, price_left, chained = left[at]
            one = replace(one, cost=price_left, after_others=chained, hidden_us=saved_us)
        of[at] = one
    for remedy in model.remedies(model.replay([Baseline.RECORDED]).times[0]):
        then, first = remedy.step_time_us * 1e3, (remedy.step_time_us + remedy.saved_us) * 1e3
        undoes = [at for at, finding in enumerate(ordered) if CAUSES[finding.cause].remedy == remedy.remedy]
        of |= {at: _Replayed(cost=cost(remedy.remedy, then, first)) for at in undoes if at < MOST_FINDINGS}
    return _Prices(of, all_undone(question.every), all_undone(question.accused), question.fixes(question.every))


def _last_of(places: Places, asked: Places, after: Mapping[Places, Estimate]) -> dict[int, float]:
    """Return what each of them costs once all the others are fixed, µs a step; of those for which that was replayed."""
    if len(places) < FEWEST_TOGETHER or (all_fixed := after.get(places)) is None:
        return {}
    others = {at: known for at in asked if (known := after.get(without(places, at))) is not None}
    return {at: (known.mean_ns - all_fixed.mean_ns) / 1e3 for at, known in others.items()}


def _cost_of_steps(job: JobExcess, finding: Finding) -> Floats:
    """Return what there is to save in every step: the ranks' excess in the cause's class of time; of all ranks, the
    step.
    """
    of_class = CAUSES[finding.cause].time_class
    if not finding.ranks or of_class is None:
        return job.step_times_ns
    places = np.searchsorted(job.ranks, finding.ranks)
    return excess_of_steps(job, places.tolist(), CLASSES.index(of_class))


def _named(fixes: Sequence[Fix]) -> str:
    return ", ".join(map(fix_text, fixes))


def with_price(finding: Finding, cost: FixPrice, priced_by: PricedBy, shown: Sequence[Evidence]) -> Finding:
    """No finding costs less than nothing: what a replay makes slower by a hair is worth 0."""
    worth = cost.saved_us > 0
    return replace(
        finding,
        time_lost_us_per_step=cost.saved_us if worth else 0.0,
        slowdown=1 + cost.throughput_gain if worth else 1.0,
        throughput_gain=cost.throughput_gain if worth else 0.0,
        gpu_hours_per_day=cost.gpu_hours_per_day if worth else 0.0,
        cost_per_day=None if cost.cost_per_day is None else cost.cost_per_day if worth else 0.0,
        currency=cost.currency,
        priced_by=priced_by,
        evidence=(*finding.evidence, *shown),
    )
