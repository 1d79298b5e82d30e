"""The what-if analysis of a job that a profiler recorded, operator by operator."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.errors import UsageError
from kair_engine.model import Layout, Notice, Trace
from kair_engine.roles import roles
from kair_engine.whatif.attribution import SLOWEST_SHARE, largest_first, ratio
from kair_engine.whatif.execution_prices import StepPrices, price_steps
from kair_engine.whatif.fixes import Fix
from kair_engine.whatif.prices import ERROR_GATE, price
from kair_engine.whatif.result import FixPrice, StepPrice, WhatifResult
from kair_engine.whatif.scenarios import Scenario
from kair_engine.whatif.verdict import pattern_of, verdict_of

KINDS = ("compute", "input", "host", "communication", "gc")
MOST_RANKS = 64
"""Of more ranks not each is priced by itself: every one takes a replay of the whole job."""


@dataclass(frozen=True)
class _Parts:
    """What is priced by leaving it as recorded while everything else is ideal, and the scenario for each."""

    kinds: dict[str, Scenario]
    stages: dict[int, Scenario]
    dp_ranks: dict[int, Scenario]
    ranks: dict[int, Scenario]

    def all(self) -> list[Scenario]:
        return [*self.kinds.values(), *self.stages.values(), *self.dp_ranks.values(), *self.ranks.values()]


def whatif_of_execution(trace: Trace, fixes: Sequence[Fix], gpu_cost: float | None) -> WhatifResult:
    """S, waste and what each part costs, of any recording. Raises UsageError where a fix fits nothing."""
    parts = _parts(trace)
    asked = [(_scenario(fix),) for fix in fixes]
    if len(asked) > 1:
        asked.append(tuple(one for (one,) in asked))
    ideal = Scenario()
    prices = price_steps(trace, [ideal, *parts.all(), *asked])
    known = ~np.isnan(prices.replayed_ns)
    if not known.any():
        raise UsageError("no step of the recording can be replayed: its operations wait for one another in a circle")
    of_step = _Steps(prices, known)
    parted = _split(of_step.scenarios[1 : 1 + len(parts.all())], parts)
    slowdowns = [{key: of_step.slowdown(times) for key, times in group.items()} for group in parted]
    by_kind, by_stage, by_dp, by_rank = slowdowns
    slowest = _slowest(by_rank)
    m_w, m_s = _explained(trace, of_step, slowest)
    pattern = pattern_of(of_step.slowdown(of_step.replayed), np.array(_heatmap(trace.job.layout, by_rank)).T)
    slowdown = of_step.slowdown(of_step.replayed)
    error = abs(ratio(float(of_step.replayed.mean()), float(of_step.measured.mean())) - 1)
    return WhatifResult(
        slowdown=slowdown,
        waste=1 - 1 / slowdown,
        step_time_us=float(of_step.replayed.mean()) / 1e3,
        measured_step_time_us=float(of_step.measured.mean()) / 1e3,
        ideal_step_time_us=float(of_step.ideal.mean()) / 1e3,
        by_operator_type=largest_first(by_kind),
        by_dp_rank=largest_first(by_dp),
        by_stage=largest_first(by_stage),
        by_rank=largest_first(by_rank),
        by_rank_approximate={},
        heatmap=_heatmap(trace.job.layout, by_rank),
        m_w=m_w,
        slowest_ranks=slowest,
        m_s=m_s,
        forward_backward_correlation=None,
        forward_variation=None,
        simulation_error=error,
        launch_slowdown=ratio(float(of_step.measured.mean()), float(of_step.replayed.mean())),
        launch_by_operator_type=None,
        launch_by_dp_rank=None,
        launch_by_stage=None,
        pattern=pattern,
        verdict=verdict_of(
            slowdown, pattern, m_w=m_w, m_s=m_s, correlation=None, variation=None, slowest=slowest
        ),
        fixes=_fixes(trace, of_step, fixes, of_step.scenarios[1 + len(parts.all()) :], gpu_cost),
        remedies=(),
        per_step=_per_step(of_step, parted),
        steps=trace.steps,
        warnings=_notices(trace, prices, known, error),
    )


class _Steps:
    """Step times of the steps that could be replayed, ns."""

    def __init__(self, prices: StepPrices, known: np.ndarray) -> None:
        self.numbers = tuple(step for step, is_known in zip(prices.steps, known, strict=True) if is_known)
        self.measured, self.replayed = prices.measured_ns[known], prices.replayed_ns[known]
        self.scenarios = prices.scenario_ns[:, known]
        self.ideal = self.scenarios[0]

    def slowdown(self, times: Floats) -> float:
        """The mean step over the ideal mean step."""
        return ratio(float(times.mean()), float(self.ideal.mean()))


def _parts(trace: Trace) -> _Parts:
    layout, ranks = trace.job.layout, trace.job.ranks
    role_of = roles(trace)
    stage_of = dict(layout.pipeline_stage) if layout is not None and layout.pipeline_stage else _numbered(role_of)
    dp_of = dict(layout.dp_rank) if layout is not None and layout.dp_rank else {}
    return _Parts(
        kinds={kind: Scenario(kinds=tuple(other for other in KINDS if other != kind)) for kind in KINDS},
        stages=_all_but(stage_of, ranks),
        dp_ranks=_all_but(dp_of, ranks) if len(set(dp_of.values())) <= MOST_RANKS else {},
        ranks=_all_but({rank: rank for rank in ranks}, ranks) if len(ranks) <= MOST_RANKS else {},
    )


def _numbered(role_of: Mapping[int, str]) -> dict[int, int]:
    """Roles as numbers; of a job with one role none."""
    names = sorted(set(role_of.values()))
    return {rank: names.index(role) for rank, role in role_of.items()} if len(names) > 1 else {}


def _all_but(of: Mapping[int, int], ranks: Sequence[int]) -> dict[int, Scenario]:
    """For each part of the ranks the scenario in which all others are ideal; none where there is one part only."""
    keys = sorted(set(of.values()))
    if len(keys) < 2:
        return {}
    return {key: Scenario(ranks=tuple(rank for rank in ranks if of.get(rank) != key)) for key in keys}


def _split(times: Floats, parts: _Parts) -> tuple[dict[str, Floats], dict[int, Floats], dict[int, Floats], dict[int, Floats]]:
    kinds, stages, dp_ranks, ranks = parts.kinds, parts.stages, parts.dp_ranks, parts.ranks
    ends = list(accumulate(map(len, (kinds, stages, dp_ranks, ranks)), initial=0))
    chunks = [times[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]
    return (
        dict(zip(kinds, chunks[0], strict=True)),
        dict(zip(stages, chunks[1], strict=True)),
        dict(zip(dp_ranks, chunks[2], strict=True)),
        dict(zip(ranks, chunks[3], strict=True)),
    )


def _slowest(by_rank: Mapping[int, float]) -> tuple[int, ...]:
    ranked = sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))
    return tuple(ranked[: math.ceil(len(ranked) * SLOWEST_SHARE)])


def _explained(trace: Trace, of_step: _Steps, slowest: Sequence[int]) -> tuple[float | None, float | None]:
    """M_W and M_S: what goes away where the slowest ranks, or the last stage, are ideal."""
    layout = trace.job.layout
    stages = dict(layout.pipeline_stage) if layout is not None else {}
    last = tuple(rank for rank, stage in stages.items() if stage == max(stages.values())) if stages else ()
    lost = float(of_step.replayed.mean() - of_step.ideal.mean())
    asked = {"w": tuple(slowest), "s": last if len(set(stages.values())) > 1 else ()}
    chosen = {name: Scenario(ranks=ranks) for name, ranks in asked.items() if ranks}
    if lost <= 0 or not chosen:
        return None, None
    prices = price_steps(trace.select(of_step.numbers), list(chosen.values()))
    found = {name: float(of_step.replayed.mean() - steps.mean()) for name, steps in zip(chosen, prices.scenario_ns, strict=True)}
    return tuple(ratio(found[name], lost) if name in found else None for name in asked)  # type: ignore[return-value]


def _heatmap(layout: Layout | None, by_rank: Mapping[int, float]) -> tuple[tuple[float, ...], ...]:
    """(stages × dp ranks) where the layout tells one rank for each place, else one row of all ranks."""
    ranks = sorted(by_rank)
    if layout is not None and layout.pipeline_stage and layout.dp_rank:
        places = {(layout.pipeline_stage.get(rank, 0), layout.dp_rank.get(rank, 0)): rank for rank in ranks}
        stages, dps = (sorted({place[at] for place in places}) for at in (0, 1))
        if len(places) == len(ranks) == len(stages) * len(dps):
            return tuple(tuple(by_rank[places[stage, dp]] for dp in dps) for stage in stages)
    return (tuple(by_rank[rank] for rank in ranks),)


def _scenario(fix: Fix) -> Scenario:
    return Scenario(
        ranks=fix.ranks or (),
        hosts=fix.hosts or (),
        stages=tuple(map(str, fix.stages or ())),
        operators=fix.operators or (),
        kinds=fix.kinds or (),
        scale=fix.scale,
    )


def _fixes(
    trace: Trace, of_step: _Steps, fixes: Sequence[Fix], times: Floats, gpu_cost: float | None
) -> tuple[FixPrice, ...]:
    texts = [fix.text for fix in fixes] + (["all together"] if len(fixes) > 1 else [])
    before = float(of_step.replayed.mean())
    return tuple(
        price(text, before, float(steps.mean()), devices=trace.job.world_size, gpu_cost=gpu_cost)
        for text, steps in zip(texts, times, strict=True)
    )


def _per_step(of_step: _Steps, parted: tuple[Mapping[str, Floats], *tuple[Mapping[int, Floats], ...]]) -> tuple[StepPrice, ...]:
    by_kind, by_stage, by_dp, by_rank = parted
    result = []
    for at, step in enumerate(of_step.numbers):
        ideal = float(of_step.ideal[at])
        result.append(
            StepPrice(
                step=step,
                measured_us=float(of_step.measured[at]) / 1e3,
                replayed_us=float(of_step.replayed[at]) / 1e3,
                ideal_us=ideal / 1e3,
                slowdown=ratio(float(of_step.replayed[at]), ideal),
                by_operator_type=largest_first({kind: ratio(float(t[at]), ideal) for kind, t in by_kind.items()}),
                by_dp_rank=largest_first({dp: ratio(float(t[at]), ideal) for dp, t in by_dp.items()}),
                by_stage=largest_first({stage: ratio(float(t[at]), ideal) for stage, t in by_stage.items()}),
                by_rank=largest_first({rank: ratio(float(t[at]), ideal) for rank, t in by_rank.items()}),
            )
        )
    return tuple(result)


def _notices(trace: Trace, prices: StepPrices, known: np.ndarray, error: float) -> tuple[Notice, ...]:
    result = []
    if not known.all():
        text = f"{int((~known).sum())} steps are left out: their operations wait for one another in a circle"
        result.append(Notice("circular_dependencies", text))
    if error > ERROR_GATE:
        worst = int(np.nanargmax(prices.replay_error))
        text = (
            f"the replay is {error:.0%} off the recording, most in step {prices.steps[worst]} "
            f"({prices.replayed_ns[worst] / 1e6:.1f} instead of {prices.measured_ns[worst] / 1e6:.1f} ms): read the figures with care"
        )
        result.append(Notice("simulation_error", text))
    if len(trace.job.ranks) > MOST_RANKS:
        result.append(Notice("too_many_workers", f"of {len(trace.job.ranks)} ranks not each is priced by itself"))
    return tuple(result)
