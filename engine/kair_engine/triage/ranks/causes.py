"""Tells why ranks are slow: their own work, the operators, the processor they run on, or what they wait for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, zero_for_nan
from kair_engine.causes import CAUSES, Cause
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FEWEST_STEPS, Anomaly
from kair_engine.localize.excess import CLASSES, PASSES, JobExcess
from kair_engine.localize.large_delays import stalls
from kair_engine.localize.noise import above_peers
from kair_engine.ranks import Rank, ranks_at
from kair_engine.results.blame import BlameResult
from kair_engine.results.evidence import Evidence, ShownBy
from kair_engine.results.whatif import HostStops
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.timeline.processor_time import ProcessorTimes
from kair_engine.triage.devices.late_launches import OFTEN, LateLaunches
from kair_engine.triage.ranks.batches import LARGER_LIKE_SLOWER, Batch, batch_of
from kair_engine.triage.ranks.measured import beside_peers
from kair_engine.triage.ranks.more_work import LARGER_INPUTS, given_more, usual_passes_ns

MOST = 0.5
"""Of what a rank loses: so much of it has to be more calls, or stops, to be called that."""
ONE_OPERATOR_SHARE = 0.5
"""Of a rank's excess: an operator is named as the culprit when it alone makes up this much."""
MOST_STEPS = 0.75
"""A rank that stalls in more than this share of the steps is slow persistently."""
MOSTLY_ONE = 0.8
"""Of all that a rank loses: with more of it in one operator, between operators, or on links, it is not all over."""
LIKE_THE_REST = 0.25
"""A rank whose other operators are slower too, by more than this part of the largest one, is slow as a whole."""
LONGER_PASSES, LIKE_OPTIMIZER = 0.03, 1 / 3
"""Longer batches: passes take this share longer, the optimizer at most this part of that."""
LEAST_OPTIMIZER_NS = 10_000
"""An optimizer that takes less says nothing."""
FEWEST_PERIODIC = 3
"""Events at equal distances, that these are no chance."""
LIKE_ONE_ANOTHER = 0.2
"""A longer batch is longer in both passes, in each by at least this part of the other."""


@dataclass(frozen=True)
class Why:
    """A rank's cause, with the operator that it comes from where there is one, and what speaks for it."""

    cause: Cause
    operator: str | None = None
    evidence: tuple[Evidence, ...] = ()


def why(  # noqa: PLR0917  (each of another type)
    job: JobExcess,
    blamed: BlameResult,
    stops: HostStops | None,
    largest: Anomaly,
    late: LateLaunches | None = None,
    processor: ProcessorTimes | None = None,
    *,
    is_stopped: bool = False,
    longer: bool = False,
    given: Floats | None = None,
) -> Why:
    """Why the ranks of an anomaly are slow, and whether its delays come periodically.

    Of the host those are a cause of their own: something is meant to be done every few steps. `late` tells of ranks
    whose device idles what it waits for. What the kernel measured of their threads, `processor`, goes before
    all else; so does that something stopped their processes, `is_stopped`, if they stand still for most of their loss.
    `longer`: whether a test says that they compute for longer than their peers. What they gave their models in a step,
    `given` (steps × ranks), tells larger batches.
    """
    if is_stopped and stops is not None:
        ranks = ranks_at(job.ranks, largest.positions)
        if still := _more_stops(job, stops.by_rank_us, largest, ranks, largest.excess_ns):
            return Why("contention", None, (still,) if largest.stood_still is None else ())
    batch = _batch(job, given, largest)
    computing = CLASSES[largest.class_index] == "compute" and largest.kind != "intermittent"
    if batch is not None and computing and batch.explains(largest.excess_ns):
        return Why("uneven_work", largest.operator, (batch.evidence(ranks_at(job.ranks, largest.positions)),))
    measured = None if processor is None else beside_peers(processor, _peers(job, largest), largest, job, longer=longer)
    if measured is not None and measured.lacks_cores:
        return Why("contention", None, (measured.evidence(),))
    computes = measured is not None and measured.computes_more
    reason = _why(job, blamed, None if computes else stops, largest, late, batch)
    periodic = _periodic(job, largest)
    if measured is not None and computes:
        reason = replace(reason, evidence=(*reason.evidence, measured.evidence()))
    if periodic is None:
        return reason
    cause = "periodic_pause" if reason.cause == "host" else reason.cause
    return replace(reason, cause=cause, evidence=(*reason.evidence, periodic))


