"""Attributes the slowdown of a job that a profiler recorded: to kinds of time, stages, hosts and ranks."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.errors import InputError
from kair_engine.results.fix import Fix
from kair_engine.results.whatif import PartEffect
from kair_engine.trace.model import KairWarning, Layout, Trace
from kair_engine.whatif.model import Attribution, ReplayedSteps
from kair_engine.whatif.operators.fixed_durations import IdealOfAll
from kair_engine.whatif.operators.priced_parts import (
    costliest_ranks,
    most_scenarios,
    priced_parts,
    ranks_alone,
    unpriced,
)
from kair_engine.whatif.operators.prices import price_steps
from kair_engine.whatif.ratios import mean_ratios, part_effect
from kair_engine.whatif.verdict import SLOWEST_SHARE

_NOISE = KairWarning(
    "upper_bound",
    "S is an upper bound: every operation is held against its peers' median, so that what all ranks lose to ordinary "
    "noise counts too",
)


def attribute(trace: Trace, fixes: Sequence[tuple[Fix, ...]]) -> Attribution:
    """Step times with fixes made, and where only one part is as recorded. Raises InputError where none is replayed."""
    parts = priced_parts(trace)
    prices = price_steps(trace, [Fix(), *parts.all(), *fixes])
    known = known_steps(prices.replayed_ns)
    steps = tuple(step for step, is_known in zip(prices.steps, known, strict=True) if is_known)
    ideal, *scenarios = prices.scenario_ns[:, known]
    recorded, undelayed = prices.replayed_ns[known], prices.undelayed_ns[known]
    fixed = scenarios[len(parts.all()) :]
    replayed = np.stack([recorded, recorded, undelayed, ideal, *fixed])
    times = parts.mapped(scenarios[: len(parts.all())])
    if not parts.ranks:
        times = replace(times, ranks=_suspects(trace.select(steps), prices.excess_ns))
    by_rank, ranks = mean_ratios(times.ranks, ideal), trace.job.ranks
    at_most = {
        rank: excess / float(ideal.mean())
        for rank, excess in prices.excess_ns.items()
        if rank not in by_rank and len(ranks) > 1
    }
    return Attribution(
        replayed=ReplayedSteps(steps, prices.measured_ns[known], replayed),
        parts=times,
        heatmap=_heatmap(trace.job.layout, by_rank | {rank: 1 + share for rank, share in at_most.items()}),
        slowest=_slowest(by_rank, len(ranks)),
        warnings=tuple(_limits(ranks, at_most)),
        notices_of_noise=(_NOISE,),
    )


def effects(trace: Trace, groups: Sequence[Sequence[int]], replayed: ReplayedSteps) -> list[PartEffect | None]:
    """What some ranks do to the step; None of a part that is nobody or everybody."""
    _, recorded, _, ideal, *_ = replayed.times
    now_ns, ideal_ns = float(recorded.mean()), float(ideal.mean())
    pairs = [(tuple(part), tuple(rank for rank in trace.job.ranks if rank not in part)) for part in groups]
    fixes = [IdealOfAll(ranks=ranks) for pair in pairs if all(pair) for ranks in pair]
    if now_ns <= ideal_ns or not fixes:
        return [None] * len(groups)
    times = iter(price_steps(trace.select(replayed.steps), fixes).scenario_ns.mean(axis=1).tolist())
    return [
        part_effect(now_ns, ideal_ns, removed_ns=next(times), alone_ns=next(times)) if all(pair) else None
        for pair in pairs
    ]


def known_steps(times: Floats) -> np.ndarray:
    """Which of the steps can be replayed. Raises InputError where none can: every one waits in a circle."""
    known = ~np.isnan(times)
    if not known.any():
        raise InputError("no step of the recording can be replayed: its operations wait for one another in a circle")
    return known


def _suspects(trace: Trace, excess_ns: Mapping[int, float]) -> dict[int, Floats]:
    """The step times of the scenarios of those ranks that can cost most."""
    alone = ranks_alone(costliest_ranks(excess_ns, most_scenarios(trace)), trace.job.ranks)
    if not alone:
        return {}
    return dict(zip(alone, price_steps(trace, list(alone.values())).scenario_ns, strict=True))


def _slowest(by_rank: Mapping[int, float], ranks: int) -> tuple[int, ...]:
    ranked = sorted(by_rank, key=lambda rank: (-by_rank[rank], rank))
    return tuple(ranked[: math.ceil(ranks * SLOWEST_SHARE)])


def _heatmap(layout: Layout | None, by_rank: Mapping[int, float]) -> Floats:
    """(stages × dp ranks) where the layout tells one rank for each place, else one row of all ranks."""
    ranks = sorted(by_rank)
    if layout is not None and layout.pipeline_stage and layout.dp_rank:
        places = {(layout.pipeline_stage.get(rank, 0), layout.dp_rank.get(rank, 0)): rank for rank in ranks}
        stages, dp_ranks = (sorted({place[at] for place in places}) for at in (0, 1))
        if len(places) == len(ranks) == len(stages) * len(dp_ranks):
            return np.array([[by_rank[places[stage, dp]] for dp in dp_ranks] for stage in stages])
    return np.array([[by_rank[rank] for rank in ranks]])


def _limits(ranks: Sequence[int], at_most: Mapping[int, float]) -> Iterator[KairWarning]:
    """What the figures do not say."""
    if at_most:
        yield unpriced(ranks, at_most)
    if len(ranks) < 2:
        yield KairWarning("no_peers", "one rank has no peers to be held against: only its self time can be replayed")
