"""Finds ranks that have more work than their peers.

They call operators more often, and time goes by between those calls; or they are given more, in larger inputs of
operators or longer batches; or they give their models more: a larger batch is no slower device.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.compared import Compared
from kair_engine.localize.excess import CLASSES, PASSES
from kair_engine.localize.input_growth import LARGER_INPUTS, Dimension
from kair_engine.ranks import Rank
from kair_engine.results import evidence_kinds as kinds
from kair_engine.results.evidence_kinds import Evidence
from kair_engine.step_bar import StepPartsTally
from kair_engine.timeline.account import KINDS
from kair_engine.timeline.coverage import COUNTED
from kair_engine.triage.ranks.diagnosis import MIN_EXPLAINED, Diagnosis
from kair_engine.triage.ranks.more_work import usual_passes_ns

OFTEN: Final = 1.0
"""Calls more than peers in the median step."""
OF_LARGER_BATCHES: Final = frozenset({"larger_inputs", "larger_batch", "longer_batches"})
"""The kinds of evidence that ranks are given more samples, or longer ones."""


def calls_more(of: Compared) -> bool:
    """Whether its ranks call the operator of an anomaly oftener than usual."""
    assert of.largest.operator is not None
    return _further_calls(of, of.largest.operator)[1] >= OFTEN


def more_calls(of: Compared) -> Diagnosis | None:
    """Operators that the ranks call more often than their peers, where those make up most of what they lose.

    That is either of their compute, or of it together with what idle time goes by between calls.
    """
    further = _further(of)
    spent, lost = sum(one.excess_ns for one in further), of.largest.excess_ns
    if not further:
        return None
    if spent < MIN_EXPLAINED * lost:
        idle_ns = _later_than_usual_ns(of, "host")
        between = min(_idle_between_ns(of, further), idle_ns)
        if spent + between < MIN_EXPLAINED * (lost + idle_ns):
            return None
    return further[0].diagnosis(of.ranks)


def between_more_calls(of: Compared) -> Diagnosis | None:
    """Idle time of a thread that goes by between the calls that it makes more often than its peers."""
    if of.largest.kind == "intermittent":
        return None
    further = _further(of)
    if not further or _idle_between_ns(of, further) < LARGER_LIKE_SLOWER * of.largest.excess_ns:
        return None
    return further[0].diagnosis(of.ranks)


def more_launches(of: Compared, parts: StepPartsTally) -> Diagnosis | None:
    """Return what a device runs more often than its peers', where it idles for those launches most of what it loses.

    Each further launch should keep it idle for as long as one of a peer's does, by the accounts of steps, `parts`.
    """
    if of.job.recorded is None or not (further := _further(of)):
        return None
    ran = np.median(of.job.recorded[COUNTED.index("operations"), of.later][:, of.peers])
    idle_ns = of.means(parts.by_step_ns(KINDS, ("launches",)), parts.divided)[1] / max(float(ran), 1.0)
    idle_ns *= sum(one.calls - one.usual for one in further)
    if idle_ns < MIN_EXPLAINED * of.largest.excess_ns:
        return None
    first = further[0]
    shown = kinds.LaunchesMore(first.calls, first.usual, idle_ns / 1e3, ranks=of.ranks, about=first.operator)
    return Diagnosis("uneven_work", first.operator, (shown,))


@dataclass(frozen=True)
class _Further:
    """An operator that ranks call more often than their peers; calls of the median step."""

    operator: str
    excess_ns: float
    """The mean of the steps."""
    calls: float
    usual: float

    def diagnosis(self, ranks: tuple[Rank, ...]) -> Diagnosis:
        """Return that they have more to do."""
        shown = kinds.MoreCalls(self.calls, self.usual, self.excess_ns / 1e3, ranks=ranks, about=self.operator)
        return Diagnosis("uneven_work", self.operator, (shown,))


def _further(of: Compared) -> list[_Further]:
    """Those operators, that which takes longest first."""
    found = []
    for name, fetches in of.job.operators.items():
        calls, more = _further_calls(of, name)
        if not fetches and more >= OFTEN:
            excess = of.away * float(of.job.operator_ns(name)[0][of.later][:, of.mine].mean())
            found.append(_Further(name, excess, calls, calls - more))
    return sorted(found, key=lambda one: -one.excess_ns)


def _further_calls(of: Compared, name: str) -> tuple[float, float]:
    """How often the ranks call an operator in the median step, and how much more often than usual, the fewest."""
    calls, usual = of.job.calls(name, of.later)
    return float(calls[of.mine].min()), of.away * float((calls - usual)[of.mine].min())


def _idle_between_ns(of: Compared, further: Sequence[_Further]) -> float:
    """Return what further calls should leave the ranks' threads idle: each for as long as a peer's call does."""
    if of.job.on_device or not of.peers:
        return 0.0
    called = sum(float(np.median(of.job.calls(name, of.later)[0][of.peers])) for name in of.job.operators)
    idle_ns = float(np.median(of.job.work_ns[CLASSES.index("host"), of.peers])) / max(called, 1.0)
    return sum(one.calls - one.usual for one in further) * idle_ns


def _later_than_usual_ns(of: Compared, time_class: str) -> float:
    """Return what the ranks lose a step in a class of their time, the mean over steps; 0 where that is nothing."""
    excess = zero_for_nan(of.job.by_step_ns[of.later, CLASSES.index(time_class)][:, of.mine])
    return of.away * max(float(excess.mean()), 0.0)


@dataclass(frozen=True)
class Input:
    """What a slow rank gives one of the operators that take it longer, compared with what its peers give."""

    operator: str
    excess_ns: float
    """The mean of the steps."""
    usual_ns: float
    """What peers take for it in a step."""
    larger: float
    """By what share a call's inputs are larger, in the dimensions that differ."""
    in_all: float
    """The same for everything that the operators with recorded inputs are given, in whatever kernels."""