def _why(  # noqa: PLR0917  (each of another type)
    job: JobExcess,
    blamed: BlameResult,
    stops: HostStops | None,
    largest: Anomaly,
    late: LateLaunches | None,
    batch: Batch | None,
) -> Why:
    """By the class of their largest excess; where delays are all over it is the processor that they run on.

    What more calls or larger inputs explain is uneven work; what stops in the middle of operators do is the
    processor's; a slow forward and backward pass beside a usual optimizer is a longer batch, unless the inputs show
    that it is none.
    """
    name, ranks = CLASSES[largest.class_index], ranks_at(job.ranks, largest.positions)
    if name == "host":
        if late is not None:
            found = _of_device(job, stops, largest, ranks, late)
        else:
            found = _all_over(job, stops, largest, ranks) or _between_more_calls(job, largest, ranks)
        return found or _of_host(job, blamed, largest, ranks)
    if name != "compute":
        return _all_over(job, stops, largest, ranks) or Why(name)
    return _of_compute(job, stops, largest, ranks, batch)


def _of_compute(
    job: JobExcess, stops: HostStops | None, largest: Anomaly, ranks: tuple[Rank, ...], batch: Batch | None
) -> Why:
    inputs = _inputs(job, largest)
    of_operator = largest.operator is not None and not _calls_more(job, largest)
    more = None if of_operator else _more_calls(job, largest)
    if found := more or _larger(job, largest, inputs, ranks) or _all_over(job, stops, largest, ranks):
        return found
    if of_operator:
        return Why("compute")
    same = _same_inputs(largest, inputs, ranks) if batch is None else batch.same(largest.excess_ns, ranks)
    # A stall of the whole process lands in whatever operator it hits.
    stalled = largest.kind == "intermittent" or largest.stood_still is not None
    if not stalled and one_operator(job, largest.positions[0], "compute") is not None:
        return Why("compute", None, same)
    is_told = batch is not None or sum(one.excess_ns for one in inputs) >= MOST * largest.excess_ns
    longer = None if is_told else _longer(job, largest)
    return _stopped(job, stops, largest, ranks) or longer or Why("compute", None, same)


def _periodic(job: JobExcess, largest: Anomaly) -> Evidence | None:
    """Large delays at equal distances, from the recording's begin to its end: those counted, or those beyond noise."""
    if largest.kind != "intermittent" or len(job.steps) < FEWEST_STEPS:
        return None
    numbers = np.array([step.step for step in job.steps])
    for at in (list(largest.hit), np.flatnonzero(stalls(job)[:, largest.positions[0]]).tolist()):
        hit = numbers[at]
        if (every := _at_equal_distances(hit, numbers)) is not None:
            ranks = ranks_at(job.ranks, largest.positions)
            return Evidence("periodic", {"every": every, "events": len(hit)}, None, ranks)
    return None


def _at_equal_distances(hit: Ints, numbers: Ints) -> int | None:
    """How far apart some of the steps are, if all are; None else."""
    if len(hit) < FEWEST_PERIODIC:
        return None
    every = int(hit[1] - hit[0])
    # By chance events can be equally far apart, but then they mostly leave out the begin or the end.
    throughout = hit[0] - every < numbers[0] and hit[-1] + every > numbers[-1]
    return every if every >= 2 and throughout and (np.diff(hit) == every).all() else None


def _of_device(
    job: JobExcess, stops: HostStops | None, largest: Anomaly, ranks: tuple[Rank, ...], late: LateLaunches
) -> Why | None:
    """Of ranks whose device idles: more to launch, a host thread that stands still, or launches that are slower."""
    more = [one for one in late.more if one.idle_ns > 0]
    if sum(one.idle_ns for one in more) >= MOST * largest.excess_ns:
        first = more[0]
        figures = {"calls": first.calls, "usual_calls": first.usual_calls, "excess_us_per_step": first.idle_ns / 1e3}
        return Why("uneven_work", first.operator, (Evidence("launches_more", figures, None, ranks, first.operator),))
    if found := _stopped(job, stops, largest, ranks):
        return found
    slower = late.one_by_one_ns - late.peers_one_by_one_ns
    if slower < MOST * largest.excess_ns:
        return None
    figures = {"idle_us_per_step": late.one_by_one_ns / 1e3, "peers_us_per_step": late.peers_one_by_one_ns / 1e3}
    return Why("launch_bound", None, (Evidence("slower_launches", figures, None, ranks),))


