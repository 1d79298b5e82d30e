"""Ranks whose device or host idles: for the profiler, for launches, for a batch, for a collection of garbage."""

import numpy as np

from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import JobExcess
from kair_engine.ranks import Rank
from kair_engine.results.blame import BlameResult
from kair_engine.results.evidence import Evidence
from kair_engine.results.whatif import HostStops
from kair_engine.triage.devices.late_launches import LateLaunches
from kair_engine.triage.ranks.reasons.diagnosis import MIN_EXPLAINED, Diagnosis, peers_of, steps_since
from kair_engine.triage.ranks.reasons.preemption import stopped


def held_by_profiler(job: JobExcess, largest: Anomaly, ranks: tuple[Rank, ...]) -> Diagnosis | None:
    """Of ranks that their profiler holds up for longer than their peers' does, by most of what they lose."""
    held_ns = job.profiling_ns[steps_since(job, largest)].mean(axis=0)
    peers = np.searchsorted(job.ranks, peers_of(job, largest))
    mine = float(held_ns[list(largest.positions)].mean())
    usual = float(np.median(held_ns[peers])) if len(peers) else 0.0
    if mine - usual < MIN_EXPLAINED * largest.excess_ns or mine <= 0:
        return None
    figures = {"held_us_per_step": mine / 1e3, "peers_us_per_step": usual / 1e3}
    return Diagnosis("profiler", None, (Evidence("profiler", figures, None, ranks),))


def idle_device(
    job: JobExcess, stops: HostStops | None, largest: Anomaly, ranks: tuple[Rank, ...], late: LateLaunches
) -> Diagnosis | None:
    """Of ranks whose device idles: more to launch, a host thread that stands still, or launches that are slower."""
    more = [one for one in late.more if one.idle_ns > 0]
    if sum(one.idle_ns for one in more) >= MIN_EXPLAINED * largest.excess_ns:
        first = more[0]
        figures = {"calls": first.calls, "usual_calls": first.usual_calls, "excess_us_per_step": first.idle_ns / 1e3}
        return Diagnosis(
            "uneven_work", first.operator, (Evidence("launches_more", figures, None, ranks, first.operator),)
        )
    if found := stopped(job, stops, largest, ranks):
        return found
    slower = late.one_by_one_ns - late.peers_one_by_one_ns
    if slower < MIN_EXPLAINED * largest.excess_ns:
        return None
    figures = {"idle_us_per_step": late.one_by_one_ns / 1e3, "peers_us_per_step": late.peers_one_by_one_ns / 1e3}
    return Diagnosis("launch_bound", None, (Evidence("slower_launches", figures, None, ranks),))


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
