"""Compares two runs of a job: what changed, on whom, beyond chance, and what that adds to the step.

Holds a run against a baseline: what takes longer than it did when the job was healthy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, TypeVar

import numpy as np

from kair_engine.comparison.changes import (
    FALSE_ALARM_RATE,
    FEWEST_STEPS,
    SMALLEST_SHARE,
    Change,
    Differences,
    Rows,
    differences,
    is_large,
    rows_of,
    shorter_step_us,
)
from kair_engine.comparison.pricing import added_us
from kair_engine.comparison.profile import PerStep, profile_and_steps, profile_of
from kair_engine.errors import UsageError
from kair_engine.localize.analysis import localize
from kair_engine.ranks import Rank
from kair_engine.results.compare import (
    Amount,
    ComparedOperator,
    ComparedRun,
    CompareResult,
    CompareVerdict,
    PooledChange,
    RankStanding,
    RunProfile,
    SubgraphChange,
)
from kair_engine.results.localize import (
    AgainstBaseline,
    ChangeSort,
    ChosenBaseline,
    LocalizeResult,
    OperatorChange,
    RankScore,
)
from kair_engine.results.step_bar import StepBar
from kair_engine.results.triage import TriageResult
from kair_engine.step_bar import bar_of
from kair_engine.trace.batches import shared_by_stages
from kair_engine.trace.model import KairWarning, Trace

LEAST_IN_COMMON: Final = 0.5
"""Of the self time of either run, that of operators which both have: below, the runs are of different programs."""


Priced = TypeVar("Priced", OperatorChange, PooledChange)


def compare(base: Trace, new: Trace) -> CompareResult:
    """Return what changed from `base` to `new`: operators, phases and stages, ranks that are flagged, and the step
    time.

    Runs of different length are compared by their means; of runs with different numbers of ranks, no rank
    is matched. Raises UsageError where a run has no step, or both have too little in common to be compared.
    """
    base, new = shared_by_stages(base), shared_by_stages(new)
    (of_base, base_steps), (of_new, new_steps) = profile_and_steps(base), profile_and_steps(new)
    found = differences_of(of_base, of_new, (base_steps, new_steps))
    scores = tuple(localize(trace).scores for trace in (base, new))
    result = _result(of_base, of_new, found)
    with_bars = replace(
        result,
        base=replace(result.base, bar=_bar(base, scores[0])),
        new=replace(result.new, bar=_bar(new, scores[1])),
        standing=tuple(_standing(*scores)) if found.ranks else (),
    )
    return _priced(with_bars, base, new, found, (base_steps, new_steps))


def compare_profiles(base: RunProfile, new: RunProfile) -> CompareResult:
    """Return the same of profiles alone: without replay and pools, and without the ranks that localize flags."""
    return _result(base, new, differences_of(base, new))


def differences_of(base: RunProfile, new: RunProfile, per_step: tuple[PerStep, PerStep] | None = None) -> Differences:
    """Return what differs. Raises UsageError where two runs cannot be compared, and says why."""
    _require_alike(base, new)
    found = differences(base, new, per_step)
    common = min(_in_common(found, "base"), _in_common(found, "new"))
    if common < LEAST_IN_COMMON:
        raise UsageError(
            f"{base.name} and {new.name} have operators of {100 * common:.0f} % of their time in common: "
            "these are different programs",
            "compare two runs of one program",
        )
    return found


def _result(base: RunProfile, new: RunProfile, found: Differences) -> CompareResult:
    return CompareResult(
        verdict=_verdict(base, new, found),
        base=_run(base),
        new=_run(new),
        step_change_us=found.step_change_us,
        step_change_share=found.step_change_us / base.step_time_us,
        step_p_value=found.step_p_value,
        changes=tuple(_change(one, found.ranks, new) for one in found.changes),
        pools=tuple(map(_pooled, found.pools)),
        explained_us=None,
        unexplained_us=None,
        noise_us=found.step_noise_us,
        standing=(),
        subgraphs=tuple(_subgraphs(base, new, found.ranks)),
        operators=tuple(
            sorted(_operators(found), key=lambda one: abs((one.new_us or 0.0) - (one.base_us or 0.0)), reverse=True)
        ),
        warnings=tuple(_warnings(base, new)),
    )


def _require_alike(base: RunProfile, new: RunProfile) -> None:
    if (base.format, base.has_device) != (new.format, new.has_device):
        raise UsageError(
            f"{base.name} and {new.name} are recordings of different kinds ({_kind(base)}, {_kind(new)})",
            "record both with the same profiler and activities",
        )
    for name, old, now in zip(("pipeline stages", "tensor-parallel ranks"), base.sizes, new.sizes, strict=True):
        if old is not None and now is not None and old != now:
            raise UsageError(
                f"{base.name} has {old} {name}, {new.name} has {now}: a rank of one does not do what a rank of the "
                "other does",
                "compare runs that divide the model alike; the number of data-parallel ranks may differ",
            )


def _kind(run: RunProfile) -> str:
    return f"{run.format}, {'with' if run.has_device else 'without'} a device"


def _in_common(found: Differences, of: Literal["base", "new"]) -> float:
    """Return the share of one run's self time in what the other has, too."""
    time = {True: 0.0, False: 0.0}
    for pair in found.pairs:
        one = pair.base if of == "base" else pair.new
        if one is not None:
            time[pair.base is not None and pair.new is not None] += sum(one.amount.by_rank_us)
    return time[True] / max(sum(time.values()), 1e-9)


