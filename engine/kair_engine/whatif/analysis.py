"""Answers what-if questions: what everything costs, what fixes save, and both timelines.

Chooses the model that fits a recording.

Chooses the ranks whose replay stands for all, of steps that are too large to be replayed whole.

Ranks that meet most often, as those of one model replica do, are taken together or not at all. Of groups that span
these, as the data-parallel ones do, some members wait for one another in place of all.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.causes import CAUSES, FixKind, RemedyName
from kair_engine.errors import UsageError
from kair_engine.ranks import Rank
from kair_engine.results.whatif import SLOW, AbsorbedFix, Fix, SlowdownCause, StepPrice, WhatifResult
from kair_engine.timeline.clocks import Synchronisation, synchronise
from kair_engine.timeline.host_time import Leads, leads_of
from kair_engine.trace.large_steps import LargeStep, large_steps, most_operations
from kair_engine.trace.model import Job, Layout, Trace
from kair_engine.whatif.model import Attribution, Baseline, Model, ReplayedSteps
from kair_engine.whatif.prices import (
    Key,
    OfParts,
    causes_of,
    each_and_all,
    fix_prices,
    largest_first,
    mean_ratios,
    pattern_of,
    price,
    ratio,
    replay_error,
    require_cost,
    slow_host,
    step_ratios,
)

OF_HOSTS: frozenset[FixKind] = frozenset(("host", "input", "gc"))
"""The kinds of time that a host's lead over its device absorbs."""
MIN_SAVING = 0.005
"""A fix that changes the replayed step by less than this share is taken to change nothing."""


def whatif(trace: Trace, fixes: Sequence[Fix] = (), *, gpu_cost: float | None = None) -> WhatifResult:
    """S, waste, attributions, M_W and M_S, and the price of each fix.

    Raises UsageError where no step is chosen, a fix fits nothing, or a GPU's cost is none, InputError where no step can
    be replayed.
    """
    require_cost(gpu_cost)
    found = whatif_of(model_asked_of(trace), fixes, gpu_cost=gpu_cost)
    return with_absorbed(found, fixes, trace.job, lambda: leads(trace))


def leads(trace: Trace) -> Leads | None:
    """How far hosts are ahead of their devices; None where they do not run ahead, or steps are not held whole."""
    return None if trace.job.host_times is None or large_steps(trace) else leads_of(trace)


def with_absorbed(
    found: WhatifResult, fixes: Sequence[Fix], job: Job, known: Callable[[], Leads | None]
) -> WhatifResult:
    """The same, told which of its fixes save nothing since hosts are ahead of their devices.

    `known` is asked how far they are, once one of the fixes is about what hosts do and changes nothing.
    """
    about = [
        (one.fix, ranks, one.saved_us)
        for fix, one in zip(fixes, found.fixes, strict=False)
        if abs(one.saved_share) < MIN_SAVING and (ranks := _hosts_of(fix, job))
    ]
    if job.host_times is None or not about or (ahead := known()) is None:
        return found
    absorbed = (
        AbsorbedFix(text, ranks, saved_us, ahead.ahead_us(ranks), ahead.slack_us(ranks))
        for text, ranks, saved_us in about
    )
    return replace(found, absorbed=tuple(absorbed))


def _hosts_of(fix: Fix, job: Job) -> tuple[Rank, ...]:
    """The ranks of which a fix changes what their hosts do, and nothing else; none where it names no ranks."""
    if not fix.kinds or not OF_HOSTS.issuperset(fix.kinds) or not (fix.ranks or fix.hosts):
        return ()
    return tuple(
        rank
        for rank in job.ranks
        if (not fix.ranks or rank in fix.ranks) and (not fix.hosts or job.hosts.get(rank) in fix.hosts)
    )


