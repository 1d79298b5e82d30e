"""Ranks that are given more than their peers: larger inputs of operators, longer batches."""

from collections.abc import Sequence

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.input_growth import LARGER_INPUTS, Dimension
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Evidence
from kair_engine.triage.ranks.reasons.batches import LARGER_LIKE_SLOWER
from kair_engine.triage.ranks.reasons.diagnosis import MIN_EXPLAINED, Diagnosis, from_median, peers_of, steps_since


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
