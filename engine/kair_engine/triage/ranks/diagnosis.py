"""What a reason is, and whom and when it is about: the ranks' peers, the steps in which they are slow.

Ranks whose device or host idles: for the profiler, for launches, for a batch, for a collection of garbage.

Ranks whose threads stand still for longer than their peers': the processor that they run on, whatever it slows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.noise import above_peers
from kair_engine.ranks import Position, Rank, as_positions
from kair_engine.results.blame import BlameResult
from kair_engine.results.triage import Evidence, ShownBy
from kair_engine.results.whatif import HostStops
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.timeline.host_activity import CALLS, HOST_KINDS

MIN_EXPLAINED = 0.5
"""More calls, or stops, must make up this part of what a rank loses to be called its cause."""
MOST_STEPS = 0.75
"""A rank that stalls in more than this share of the steps is slow persistently."""


@dataclass(frozen=True)
class Diagnosis:
    """A rank's cause, with the operator that it comes from where there is one, and what speaks for it."""

    cause: Cause
    operator: str | None = None
    evidence: tuple[Evidence, ...] = ()


def steps_since(job: JobExcess, largest: Anomaly) -> Bools:
    """The steps from the one in which the ranks began to be slow."""
    return np.array([largest.since is None or step.step >= largest.since for step in job.steps])


def peers_of(job: JobExcess, largest: Anomaly) -> list[int]:
    """The other ranks of their role."""
    role = job.role[largest.positions[0]]
    others: Ints = np.setdiff1d(np.flatnonzero(job.role == role), np.array(largest.positions))
    return [int(rank) for rank in job.ranks[others]]


def unaccused(job: JobExcess, places: Sequence[int], accused: Collection[int]) -> list[Position]:
    """Return the positions of their role's other ranks that nobody accuses; of all others, where everybody is."""
    role = np.flatnonzero(job.role == job.role[places[0]])
    others: Ints = np.setdiff1d(role, np.array(places))
    healthy: Ints = np.setdiff1d(others, np.array(sorted(accused), dtype=np.int64))
    return list(as_positions(healthy if len(healthy) else others))


def from_median(job: JobExcess, places: Sequence[int]) -> int:
    """How far a rank lies from its peers, in distances from its role's median: of two that is halfway."""
    return 2 if np.count_nonzero(job.role == job.role[places[0]]) == 2 else 1


def mine_and_usual(
    job: JobExcess, largest: Anomaly, of_steps: Floats, steps: Sequence[int] | None = None
) -> tuple[float, float]:
    """Return the mean of (steps × ranks) since the onset of the ranks, and of their median peer; 0 without peers.

    `steps` are the numbers of the steps, where these are not the job's.
    """
    later = steps_since(job, largest) if steps is None else np.array(steps) >= (largest.since or steps[0])
    if not later.any():
        return 0.0, 0.0
    of_rank = of_steps[later].mean(axis=0)
    peers = np.searchsorted(job.ranks, peers_of(job, largest))
    usual = float(np.median(of_rank[peers])) if len(peers) else 0.0
    return float(of_rank[list(largest.positions)].mean()), usual


def held_by_profiler(job: JobExcess, largest: Anomaly, ranks: tuple[Rank, ...]) -> Diagnosis | None:
    """Of ranks that their profiler holds up for longer than their peers' does, by most of what they lose."""
    mine, usual = mine_and_usual(job, largest, job.profiling_ns)
    if mine - usual < MIN_EXPLAINED * largest.excess_ns or mine <= 0:
        return None
    figures = {"held_us_per_step": mine / 1e3, "peers_us_per_step": usual / 1e3}
    return Diagnosis("profiler", None, (Evidence("profiler", figures, None, ranks),))


def held_by_calls(job: JobExcess, largest: Anomaly, ranks: tuple[Rank, ...]) -> Diagnosis | None:
    """Return the cause of ranks whose hosts compile, or allocate, for longer than peers' by most of what they lose."""
    for kind in CALLS:
        mine, usual = mine_and_usual(job, largest, job.activity_ns[:, HOST_KINDS.index(kind)])
        if mine > usual and mine - usual >= MIN_EXPLAINED * largest.excess_ns:
            figures = {"idle_us_per_step": mine / 1e3, "peers_us_per_step": usual / 1e3}
            return Diagnosis(kind, None, (Evidence("in_calls", figures, None, ranks, about=kind),))
    return None


