"""Time per phase and per annotated scope, on one rank beside its role."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.results.rank import SubgraphTime
from kair_engine.timeline.self_time import own_ns
from kair_engine.timeline.subgraphs import longest_scopes, spans_ns, within
from kair_engine.timeline.synchronisation import Synchronisation
from kair_engine.trace.operations import PHASE_NAMES, SCOPE, Operations

_Sort = Literal["phase", "scope"]


@dataclass
class _Sum:
    """Of one sub-graph, over steps: an entry per member of the role."""

    calls: Floats
    own_ns: Floats
    span_ns: Floats


@dataclass
class SubgraphSums:
    """Adds up the sub-graphs of steps as they pass, of the ranks `members`."""

    members: Ints
    _sums: dict[tuple[_Sort, str], _Sum] = field(default_factory=dict)
    _seen: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, ops: Operations, sync: Synchronisation) -> None:
        """Takes in one step."""
        for rank in ops.ranks.tolist():
            self._seen[rank] += 1
        own = own_ns(ops, sync)
        counted = (ops.kind != SCOPE) & (ops.on_stream if ops.has_device else ~ops.on_stream)
        for code, phase in enumerate(PHASE_NAMES):
            in_phase = np.flatnonzero(counted & (ops.phase == code))
            taken = _per_rank(ops, in_phase, own)
            ran = np.bincount(ops.rank[in_phase], minlength=len(ops.ranks)) > 0
            self._count(("phase", phase), ops, ran.astype(float), taken, np.zeros(len(ops.ranks)))
        for name, scopes in longest_scopes(ops):
            inside = np.flatnonzero(counted & within(ops, scopes))
            taken = _per_rank(ops, inside, own)
            calls = np.bincount(ops.rank[scopes], minlength=len(ops.ranks)).astype(float)
            self._count(("scope", name), ops, calls, taken, spans_ns(ops, scopes).astype(float))

    def of(self, rank: int) -> tuple[SubgraphTime, ...]:
        """Of one member, per step: phases in their order, then scopes, the longest first; none that it never runs."""
        mine, peers = int(np.searchsorted(self.members, rank)), np.array([self._seen[one] > 0 for one in self.members])
        steps = np.array([max(self._seen[one], 1) for one in self.members.tolist()], dtype=float)

        def typical(values: Floats) -> float | None:
            return float(np.median((values / steps)[peers])) / 1e3 if peers.sum() > 1 else None

        found = [
            SubgraphTime(
                subgraph=name,
                sort=sort,
                calls=float(of.calls[mine] / steps[mine]),
                own_us=float(of.own_ns[mine] / steps[mine]) / 1e3,
                typical_us=typical(of.own_ns),
                span_us=float(of.span_ns[mine] / steps[mine]) / 1e3 if sort == "scope" else None,
                typical_span_us=typical(of.span_ns) if sort == "scope" else None,
            )
            for (sort, name), of in self._sums.items()
            if of.calls[mine] or np.median(of.calls[peers]) > 0
        ]
        return tuple(sorted(found, key=lambda one: (one.sort == "scope", -(one.span_us or 0.0))))

    def _count(self, key: tuple[_Sort, str], ops: Operations, calls: Floats, own: Floats, span: Floats) -> None:
        if key not in self._sums:
            self._sums[key] = _Sum(*(np.zeros(len(self.members)) for _ in range(3)))
        chosen = np.isin(ops.ranks, self.members)
        place, sums = np.searchsorted(self.members, ops.ranks[chosen]), self._sums[key]
        for total, values in ((sums.calls, calls), (sums.own_ns, own), (sums.span_ns, span)):
            total[place] += values[chosen]


def _per_rank(ops: Operations, rows: Ints, values: Ints) -> Floats:
    return np.bincount(ops.rank[rows], weights=values[rows], minlength=len(ops.ranks)).astype(float)
