"""Ranks that call operators more often than their peers, and what goes by between those calls."""

from collections.abc import Sequence

import numpy as np

from kair_engine.arrays import zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.ranks import Rank, ranks_at
from kair_engine.results.evidence import Evidence
from kair_engine.triage.devices.late_launches import OFTEN
from kair_engine.triage.ranks.reasons.batches import LARGER_LIKE_SLOWER
from kair_engine.triage.ranks.reasons.diagnosis import MIN_EXPLAINED, Diagnosis, from_median, peers_of, steps_since


def calls_more(job: JobExcess, largest: Anomaly) -> bool:
    """Whether its ranks call the operator of an anomaly oftener than usual."""
    assert largest.operator is not None
    return _further_calls(job, largest.operator, largest)[1] >= OFTEN


def more_calls(job: JobExcess, largest: Anomaly) -> Diagnosis | None:
    """Operators that the ranks call more often than their peers, where those make up most of what they lose.

    That is either of their compute, or of it together with what idle time goes by between calls.
    """
    further = _further(job, largest)
    spent, lost = sum(one.excess_ns for one in further), largest.excess_ns
    if not further:
        return None
    if spent < MIN_EXPLAINED * lost:
        idle_ns = _later_than_usual_ns(job, largest, "host")
        between = min(_idle_between_ns(job, largest, further), idle_ns)
        if spent + between < MIN_EXPLAINED * (lost + idle_ns):
            return None
    return further[0].diagnosis(ranks_at(job.ranks, largest.positions))


def between_more_calls(job: JobExcess, largest: Anomaly, ranks: tuple[Rank, ...]) -> Diagnosis | None:
    """Idle time of a thread that goes by between the calls that it makes more often than its peers."""
    if largest.kind == "intermittent":
        return None
    further = _further(job, largest)
    if not further or _idle_between_ns(job, largest, further) < LARGER_LIKE_SLOWER * largest.excess_ns:
        return None
    return further[0].diagnosis(ranks)


@dataclass(frozen=True)
class _Further:
    """An operator that ranks call more often than their peers; calls of the median step."""

    operator: str
    excess_ns: float
    """In the mean of the steps."""
    calls: float
    usual: float

    def diagnosis(self, ranks: tuple[Rank, ...]) -> Diagnosis:
        """That they have more to do."""
        figures = {"calls": self.calls, "usual_calls": self.usual, "excess_us_per_step": self.excess_ns / 1e3}
        return Diagnosis(
            "uneven_work", self.operator, (Evidence("more_calls", figures, None, ranks, about=self.operator),)
        )


def _further(job: JobExcess, largest: Anomaly) -> list[_Further]:
    """Those operators, that which takes longest first."""
    places, later, found = list(largest.positions), steps_since(job, largest), []
    for name, fetches in job.operators.items():
        calls, more = _further_calls(job, name, largest)
        if not fetches and more >= OFTEN:
            excess = from_median(job, places) * float(job.operator_ns(name)[0][later][:, places].mean())
            found.append(_Further(name, excess, calls, calls - more))
    return sorted(found, key=lambda one: -one.excess_ns)


def _further_calls(job: JobExcess, name: str, largest: Anomaly) -> tuple[float, float]:
    """How often the ranks call an operator in the median step, and how much more often than usual, the fewest."""
    calls, usual = job.calls(name, steps_since(job, largest))
    chosen = list(largest.positions)
    return float(calls[chosen].min()), from_median(job, chosen) * float((calls - usual)[chosen].min())


def _idle_between_ns(job: JobExcess, largest: Anomaly, further: Sequence[_Further]) -> float:
    """What further calls should leave the ranks' threads idle: each for as long as a peer's call does."""
    if job.on_device or not (peers := peers_of(job, largest)):
        return 0.0
    places, later = np.searchsorted(job.ranks, peers), steps_since(job, largest)
    called = sum(float(np.median(job.calls(name, later)[0][places])) for name in job.operators)
    idle_ns = float(np.median(job.work_ns[CLASSES.index("host"), places])) / max(called, 1.0)
    return sum(one.calls - one.usual for one in further) * idle_ns


def _later_than_usual_ns(job: JobExcess, largest: Anomaly, time_class: str) -> float:
    """What the ranks lose a step in a class of their time, the mean over steps; 0 where that is nothing."""
    places = list(largest.positions)
    excess = zero_for_nan(job.by_step_ns[steps_since(job, largest), CLASSES.index(time_class)][:, places])
    return from_median(job, places) * max(float(excess.mean()), 0.0)
