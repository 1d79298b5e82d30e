"""Attributes the slowdown of a job that a profiler recorded: to kinds of time, stages, hosts and ranks.

Chooses the parts of a job that are priced alone, each by a scenario in which all but that part is ideal.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from kair_engine.results.warning_kinds import TooManyWorkers
from kair_engine.results.whatif import FIX_KINDS, Fix
from kair_engine.trace.batches import operations_of_steps
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.whatif.model import Attribution, Baseline, Counterfactual, IdealOfAll, ReplayedSteps
from kair_engine.whatif.prices import SLOWEST_SHARE, OfParts, mean_ratios, placed

_NOISE = KairWarning(
    "upper_bound",
    "S is an upper bound: every operation is compared with its peers' median, so what all ranks lose to ordinary "
    "noise counts, too",
)


Replay = Callable[[Sequence[Counterfactual]], ReplayedSteps]
"""Raises InputError where no step can be replayed."""


def attribute(
    trace: Trace, fixes: Sequence[tuple[Fix, ...]], replay: Replay, excess_of: Callable[[], Mapping[int, float]]
) -> Attribution:
    """Step times with fixes made, and where only one part is as recorded.

    `excess_of` is asked once all was replayed: per rank, of the mean step, ns.
    """
    parts, ranks = priced_parts(trace), trace.job.ranks
    asked = [(one,) for one in parts.all()]
    done = replay([*Baseline, *asked, *fixes])
    baselines, of_parts, of_fixes = np.split(done.times, (len(Baseline), len(Baseline) + len(asked)))
    _, _, _, ideal = baselines
    times, excess_ns = parts.mapped(of_parts), excess_of()
    if not parts.ranks:
        chosen = costliest_ranks(excess_ns, most_scenarios(trace)) if len(ranks) > 1 else []
        if chosen:
            found = replay([(IdealOfAll(ranks=tuple(one for one in ranks if one != rank)),) for rank in chosen]).times
            times = replace(times, ranks=dict(zip(chosen, found, strict=True)))
    by_rank = mean_ratios(times.ranks, ideal)
    at_most = {
        rank: excess / float(ideal.mean())
        for rank, excess in excess_ns.items()
        if rank not in by_rank and len(ranks) > 1
    }
    return Attribution(
        replayed=replace(done, times=np.concatenate((baselines, of_fixes))),
        parts=times,
        heatmap=placed(by_rank | {rank: 1 + share for rank, share in at_most.items()}, trace.job.layout),
        slowest=tuple(costliest_ranks(by_rank, math.ceil(len(ranks) * SLOWEST_SHARE))),
        excess_ns=excess_ns,
        warnings=tuple(_limits(ranks, at_most)),
        notices_of_noise=(_NOISE,),
    )


def _limits(ranks: Sequence[int], at_most: Mapping[int, float]) -> Iterator[KairWarning]:
    """Yield what the figures do not say."""
    if at_most:
        priced = len(ranks) - len(at_most)
        yield TooManyWorkers(among=len(ranks), priced=priced, others_at_most=max(at_most.values()))
    if len(ranks) < 2:
        yield KairWarning("no_peers", "one rank has no peers to be compared with: only its self time can be replayed")


LARGEST = 500_000_000
"""Operations × scenarios that are replayed, about 10 seconds. Beyond, only the ranks that can cost most are priced."""
FEWEST_RANKS = 16
Key = TypeVar("Key", bound=Hashable)


MOST_REMOVED: Final = 64
"""Ranks whose fix is replayed by itself: for more the analysis would take half as long again."""


def removed_parts(trace: Trace, found: Attribution) -> tuple[OfParts[Fix], dict[int, float]]:
    """Return (the fix of each part, what the fix of each rank that is left out saves of the mean step at most, ns).

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
    """Return the scenarios of all parts; without ranks, data-parallel ranks or hosts where they are too many."""
    layout, ranks, most = trace.job.layout, trace.job.ranks, most_scenarios(trace)
    stages, dp_ranks = (layout.pipeline_stage, layout.dp_rank) if layout is not None else ({}, {})
    parts = OfParts(
        kinds={kind: Fix(kinds=tuple(other for other in FIX_KINDS if other != kind)) for kind in FIX_KINDS},
        stages=_all_but(stages, ranks),
        dp_ranks=_all_but(dp_ranks, ranks),
        hosts=_all_but(trace.job.hosts, ranks) if len(set(trace.job.hosts.values())) < len(ranks) else {},
        ranks=_all_but({int(rank): int(rank) for rank in ranks}, ranks) if len(ranks) <= most else {},
    )
    for name in ("ranks", "dp_ranks", "hosts"):
        if len(parts.all()) > most:
            parts = replace(parts, **{name: {}})
    return parts


def most_scenarios(trace: Trace) -> int:
    """How many are affordable."""
    return max(FEWEST_RANKS, LARGEST // max(sum(operations_of_steps(trace).values()), 1))


def costliest_ranks(excess_ns: Mapping[int, float], most: int) -> list[int]:
    """Return the ranks that can cost most: a step with one rank as recorded is at most so much longer than the ideal
    one.
    """
    return sorted(excess_ns, key=lambda rank: (-excess_ns[rank], rank))[:most]


def _all_but(of: Mapping[int, Key], ranks: Sequence[int]) -> dict[Key, Fix]:
    """For each part of the ranks the scenario in which all others are ideal; none where there is one part only."""
    keys = list(dict.fromkeys(of[rank] for rank in sorted(of)))
    if len(keys) < 2:
        return {}
    others = {key: tuple(rank for rank in ranks if of.get(rank) != key) for key in keys}
    return {key: IdealOfAll(ranks=of_others) for key, of_others in others.items()}
