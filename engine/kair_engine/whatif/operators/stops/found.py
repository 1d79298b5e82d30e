"""Finds stops: moments at which a thread stood still, in operations that take far less at other times.

Peers show what one rank alone loses. What all lose, to a quota or to too many threads for the cores, shows against an
operation's own usual time: it takes 20 µs on all ranks and in all steps, and once 23 ms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense
from kair_engine.frozen import dataclass
from kair_engine.results.whatif import HostStops
from kair_engine.trace.operations import Operations
from kair_engine.whatif.operators.parts import NodeParts
from kair_engine.whatif.operators.stops.cores_tally import CoresTally
from kair_engine.whatif.operators.stops.ticks import Ticked

SHORTEST_NS = 1_000_000
"""Schedulers give a thread's core away for a millisecond at least; less can be anything."""
LONGER_BY, OUT_OF_NOISE = 0.5, 4.0
"""A stop is this part longer than usual, and this many times the distance of the fast ones from the usual."""
_FEWEST = 4
"""An operation must have been seen this many times."""
_USUAL, _FAST = 0.25, 0.05
"""Quantiles of its times: half of them can hold a stop."""


def stops_ns(parts: NodeParts, among: Bools | None = None) -> Floats:
    """Per part, how much longer than usual for that operation its thread took; 0 where that is no stop.

    Usual is what the operation takes at most other times on any rank, and on this one: an operator that is slow on a
    rank in most steps is a slow operator. Looked at are the program's threads, or other parts, `among` which to look.
    """
    rows = np.flatnonzero(parts.thread & (parts.kind != NONE) if among is None else among)
    result = np.zeros(len(parts.value_ns))
    # What takes less than the shortest stop holds none: of most steps that leaves few operations to look at.
    long = np.unique(parts.key[rows[parts.value_ns[rows] > SHORTEST_NS]])
    rows = rows[np.isin(parts.key[rows], long)]
    if not len(rows):
        return result
    value, anywhere = parts.value_ns[rows], _anywhere(parts, rows)
    usual = _usual(parts, rows, anywhere)
    least = np.maximum(np.maximum(SHORTEST_NS, LONGER_BY * usual), OUT_OF_NOISE * (anywhere.usual - anywhere.fast))
    beyond = value - usual
    result[rows] = np.where((beyond > least) & (anywhere.times >= _FEWEST), beyond, 0.0)
    return result


def beyond_usual_ns(parts: NodeParts, among: Bools) -> Floats:
    """Per part of `among`, how much longer it took than its operation usually does, be it by ever so little."""
    rows = np.flatnonzero(among)
    result = np.zeros(len(parts.value_ns))
    if len(rows):
        anywhere = _anywhere(parts, rows)
        beyond = parts.value_ns[rows] - _usual(parts, rows, anywhere)
        result[rows] = np.where(anywhere.times >= _FEWEST, np.maximum(beyond, 0.0), 0.0)
    return result


def _usual(parts: NodeParts, rows: Ints, anywhere: "_Quantiles") -> Floats:
    """What the operations usually take: on any rank, or on their own where that is longer."""
    here = _quantiles(dense(np.stack((parts.key[rows], parts.rank[rows]))), parts.value_ns[rows])
    return np.where(here.times >= _FEWEST, np.maximum(here.usual, anywhere.usual), anywhere.usual)


def _anywhere(parts: NodeParts, rows: Ints) -> "_Quantiles":
    return _quantiles(dense(parts.key[rows][None]), parts.value_ns[rows])


@dataclass(frozen=True)
class _Quantiles:
    """Of each value's group."""

    usual: Floats
    fast: Floats
    times: Ints


