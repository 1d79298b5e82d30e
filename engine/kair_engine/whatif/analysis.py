"""Answers what-if questions: what everything costs, what fixes save, and both timelines.

Chooses the model that fits a recording.

Chooses the ranks whose replay stands for all, of steps that are too large to be replayed whole.

Ranks that meet most often, as those of one model replica do, are taken together or not at all. Of groups that span
these, as the data-parallel ones do, some members wait for one another in place of all.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.causes import CAUSES, FixKind
from kair_engine.errors import UsageError
from kair_engine.progress import is_looked_at, show_so_far
from kair_engine.ranks import Rank
from kair_engine.results.whatif import FIX_KINDS, SLOW, AbsorbedFix, Fix, PartEffect, StepPrice, WhatifResult
from kair_engine.timeline.clocks import Synchronisation, synchronise
from kair_engine.timeline.host_time import Leads, leads_of
from kair_engine.trace.large_steps import LargeStep, large_steps, most_operations
from kair_engine.trace.model import Job, Trace
from kair_engine.whatif.model import Attribution, Baseline, IdealOfAll, Model, ReplayedSteps
from kair_engine.whatif.prices import (
    Key,
    OfParts,
    causes_of,
    each_and_all,
    fix_prices,
    largest_first,
    mean_ratios,
    part_effect,
    pattern_of,
    placed,
    price,
    ratio,
    replay_error,
    require_cost,
    step_ratios,
)

OF_HOSTS: frozenset[FixKind] = frozenset(("host", "input", "gc"))
"""The kinds of time that a host's lead over its device absorbs."""
MIN_SAVING = 0.005
"""A fix that changes the replayed step by less than this share is taken to change nothing."""
_MOST_HOSTS: Final = 64
"""Of more hosts than these, some are not priced, or not soon."""


def whatif(trace: Trace, fixes: Sequence[Fix] = (), *, gpu_cost: float | None = None) -> WhatifResult:
    """S, waste, attributions, M_W and M_S, and the price of each fix.

    Raises UsageError if no step is chosen, a fix fits nothing, or a GPU's cost is no price, InputError if no step can
    be replayed.
    """
    require_cost(gpu_cost)
    found = whatif_of(model_asked_of(trace, keep=True), fixes, gpu_cost=gpu_cost)
    return with_absorbed(found, fixes, trace.job, lambda: leads(trace))


def leads(trace: Trace) -> Leads | None:
    """How far hosts are ahead of their devices; None where they do not run ahead, or steps are not held whole."""
    return None if trace.job.host_times is None or large_steps(trace) else leads_of(trace)