def whatif_of(model: Model, fixes: Sequence[Fix] = (), *, gpu_cost: float | None = None) -> WhatifResult:
    """The same of a model."""
    _require(model, fixes, gpu_cost)
    found = model.attribute(each_and_all(fixes))
    removed = model.removed(found)
    alone = _answer(model, found.replayed, fixes, gpu_cost)
    _, recorded, _, ideal, *_ = found.replayed.times
    cost, launch = _slowdowns(found.parts, ideal), model.launch_delays(found.replayed)
    delays = None if launch is None else _slowdowns(launch, recorded)
    saved, at_most = _savings(removed.parts, recorded), {rank: ns / 1e3 for rank, ns in removed.at_most_ns.items()}
    most = {**at_most, **saved.ranks}
    host = _ranks_of_worst_host(model, cost)
    slowest, last, of_host = model.effects([found.slowest, model.last_stage, host], found.replayed)
    symptoms = model.symptoms(found.replayed)
    pattern = pattern_of(alone.slowdown, found.heatmap.T)
    causes = causes_of(
        alone.slowdown,
        effects=(slowest, last),
        alike=(symptoms.forward_backward_correlation, symptoms.forward_variation),
        slowest=found.slowest,
        steps=len(found.replayed.steps),
        stage_excess=symptoms.last_stage_excess,
        irregular=symptoms.irregular,
    )
    if not any(cause.cause == "slow_workers" for cause in causes):
        guilty = slow_host(alone.slowdown, next(iter(cost.hosts), None), host, of_host)
        causes = (*guilty, *causes)
        # Of few hosts one has too many ranks to stand out by number.
        pattern = "few_workers" if guilty and pattern == "diffuse" else pattern
    causes = tuple(_at_its_price(cause, saved, alone.step_time_us - alone.ideal_step_time_us) for cause in causes)
    of_noise = found.notices_of_noise if pattern in {"diffuse", "unknown"} else ()
    return replace(
        alone,
        by_operator_type=cost.kinds,
        by_dp_rank=cost.dp_ranks,
        by_stage=cost.stages,
        by_rank=cost.ranks,
        by_rank_approximate=dict(found.by_rank_approximate),
        by_host=cost.hosts,
        saved_by_operator_type_us=saved.kinds,
        saved_by_dp_rank_us=saved.dp_ranks,
        saved_by_stage_us=saved.stages,
        saved_by_host_us=saved.hosts,
        saved_by_rank_us=saved.ranks,
        saved_by_rank_at_most_us=at_most,
        saved_heatmap_us=tuple(map(tuple, _placed(most, model.job.layout, found.heatmap.shape).tolist())),
        heatmap=tuple(map(tuple, found.heatmap.tolist())),
        m_w=None if slowest is None else slowest.share_removed,
        slowest_ranks=found.slowest,
        slowest_workers=slowest,
        m_s=None if last is None else last.share_removed,
        last_stage=last,
        forward_backward_correlation=symptoms.forward_backward_correlation,
        forward_variation=symptoms.forward_variation,
        launch_by_operator_type=None if delays is None else delays.kinds,
        launch_by_dp_rank=None if delays is None else delays.dp_ranks,
        launch_by_stage=None if delays is None else delays.stages,
        pattern=pattern,
        causes=causes,
        remedies=tuple(one for one in model.remedies(recorded) if one.remedy in _remedies_for(causes)),
        per_step=_attributed(alone.per_step, found, removed.parts, launch),
        warnings=(*alone.warnings, *found.warnings, *of_noise),
    )


def price_fixes(model: Model, fixes: Sequence[Fix], *, gpu_cost: float | None = None) -> WhatifResult:
    """As `whatif_of`, without attributions, causes and remedies: S, the prices of the fixes, and the steps.

    One more fix of the same model costs one replay. Raises UsageError and InputError as `whatif` does.
    """
    _require(model, fixes, gpu_cost)
    return replace(_answer(model, model.replay([*Baseline, *each_and_all(fixes)]), fixes, gpu_cost), only_fixes=True)


class Questions:
    """What a job is asked one after another, with other fixes each time, maybe from several threads.

    All that does not depend on fixes is worked out once, so that one more question costs the replay of its fixes.
    """

    def __init__(self, model: Model) -> None:
        """`model` should keep its steps ready."""
        self.model = model
        self._lock = Lock()
        self._without_fixes: WhatifResult | None = None

    def whatif(self, fixes: Sequence[Fix] = (), *, gpu_cost: float | None = None) -> WhatifResult:
        """As `whatif_of`. Raises UsageError and InputError as `whatif` does."""
        _require(self.model, fixes, gpu_cost)
        with self._lock:
            if self._without_fixes is None:
                self._without_fixes = whatif_of(self.model)
        known = self._without_fixes
        if not fixes and gpu_cost is None:
            return known
        priced = price_fixes(self.model, fixes, gpu_cost=gpu_cost)
        return replace(known, fixes=priced.fixes, cost_per_day=priced.cost_per_day)


def _require(model: Model, fixes: Sequence[Fix], gpu_cost: float | None) -> None:
    require_cost(gpu_cost)
    for fix in fixes:
        model.require(fix)