def _quantiles(group: Ints, value: Floats) -> _Quantiles:
    order = np.lexsort((value, group))
    ordered = group[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    sizes = np.diff(np.concatenate((starts, [len(order)])))
    usual, fast = (value[order[starts + ((sizes - 1) * share).astype(np.int64)]] for share in (_USUAL, _FAST))
    return _Quantiles(usual[group], fast[group], sizes[group])


@dataclass
class StopTally:
    """What the stops of several steps add up to."""

    lengths: list[Floats] = field(default_factory=list)
    by_rank: dict[int, float] = field(default_factory=dict)
    inside_by_rank: dict[int, float] = field(default_factory=dict)
    steps: int = 0
    stopped_ns: float = 0.0
    any_stopped_ns: float = 0.0
    """Time in which at least one rank of a host stood still, summed over hosts and steps."""
    expected_ns: float = 0.0
    """The same if each rank stood still at moments of its own."""
    worst_ns: float = 0.0
    """Of the rank that stood still longest in each step."""
    tick_ns: float | None = None
    ticked_ns: float = 0.0
    """What was as long as ticks where threads wait for those."""
    cores: CoresTally = field(default_factory=CoresTally)

    def add(self, parts: NodeParts, stopped: Floats, steps: Sequence[Operations], host: Mapping[int, str]) -> None:
        """Adds a batch of steps: per part how long its thread stood still."""
        rows = np.flatnonzero(stopped > 0)
        self.lengths.append(stopped[rows])
        for at, step in enumerate(steps):
            of_step, length = step.ranks, float(np.median(step.length_ns))
            mine = rows[parts.step[rows] == at]
            of_rank = np.bincount(parts.rank[mine], weights=stopped[mine], minlength=len(of_step)).astype(float)
            self.steps += 1
            self.worst_ns += float(of_rank.max(initial=0.0))
            self.stopped_ns += float(of_rank.sum())
            inside = np.bincount(
                parts.rank[mine], weights=np.where(parts.delay[mine], 0.0, stopped[mine]), minlength=len(of_step)
            )
            for rank, time, within in zip(of_step.tolist(), of_rank.tolist(), inside.tolist(), strict=True):
                self.by_rank[rank] = self.by_rank.get(rank, 0.0) + time
                self.inside_by_rank[rank] = self.inside_by_rank.get(rank, 0.0) + within
            hosts = np.array([host.get(rank, "") for rank in of_step.tolist()])
            for name in sorted(set(hosts.tolist())):
                places = np.flatnonzero(hosts == name)
                here = mine[np.isin(parts.rank[mine], places)]
                self.any_stopped_ns += _union(parts.over_ns[here] - stopped[here], parts.over_ns[here])
                share = np.minimum(of_rank[places] / max(length, 1.0), 1.0)
                self.expected_ns += float((1 - np.prod(1 - share)) * length)

    def add_ticked(self, one: Ticked | None) -> None:
        """Adds what waited for ticks in a batch."""
        if one is not None:
            self.tick_ns = one.tick_ns
            self.ticked_ns += float(one.value_ns.sum())

    def result(self, step_time_ns: float) -> HostStops | None:
        """None where no thread stood still, and nothing was measured."""
        lengths = np.concatenate(self.lengths) if self.lengths else np.zeros(0)
        cores = self.cores.result()
        if not len(lengths) and self.tick_ns is None and cores is None:
            return None
        ranks = max(len(self.by_rank), 1)
        by_rank, inside = (
            {rank: time / self.steps / 1e3 for rank, time in sorted(of.items())}
            for of in (self.by_rank, self.inside_by_rank)
        )
        return HostStops(
            per_step=len(lengths) / self.steps / ranks,
            median_us=float(np.median(lengths)) / 1e3 if len(lengths) else 0.0,
            longest_us=float(lengths.max(initial=0.0)) / 1e3,
            share_of_step=self.stopped_ns / self.steps / ranks / max(step_time_ns, 1.0),
            slowest_rank_us=self.worst_ns / self.steps / 1e3,
            together=self.expected_ns / max(self.any_stopped_ns, 1.0),
            by_rank_us=by_rank,
            inside_by_rank_us=inside,
            tick_us=None if self.tick_ns is None else self.tick_ns / 1e3,
            ticked_share=self.ticked_ns / self.steps / ranks / max(step_time_ns, 1.0),
            cores=cores,
        )


def _union(begin: Floats, end: Floats) -> float:
    """How long at least one of the intervals lasts."""
    order = np.argsort(begin)
    begin, end = begin[order], end[order]
    before = np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1])) if len(end) else end
    return float(np.maximum(end - np.maximum(begin, before), 0.0).sum())