def idle_host(job: JobExcess, blamed: BlameResult, largest: Anomaly, ranks: tuple[Rank, ...]) -> Diagnosis:
    """Garbage collection where blame saw that behind the host's gaps, the input where batches are fetched in them."""
    host = [c for c in blamed.root_causes if c.rank in ranks and c.cause in {"host", "garbage_collection"}]
    collected = sum(c.blamed_us for c in host if c.cause == "garbage_collection")
    if host and collected * 2 > sum(c.blamed_us for c in host):
        return Diagnosis("garbage_collection")
    return _of_unmarked_input(job, largest, ranks) or Diagnosis("host")


def _of_unmarked_input(job: JobExcess, largest: Anomaly, ranks: tuple[Rank, ...]) -> Diagnosis | None:
    """Ranks that are idle in every step where a batch is fetched, by most of what they lose."""
    peers = np.searchsorted(job.ranks, peers_of(job, largest))
    if largest.kind == "intermittent" or not len(peers):
        return None  # what comes now and then may be what is meant to, as checkpoints are
    idle_ns = job.fetching_ns[steps_since(job, largest)]
    mine = float(np.median(idle_ns[:, list(largest.positions)].mean(axis=1)))
    usual = float(np.median(idle_ns[:, peers]))
    if mine - usual < MIN_EXPLAINED * largest.excess_ns:
        return None
    figures = {"idle_us_per_step": mine / 1e3, "peers_us_per_step": usual / 1e3}
    return Diagnosis("unmarked_input", None, (Evidence("unmarked_input", figures, None, ranks),))


MOSTLY_ONE = 0.8
"""What a rank loses is not all over if more of it than this part is in one operator, between operators, or on links."""


def all_over(job: JobExcess, stops: HostStops | None, largest: Anomaly, ranks: tuple[Rank, ...]) -> Diagnosis | None:
    """Stops, in operators and between them, of a rank that is slow in most steps and not in one place mostly.

    Whatever it is slowest in: a rank without a core is late with all that it does.
    """
    members = np.flatnonzero(job.role == job.role[largest.positions[0]])
    often = largest.kind == "persistent" or largest.events[0] > MOST_STEPS * len(job.steps)
    if largest.kind == "group" or not often or len(members) < 2:
        return None
    at = int(np.searchsorted(members, largest.positions[0]))

    def lost(per_step: Floats) -> float:
        return float(trimmed_mean(above_peers(per_step[:, members], at), TRIM))

    of_class = np.nan_to_num(job.by_step_ns, nan=0.0)
    everything = lost(of_class.sum(axis=1))
    outside = [lost(of_class[:, CLASSES.index(name)]) for name in ("host", "communication")]
    mostly = max(outside + [lost(job.operator_ns(name)[0]) for name in job.operators])
    if everything <= 0 or mostly > MOSTLY_ONE * everything:
        return None
    found = None if stops is None else more_stops(job, stops.by_rank_us, largest, ranks, everything)
    if found is None:
        return None
    figures = {**found.figures, "between": 1}
    return Diagnosis("contention", None, (replace(found, figures=figures),))


def stopped(job: JobExcess, stops: HostStops | None, largest: Anomaly, ranks: tuple[Rank, ...]) -> Diagnosis | None:
    """Stops in the middle of operators, where the ranks have so many more than their peers."""
    found = None if stops is None else more_stops(job, stops.inside_by_rank_us, largest, ranks, largest.excess_ns)
    if found is None:
        return None
    return Diagnosis("contention", None, (found,))


def more_stops(
    job: JobExcess, of_rank_us: Mapping[int, float], largest: Anomaly, ranks: tuple[Rank, ...], lost_ns: float
) -> Evidence | None:
    """What the ranks stand still for a step, where that is longer than their peers by most of what they lose."""
    peers = [of_rank_us.get(rank, 0.0) for rank in peers_of(job, largest)]
    mine = float(np.mean([of_rank_us.get(rank, 0.0) for rank in ranks]))
    usual = float(np.median(peers)) if peers else 0.0
    if (mine - usual) * 1e3 < MIN_EXPLAINED * lost_ns:
        return None
    return Evidence("stopped", {"stopped_us_per_step": mine, "peers_us_per_step": usual}, ShownBy("whatif"), ranks)