def _answer(model: Model, replayed: ReplayedSteps, fixes: Sequence[Fix], gpu_cost: float | None) -> WhatifResult:
    """All that follows from the step times of the baselines, and of the fixes behind them."""
    delayed, recorded, undelayed, ideal, *fixed = replayed.times
    before, best, taken = (float(steps.mean()) for steps in (recorded, ideal, replayed.measured))
    slowdown, devices = ratio(before, best), model.job.world_size
    # No fix names an operation: every one is brought down to its peers'.
    like_peers = float(model.replay([(Fix(),)]).times[0].mean()) if model.ideal_is_published else best
    lost = price("", before, best, devices=devices, gpu_cost=gpu_cost)
    return WhatifResult(
        slowdown=slowdown,
        waste=1 - 1 / slowdown,
        step_time_us=before / 1e3,
        measured_step_time_us=taken / 1e3,
        ideal_step_time_us=best / 1e3,
        peer_slowdown=ratio(before, like_peers),
        peer_ideal_step_time_us=like_peers / 1e3,
        host_stops=model.host_stops(),
        simulation_error=replay_error(delayed, replayed.measured),
        delay_share=1 - ratio(float(undelayed.mean()), taken),
        launch_slowdown=ratio(taken, before),
        pattern="none" if slowdown < SLOW else "unknown",
        fixes=fix_prices(fixes, before, fixed, devices=devices, gpu_cost=gpu_cost),
        per_step=_per_step(replayed, recorded, ideal),
        steps=model.steps,
        warnings=model.warnings_of(replayed),
        gpu_hours_per_day=lost.gpu_hours_per_day,
        cost_per_day=lost.cost_per_day,
    )


def _remedies_for(causes: Sequence[SlowdownCause]) -> set[RemedyName | None]:
    """What treats the causes; a slow worker's durations are no long batch, and where it may be either, none is sure."""
    return {CAUSES[one.cause].remedy for one in causes if one.cause in CAUSES and not one.or_slow_ranks}


def _ranks_of_worst_host(model: Model, cost: OfParts[float]) -> tuple[int, ...]:
    worst = next(iter(cost.hosts), None)
    return tuple(rank for rank, host in model.job.hosts.items() if host == worst)


def _slowdowns(parts: OfParts[Floats], base: Floats) -> OfParts[float]:
    """The mean step of every part over that of the base (steps), the largest first."""

    def of(times: Mapping[Key, Floats]) -> dict[Key, float]:
        return mean_ratios(times, base)

    return OfParts(of(parts.kinds), of(parts.stages), of(parts.dp_ranks), of(parts.hosts), of(parts.ranks))


def _savings(fixed: OfParts[Floats], recorded: Floats) -> OfParts[float]:
    """By how much the mean step is shorter with the fix of every part, µs, the largest first."""
    now = float(recorded.mean())

    def of(times: Mapping[Key, Floats]) -> dict[Key, float]:
        return largest_first({part: (now - float(steps.mean())) / 1e3 for part, steps in times.items()})

    return OfParts(of(fixed.kinds), of(fixed.stages), of(fixed.dp_ranks), of(fixed.hosts), of(fixed.ranks))


def _at_its_price(cause: SlowdownCause, saved: OfParts[float], lost_us: float) -> SlowdownCause:
    """The cause with the share that the fix of its one rank, or host, saves: it has no other price than that."""
    if cause.cause != "slow_workers" or lost_us <= 0:
        return cause
    price = saved.hosts.get(cause.host) if cause.host is not None else None
    if len(cause.ranks) == 1:
        price = saved.ranks.get(cause.ranks[0])
    return cause if price is None else replace(cause, share=price / lost_us)


def _placed(of_ranks: Mapping[int, float], layout: Layout | None, shape: tuple[int, ...]) -> Floats:
    """Ranks' values in a heatmap of a shape: (stages × dp ranks), or all ranks in one row."""
    ranks = sorted(of_ranks)
    stage_of, dp_of = (layout.pipeline_stage, layout.dp_rank) if layout is not None else ({}, {})
    places = {rank: (stage_of.get(rank, 0), dp_of.get(rank, 0)) for rank in ranks}
    stages, dp_ranks = (sorted({place[at] for place in places.values()}) for at in (0, 1))
    if len(set(places.values())) == len(ranks) and shape == (len(stages), len(dp_ranks)):
        result = np.zeros(shape)
        for rank, (stage, dp) in places.items():
            result[stages.index(stage), dp_ranks.index(dp)] = of_ranks[rank]
        return result
    return np.array([[of_ranks[rank] for rank in ranks]])