def with_absorbed(
    found: WhatifResult, fixes: Sequence[Fix], job: Job, known: Callable[[], Leads | None]
) -> WhatifResult:
    """Return the same, with the fixes marked that save nothing since hosts are ahead of their devices.

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
    """Return the ranks of which a fix changes what their hosts do, and nothing else; none where it names no ranks."""
    if not fix.kinds or not OF_HOSTS.issuperset(fix.kinds) or not (fix.ranks or fix.hosts):
        return ()
    return tuple(
        rank
        for rank in job.ranks
        if (not fix.ranks or rank in fix.ranks) and (not fix.hosts or job.hosts.get(rank) in fix.hosts)
    )


def whatif_of(model: Model, fixes: Sequence[Fix] = (), *, gpu_cost: float | None = None) -> WhatifResult:
    """Return the same of a model."""
    _require(model, fixes, gpu_cost)
    first = _shown_first(model)
    found = model.attribute(each_and_all(fixes))
    done = found.replayed
    _, recorded, _, ideal, *_ = done.times
    result = _answer(model, done, fixes, gpu_cost)
    result = replace(
        result,
        **_by_part(result, "by_{}", found.parts, lambda times: mean_ratios(times, ideal)),
        by_rank_approximate=dict(found.by_rank_approximate),
        heatmap=tuple(map(tuple, found.heatmap.tolist())),
        slowest_ranks=found.slowest,
    )
    show_so_far(replace(result, **first))
    host = next(iter(mean_ratios(found.parts.hosts, ideal)), None)
    of_host = tuple(rank for rank, its in model.job.hosts.items() if its == host)
    grouped = [found.slowest, model.last_stage, of_host]
    removed = model.removed(found, [one for pair in _alone_and_without(model, grouped) for one in pair])
    launch, symptoms = model.launch_delays(done), model.symptoms(done)
    result = replace(
        result,
        **_by_part(result, "saved_by_{}_us", removed.parts, lambda fixed: _savings(fixed, recorded)),
        **_by_part(result, "launch_by_{}", launch, lambda times: mean_ratios(times, recorded)),
        saved_by_rank_at_most_us={rank: ns / 1e3 for rank, ns in removed.at_most_ns.items()},
        forward_backward_correlation=symptoms.forward_backward_correlation,
        forward_variation=symptoms.forward_variation,
        remedies=model.remedies(recorded),
        per_step=_attributed(result.per_step, found, removed.parts, launch),
    )
    groups = _effects(model, grouped, done)
    slowest, last, _ = groups
    causes = causes_of(result, symptoms, groups, len(done.steps), host, of_host)
    pattern = pattern_of(result.slowdown, found.heatmap.T)
    if pattern == "diffuse" and any(cause.host is not None for cause in causes):
        # Of few hosts one has too many ranks to stand out by number.
        pattern = "few_workers"
    # A slow worker's durations are no long batch, and where it may be either, none is sure.
    treated = {CAUSES[one.kind].remedy for one in causes if one.kind in CAUSES and not one.or_slow_ranks}
    saved = {**result.saved_by_rank_at_most_us, **result.saved_by_rank_us}
    of_noise = found.notices_of_noise if pattern in {"diffuse", "unknown"} else ()
    return replace(
        result,
        saved_heatmap_us=tuple(map(tuple, placed(saved, model.job.layout, found.heatmap.shape).tolist())),
        m_w=None if slowest is None else slowest.share_removed,
        slowest_workers=slowest,
        m_s=None if last is None else last.share_removed,
        last_stage=last,
        pattern=pattern,
        causes=causes,
        remedies=(*(one for one in result.remedies if one.remedy in treated), *model.planned_gc(recorded)),
        warnings=(*result.warnings, *found.warnings, *of_noise),
    )


def _shown_first(model: Model) -> dict[str, Any]:
    """Show the step and what fixes of kinds of time save, then of stages and hosts; return these savings by field.

    Nothing where nobody looks. All of it is asked for anyway, and remembered: asking for it first costs next to
    nothing, as long as steps stay ready.
    """
    savings: dict[str, Any] = {}
    if not (is_looked_at() and model.stays_ready):
        return savings
    for parts in _few_parts(model):
        replayed = model.replay([*Baseline, (Fix(),), *((fix,) for fix in parts.all())]).times
        answer, done = _answer(model, model.replay([*Baseline]), (), None), parts.mapped(replayed[len(Baseline) + 1 :])
        known = _by_part(answer, "saved_by_{}_us", done, partial(_savings, recorded=replayed[1]))
        savings.update((name, of) for name, of in known.items() if of)
        show_so_far(replace(answer, **savings))
    return savings


def _few_parts(model: Model) -> Iterator[OfParts[Fix]]:
    """Yield parts of which there are few, each with the fix that `Model.removed` replays of it."""
    if model.ideal_is_published:
        yield OfParts(kinds={})  # the parts of this model are priced otherwise
        return
    job = model.job
    stages = set() if job.layout is None else {*job.layout.pipeline_stage.values()}
    hosts = dict.fromkeys(job.hosts.values())
    yield OfParts(kinds={kind: Fix(kinds=(kind,)) for kind in FIX_KINDS})
    several = 1 < len(hosts) < min(len(job.ranks), _MOST_HOSTS)
    of_stages = {stage: Fix(stages=(stage,)) for stage in sorted(stages)} if len(stages) > 1 else {}
    of_hosts = {host: Fix(hosts=(host,)) for host in hosts} if several else {}
    if of_stages or of_hosts:
        yield OfParts(kinds={}, stages=of_stages, hosts=of_hosts)


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
        return replace(known, fixes=priced.fixes, cost_per_day=priced.cost_per_day, currency=priced.currency)


def _require(model: Model, fixes: Sequence[Fix], gpu_cost: float | None) -> None:
    require_cost(gpu_cost)
    for fix in fixes:
        model.require(fix)


def _answer(model: Model, replayed: ReplayedSteps, fixes: Sequence[Fix], gpu_cost: float | None) -> WhatifResult:
    """All that follows from the step times of the baselines, and of the fixes behind them."""
    _, recorded, undelayed, ideal, *fixed = replayed.times
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
        simulation_error=replay_error(undelayed, replayed.measured),
        delay_share=1 - ratio(float(undelayed.mean()), taken),
        launch_slowdown=ratio(taken, before),
        pattern="none" if slowdown < SLOW else "unknown",
        fixes=fix_prices(fixes, before, fixed, devices=devices, gpu_cost=gpu_cost),
        per_step=_per_step(replayed, recorded, ideal),
        steps=model.steps,
        warnings=model.warnings_of(replayed),
        gpu_hours_per_day=lost.gpu_hours_per_day,
        cost_per_day=lost.cost_per_day,
        currency=lost.currency,
    )


_NAMES: Final = {"kinds": "operator_type", "dp_ranks": "dp_rank", "stages": "stage", "hosts": "host", "ranks": "rank"}
"""Sorts of parts, as the fields of results name them."""


def _by_part(
    record: object, form: str, parts: OfParts[Floats] | None, of: Callable[[Mapping[Any, Floats]], object]
) -> dict[str, Any]:
    """Return what `of` makes of each sort of parts, by those of the record's fields whose names have this form."""
    if parts is None:
        return {}
    names = {form.format(name): sort for sort, name in _NAMES.items()}
    return {name: of(getattr(parts, sort)) for name, sort in names.items() if hasattr(record, name)}