def _verdict(base: RunProfile, new: RunProfile, found: Differences) -> CompareVerdict:
    if min(len(base.step_times_us), len(new.step_times_us)) < FEWEST_STEPS:
        return "inconclusive"
    return "changed" if found.changes or found.pools or found.step_changed else "no_change"


def _run(run: RunProfile) -> ComparedRun:
    ranks = tuple(map(Rank, run.ranks))
    return ComparedRun(run.name, run.source, run.world_size, ranks, len(run.step_times_us), run.step_time_us)


def _change(one: Change, ranks: Sequence[int], new: RunProfile) -> OperatorChange:
    shift, pair = one.shift, one.pair
    concerned = () if one.everywhere else tuple(Rank(ranks[place]) for place in shift.places)
    host = _host_of(concerned, new)
    return OperatorChange(
        operator=pair.any.operator,
        was=pair.was,
        kind=pair.any.kind,
        change=_sort(one),
        scope="all_ranks" if one.everywhere else "ranks" if host is None else "host",
        ranks=concerned,
        host=host,
        base_us=shift.base_us,
        new_us=shift.new_us,
        ratio=_ratio(shift.base_us, shift.new_us),
        base_calls=pair.base.calls if pair.base else 0.0,
        new_calls=pair.new.calls if pair.new else 0.0,
        p_value=one.p_value,
    )


def _pooled(one: Change) -> PooledChange:
    shift = one.shift
    assert one.pool is not None
    return PooledChange(
        kind=one.pool,
        operators=len(one.pairs),
        base_us=shift.base_us,
        new_us=shift.new_us,
        ratio=_ratio(shift.base_us, shift.new_us),
        p_value=one.p_value,
    )


def _sort(one: Change) -> ChangeSort:
    if one.pair.base is None:
        return "added"
    if one.pair.new is None:
        return "gone"
    return "slower" if one.shift.new_us > one.shift.base_us else "faster"


def _host_of(ranks: Sequence[int], run: RunProfile) -> str | None:
    """Return the host whose ranks these are, all of several, in a job of several hosts."""
    hosts = {run.hosts.get(rank) for rank in ranks}
    host = next(iter(hosts)) if len(hosts) == 1 else None
    if host is None or len(set(run.hosts.values())) < 2 or len(ranks) < 2:
        return None
    return host if {rank for rank in run.ranks if run.hosts.get(rank) == host} == set(ranks) else None


