"""Ranks that call operators more often than their peers, and what goes by between those calls.

Ranks that are given more than their peers: larger inputs of operators, longer batches.

What ranks give their models, beside their peers: a larger batch is no slower device.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, PASSES, JobExcess
from kair_engine.localize.input_growth import LARGER_INPUTS, Dimension
from kair_engine.ranks import Rank, ranks_at
from kair_engine.results.triage import Evidence
from kair_engine.triage.late_launches import OFTEN
from kair_engine.triage.ranks.diagnosis import MIN_EXPLAINED, Diagnosis, from_median, peers_of, steps_since
from kair_engine.triage.ranks.more_work import usual_passes_ns

OF_LARGER_BATCHES: Final = frozenset({"larger_inputs", "larger_batch", "longer_batches"})
"""The kinds of evidence that ranks are given more samples, or longer ones."""


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


@dataclass(frozen=True)
class Input:
    """What a slow rank gives one of the operators that take it longer, beside what its peers do."""

    operator: str
    excess_ns: float
    """In the mean of the steps."""
    usual_ns: float
    """What peers take for it in a step."""
    larger: float
    """By what share a call's inputs are larger, in the dimensions that differ."""
    in_all: float
    """The same of all that the operators which tell it are given, in whatever kernels."""


def inputs_of(job: JobExcess, largest: Anomaly) -> list[Input]:
    """Of the operators whose inputs' shapes are recorded, on the slow ranks and on their peers."""
    if largest.kind == "intermittent":
        return []  # a median shows nothing of single steps
    places, later, away = list(largest.positions), steps_since(job, largest), from_median(job, list(largest.positions))
    peers, found = np.searchsorted(job.ranks, peers_of(job, largest)), []
    for name, fetches in job.operators.items():
        larger, in_all = job.larger_inputs(name, later)
        excess, typical = job.operator_ns(name)
        lost = away * float(excess[later][:, places].mean())
        takes = float(typical[places].mean()) - (away - 1) * lost / away
        is_told = not np.isnan(larger[places]).any() and not np.isnan(larger[peers]).all()
        if not fetches and lost > 0 and takes > 0 and is_told:
            shares = (_beside_peers(float(of[places].mean()), away) for of in (larger, in_all))
            found.append(Input(name, lost, takes, *shares))
    return found


def _beside_peers(beyond_median: float, away: int) -> float:
    """By what share of its peers' something is more that is more than its role's median by a share of that."""
    return (1 + beyond_median) / max(1 + beyond_median * (1 - away), 1e-9) - 1


def larger_inputs(
    job: JobExcess, largest: Anomaly, inputs: Sequence[Input], ranks: tuple[Rank, ...]
) -> Diagnosis | None:
    """Operators that are given more than on peers, where those make up most of what the ranks lose.

    A library may choose another kernel for the same inputs: the operators that launch it have to be given more, too.
    """
    larger = [one for one in inputs if min(one.larger, one.in_all) > LARGER_INPUTS]
    lost = sum(one.excess_ns for one in larger)
    if not larger or lost < MIN_EXPLAINED * largest.excess_ns:
        return None
    expected = sum(one.usual_ns * one.larger for one in larger)
    if expected < LARGER_LIKE_SLOWER * lost:
        return None
    first = max(larger, key=lambda one: one.excess_ns)
    figures = {
        "larger_share": expected / sum(one.usual_ns for one in larger),
        "excess_us_per_step": lost / 1e3,
    }
    about, differing = first.operator, _most_differing(job, largest, first.operator)
    if differing is not None:
        about = differing[0].told_by
        figures |= _in_dimension(job, largest, first.operator, *differing)
    return Diagnosis("uneven_work", largest.operator, (Evidence("larger_inputs", figures, None, ranks, about=about),))


def _most_differing(job: JobExcess, largest: Anomaly, operator: str) -> tuple[Dimension, Floats] | None:
    """The dimension in which the ranks give most more than their peers, and what it is on each rank; None without."""
    places, peers = list(largest.positions), np.searchsorted(job.ranks, peers_of(job, largest))

    def larger(of: Floats) -> float:
        share = of[places].mean() / max(float(np.nanmedian(of[peers])), 1e-9) if not np.isnan(of[peers]).all() else 0.0
        return 0.0 if np.isnan(share) else float(share)

    known = list(job.dimensions(operator, steps_since(job, largest)).items())
    found = max(known, key=lambda one: larger(one[1]), default=None)
    return found if found is not None and larger(found[1]) > 1 + LARGER_INPUTS else None


def _in_dimension(
    job: JobExcess, largest: Anomaly, operator: str, dimension: Dimension, sizes: Floats
) -> dict[str, float]:
    """How large it is beside the peers', and what a unit of it takes on either."""
    places, peers = list(largest.positions), np.searchsorted(job.ranks, peers_of(job, largest))
    of_unit_us = job.of_unit_ns(operator, dimension, steps_since(job, largest)) / 1e3
    own, usual = float(sizes[places].mean()), float(np.nanmedian(sizes[peers]))
    return {
        "larger_share": own / usual - 1,
        "per_call": own,
        "usual_per_call": usual,
        "least_per_call": float(np.nanmin(sizes[peers])),
        "most_per_call": float(np.nanmax(sizes[peers])),
        "us_per_unit": float(of_unit_us[places].mean()),
        "usual_us_per_unit": float(np.nanmedian(of_unit_us[peers])),
        "tensor": dimension.tensor,
        "axis": dimension.axis,
    }


def same_inputs(largest: Anomaly, inputs: Sequence[Input], ranks: tuple[Rank, ...]) -> tuple[Evidence, ...]:
    """What says that it is no larger batch: operators that are given as much as on peers make up most of it."""
    lost = sum(one.excess_ns for one in inputs if abs(one.larger) <= LARGER_INPUTS)
    if lost < MIN_EXPLAINED * largest.excess_ns:
        return ()
    return (Evidence("same_inputs", {"excess_us_per_step": lost / 1e3}, None, ranks),)


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