def _step_savings(fixed: Mapping[Key, Floats], recorded: Floats) -> list[dict[Key, float]]:
    """The same of every step by itself."""
    return [
        largest_first({part: (now - float(steps[at])) / 1e3 for part, steps in fixed.items()})
        for at, now in enumerate(recorded.tolist())
    ]


def _per_step(replayed: ReplayedSteps, recorded: Floats, ideal: Floats) -> tuple[StepPrice, ...]:
    columns = zip(replayed.steps, replayed.measured.tolist(), recorded.tolist(), ideal.tolist(), strict=True)
    return tuple(
        StepPrice(
            step=step,
            measured_us=taken / 1e3,
            replayed_us=now / 1e3,
            ideal_us=best / 1e3,
            slowdown=ratio(now, best),
        )
        for step, taken, now, best in columns
    )


def _attributed(
    steps: Sequence[StepPrice], found: Attribution, fixed: OfParts[Floats], launch: OfParts[Floats] | None
) -> tuple[StepPrice, ...]:
    """The steps with S of each part in each of them, and what its fix saves (`fixed` are the step times with that)."""
    _, recorded, _, ideal, *_ = found.replayed.times
    parts = found.parts
    kinds, dp_ranks = step_ratios(parts.kinds, ideal), step_ratios(parts.dp_ranks, ideal)
    stages, ranks = step_ratios(parts.stages, ideal), step_ratios(parts.ranks, ideal)
    saved = [_step_savings(of, recorded) for of in (fixed.kinds, fixed.dp_ranks, fixed.stages)]
    of_ranks = _step_savings(fixed.ranks, recorded)
    result = [
        replace(
            step,
            by_operator_type=kinds[at],
            by_dp_rank=dp_ranks[at],
            by_stage=stages[at],
            by_rank=ranks[at],
            saved_by_operator_type_us=saved[0][at],
            saved_by_dp_rank_us=saved[1][at],
            saved_by_stage_us=saved[2][at],
            saved_by_rank_us=of_ranks[at],
        )
        for at, step in enumerate(steps)
    ]
    if launch is None:
        return tuple(result)
    delays = zip(
        result,
        step_ratios(launch.kinds, recorded),
        step_ratios(launch.dp_ranks, recorded),
        step_ratios(launch.stages, recorded),
        strict=True,
    )
    return tuple(
        replace(step, launch_by_operator_type=of_kinds, launch_by_dp_rank=of_dp_ranks, launch_by_stage=of_stages)
        for step, of_kinds, of_dp_ranks, of_stages in delays
    )


def model_asked_of(trace: Trace, *, keep: bool = False, named: Collection[int] = ()) -> Model:
    """`model_of` the trace as triage comes to see it: what ranks wait in is communication, whatever its name.

    Of steps that are too large for a replay some ranks stand for all, those that are `named` among them.
    """
    if trace.job.format == "whatif":
        return model_of(trace, keep=keep)
    # Of which the published model needs nothing.
    from kair_engine.localize.unnamed_collectives import with_collectives_marked
    from kair_engine.whatif.operators.model import OperatorModel

    _require_steps(trace)
    trace = with_collectives_marked(trace)
    return OperatorModel(standing_for_all(trace, named), keep=keep, ranks=len(trace.job.ranks))


def model_of(trace: Trace, *, keep: bool = False, synchronised: "Sequence[Synchronisation]" = ()) -> Model:
    """The published model of recordings with operation types and pipeline stages, of all others one of operators.

    `keep`: what was read stays in memory, as far as that is affordable, for the questions that follow. `synchronised`
    are all chosen steps in order, where they have been read already. Raises UsageError where no step is chosen,
    InputError where none can be replayed.
    """
    _require_steps(trace)
    # Few need both models.
    if trace.job.format == "whatif":
        from kair_engine.whatif.pipeline.model import PipelineModel

        return PipelineModel(trace)
    from kair_engine.whatif.operators.model import OperatorModel

    return OperatorModel(trace, keep=keep, synchronised=synchronised)


def _require_steps(trace: Trace) -> None:
    if not trace.steps:
        raise UsageError("no complete step to analyse")