def _ratio(base: float, new: float) -> float | None:
    return new / base if base > 0 else None


def _operators(found: Differences) -> Iterator[ComparedOperator]:
    for pair, whole in zip(found.pairs, found.whole, strict=True):
        base, new = (None if one is None else _mean(one.amount) for one in (pair.base, pair.new))
        yield ComparedOperator(
            operator=pair.any.operator,
            was=pair.was,
            kind=pair.any.kind,
            base_us=base,
            new_us=new,
            ratio=None if base is None or new is None else _ratio(base, new),
            base_calls=pair.base.calls if pair.base else None,
            new_calls=pair.new.calls if pair.new else None,
            p_value=None if whole is None else whole.p_value,
        )


def _mean(amount: Amount) -> float:
    """Of the ranks that spend any time on it."""
    values = np.array(amount.by_rank_us)
    return float(values[values > 0].mean()) if (values > 0).any() else 0.0


def _subgraphs(base: RunProfile, new: RunProfile, ranks: Sequence[int]) -> Iterator[SubgraphChange]:
    """Phases in the order of a step, then pipeline stages; each compared with the smallest change that is reported."""
    of_base, of_new = ({one.phase: one.amount for one in run.phases} for run in (base, new))
    parts = [
        ("phase", phase, rows_of(base, new, ranks, of_base.get(phase), of_new.get(phase)))
        for phase in dict.fromkeys((*of_base, *of_new))
    ]
    parts += [("stage", f"stage {stage}", rows) for stage, rows in _stages(base, new, ranks)]
    for sort, name, rows in parts:
        if not len(rows):
            continue
        shift = rows.shift()
        p_value = min(1.0, shift.p_value * len(parts))
        changed = p_value < FALSE_ALARM_RATE and is_large(shift, SMALLEST_SHARE * shorter_step_us(base, new))
        yield SubgraphChange(
            name,
            "phase" if sort == "phase" else "stage",
            shift.base_us,
            shift.new_us,
            _ratio(shift.base_us, shift.new_us),
            p_value,
            changed,
        )


def _stages(base: RunProfile, new: RunProfile, ranks: Sequence[int]) -> Iterator[tuple[int, Rows]]:
    """Yield the compute of each pipeline stage's ranks, all phases together; ranks have to be matched."""
    amounts = {id(run): _compute(run) for run in (base, new)}
    rows = rows_of(base, new, ranks, amounts[id(base)], amounts[id(new)])
    stages: Mapping[int, int] = new.stages
    if not ranks or len(set(stages.values())) < 2:
        return
    of_entry = np.array([stages.get(ranks[place], -1) for place in rows.place.tolist()])
    for stage in sorted(set(of_entry.tolist()) - {-1}):
        yield stage, rows.of(np.flatnonzero(of_entry == stage))


def _compute(run: RunProfile) -> Amount:
    """All compute together; errors as if phases had nothing to do with one another."""
    amounts = [one.amount for one in run.phases]
    means = np.sum([one.by_rank_us for one in amounts], axis=0) if amounts else np.zeros(len(run.ranks))
    squares = np.sum([np.square(one.error_us) for one in amounts], axis=0) if amounts else np.zeros(len(run.ranks))
    df = min((one.df for one in amounts), default=1.0)
    return Amount(tuple(means.tolist()), tuple(np.sqrt(squares).tolist()), df)


def _bar(trace: Trace, scores: Sequence[RankScore]) -> StepBar | None:
    """Return the bar of a run; it names stragglers where localize flags any."""
    bar = bar_of(trace)
    return None if bar is None else replace(bar, names_straggler=any(one.flagged for one in scores))


