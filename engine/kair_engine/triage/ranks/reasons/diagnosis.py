"""What a reason is, and whom and when it is about: the ranks' peers, the steps in which they are slow."""

from collections.abc import Sequence

import numpy as np

from kair_engine.arrays import Bools, Ints
from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import JobExcess
from kair_engine.results.evidence import Evidence

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


def from_median(job: JobExcess, places: Sequence[int]) -> int:
    """How far a rank lies from its peers, in distances from its role's median: of two that is halfway."""
    return 2 if np.count_nonzero(job.role == job.role[places[0]]) == 2 else 1