OPERATIONS: Final = 1_000_000
"""Of the ranks that are replayed, in the largest step."""
_ACCUSED, _AWAITED = 1 / 3, 1 / 3
"""Of the replayed ranks these parts are those that are accused, with whom they meet, and others that come late. The
rest is spread."""
_FEWEST_UNITS = 3
_FEWEST_MEMBERS = 3
"""This many members of every group that spans units must be replayed in the mean: one alone waits for nobody."""


def standing_for_all(trace: Trace, named: Collection[int] = ()) -> Trace:
    """The trace as of the ranks that are replayed for all where steps are too large, those of `named` first.

    As it is where they are not, or where ranks meet so much that no part of them can stand for all.
    """
    large = large_steps(trace)
    if not large:
        return trace
    sync = synchronise(LargeStep.met(trace, large[0]).operations())
    ranks, found = np.array(trace.job.ranks, dtype=np.int64), sync.collectives
    unit = units(sync, ranks, share_replayed(trace))
    if unit is None:
        return trace
    late = np.searchsorted(ranks, found.ops.ranks[found.ops.rank[found.row[found.last]]])
    awaited = np.bincount(late, weights=found.total_wait_ns, minlength=len(ranks)).astype(float)
    return as_replayed(trace, unit, np.flatnonzero(np.isin(ranks, list(named))).tolist(), awaited)


def units(sync: Synchronisation, ranks: Ints, share: float) -> Ints | None:
    """Per rank of the job (`ranks`) a number, equal for those that are replayed together; NONE for who met nobody.

    `share` of the ranks can be replayed. None where ranks meet so much that no such part can stand for all.
    """
    collectives, ops = sync.collectives, sync.collectives.ops
    if not len(collectives):
        return None
    # One instance shows who meets in all of the same ranks.
    _, instance, often = np.unique(collectives.community, return_index=True, return_counts=True)
    groups = [collectives.members(one) for one in instance.tolist()]
    label, most = np.arange(len(ops.ranks)), max(share * len(ops.ranks) / _FEWEST_UNITS, 1.0)
    # Those of one model replica meet more often than its copies do.
    for times in np.unique(often)[::-1].tolist():
        wider = _connected(label, [group for group, meets in zip(groups, often, strict=True) if meets >= times])
        if np.bincount(wider).max() > most:
            break
        label = wider
    spanning = [len(group) for group in groups if len(np.unique(label[group])) > 1]
    if spanning and share * min(spanning) < _FEWEST_MEMBERS:
        return None
    of_job = np.full(len(ranks), NONE, dtype=np.int64)
    of_job[np.searchsorted(ranks, ops.ranks)] = label
    return of_job


def _connected(label: Ints, groups: Sequence[Ints]) -> Ints:
    """The labels, made equal within every group."""
    label, changed = label.copy(), True
    while changed:
        before = label.copy()
        for group in groups:
            label[group] = label[group].min()
        changed = bool((label != before).any())
    return label


def share_replayed(trace: Trace) -> float:
    """Which part of the ranks has as many operations as are replayed."""
    return min(OPERATIONS / max(sum(most_operations(trace).values()), 1), 1.0)


def as_replayed(trace: Trace, unit: Ints, accused: Sequence[int], awaited_ns: Floats) -> Trace:
    """The trace as of the ranks that are replayed: of the places `accused` first; `awaited_ns` is per rank.

    Those that are accused stay few beside the others, however many they are: their peers' ideal is what they miss.
    """
    ranks, most = np.array(trace.job.ranks, dtype=np.int64), most_operations(trace)
    operations = np.array([most.get(rank, 0) for rank in ranks.tolist()])
    others = ~np.isin(unit, unit[list(accused)])
    late = [place for place in np.argsort(-awaited_ns, kind="stable").tolist() if others[place]]
    spread = [place for place in _spread(unit) if others[place]]
    chosen, held = np.zeros(len(ranks), dtype=bool), 0
    for places, share in ((accused, _ACCUSED), (late, _ACCUSED + _AWAITED), (spread, 1.0)):
        for number in dict.fromkeys(unit[list(places)].tolist()):
            members = (unit == number) & (number != NONE) & ~chosen
            more = int(operations[members].sum())
            if chosen.any() and held + more > share * OPERATIONS:
                break
            chosen |= members
            held += more
    return trace.of_ranks(ranks[chosen].tolist())


def _spread(unit: Ints) -> list[int]:
    """A place of every unit; the first ones lie far apart."""
    _, first = np.unique(unit, return_index=True)
    return list(np.random.default_rng(0).permutation(first).tolist())
