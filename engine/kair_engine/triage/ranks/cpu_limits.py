"""What holds a rank back and not its peers: signals that stop it, a quota, a lower priority, fewer cores.

Capture asks the system for it. It says why a rank is slow, and accuses none: that takes a test.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, present, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import JobExcess
from kair_engine.ranks import Position, Rank, ranks_at
from kair_engine.results import evidence_kinds as kinds
from kair_engine.results.evidence_kinds import Evidence
from kair_engine.stats import median_of_others
from kair_engine.timeline.host_time import ProcessorTimes
from kair_engine.trace.model import Job, ProcessorLimits, host_of

RATE_RATIO: Final = 4.0
"""Stops hold a rank back if they are counted at least this many times as often as the median peer's."""
MIN_SIGSTOPS: Final = 2
"""Stops by signals count from this many on, in all steps: a single one delays one step, and only luck separates it
from what else wakes threads."""
CORE_RATIO, SUFFICIENT_CORES = 0.5, 4.0
"""A rank is held back that may use at most CORE_RATIO of its median peer's cores: hosts differ, and shares are rounded.
Threads that may use SUFFICIENT_CORES lack none, whatever peers have."""


Limit = type[kinds.Halted | kinds.Throttled | kinds.LowerPriority | kinds.SmallerQuota | kinds.FewerCores]


@dataclass(frozen=True)
class CpuLimit:
    """What holds one rank back, as its figure and that of its median peer; `by` says of what."""

    by: Limit
    own: float
    peers: float | None
    """None for a quota where the median peer has none."""


_COUNTED: Final[Mapping[Limit, Callable[[ProcessorTimes], Floats]]] = {
    kinds.Halted: lambda processor: processor.halted,
    kinds.Throttled: lambda processor: processor.throttled,
}
"""What stops a process, where the others only let it have less."""
_HOLDS: Final[Mapping[Limit, Callable[[Floats, Floats], Bools]]] = {
    kinds.Halted: lambda own, usual: own > RATE_RATIO * usual,
    kinds.Throttled: lambda own, usual: own > RATE_RATIO * usual,
    kinds.LowerPriority: lambda own, usual: own > usual,
    kinds.FewerCores: lambda own, usual: (own <= CORE_RATIO * usual) & (own < SUFFICIENT_CORES),
    kinds.SmallerQuota: lambda own, usual: (own <= CORE_RATIO * usual) & (own < SUFFICIENT_CORES),
}
"""Whether a figure, compared with that of their median peer, shows that ranks are held back."""
LIMIT_EVIDENCE: Final = frozenset(kind.kind for kind in _HOLDS)
"""Evidence of it."""


def cpu_limits(job: Job, excess: JobExcess, processor: ProcessorTimes | None) -> dict[Position, tuple[CpuLimit, ...]]:
    """Per rank that something holds back more than the others of its role; empty if nothing was recorded of it."""
    if processor is None and not job.limits:
        return {}
    found: dict[Position, list[CpuLimit]] = defaultdict(list)
    for code in present(excess.role):
        members = np.flatnonzero(excess.role == code)
        for kind, of_ranks in _figures(job, excess.ranks[members], processor).items():
            told = np.flatnonzero(~np.isnan(of_ranks))
            own = of_ranks[told]
            usual = median_of_others(own)
            for at in np.flatnonzero(_HOLDS[kind](own, usual)).tolist():
                peers = float(usual[at]) if np.isfinite(usual[at]) else None
                found[Position(int(members[told[at]]))].append(CpuLimit(kind, float(own[at]), peers))
    return {place: tuple(found[place]) for place in sorted(found)}


def is_stopped(held: Iterable[Sequence[CpuLimit]]) -> bool:
    """Whether something stops one of them, and does not only leave it less."""
    return any(one.by in _COUNTED for of_rank in held for one in of_rank)


def cpu_limit_evidence(
    excess: JobExcess, known: Mapping[Position, Sequence[CpuLimit]], places: Iterable[Position]
) -> Iterator[Evidence]:
    """Yield what holds these ranks back: of each kind the means of those that it does."""
    of_kind: dict[Limit, list[tuple[Position, CpuLimit]]] = defaultdict(list)
    for place in places:
        for one in known.get(place, ()):
            of_kind[one.by].append((place, one))
    for kind, held in of_kind.items():
        own, usual = [one.own for _, one in held], [one.peers for _, one in held if one.peers is not None]
        peers = float(np.mean(usual)) if len(usual) == len(held) else None
        ranks = ranks_at(excess.ranks, [place for place, _ in held])
        yield kind(float(np.mean(own)), peers, ranks=ranks)  # type: ignore[arg-type] # of a quota alone it is unknown


def oversubscribed_evidence(job: Job, ranks: Iterable[Rank]) -> Iterator[Evidence]:
    """Ranks of one host that may only run on the same cores, fewer than they are: the most that any of `ranks` shares.

    Each needs a core for its training thread alone.
    """
    wanted = set(ranks)
    shared = [(some, cores) for some, cores in _crowds(job) if wanted & set(some)]
    if shared:
        together, cores = max(shared, key=lambda one: len(one[0]) / one[1])
        yield kinds.Crowded(len(together), cores, ranks=together)


def _crowds(job: Job) -> list[tuple[tuple[Rank, ...], int]]:
    """Ranks of one host that may only run on the same cores, fewer than they are, and how many cores that are."""
    alike: dict[tuple[str | None, tuple[int, ...]], list[Rank]] = defaultdict(list)
    for rank, limits in sorted(job.limits.items()):
        if limits.cpus:
            alike[host_of(job, rank), limits.cpus].append(Rank(rank))
    return [(tuple(some), len(cpus)) for (_, cpus), some in alike.items() if len(some) > len(cpus)]


def _figures(job: Job, ranks: Ints, processor: ProcessorTimes | None) -> dict[Limit, Floats]:
    """Per kind and rank, NaN where it was not recorded; ∞ for a rank without a quota."""
    limits = [job.limits.get(rank) for rank in ranks.tolist()]

    def of_limits(figure: Callable[[ProcessorLimits], float | None]) -> Floats:
        told = [None if one is None else figure(one) for one in limits]
        return np.array([np.nan if one is None else one for one in told], float)

    found: dict[Limit, Floats] = {
        kinds.LowerPriority: of_limits(lambda one: one.nice),
        kinds.FewerCores: of_limits(lambda one: len(one.cpus) or None),
        kinds.SmallerQuota: of_limits(lambda one: one.quota or np.inf),
    }
    if processor is not None:
        rows = np.searchsorted(processor.ranks, ranks)
        # Where none is recorded there is no quota.
        counts = {kind: zero_for_nan(of(processor)[rows]) for kind, of in _COUNTED.items()}
        counts[kinds.Halted][counts[kinds.Halted].sum(axis=1) < MIN_SIGSTOPS] = 0
        found |= {kind: of.mean(axis=1) for kind, of in counts.items()}
    return found
