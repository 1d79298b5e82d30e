"""Attributes the slowdown of a job that a profiler recorded: to kinds of time, stages, hosts and ranks.

Chooses the parts of a job that are priced alone, each by a scenario in which all but that part is ideal.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.errors import InputError
from kair_engine.results.warning_kinds import TooManyWorkers
from kair_engine.results.whatif import FIX_KINDS, Fix, PartEffect
from kair_engine.trace.batches import operations_of_steps
from kair_engine.trace.model import KairWarning, Layout, Trace
from kair_engine.whatif.model import Attribution, ReplayedSteps
from kair_engine.whatif.operators.batches import MadeReady, batches, price_steps
from kair_engine.whatif.operators.fixed_durations import IdealOfAll
from kair_engine.whatif.prices import SLOWEST_SHARE, OfParts, mean_ratios, part_effect

_NOISE = KairWarning(
    "upper_bound",
    "S is an upper bound: every operation is held against its peers' median, so that what all ranks lose to ordinary "
    "noise counts too",
)


def attribute(trace: Trace, fixes: Sequence[tuple[Fix, ...]], made: MadeReady = batches) -> Attribution:
    """Step times with fixes made, and where only one part is as recorded. Raises InputError where none is replayed."""
    parts = priced_parts(trace)
    prices = price_steps(trace, [Fix(), *parts.all(), *fixes], made)
    known = known_steps(prices.replayed_ns)
    steps = tuple(step for step, is_known in zip(prices.steps, known, strict=True) if is_known)
    ideal, *scenarios = prices.scenario_ns[:, known]
    recorded, undelayed = prices.replayed_ns[known], prices.undelayed_ns[known]
    fixed = scenarios[len(parts.all()) :]
    replayed = np.stack([recorded, recorded, undelayed, ideal, *fixed])
    times = parts.mapped(scenarios[: len(parts.all())])
    if not parts.ranks:
        times = replace(times, ranks=_suspects(trace.select(steps), prices.excess_ns, made))
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
        excess_ns=prices.excess_ns,
        warnings=tuple(_limits(ranks, at_most)),
        notices_of_noise=(_NOISE,),
    )


def effects(
    trace: Trace, groups: Sequence[Sequence[int]], replayed: ReplayedSteps, made: MadeReady = batches
) -> list[PartEffect | None]:
    """What some ranks do to the step; None of a part that is nobody or everybody."""
    _, recorded, _, ideal, *_ = replayed.times
    now_ns, ideal_ns = float(recorded.mean()), float(ideal.mean())
    pairs = [(tuple(part), tuple(rank for rank in trace.job.ranks if rank not in part)) for part in groups]
    fixes = [IdealOfAll(ranks=ranks) for pair in pairs if all(pair) for ranks in pair]
    if now_ns <= ideal_ns or not fixes:
        return [None] * len(groups)
    times = iter(price_steps(trace.select(replayed.steps), fixes, made).scenario_ns.mean(axis=1).tolist())
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


def _suspects(trace: Trace, excess_ns: Mapping[int, float], made: MadeReady) -> dict[int, Floats]:
    """The step times of the scenarios of those ranks that can cost most."""
    alone = ranks_alone(costliest_ranks(excess_ns, most_scenarios(trace)), trace.job.ranks)
    if not alone:
        return {}
    return dict(zip(alone, price_steps(trace, list(alone.values()), made).scenario_ns, strict=True))


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


LARGEST = 500_000_000
"""Operations × scenarios that are replayed, about 10 seconds. Beyond, only the ranks that can cost most are priced."""
FEWEST_RANKS = 16
Key = TypeVar("Key", bound=Hashable)


MOST_REMOVED: Final = 64
"""Ranks whose fix is replayed by itself: for more the analysis would take half as long again."""


def removed_parts(trace: Trace, found: Attribution) -> tuple[OfParts[Fix], dict[int, float]]:
    """(the fix of each part, what the fix of each rank that is left out saves of the mean step at most, ns).

    Ranks are left out where all are too many: the fix of one saves no more than it exceeds its peers.
    """
    parts, ranks, layout = found.parts, trace.job.ranks, trace.job.layout
    members: dict[int, list[int]] = {dp: [] for dp in parts.dp_ranks}
    for rank in ranks:
        if layout is not None and layout.dp_rank.get(rank) in members:
            members[layout.dp_rank[rank]].append(rank)
    most = min(most_scenarios(trace), MOST_REMOVED)
    chosen = costliest_ranks(found.excess_ns, most) if len(ranks) > 1 else []
    fixes = OfParts(
        kinds={kind: Fix(kinds=(kind,)) for kind in FIX_KINDS},
        stages={stage: Fix(stages=(stage,)) for stage in parts.stages},
        dp_ranks={dp: Fix(ranks=tuple(of)) for dp, of in members.items()},
        hosts={host: Fix(hosts=(host,)) for host in parts.hosts},
        ranks={rank: Fix(ranks=(rank,)) for rank in chosen},
    )
    left_out = set(found.excess_ns).difference(chosen) if chosen else set()
    return fixes, {rank: found.excess_ns[rank] for rank in sorted(left_out)}


def priced_parts(trace: Trace) -> OfParts[Fix]:
    """The scenarios of all parts; without ranks, data-parallel ranks or hosts where they are too many."""
    layout, ranks, most = trace.job.layout, trace.job.ranks, most_scenarios(trace)
    stages, dp_ranks = (layout.pipeline_stage, layout.dp_rank) if layout is not None else ({}, {})
    parts = OfParts(
        kinds={kind: Fix(kinds=tuple(other for other in FIX_KINDS if other != kind)) for kind in FIX_KINDS},
        stages=_all_but(stages, ranks),
        dp_ranks=_all_but(dp_ranks, ranks),
        hosts=_all_but(trace.job.hosts, ranks) if len(set(trace.job.hosts.values())) < len(ranks) else {},
        ranks=ranks_alone(ranks, ranks),
    )
    for name in ("ranks", "dp_ranks", "hosts"):
        if len(parts.all()) > most:
            parts = replace(parts, **{name: {}})
    return parts


def ranks_alone(chosen: Sequence[int], ranks: Sequence[int]) -> dict[int, Fix]:
    """For each of some ranks the scenario in which all other ranks are ideal; none where there is but one rank."""
    if len(ranks) < 2:
        return {}
    return {rank: IdealOfAll(ranks=tuple(other for other in ranks if other != rank)) for rank in chosen}


def most_scenarios(trace: Trace) -> int:
    """How many are affordable."""
    return max(FEWEST_RANKS, LARGEST // max(sum(operations_of_steps(trace).values()), 1))


def costliest_ranks(excess_ns: Mapping[int, float], most: int) -> list[int]:
    """The ranks that can cost most: a step with one rank as recorded is at most so much longer than the ideal one."""
    return sorted(excess_ns, key=lambda rank: (-excess_ns[rank], rank))[:most]


def unpriced(ranks: Sequence[int], at_most: Mapping[int, float]) -> KairWarning:
    """Says which ranks were left out, given what each of those costs at most (a share of the ideal step)."""
    priced = len(ranks) - len(at_most)
    return TooManyWorkers(among=len(ranks), priced=priced, others_at_most=max(at_most.values()))


def _all_but(of: Mapping[int, Key], ranks: Sequence[int]) -> dict[Key, Fix]:
    """For each part of the ranks the scenario in which all others are ideal; none where there is one part only."""
    keys = list(dict.fromkeys(of[rank] for rank in sorted(of)))
    if len(keys) < 2:
        return {}
    others = {key: tuple(rank for rank in ranks if of.get(rank) != key) for key in keys}
    return {key: IdealOfAll(ranks=of_others) for key, of_others in others.items()}