def inputs_of(of: Compared) -> list[Input]:
    """Of the operators whose inputs' shapes are recorded, on the slow ranks and on their peers."""
    if of.largest.kind == "intermittent":
        return []  # a median shows nothing of single steps
    job, places, peers, later, away = of.job, of.mine, of.peers, of.later, of.away
    found = []
    for name, fetches in job.operators.items():
        larger, in_all = job.larger_inputs(name, later)
        excess, typical = job.operator_ns(name)
        lost = away * float(excess[later][:, places].mean())
        takes = float(typical[places].mean()) - (away - 1) * lost / away
        is_told = not np.isnan(larger[places]).any() and not np.isnan(larger[peers]).all()
        if not fetches and lost > 0 and takes > 0 and is_told:
            shares = (_beside_peers(float(share[places].mean()), away) for share in (larger, in_all))
            found.append(Input(name, lost, takes, *shares))
    return found


def _beside_peers(beyond_median: float, away: int) -> float:
    """By what share of its peers' something is more that is more than its role's median by a share of that."""
    return (1 + beyond_median) / max(1 + beyond_median * (1 - away), 1e-9) - 1


def larger_inputs(of: Compared, inputs: Sequence[Input]) -> Diagnosis | None:
    """Operators that are given more than on peers, where those make up most of what the ranks lose.

    A library may choose another kernel for the same inputs: the operators that launch it have to be given more, too.
    """
    larger = [one for one in inputs if min(one.larger, one.in_all) > LARGER_INPUTS]
    lost = sum(one.excess_ns for one in larger)
    if not larger or lost < MIN_EXPLAINED * of.largest.excess_ns:
        return None
    expected = sum(one.usual_ns * one.larger for one in larger)
    if expected < LARGER_LIKE_SLOWER * lost:
        return None
    first = max(larger, key=lambda one: one.excess_ns)
    differing = _most_differing(of, first.operator)
    if differing is None:
        share = expected / sum(one.usual_ns for one in larger)
        shown: Evidence = kinds.LargerInputs(share, lost / 1e3, ranks=of.ranks, about=first.operator)
    else:
        shown = _in_dimension(of, first.operator, *differing, lost)
    return Diagnosis("uneven_work", of.largest.operator, (shown,))


def _most_differing(of: Compared, operator: str) -> tuple[Dimension, Floats] | None:
    """Return the dimension in which the ranks give most more than their peers, and what it is on each rank; None
    without.
    """

    def larger(sizes: Floats) -> float:
        peers = sizes[of.peers]
        share = sizes[of.mine].mean() / max(float(np.nanmedian(peers)), 1e-9) if not np.isnan(peers).all() else 0.0
        return 0.0 if np.isnan(share) else float(share)

    known = list(of.job.dimensions(operator, of.later).items())
    found = max(known, key=lambda one: larger(one[1]), default=None)
    return found if found is not None and larger(found[1]) > 1 + LARGER_INPUTS else None


