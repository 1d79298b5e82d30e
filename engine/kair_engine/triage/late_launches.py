"""Tells why a rank's device idles beside its peers': for more operators to launch, or for slower launches."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.results.triage import Evidence
from kair_engine.results.whatif import HostStops
from kair_engine.step_bar import StepPartsTally
from kair_engine.timeline.account import KINDS
from kair_engine.timeline.self_time import host_gap_ns
from kair_engine.trace.batches import first_steps
from kair_engine.trace.large_steps import as_of_some, large_steps
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import Operations
from kair_engine.triage.ranks.diagnosis import MIN_EXPLAINED, Compared, Diagnosis, stopped

OFTEN: Final = 1.0
"""Calls more than peers in the median step."""


@dataclass(frozen=True)
class MoreCalls:
    """An operator that the ranks launch from more often than their peers."""

    operator: str
    calls: float
    usual_calls: float
    idle_ns: float
    """How much longer a step the device idled before what it launched, than before what the peers' launched."""


@dataclass(frozen=True)
class LateLaunches:
    """Of the ranks of an anomaly, in the mean step."""

    more: tuple[MoreCalls, ...]
    """The largest first."""
    one_by_one_ns: float
    """How long the device idled between launches one after the other."""
    peers_one_by_one_ns: float


def late_launches(trace: Trace, job: JobExcess, largest: Anomaly, parts: StepPartsTally) -> LateLaunches | None:
    """What steps since the anomaly's onset show, of those that fit into a sample; `parts` are accounts of steps.

    None of other classes of time than the host's, without a device, or without peers.
    """
    if not trace.job.has_device or CLASSES[largest.class_index] != "host":
        return None
    mine = job.ranks[list(largest.positions)]
    role = job.role == job.role[largest.positions[0]]
    peers = np.setdiff1d(job.ranks[role], mine)
    if not len(peers):
        return None
    sample = trace.select(first_steps(trace, [one for one in trace.steps if one >= (largest.since or one)]))
    if large_steps(sample):
        sample = as_of_some(sample, [one for pair in _alternating(mine, peers) for one in pair])
    steps = (_Step.of(ops, mine, peers) for ops in each_step(sample))
    looked = [one for one in steps if one is not None]
    if not looked:
        return None
    names = sorted({name for one in looked for name in one.calls})
    more = sorted((one for name in names if (one := _more(name, looked)) is not None), key=lambda one: -one.idle_ns)
    idle = parts.by_step_ns(KINDS, ("launches",))
    return LateLaunches(tuple(more), *Compared(job, largest).means(idle, parts.divided))


def _alternating(mine: Ints, peers: Ints) -> Iterator[tuple[int, int]]:
    """One of the ranks and one of the peers, who are far apart."""
    spread = np.random.default_rng(0).permutation(peers)
    return zip(np.resize(mine, len(peers)).tolist(), spread.tolist(), strict=True)


@dataclass(frozen=True)
class _Step:
    calls: dict[str, tuple[float, float, float]]
    """By the operator: calls of the ranks, of their median peer, and how much longer the ranks' device idled."""
    more: float
    """How many operations more than their median peer the ranks' devices ran."""

    @classmethod
    def of(cls, ops: Operations, mine: Ints, peers: Ints) -> "_Step | None":
        own, others = (np.flatnonzero(np.isin(ops.ranks, of)) for of in (mine, peers))
        if not len(own) or not len(others):
            return None

        def compared(of: Floats) -> tuple[Floats, Floats]:
            return of[..., own].mean(axis=-1), np.median(of[..., others], axis=-1)

        kernels = np.flatnonzero(ops.on_stream & (ops.launch != NONE))
        name, call = _launched_by(ops, kernels)
        codes, name = np.unique(name, return_inverse=True)
        shape = len(codes), len(ops.ranks)
        cells = shape[0] * shape[1]
        cell = name * shape[1] + ops.rank[kernels]
        _, first = np.unique(call, return_index=True)
        calls = np.bincount(cell[first], minlength=cells).reshape(shape).astype(float)
        idle = np.bincount(cell, weights=host_gap_ns(ops)[kernels], minlength=cells).reshape(shape)
        (more, fewer), (idled, usual) = compared(calls), compared(idle.astype(float))
        texts = [ops.name_text[code] for code in codes.tolist()]
        columns = zip(texts, more.tolist(), fewer.tolist(), (idled - usual).tolist(), strict=True)
        ran, usually = compared(np.bincount(ops.rank[kernels], minlength=shape[1]).astype(float))
        return cls(
            {name: (own, peers, apart) for name, own, peers, apart in columns},
            float(ran - usually),
        )


def _launched_by(ops: Operations, kernels: Ints) -> tuple[Ints, Ints]:
    """Per kernel (the name's code, the row) of the operator that launched it: libraries choose kernels, not operators.

    Its launch where nothing around that was recorded.
    """
    launch = ops.launch[kernels]
    around = ops.nesting.parent[launch]
    row = np.where(around == NONE, launch, around)
    return ops.name[row], row


def _more(name: str, steps: list[_Step]) -> MoreCalls | None:
    """None where it is not called more often in the median step, or others are called as much less often instead."""
    known = [one.calls.get(name, (0.0, 0.0, 0.0)) for one in steps]
    own, usual = (float(np.median([of[at] for of in known])) for at in (0, 1))
    if own - usual < OFTEN or float(np.median([one.more for one in steps])) < OFTEN:
        return None
    return MoreCalls(name, own, usual, float(np.mean([of[2] for of in known])))


def idle_device(of: Compared, stops: HostStops | None, late: LateLaunches) -> Diagnosis | None:
    """Of ranks whose device idles: more to launch, a host thread that stands still, or launches that are slower."""
    more = [one for one in late.more if one.idle_ns > 0]
    if sum(one.idle_ns for one in more) >= MIN_EXPLAINED * of.largest.excess_ns:
        first = more[0]
        figures = {"calls": first.calls, "usual_calls": first.usual_calls, "excess_us_per_step": first.idle_ns / 1e3}
        return Diagnosis(
            "uneven_work", first.operator, (Evidence("launches_more", figures, None, of.ranks, first.operator),)
        )
    if found := stopped(of, stops):
        return found
    slower = late.one_by_one_ns - late.peers_one_by_one_ns
    if slower < MIN_EXPLAINED * of.largest.excess_ns:
        return None
    figures = {"idle_us_per_step": late.one_by_one_ns / 1e3, "peers_us_per_step": late.peers_one_by_one_ns / 1e3}
    return Diagnosis("launch_bound", None, (Evidence("slower_launches", figures, None, of.ranks),))
