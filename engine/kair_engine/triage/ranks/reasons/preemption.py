"""Ranks whose threads stand still for longer than their peers': the processor that they run on, whatever it slows."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.noise import above_peers
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Evidence, ShownBy
from kair_engine.results.whatif import HostStops
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.triage.ranks.reasons.diagnosis import MIN_EXPLAINED, MOST_STEPS, Diagnosis, peers_of

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