def _effects(model: Model, groups: Sequence[Sequence[int]], replayed: ReplayedSteps) -> list[PartEffect | None]:
    """Price groups of ranks: what goes away without each, and what each does alone; `replayed` are the baselines.

    Return None where nothing is lost, and of a group that is nobody or everybody.
    """
    _, recorded, _, ideal, *_ = replayed.times
    now_ns, ideal_ns = float(recorded.mean()), float(ideal.mean())
    pairs = _alone_and_without(model, groups)
    if now_ns <= ideal_ns or not any(pairs):
        return [None] * len(groups)
    times = iter(model.replay([one for pair in pairs for one in pair]).times.mean(axis=1).tolist())
    return [
        part_effect(now_ns, ideal_ns, removed_ns=next(times), alone_ns=next(times)) if pair else None for pair in pairs
    ]


def _alone_and_without(model: Model, groups: Sequence[Sequence[int]]) -> list[tuple[tuple[Fix, ...], ...]]:
    """Of each group of ranks the fix of these and of all others; nothing of one that is nobody or everybody."""
    pairs = [(tuple(part), tuple(rank for rank in model.job.ranks if rank not in part)) for part in groups]
    return [tuple((IdealOfAll(ranks=some),) for some in pair) if all(pair) else () for pair in pairs]


def _savings(fixed: Mapping[Key, Floats], recorded: Floats) -> dict[Key, float]:
    """By how much the mean step is shorter with the fix of every part, µs, the largest first."""
    now = float(recorded.mean())
    return largest_first({part: (now - float(steps.mean())) / 1e3 for part, steps in fixed.items()})


def _step_savings(fixed: Mapping[Key, Floats], recorded: Floats) -> list[dict[Key, float]]:
    """Return the same of every step by itself."""
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
    """Return the steps with S of each part in each of them, and what its fix saves (`fixed` are the step times with
    that).
    """
    _, recorded, _, ideal, *_ = found.replayed.times
    columns = {
        **_by_part(steps[0], "by_{}", found.parts, lambda times: step_ratios(times, ideal)),
        **_by_part(steps[0], "saved_by_{}_us", fixed, lambda times: _step_savings(times, recorded)),
        **_by_part(steps[0], "launch_by_{}", launch, lambda times: step_ratios(times, recorded)),
    }
    return tuple(replace(step, **{name: of[at] for name, of in columns.items()}) for at, step in enumerate(steps))


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
    """Return the published model of recordings with operation types and pipeline stages, of all others one of
    operators.

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
"""On average, this many members of every group that spans units must be replayed: one alone waits for nobody."""


def standing_for_all(trace: Trace, named: Collection[int] = ()) -> Trace:
    """Return the trace as of the ranks that are replayed for all where steps are too large, those of `named` first.

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
    label: Ints = np.arange(len(ops.ranks))
    most = max(share * len(ops.ranks) / _FEWEST_UNITS, 1.0)
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
    """Return the labels, made equal within every group."""
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
    """Return the trace as of the ranks that are replayed: of the places `accused` first; `awaited_ns` is per rank.

    The accused stay a minority, however many they are: their peers' ideal is what they miss.
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
    """Return a place of every unit; the first ones lie far apart."""
    _, first = np.unique(unit, return_index=True)
    return list(np.random.default_rng(0).permutation(first).tolist())
