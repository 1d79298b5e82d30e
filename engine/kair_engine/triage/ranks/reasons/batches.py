"""What ranks give their models, beside their peers: a larger batch is no slower device."""

from typing import Final

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import PASSES, JobExcess
from kair_engine.localize.input_growth import LARGER_INPUTS
from kair_engine.ranks import Rank, ranks_at
from kair_engine.results.evidence import Evidence
from kair_engine.triage.ranks.more_work import usual_passes_ns
from kair_engine.triage.ranks.reasons.diagnosis import Diagnosis, peers_of, steps_since

LARGER_LIKE_SLOWER: Final = 0.25
"""Of the excess: larger inputs explain it that would take this part of it at the usual rate. Not all of it: weights are
no larger, attention takes the square, and what no longer fits a cache takes still longer."""
LONGER_PASSES, LIKE_OPTIMIZER = 0.03, 1 / 3
"""Longer batches: passes take this share longer, the optimizer at most this part of that."""
LEAST_OPTIMIZER_NS = 10_000
"""An optimizer that takes less says nothing."""
LIKE_ONE_ANOTHER = 0.2
"""A longer batch is longer in both passes, in each by at least this part of the other."""


@dataclass(frozen=True)
class Batch:
    """Bytes that slow ranks give their models in the median step, and the median of their peers."""

    given: float
    usual: float
    passes_ns: float
    """What forward and backward passes usually take."""

    @property
    def larger(self) -> float:
        """By what share."""
        return self.given / self.usual - 1

    def explains(self, lost_ns: float) -> bool:
        """Whether so much of computing is for a larger batch."""
        return self.larger > LARGER_INPUTS and self.larger * self.passes_ns >= LARGER_LIKE_SLOWER * lost_ns

    def evidence(self, ranks: tuple[Rank, ...]) -> Evidence:
        """That it is larger."""
        figures = {"given_bytes": self.given, "usual_given_bytes": self.usual, "larger_share": self.larger}
        return Evidence("larger_batch", figures, None, ranks)

    def same(self, lost_ns: float, ranks: tuple[Rank, ...]) -> tuple[Evidence, ...]:
        """That it is not, if so."""
        if abs(self.larger) > LARGER_INPUTS:
            return ()
        return (Evidence("same_inputs", {"excess_us_per_step": lost_ns / 1e3}, None, ranks),)


def batch_beside_peers(job: JobExcess, given: Floats | None, largest: Anomaly) -> Batch | None:
    """What the ranks give their models; None where that, or what their peers give, is not known."""
    if given is None:
        return None
    places, later = list(largest.positions), given[steps_since(job, largest)]
    peers = np.searchsorted(job.ranks, peers_of(job, largest))
    return _batch_of(later[:, places], later[:, peers], float(usual_passes_ns(job)[places].mean()))


def longer_batch(job: JobExcess, largest: Anomaly) -> Diagnosis | None:
    """A longer batch: both passes take longer and the optimizer, which works on the parameters, does not.

    Ranks that are slow together share a host and no batch.
    """
    if largest.kind == "group" or not peers_of(job, largest):
        return None
    later = steps_since(job, largest)
    passes, optimizer = job.passes_ns.sum(axis=1)[later], job.optimizer_ns[later]
    if np.median(optimizer) < LEAST_OPTIMIZER_NS:
        return None
    slower, same = (_slower(job, of, largest) for of in (passes, optimizer))
    forward, backward = (_slower(job, job.passes_ns[later, of], largest) for of in range(len(PASSES)))
    if slower < LONGER_PASSES or same > LIKE_OPTIMIZER * slower:
        return None
    if min(forward, backward) < LIKE_ONE_ANOTHER * max(forward, backward):
        return None  # a kernel of one pass is slow
    figures = {"passes_share": slower, "optimizer_share": same}
    return Diagnosis(
        "uneven_work", None, (Evidence("longer_batches", figures, None, ranks_at(job.ranks, largest.positions)),)
    )


def _batch_of(own: Floats, peers: Floats, passes_ns: float) -> Batch | None:
    """Of what some ranks and their peers give (steps × ranks each); None where either does not tell it."""
    told, usual = own[own > 0], peers[peers > 0]  # NaN is neither
    return Batch(float(np.median(told)), float(np.median(usual)), passes_ns) if len(told) and len(usual) else None


def _slower(job: JobExcess, values: Floats, largest: Anomaly) -> float:
    """By what share the ranks' values (steps × ranks) exceed their peers', the median over steps."""
    others = np.searchsorted(job.ranks, peers_of(job, largest))
    typical = np.median(values[:, others], axis=1)
    return float(np.median(values[:, list(largest.positions)].mean(axis=1) / np.maximum(typical, 1.0)) - 1)