def _of_host(job: JobExcess, blamed: BlameResult, largest: Anomaly, ranks: tuple[Rank, ...]) -> Why:
    """Garbage collection where blame saw that behind the host's gaps, the input where batches are fetched in them."""
    host = [c for c in blamed.root_causes if c.rank in ranks and c.cause in {"host", "garbage_collection"}]
    collected = sum(c.blamed_us for c in host if c.cause == "garbage_collection")
    if host and collected * 2 > sum(c.blamed_us for c in host):
        return Why("garbage_collection")
    return _of_unmarked_input(job, largest, ranks) or Why("host")


def _of_unmarked_input(job: JobExcess, largest: Anomaly, ranks: tuple[Rank, ...]) -> Why | None:
    """Ranks that are idle in every step where a batch is fetched, by most of what they lose."""
    peers = np.searchsorted(job.ranks, _peers(job, largest))
    if largest.idle_alone is not None:
        peers = np.delete(np.arange(len(job.ranks)), largest.positions)
    if largest.kind == "intermittent" or not len(peers):
        return None  # what comes now and then may be what is meant to, as checkpoints are
    idle_ns = job.fetching_ns[_later(job, largest)]
    mine = float(np.median(idle_ns[:, list(largest.positions)].mean(axis=1)))
    usual = float(np.median(idle_ns[:, peers]))
    if mine - usual < MOST * largest.excess_ns:
        return None
    figures = {"idle_us_per_step": mine / 1e3, "peers_us_per_step": usual / 1e3}
    return Why("unmarked_input", None, (Evidence("unmarked_input", figures, None, ranks),))


def _calls_more(job: JobExcess, largest: Anomaly) -> bool:
    assert largest.operator is not None
    return _further_calls(job, largest.operator, largest)[1] >= OFTEN


def _further_calls(job: JobExcess, name: str, largest: Anomaly) -> tuple[float, float]:
    """How often the ranks call an operator in the median step, and how much more often than usual, the fewest."""
    calls, usual = job.calls(name, _later(job, largest))
    chosen = list(largest.positions)
    return float(calls[chosen].min()), _of_median(job, chosen) * float((calls - usual)[chosen].min())


def _of_median(job: JobExcess, places: Sequence[int]) -> int:
    """How far a rank lies from its peers, in distances from its role's median: of two that is halfway."""
    return 2 if np.count_nonzero(job.role == job.role[places[0]]) == 2 else 1


@dataclass(frozen=True)
class _Further:
    """An operator that ranks call more often than their peers; calls of the median step."""

    operator: str
    excess_ns: float
    """In the mean of the steps."""
    calls: float
    usual: float

    def why(self, ranks: tuple[Rank, ...]) -> Why:
        """That they have more to do."""
        figures = {"calls": self.calls, "usual_calls": self.usual, "excess_us_per_step": self.excess_ns / 1e3}
        return Why("uneven_work", self.operator, (Evidence("more_calls", figures, None, ranks, about=self.operator),))


def _further(job: JobExcess, largest: Anomaly) -> list[_Further]:
    """Those operators, that which takes longest first."""
    places, later, found = list(largest.positions), _later(job, largest), []
    for name, fetches in job.operators.items():
        calls, more = _further_calls(job, name, largest)
        if not fetches and more >= OFTEN:
            excess = _of_median(job, places) * float(job.operator_ns(name)[0][later][:, places].mean())
            found.append(_Further(name, excess, calls, calls - more))
    return sorted(found, key=lambda one: -one.excess_ns)


