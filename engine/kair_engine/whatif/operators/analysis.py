"""The what-if analysis of a job that a profiler recorded, operator by operator."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.errors import InputError
from kair_engine.results.whatif import PartEffect, SlowdownCause, SlowdownPattern, StepPrice, WhatifResult
from kair_engine.trace.model import Layout, Notice, Trace
from kair_engine.whatif.attribution import SLOWEST_SHARE, largest_first, part_effect, ratio
from kair_engine.whatif.fitting import must_fit
from kair_engine.whatif.fixes import Fix
from kair_engine.whatif.operators.priced_parts import (
    OfParts,
    most_scenarios,
    priced_parts,
    ranks_alone,
    suspects,
    unpriced,
)
from kair_engine.whatif.operators.prices import StepPrices, price_steps
from kair_engine.whatif.prices import ERROR_GATE, price, priced, scenarios_of
from kair_engine.whatif.verdict import EXPLAINS, SLOW, causes_of, pattern_of, verdict_of


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
        must_fit(trace, fix)
    parts = priced_parts(trace)
    prices = price_steps(trace, [Fix(), *parts.all(), *scenarios_of(fixes)])
    known = ~np.isnan(prices.replayed_ns)
    if not known.any():
        raise no_step_replayed()
    of_step = _Steps(prices, known)
    replayable = trace.select(list(of_step.numbers))
    steps = parts.mapped(of_step.scenarios)
    if not parts.ranks:
        steps = replace(steps, ranks=_suspects(replayable, prices.excess_ns))
    cost = steps.mapped(map(of_step.slowdown, steps.all()))
    at_most = {
        rank: excess / float(of_step.ideal.mean())
        for rank, excess in prices.excess_ns.items()
        if rank not in cost.ranks and len(trace.job.ranks) > 1
    }
    slowdown, slowest = of_step.slowdown(of_step.replayed), _slowest(cost.ranks, len(trace.job.ranks))
    heatmap = _heatmap(trace.job.layout, cost.ranks | {rank: 1 + share for rank, share in at_most.items()})
    hosts = largest_first(cost.hosts)
    worst_host = tuple(rank for rank, host in trace.job.hosts.items() if host == next(iter(hosts), None))
    of_slowest, of_last, of_host = _explained(replayable, of_step, [slowest, _last_stage(trace.job.layout), worst_host])
    m_w, m_s = (None if part is None else part.share_removed for part in (of_slowest, of_last))
    pattern = pattern_of(slowdown, np.array(heatmap, dtype=float).T)
    by_stage, by_rank = largest_first(cost.stages), largest_first(cost.ranks)
    effects = of_slowest, of_last
    causes = causes_of(slowdown, effects=effects, slowest=slowest, steps=len(of_step.numbers))
    if not any(cause.cause == "slow_workers" for cause in causes):
        slow_host = _slow_host(slowdown, next(iter(hosts), None), worst_host, of_host)
        causes = (*slow_host, *causes)
        # Of few hosts one has too many ranks to stand out by number.
        pattern = "few_workers" if slow_host and pattern == "diffuse" else pattern
    error = abs(ratio(float(of_step.replayed.mean()), float(of_step.measured.mean())) - 1)
    ideal_ns, replayed_ns = float(of_step.ideal.mean()), float(of_step.replayed.mean())
    lost = price("", replayed_ns, ideal_ns, devices=trace.job.world_size, gpu_cost=gpu_cost)
    return WhatifResult(
        slowdown=slowdown,
        waste=1 - 1 / slowdown,
        step_time_us=replayed_ns / 1e3,
        measured_step_time_us=float(of_step.measured.mean()) / 1e3,
        ideal_step_time_us=ideal_ns / 1e3,
        by_operator_type=largest_first(cost.kinds),
        by_dp_rank=largest_first(cost.dp_ranks),
        by_stage=by_stage,
        by_rank=by_rank,
        by_host=hosts,
        heatmap=heatmap,
        m_w=m_w,
        slowest_ranks=slowest,
        slowest_workers=of_slowest,
        m_s=m_s,
        last_stage=of_last,
        simulation_error=error,
        delay_share=1 - ratio(float(of_step.undelayed.mean()), float(of_step.measured.mean())),
        launch_slowdown=ratio(float(of_step.measured.mean()), float(of_step.replayed.mean())),
        pattern=pattern,
        causes=causes,
        verdict=verdict_of(slowdown, pattern, causes, by_rank=by_rank, by_stage=by_stage),
        fixes=priced(
            fixes,
            replayed_ns,
            list(of_step.scenarios[len(parts.all()) :]),
            devices=trace.job.world_size,
            gpu_cost=gpu_cost,
        ),
        per_step=_per_step(of_step, steps),
        steps=trace.steps,
        warnings=(*replay_notices(prices, known, error), *_limits(trace, at_most, pattern)),
        gpu_hours_per_day=lost.gpu_hours_per_day,
        cost_per_day=lost.cost_per_day,
    )


def _last_stage(layout: Layout | None) -> tuple[int, ...]:
    """The ranks of the last pipeline stage."""
    stages = layout.pipeline_stage if layout is not None else {}
    return tuple(rank for rank, stage in stages.items() if stage == max(stages.values()))


def _suspects(trace: Trace, excess_ns: Mapping[int, float]) -> dict[int, Floats]:
    """The step times of the scenarios of those ranks that can cost most."""
    alone = ranks_alone(suspects(excess_ns, most_scenarios(trace)), trace.job.ranks)
    if not alone:
        return {}
    return dict(zip(alone, price_steps(trace, list(alone.values())).scenario_ns, strict=True))


def _slowest(by_rank: Mapping[int, float], ranks: int) -> tuple[int, ...]:
    ranked = sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))
    return tuple(ranked[: math.ceil(ranks * SLOWEST_SHARE)])


def _explained(trace: Trace, of_step: _Steps, chosen: Sequence[tuple[int, ...]]) -> list[PartEffect | None]:
    """What some ranks do to the step; None of a part that is nobody or everybody."""
    replayed, ideal = float(of_step.replayed.mean()), float(of_step.ideal.mean())
    pairs = [(part, tuple(rank for rank in trace.job.ranks if rank not in part)) for part in chosen]
    fixes = [Fix(ranks=ranks, ideal_of_all=True) for pair in pairs if all(pair) for ranks in pair]
    if replayed <= ideal or not fixes:
        return [None] * len(chosen)
    times = iter(price_steps(trace, fixes).scenario_ns.mean(axis=1).tolist())
    return [
        part_effect(replayed, ideal, removed_ns=next(times), alone_ns=next(times)) if all(pair) else None
        for pair in pairs
    ]


def _slow_host(
    slowdown: float, host: str | None, ranks: tuple[int, ...], effect: PartEffect | None
) -> list[SlowdownCause]:
    """A host all of whose ranks together explain what none of them does alone."""
    if host is None or effect is None or slowdown < SLOW or effect.share_removed < EXPLAINS:
        return []
    text = f"slow host {host} (fixing its {len(ranks)} ranks takes {effect.share_removed:.0%} of the slowdown away)"
    return [SlowdownCause("slow_workers", text, ranks, effect.share_removed)]


def _heatmap(layout: Layout | None, by_rank: Mapping[int, float]) -> tuple[tuple[float, ...], ...]:
    """(stages × dp ranks) where the layout tells one rank for each place, else one row of all ranks."""
    ranks = sorted(by_rank)
    if layout is not None and layout.pipeline_stage and layout.dp_rank:
        places = {(layout.pipeline_stage.get(rank, 0), layout.dp_rank.get(rank, 0)): rank for rank in ranks}
        stages, dp_ranks = (sorted({place[at] for place in places}) for at in (0, 1))
        if len(places) == len(ranks) == len(stages) * len(dp_ranks):
            return tuple(tuple(by_rank[places[stage, dp]] for dp in dp_ranks) for stage in stages)
    return (tuple(by_rank[rank] for rank in ranks),)


def _per_step(of_step: _Steps, of_parts: OfParts[Floats]) -> tuple[StepPrice, ...]:
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


def _limits(trace: Trace, at_most: Mapping[int, float], pattern: SlowdownPattern) -> Iterator[Notice]:
    """What the figures do not say."""
    if at_most:
        yield unpriced(trace.job.ranks, at_most)
    if len(trace.job.ranks) < 2:
        yield Notice("no_peers", "one rank has no peers to be held against: only its own time can be replayed")
    if pattern in {"diffuse", "unknown"}:
        yield Notice(
            "upper_bound",
            "S is an upper bound: every operation is held against its peers' median, so that what all ranks lose to "
            "ordinary noise counts too",
        )


def no_step_replayed() -> InputError:
    """The error where every step waits in a circle."""
    return InputError("no step of the recording can be replayed: its operations wait for one another in a circle")


def replay_notices(prices: StepPrices, known: Bools, error: float) -> tuple[Notice, ...]:
    """Steps left out, and a replay that is off by more than a little."""
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
    return tuple(result)