def _in_dimension(
    of: Compared, operator: str, dimension: Dimension, sizes: Floats, lost_ns: float
) -> kinds.LargerInputs:
    """How large it is compared with the peers', and what a unit of it takes on either."""
    places, peers = of.mine, of.peers
    of_unit_us = of.job.of_unit_ns(operator, dimension, of.later) / 1e3
    own, usual = float(sizes[places].mean()), float(np.nanmedian(sizes[peers]))
    return kinds.LargerInputs(
        larger_share=own / usual - 1,
        excess_us_per_step=lost_ns / 1e3,
        per_call=own,
        usual_per_call=usual,
        least_per_call=float(np.nanmin(sizes[peers])),
        most_per_call=float(np.nanmax(sizes[peers])),
        us_per_unit=float(of_unit_us[places].mean()),
        usual_us_per_unit=float(np.nanmedian(of_unit_us[peers])),
        tensor=dimension.tensor,
        axis=dimension.axis,
        ranks=of.ranks,
        about=dimension.given_by,
    )


def same_inputs(of: Compared, inputs: Sequence[Input]) -> tuple[Evidence, ...]:
    """Return what says that it is no larger batch: operators that are given as much as on peers make up most of it."""
    lost = sum(one.excess_ns for one in inputs if abs(one.larger) <= LARGER_INPUTS)
    if lost < MIN_EXPLAINED * of.largest.excess_ns:
        return ()
    return (kinds.SameInputs(lost / 1e3, ranks=of.ranks),)


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
        """Return that it is larger."""
        return kinds.LargerBatch(self.given, self.usual, self.larger, ranks=ranks)

    def same(self, lost_ns: float, ranks: tuple[Rank, ...]) -> tuple[Evidence, ...]:
        """Return that it is not, if so."""
        if abs(self.larger) > LARGER_INPUTS:
            return ()
        return (kinds.SameInputs(lost_ns / 1e3, ranks=ranks),)


def batch_beside_peers(of: Compared, given: Floats | None) -> Batch | None:
    """Return what the ranks give their models; None where that, or what their peers give, is not known."""
    if given is None:
        return None
    mine, peers = (given[of.later][:, places] for places in (of.mine, of.peers))
    mine, peers = mine[mine > 0], peers[peers > 0]  # NaN is neither
    if not len(mine) or not len(peers):
        return None
    return Batch(float(np.median(mine)), float(np.median(peers)), float(usual_passes_ns(of.job)[of.mine].mean()))


def larger_on_host(of: Compared, batch: Batch | None) -> tuple[Evidence, ...]:
    """Return that the batch is larger where the host's passes are longer for it, as where it sleeps for each sample.

    What they take longer is most of what the ranks lose, and passes usually take as much for such a batch.
    """
    if batch is None or not of.peers or of.largest.kind == "intermittent":
        return ()
    idle = zero_for_nan(np.stack([step.idle_ns.sum(axis=0) for step in of.job.steps]))[of.later]
    mine, usual = float(np.median(idle[:, of.mine].mean(axis=1))), float(np.median(idle[:, of.peers]))
    passes = replace(batch, passes_ns=batch.passes_ns + usual)
    is_most = mine - usual >= MIN_EXPLAINED * of.largest.excess_ns
    return (batch.evidence(of.ranks),) if is_most and passes.explains(of.largest.excess_ns) else ()


def longer_batch(of: Compared) -> Diagnosis | None:
    """Return a longer batch: both passes take longer and the optimizer, which works on the parameters, does not.

    Ranks that are slow together share a host and no batch.
    """
    if of.largest.kind == "group" or not of.peers:
        return None
    passes, optimizer = of.job.passes_ns[of.later], of.job.optimizer_ns[of.later]
    if np.median(optimizer) < LEAST_OPTIMIZER_NS:
        return None
    slower, same = _slower(of, passes.sum(axis=1)), _slower(of, optimizer)
    forward, backward = (_slower(of, passes[:, at]) for at in range(len(PASSES)))
    if slower < LONGER_PASSES or same > LIKE_OPTIMIZER * slower:
        return None
    if min(forward, backward) < LIKE_ONE_ANOTHER * max(forward, backward):
        return None  # a kernel of one pass is slow
    return Diagnosis("uneven_work", None, (kinds.LongerBatches(slower, same, ranks=of.ranks),))


def _slower(of: Compared, values: Floats) -> float:
    """By what share the ranks' values (steps × ranks) exceed their peers', the median over steps."""
    typical = np.median(values[:, of.peers], axis=1)
    return float(np.median(values[:, of.mine].mean(axis=1) / np.maximum(typical, 1.0)) - 1)