def _more_calls(job: JobExcess, largest: Anomaly) -> Why | None:
    """Operators that the ranks call more often than their peers, where those make up most of what they lose.

    That is either of their compute, or of it together with what idle time goes by between calls.
    """
    further = _further(job, largest)
    spent, lost = sum(one.excess_ns for one in further), largest.excess_ns
    if not further:
        return None
    if spent < MOST * lost:
        idle_ns = _later_than_usual_ns(job, largest, "host")
        between = min(_idle_between_ns(job, largest, further), idle_ns)
        if spent + between < MOST * (lost + idle_ns):
            return None
    return further[0].why(ranks_at(job.ranks, largest.positions))


def _between_more_calls(job: JobExcess, largest: Anomaly, ranks: tuple[Rank, ...]) -> Why | None:
    """Idle time of a thread that goes by between the calls that it makes more often than its peers."""
    if largest.kind == "intermittent":
        return None
    further = _further(job, largest)
    if not further or _idle_between_ns(job, largest, further) < LARGER_LIKE_SLOWER * largest.excess_ns:
        return None
    return further[0].why(ranks)


def _idle_between_ns(job: JobExcess, largest: Anomaly, further: Sequence[_Further]) -> float:
    """What further calls should leave the ranks' threads idle: each for as long as a peer's call does."""
    if job.on_device or not (peers := _peers(job, largest)):
        return 0.0
    places, later = np.searchsorted(job.ranks, peers), _later(job, largest)
    called = sum(float(np.median(job.calls(name, later)[0][places])) for name in job.operators)
    idle_ns = float(np.median(job.work_ns[CLASSES.index("host"), places])) / max(called, 1.0)
    return sum(one.calls - one.usual for one in further) * idle_ns


def _later_than_usual_ns(job: JobExcess, largest: Anomaly, time_class: str) -> float:
    """What the ranks lose a step in a class of their time, the mean over steps; 0 where that is nothing."""
    places = list(largest.positions)
    excess = zero_for_nan(job.by_step_ns[_later(job, largest), CLASSES.index(time_class)][:, places])
    return _of_median(job, places) * max(float(excess.mean()), 0.0)


@dataclass(frozen=True)
class _Input:
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


def _inputs(job: JobExcess, largest: Anomaly) -> list[_Input]:
    """Of the operators whose inputs' shapes are recorded, on the slow ranks and on their peers."""
    if largest.kind == "intermittent":
        return []  # a median shows nothing of single steps
    places, later, away = list(largest.positions), _later(job, largest), _of_median(job, list(largest.positions))
    peers, found = np.searchsorted(job.ranks, _peers(job, largest)), []
    for name, fetches in job.operators.items():
        of_ranks, usually = job.input_bytes(name, later)
        told = of_ranks[places]
        usual = told - away * (told - usually[places])
        excess, typical = job.operator_ns(name)
        lost = away * float(excess[later][:, places].mean())
        takes = float(typical[places].mean()) - (away - 1) * lost / away
        is_told = min(told.min(), usual.min(), of_ranks[peers].max(initial=0)) > 0
        if not fetches and lost > 0 and takes > 0 and is_told:
            found.append(_Input(name, lost, takes, float(told.mean()), float(usual.mean())))
    return found


def _batch(job: JobExcess, given: Floats | None, largest: Anomaly) -> Batch | None:
    """What the ranks give their models; None where that, or what their peers give, is not known."""
    if given is None:
        return None
    places, later = list(largest.positions), given[_later(job, largest)]
    peers = np.searchsorted(job.ranks, _peers(job, largest))
    return batch_of(later[:, places], later[:, peers], float(usual_passes_ns(job)[places].mean()))


def _larger(job: JobExcess, largest: Anomaly, inputs: Sequence[_Input], ranks: tuple[Rank, ...]) -> Why | None:
    """Operators that are given more than on peers, where those make up most of what the ranks lose.

    A library may choose another kernel for the same inputs: all operators together have to be given more, too.
    """
    in_all = float(np.median(given_more(job)[_later(job, largest)][:, list(largest.positions)]))
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


def _same_inputs(largest: Anomaly, inputs: Sequence[_Input], ranks: tuple[Rank, ...]) -> tuple[Evidence, ...]:
    """What says that it is no larger batch: operators that are given as much as on peers make up most of it."""
    lost = sum(one.excess_ns for one in inputs if abs(one.larger) <= LARGER_INPUTS)
    if lost < MOST * largest.excess_ns:
        return ()
    return (Evidence("same_inputs", {"excess_us_per_step": lost / 1e3}, None, ranks),)


