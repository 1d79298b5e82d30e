"""Chooses the parts of a job that are priced alone, each by a scenario in which all but that part is ideal."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from kair_engine.results.fix import FIX_KINDS, Fix
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.trace.steps.step_batches import operations_of_steps
from kair_engine.whatif.operators.fixed_durations import IdealOfAll
from kair_engine.whatif.ratios import OfParts

LARGEST = 500_000_000
"""Operations × scenarios that are replayed, about 10 seconds. Beyond, only the ranks that can cost most are priced."""
FEWEST_RANKS = 16
Key = TypeVar("Key", bound=Hashable)


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
    priced, at_most_longer = len(ranks) - len(at_most), max(at_most.values())
    return KairWarning(
        "too_many_workers", figures={"ranks": len(ranks), "priced": priced, "others_at_most": at_most_longer}
    )


def _all_but(of: Mapping[int, Key], ranks: Sequence[int]) -> dict[Key, Fix]:
    """For each part of the ranks the scenario in which all others are ideal; none where there is one part only."""
    keys = list(dict.fromkeys(of[rank] for rank in sorted(of)))
    if len(keys) < 2:
        return {}
    others = {key: tuple(rank for rank in ranks if of.get(rank) != key) for key in keys}
    return {key: IdealOfAll(ranks=of_others) for key, of_others in others.items()}
