"""Tells why a rank's device idles beside its peers': for more operators to launch, or for slower launches."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.timeline.account import APART_NS
from kair_engine.timeline.host_activity import idle_stretches
from kair_engine.timeline.self_time import host_gap_ns
from kair_engine.trace.batches import first_steps
from kair_engine.trace.large_steps import as_of_some, large_steps
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import Operations

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


def late_launches(trace: Trace, job: JobExcess, largest: Anomaly) -> LateLaunches | None:
    """What steps since the anomaly's onset show, of those that fit into a sample.

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
    own, usual = (float(np.mean([getattr(one, of) for one in looked])) for of in ("one_by_one_ns", "usual_ns"))
    return LateLaunches(tuple(more), own, usual)


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
    one_by_one_ns: float
    usual_ns: float

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
        late, usually_late = compared(_between_launches_ns(ops))
        return cls(
            {name: (own, peers, apart) for name, own, peers, apart in columns},
            float(ran - usually),
            float(late),
            float(usually_late),
        )


def _between_launches_ns(ops: Operations) -> Floats:
    """Return per rank how long its device idles between launches that follow one another, as its account has it."""
    rank, begin, end = idle_stretches(ops)
    inside = (begin > ops.begin_ns[rank]) & (end < (ops.begin_ns + ops.length_ns)[rank]) & (end - begin < APART_NS)
    return np.bincount(rank[inside], weights=(end - begin)[inside], minlength=len(ops.ranks)).astype(float)


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