def _standing(base: Sequence[RankScore], new: Sequence[RankScore]) -> Iterator[RankStanding]:
    """Ranks that localize flags in one run only, those flagged in the new one first."""
    of_base, of_new = ({one.rank: one for one in scores} for scores in (base, new))
    shared = sorted(set(of_base) & set(of_new), key=lambda rank: -of_new[rank].score)

    def differ(old: RankScore, now: RankScore) -> bool:
        return old.flagged != now.flagged

    for rank in shared:
        old, now = of_base[rank], of_new[rank]
        if differ(old, now):
            yield RankStanding(rank, now.host, old.flagged, now.flagged, old.score, now.score)


def _priced(
    result: CompareResult, base: Trace, new: Trace, found: Differences, per_step: tuple[PerStep, PerStep]
) -> CompareResult:
    """Return the result with what each change adds to the step, the largest first, and what all of them explain."""
    asked = (*found.changes, *found.pools)
    added = added_us(base, new, asked, found.ranks, per_step) if asked else []
    if added is None:
        text = "a step of these runs cannot be replayed: what the changes add to the step time is not known"
        return replace(result, warnings=(*result.warnings, KairWarning("not_replayed", text)))
    step = result.base.step_time_us
    single = len(result.changes)
    changes = _costliest_first(result.changes, added[:single], step)
    pools = _costliest_first(result.pools, added[single:], step)
    explained = float(sum(added))
    return replace(
        result,
        changes=changes,
        pools=pools,
        explained_us=explained,
        unexplained_us=result.step_change_us - explained,
    )


def _costliest_first(rows: Iterable[Priced], added: Sequence[float], step_us: float) -> tuple[Priced, ...]:
    priced = [replace(one, step_us=us, share_of_step=us / step_us) for one, us in zip(rows, added, strict=True)]
    return tuple(sorted(priced, key=lambda one: -abs(one.step_us or 0.0)))


def _warnings(base: RunProfile, new: RunProfile) -> Iterator[KairWarning]:
    if base.world_size != new.world_size:
        text = (
            f"{base.name} has {base.world_size} ranks, {new.name} has {new.world_size}: ranks are not matched, "
            "operators are compared by their means over ranks"
        )
        yield KairWarning("other_world_size", text)
    elif base.ranks != new.ranks:
        left_out = sorted(set(base.ranks) ^ set(new.ranks))
        text = f"{len(left_out)} ranks left a trace in one of the runs only, and are not compared"
        yield KairWarning("unmatched_ranks", text)
    for run in (base, new):
        if len(run.step_times_us) < FEWEST_STEPS:
            text = (
                f"{run.name} has {len(run.step_times_us)} steps: a change needs {FEWEST_STEPS} in each run to be found"
            )
            yield KairWarning("few_steps", text)


Held = TypeVar("Held", LocalizeResult, TriageResult)
Answered = tuple[AgainstBaseline | None, tuple[KairWarning, ...]]


def against_baseline(trace: Trace, name: str, baseline: RunProfile, *, must: bool) -> Answered:
    """Return (what takes longer than in the baseline, warnings).

    A baseline of another kind of job is passed over with a warning; if it `must` be used, UsageError is raised.
    """
    try:
        found = compare_profiles(baseline, profile_of(trace))
    except UsageError as error:
        if must:
            raise
        return None, (KairWarning("other_baseline", f"the baseline {name} in use does not fit this job: {error}"),)
    slower = [one for one in found.changes if one.change in {"slower", "added"}]
    result = AgainstBaseline(
        baseline=name,
        step_change_us=found.step_change_us,
        step_change_share=found.step_change_share,
        step_p_value=found.step_p_value,
        slower=tuple(sorted(slower, key=lambda one: one.base_us - one.new_us)),
    )
    return result, found.warnings


def with_baseline(result: Held, trace: Trace, chosen: ChosenBaseline | None) -> Held:
    """Return the answer about a run, with what takes longer than in the baseline; unchanged where none is chosen."""
    if chosen is None:
        return result
    answered: Answered = against_baseline(trace, chosen.name, chosen.profile, must=chosen.named)
    return replace(result, against_baseline=answered[0], warnings=(*result.warnings, *answered[1]))
