"""Ranks that are given more than their peers: larger inputs of operators, longer batches."""

from collections.abc import Sequence

import numpy as np

from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import JobExcess
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Evidence
from kair_engine.triage.ranks.more_work import LARGER_INPUTS, given_more
from kair_engine.triage.ranks.reasons.batches import LARGER_LIKE_SLOWER
from kair_engine.triage.ranks.reasons.reason import MOST, Why, from_median, peers_of, steps_since


@dataclass(frozen=True)
class Input:
    """What a slow rank gives one of the operators that take it longer, beside what its peers do."""

    operator: str
    excess_ns: float
    """In the mean of the steps."""
    usual_ns: float
    """What peers take for it in a step."""
    given: float
    usual: float
    """Bytes of a call."""

    @property
    def larger(self) -> float:
        """By what share."""
        return self.given / self.usual - 1


def inputs_of(job: JobExcess, largest: Anomaly) -> list[Input]:
    """Of the operators whose inputs' shapes are recorded, on the slow ranks and on their peers."""
    if largest.kind == "intermittent":
        return []  # a median shows nothing of single steps
    places, later, away = list(largest.positions), steps_since(job, largest), from_median(job, list(largest.positions))
    peers, found = np.searchsorted(job.ranks, peers_of(job, largest)), []
    for name, fetches in job.operators.items():
        of_ranks, usually = job.input_bytes(name, later)
        told = of_ranks[places]
        usual = told - away * (told - usually[places])
        excess, typical = job.operator_ns(name)
        lost = away * float(excess[later][:, places].mean())
        takes = float(typical[places].mean()) - (away - 1) * lost / away
        is_told = min(told.min(), usual.min(), of_ranks[peers].max(initial=0)) > 0
        if not fetches and lost > 0 and takes > 0 and is_told:
            found.append(Input(name, lost, takes, float(told.mean()), float(usual.mean())))
    return found


def larger_inputs(job: JobExcess, largest: Anomaly, inputs: Sequence[Input], ranks: tuple[Rank, ...]) -> Why | None:
    """Operators that are given more than on peers, where those make up most of what the ranks lose.

    A library may choose another kernel for the same inputs: all operators together have to be given more, too.
    """
    in_all = float(np.median(given_more(job)[steps_since(job, largest)][:, list(largest.positions)]))
    larger = [one for one in inputs if one.larger > LARGER_INPUTS] if in_all > LARGER_INPUTS else []
    lost = sum(one.excess_ns for one in larger)
    if not larger or lost < MOST * largest.excess_ns:
        return None
    expected = sum(one.usual_ns * one.larger for one in larger)
    if expected < LARGER_LIKE_SLOWER * lost:
        return None
    first = max(larger, key=lambda one: one.excess_ns)
    figures = {
        "input_bytes": first.given,
        "usual_input_bytes": first.usual,
        "larger_share": expected / sum(one.usual_ns for one in larger),
        "excess_us_per_step": lost / 1e3,
    }
    evidence = Evidence("larger_inputs", figures, None, ranks, about=first.operator)
    return Why("uneven_work", largest.operator, (evidence,))


def same_inputs(largest: Anomaly, inputs: Sequence[Input], ranks: tuple[Rank, ...]) -> tuple[Evidence, ...]:
    """What says that it is no larger batch: operators that are given as much as on peers make up most of it."""
    lost = sum(one.excess_ns for one in inputs if abs(one.larger) <= LARGER_INPUTS)
    if lost < MOST * largest.excess_ns:
        return ()
    return (Evidence("same_inputs", {"excess_us_per_step": lost / 1e3}, None, ranks),)