def _later(job: JobExcess, largest: Anomaly) -> Bools:
    """The steps from the one in which the ranks began to be slow."""
    return np.array([largest.since is None or step.step >= largest.since for step in job.steps])


def _all_over(job: JobExcess, stops: HostStops | None, largest: Anomaly, ranks: tuple[Rank, ...]) -> Why | None:
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
    found = None if stops is None else _more_stops(job, stops.by_rank_us, largest, ranks, everything)
    if found is None:
        return None
    figures = {**found.figures, "between": 1}
    return Why("contention", None, (replace(found, figures=figures),))


def _stopped(job: JobExcess, stops: HostStops | None, largest: Anomaly, ranks: tuple[Rank, ...]) -> Why | None:
    """Stops in the middle of operators, where the ranks have so many more than their peers."""
    found = None if stops is None else _more_stops(job, stops.inside_by_rank_us, largest, ranks, largest.excess_ns)
    if found is None:
        return None
    return Why("contention", None, (found,) if largest.stood_still is None else ())


def _more_stops(
    job: JobExcess, of_rank_us: Mapping[int, float], largest: Anomaly, ranks: tuple[Rank, ...], lost_ns: float
) -> Evidence | None:
    """What the ranks stand still for a step, where that is longer than their peers by most of what they lose."""
    peers = [of_rank_us.get(rank, 0.0) for rank in _peers(job, largest)]
    mine = float(np.mean([of_rank_us.get(rank, 0.0) for rank in ranks]))
    usual = float(np.median(peers)) if peers else 0.0
    if (mine - usual) * 1e3 < MOST * lost_ns:
        return None
    return Evidence("stopped", {"stopped_us_per_step": mine, "peers_us_per_step": usual}, ShownBy("whatif"), ranks)


def _longer(job: JobExcess, largest: Anomaly) -> Why | None:
    """A longer batch: both passes take longer and the optimizer, which works on the parameters, does not.

    Ranks that are slow together share a host and no batch.
    """
    if largest.kind == "group" or not _peers(job, largest):
        return None
    later = _later(job, largest)
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
    return Why(
        "uneven_work", None, (Evidence("longer_batches", figures, None, ranks_at(job.ranks, largest.positions)),)
    )


def _slower(job: JobExcess, values: Floats, largest: Anomaly) -> float:
    """By what share the ranks' values (steps × ranks) exceed their peers', the median over steps."""
    others = np.searchsorted(job.ranks, _peers(job, largest))
    typical = np.median(values[:, others], axis=1)
    return float(np.median(values[:, list(largest.positions)].mean(axis=1) / np.maximum(typical, 1.0)) - 1)


def _peers(job: JobExcess, largest: Anomaly) -> list[int]:
    """The other ranks of their role."""
    role = job.role[largest.positions[0]]
    others: Ints = np.setdiff1d(np.flatnonzero(job.role == role), np.array(largest.positions))
    return [int(rank) for rank in job.ranks[others]]


def one_operator(job: JobExcess, place: int, cause: Cause) -> str | None:
    """The operator that makes up most of a rank's excess, and is slower than the rest of what it runs; else None."""
    time_class = CAUSES[cause].time_class
    if time_class is None:
        return None
    excess: dict[str, float] = {}
    typical: dict[str, float] = {}
    for name, fetches in job.operators.items():
        if fetches == (time_class == "input"):
            per_step, of_rank = job.operator_ns(name)
            excess[name], typical[name] = float(per_step[:, place].mean()), float(of_rank[place])
    if not excess:
        return None
    row = CLASSES.index(time_class)
    largest = max(excess, key=lambda name: excess[name])
    total = float(np.nan_to_num(job.by_step_ns[:, row, place], nan=0.0).mean())
    rest, others = total - excess[largest], float(job.work_ns[row, place]) - typical[largest] - total
    slower = excess[largest] / max(typical[largest], 1.0)
    if excess[largest] <= ONE_OPERATOR_SHARE * total or rest / max(others, 1.0) > LIKE_THE_REST * slower:
        return None
    return largest
