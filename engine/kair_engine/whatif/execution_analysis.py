"""The what-if analysis of a job that a profiler recorded, operator by operator."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

import numpy as np
import polars as pl

from kair_engine.arrays import Bools, Floats
from kair_engine.errors import InputError
from kair_engine.model import Layout, Notice, Trace
from kair_engine.roles import roles
from kair_engine.whatif.attribution import SLOWEST_SHARE, largest_first, part_effect, ratio
from kair_engine.whatif.execution_prices import StepPrices, price_steps
from kair_engine.whatif.fixes import KINDS, Fix
from kair_engine.whatif.prices import ERROR_GATE, nothing_fits, price
from kair_engine.whatif.result import FixPrice, PartEffect, SlowdownPattern, StepPrice, WhatifResult
from kair_engine.whatif.verdict import causes_of, pattern_of, verdict_of

MOST_RANKS = 64
"""Of more ranks not each is priced by itself: every one takes a replay of the whole job."""
Part = TypeVar("Part")
Other = TypeVar("Other")


@dataclass(frozen=True)
class _OfParts(Generic[Part]):
    """Something for each part that is priced by itself: all but that part is ideal."""

    kinds: dict[str, Part]
    stages: dict[int, Part]
    dp_ranks: dict[int, Part]
    ranks: dict[int, Part]

    def all(self) -> list[Part]:
        return [*self.kinds.values(), *self.stages.values(), *self.dp_ranks.values(), *self.ranks.values()]

    def mapped(self, values: Iterable[Other]) -> "_OfParts[Other]":
        """The same parts with other values, in the order of `all`."""
        rest = iter(values)
        return _OfParts(
            dict(zip(self.kinds, islice(rest, len(self.kinds)), strict=True)),
            dict(zip(self.stages, islice(rest, len(self.stages)), strict=True)),
            dict(zip(self.dp_ranks, islice(rest, len(self.dp_ranks)), strict=True)),
            dict(zip(self.ranks, islice(rest, len(self.ranks)), strict=True)),
        )


class _Steps:
    """Step times of the steps that could be replayed, ns."""

    def __init__(self, prices: StepPrices, known: Bools) -> None:
        self.numbers = tuple(step for step, is_known in zip(prices.steps, known, strict=True) if is_known)
        self.measured, self.replayed = prices.measured_ns[known], prices.replayed_ns[known]
        self.undelayed = prices.undelayed_ns[known]
        self.ideal, self.scenarios = prices.scenario_ns[0, known], prices.scenario_ns[1:, known]

    def slowdown(self, times: Floats) -> float:
        """The mean step over the ideal mean step."""
        return ratio(float(times.mean()), float(self.ideal.mean()))


def whatif_of_execution(trace: Trace, fixes: Sequence[Fix], gpu_cost: float | None) -> WhatifResult:
    """S, waste and what each part costs, of any recording.

    Raises InputError where no step can be replayed, UsageError where a fix names nothing that the recording has.
    """
    for fix in fixes:
        _must_fit(trace, fix)
    parts = _parts(trace)
    asked: list[tuple[Fix, ...]] = [(fix,) for fix in fixes]
    if len(asked) > 1:
        asked.append(tuple(fixes))
    prices = price_steps(trace, [Fix(), *parts.all(), *asked])
    known = ~np.isnan(prices.replayed_ns)
    if not known.any():
        raise InputError("no step of the recording can be replayed: its operations wait for one another in a circle")
    of_step = _Steps(prices, known)
    steps = parts.mapped(of_step.scenarios)
    cost = steps.mapped(map(of_step.slowdown, steps.all()))
    slowdown, heatmap, slowest = (
        of_step.slowdown(of_step.replayed),
        _heatmap(trace.job.layout, cost.ranks),
        _slowest(cost.ranks),
    )
    of_slowest, of_last = _explained(trace, of_step, slowest)
    m_w, m_s = (None if part is None else part.share_removed for part in (of_slowest, of_last))
    pattern = pattern_of(slowdown, np.array(heatmap, dtype=float).T)
    by_stage, by_rank = largest_first(cost.stages), largest_first(cost.ranks)
    effects = of_slowest, of_last
    causes = causes_of(slowdown, effects=effects, slowest=slowest, steps=len(of_step.numbers))
    error = abs(ratio(float(of_step.replayed.mean()), float(of_step.measured.mean())) - 1)
    return WhatifResult(
        slowdown=slowdown,
        waste=1 - 1 / slowdown,
        step_time_us=float(of_step.replayed.mean()) / 1e3,
        measured_step_time_us=float(of_step.measured.mean()) / 1e3,
        ideal_step_time_us=float(of_step.ideal.mean()) / 1e3,
        by_operator_type=largest_first(cost.kinds),
        by_dp_rank=largest_first(cost.dp_ranks),
        by_stage=by_stage,
        by_rank=by_rank,
        by_rank_approximate={},
        heatmap=heatmap,
        m_w=m_w,
        slowest_ranks=slowest,
        slowest_workers=of_slowest,
        m_s=m_s,
        last_stage=of_last,
        forward_backward_correlation=None,
        forward_variation=None,
        simulation_error=error,
        delay_share=1 - ratio(float(of_step.undelayed.mean()), float(of_step.measured.mean())),
        launch_slowdown=ratio(float(of_step.measured.mean()), float(of_step.replayed.mean())),
        launch_by_operator_type=None,
        launch_by_dp_rank=None,
        launch_by_stage=None,
        pattern=pattern,
        causes=causes,
        verdict=verdict_of(slowdown, pattern, causes, by_rank=by_rank, by_stage=by_stage),
        fixes=_fixes(trace, of_step, fixes, of_step.scenarios[len(parts.all()) :], gpu_cost),
        remedies=(),
        per_step=_per_step(of_step, steps),
        steps=trace.steps,
        warnings=(*_notices(trace, prices, known, error), *_bound(pattern)),
    )


def _parts(trace: Trace) -> _OfParts[Fix]:
    layout, ranks = trace.job.layout, trace.job.ranks
    stages = layout.pipeline_stage if layout is not None and layout.pipeline_stage else _numbered(roles(trace))
    dp_ranks = layout.dp_rank if layout is not None and layout.dp_rank else {}
    return _OfParts(
        kinds={kind: Fix(kinds=tuple(other for other in KINDS if other != kind)) for kind in KINDS},
        stages=_all_but(stages, ranks),
        dp_ranks=_all_but(dp_ranks, ranks) if len(set(dp_ranks.values())) <= MOST_RANKS else {},
        ranks=_all_but({rank: rank for rank in ranks}, ranks) if len(ranks) <= MOST_RANKS else {},
    )


def _numbered(role_of: Mapping[int, str]) -> dict[int, int]:
    names = sorted(set(role_of.values()))
    return {rank: names.index(role) for rank, role in role_of.items()}


def _all_but(of: Mapping[int, int], ranks: Sequence[int]) -> dict[int, Fix]:
    """For each part of the ranks the scenario in which all others are ideal; none where there is one part only."""
    keys = sorted(set(of.values()))
    if len(keys) < 2:
        return {}
    return {key: Fix(ranks=tuple(rank for rank in ranks if of.get(rank) != key)) for key in keys}


def _slowest(by_rank: Mapping[int, float]) -> tuple[int, ...]:
    ranked = sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))
    return tuple(ranked[: math.ceil(len(ranked) * SLOWEST_SHARE)])


def _explained(trace: Trace, of_step: _Steps, slowest: Sequence[int]) -> tuple[PartEffect | None, PartEffect | None]:
    """What the slowest ranks, and the last stage, do to the step; None of a part that is nobody or everybody."""
    layout = trace.job.layout
    stages = dict(layout.pipeline_stage) if layout is not None else {}
    last = tuple(rank for rank, stage in stages.items() if stage == max(stages.values()))
    replayed, ideal = float(of_step.replayed.mean()), float(of_step.ideal.mean())
    pairs = [(part, tuple(rank for rank in trace.job.ranks if rank not in part)) for part in (tuple(slowest), last)]
    fixes = [Fix(ranks=ranks) for pair in pairs if all(pair) for ranks in pair]
    if replayed <= ideal or not fixes:
        return None, None
    times = iter(price_steps(trace.select(list(of_step.numbers)), fixes).scenario_ns.mean(axis=1).tolist())
    of_slowest, of_last = (
        part_effect(replayed, ideal, removed_ns=next(times), alone_ns=next(times)) if all(pair) else None
        for pair in pairs
    )
    return of_slowest, of_last


def _heatmap(layout: Layout | None, by_rank: Mapping[int, float]) -> tuple[tuple[float, ...], ...]:
    """(stages × dp ranks) where the layout tells one rank for each place, else one row of all ranks."""
    ranks = sorted(by_rank)
    if layout is not None and layout.pipeline_stage and layout.dp_rank:
        places = {(layout.pipeline_stage.get(rank, 0), layout.dp_rank.get(rank, 0)): rank for rank in ranks}
        stages, dp_ranks = (sorted({place[at] for place in places}) for at in (0, 1))
        if len(places) == len(ranks) == len(stages) * len(dp_ranks):
            return tuple(tuple(by_rank[places[stage, dp]] for dp in dp_ranks) for stage in stages)
    return (tuple(by_rank[rank] for rank in ranks),)


def _must_fit(trace: Trace, fix: Fix) -> None:
    job, layout = trace.job, trace.job.layout
    known: list[tuple[Collection[object], Collection[object]]] = [
        (fix.ranks, job.ranks),
        (fix.hosts, set(job.hosts.values())),
        (fix.stages, set(layout.pipeline_stage.values()) if layout is not None else set()),
    ]
    fits = all(not asked or set(asked) & set(there) for asked, there in known)
    if fits and fix.operators:
        names = trace.scan().select(pl.col("name").unique().cast(pl.String)).collect()["name"]
        fits = any(map(fix.named, names))
    if not fits:
        raise nothing_fits(fix)


def _fixes(
    trace: Trace, of_step: _Steps, fixes: Sequence[Fix], times: Floats, gpu_cost: float | None
) -> tuple[FixPrice, ...]:
    texts = [fix.text for fix in fixes] + (["all together"] if len(fixes) > 1 else [])
    before = float(of_step.replayed.mean())
    return tuple(
        price(text, before, float(steps.mean()), devices=trace.job.world_size, gpu_cost=gpu_cost)
        for text, steps in zip(texts, times, strict=True)
    )


def _per_step(of_step: _Steps, of_parts: _OfParts[Floats]) -> tuple[StepPrice, ...]:
    result = []
    for at, step in enumerate(of_step.numbers):
        ideal = float(of_step.ideal[at])
        cost = of_parts.mapped([ratio(float(times[at]), ideal) for times in of_parts.all()])
        result.append(
            StepPrice(
                step=step,
                measured_us=float(of_step.measured[at]) / 1e3,
                replayed_us=float(of_step.replayed[at]) / 1e3,
                ideal_us=ideal / 1e3,
                slowdown=ratio(float(of_step.replayed[at]), ideal),
                by_operator_type=largest_first(cost.kinds),
                by_dp_rank=largest_first(cost.dp_ranks),
                by_stage=largest_first(cost.stages),
                by_rank=largest_first(cost.ranks),
            )
        )
    return tuple(result)


def _bound(pattern: SlowdownPattern) -> Iterator[Notice]:
    if pattern in {"diffuse", "unknown"}:
        yield Notice(
            "upper_bound",
            "S is an upper bound: every operation is held against its peers' median, so that what all ranks lose to "
            "ordinary noise counts too",
        )


def _notices(trace: Trace, prices: StepPrices, known: Bools, error: float) -> tuple[Notice, ...]:
    result = []
    if not known.all():
        text = f"{int((~known).sum())} steps are left out: their operations wait for one another in a circle"
        result.append(Notice("circular_dependencies", text))
    if error > ERROR_GATE:
        worst = int(np.nanargmax(prices.replay_error))
        replayed, measured = (float(of[worst]) / 1e6 for of in (prices.replayed_ns, prices.measured_ns))
        text = (
            f"the replay is {error:.0%} off the recording, most in step {prices.steps[worst]} "
            f"({replayed:.1f} instead of {measured:.1f} ms): read the figures with care"
        )
        result.append(Notice("simulation_error", text))
    if len(trace.job.ranks) > MOST_RANKS:
        result.append(Notice("too_many_workers", f"of {len(trace.job.ranks)} ranks not each is priced by itself"))
    return tuple(result)
