"""One rank compared with its peers: where its step time goes, and how its operations complete.

Time per phase and per annotated scope, on one rank compared with its role.

Completion curves of a step's operations: their distance is the paper's stage 1.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.errors import UsageError
from kair_engine.localize.large_step_detail import with_some_peers
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings, with_collectives_marked
from kair_engine.ranks import Rank
from kair_engine.results.rank import CurveDistance, CurvePoint, PartOfStep, RankProfileResult, SubgraphTime
from kair_engine.results.warning_kinds import UnknownMembers
from kair_engine.step_bar import bar_of_rank, bubble_by_roles
from kair_engine.timeline.account import AccountOfSteps
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.graph import longest_scopes, spans_ns, within
from kair_engine.timeline.host_time import Lead, Leads, lead
from kair_engine.timeline.roles import roles
from kair_engine.timeline.self_time import unshared_ns
from kair_engine.timeline.some_ranks import SomeRanks, some_ranks_each
from kair_engine.timeline.step_parts import PARTS, UNKNOWN, timed_on, with_steps_before
from kair_engine.trace.batches import derived_once
from kair_engine.trace.model import KairWarning, Trace, host_of, require_rank, require_steps
from kair_engine.trace.operations import PHASE_NAMES, SCOPE, Operations

_TRANSFER, _REST = PARTS.index("communication"), PARTS.index("rest")
_MENTIONED_SHARE = 0.01
"""A warning is given if communication with unknown members takes this share of the step."""


def rank_profile(trace: Trace, *, rank: int) -> RankProfileResult:
    """Where the rank's step time goes, and its completion curve: means over the chosen steps that it recorded.

    Parts as step_parts.py divides a step, which takes as long as `kair steps` says. The curve is [K] stage 1's F as a
    share of the rank's operations, at POINTS times from the rank's own begin of the step up to the longest step;
    distances are those of the mean curves.
    Raises UsageError for a rank that left no trace in the chosen steps.
    """
    require_steps(trace)
    require_rank(trace, rank)
    trace = with_collectives_marked(trace)
    trace = _recorded_by(trace, rank)
    role_of = roles(trace)
    read = with_steps_before(trace)
    seen, of_some = with_some_peers(read, rank, role_of)
    members = np.array([one for one in seen.job.ranks if role_of[one] == role_of[rank]], dtype=np.int64)
    width_ns = max(_longest_ns(trace, members) / POINTS, 1.0)
    alone = len(trace.job.ranks) == 1

    def passed() -> _Sums:
        sums = _Sums(trace.steps, members, width_ns, alone=alone)
        deque(map(sums.add, some_ranks_each(read, sums.meet, members.tolist())), maxlen=0)
        return sums

    # The next rank is mostly one of the same role.
    sums = derived_once(trace, f"profiles of {members.tobytes().hex()}", passed)
    of_role = sums.means(rank)
    time_us = float(of_role.parts_us[:, 0].sum())
    return RankProfileResult(
        rank=Rank(rank),
        host=host_of(trace.job, rank),
        role=role_of[rank].name,
        peers=len(of_role.peers),
        step_time_us=time_us,
        typical_step_time_us=_typical(of_role.parts_us.sum(axis=0)),
        parts=tuple(_parts(of_role)),
        subgraphs=sums.subgraphs.of(rank),
        curve=tuple(_curve(of_role, width_ns / 1e3)),
        farthest=_farthest(of_role, width_ns / 1e3),
        mean_distance=float(of_role.distance.mean()) if len(of_role.peers) else None,
        steps=trace.steps,
        warnings=(
            *_warnings(rank, of_role, time_us, alone=alone),
            *unnamed_collective_warnings(trace),
            *of_some,
        ),
        timed_on=timed_on(trace.job),
        ahead_us=None if sums.leads is None else sums.leads.ahead_us([rank]),
        slack_us_per_step=None if sums.leads is None else sums.leads.slack_us([rank]),
        bar=bar_of_rank(sums.parts_ns(rank), rank, bubble_by_roles(trace, (rank,))[1], len(trace.steps), alone=alone),
    )


@dataclass(frozen=True)
class _Role:
    """Means over the steps: of the rank in the first column (row) of each array, then of its peers."""

    peers: Ints
    parts_us: Floats
    """(PARTS × ranks)."""
    unknown_us: float
    """Of the rank's rest, communication of which the other members are not recorded."""
    curves: Floats
    """(ranks × POINTS)."""
    distance: Floats
    """Per peer, from the rank's curve."""
    at: Ints
    """Per peer, the point where that lies."""


class _Sums:
    """Adds up steps as they pass."""

    def __init__(self, steps: tuple[int, ...], members: Ints, width_ns: float, *, alone: bool) -> None:
        """`alone`: no other rank is recorded, so that all communication is with unknown members."""
        self._unknown_to = _TRANSFER if alone else _REST
        self._steps = frozenset(steps)
        self._members = members
        self._width_ns = width_ns
        self._parts_ns = np.zeros((UNKNOWN + 1, len(members)))
        self._completed = np.zeros((len(members), POINTS))
        self._seen = np.zeros(len(members))
        self._leads: list[tuple[Ints, Lead]] = []
        self.subgraphs = SubgraphSums(members)
        self._accounts = AccountOfSteps()

    def meet(self, sync: Synchronisation) -> None:
        """Take in a step's scopes; one that was not chosen only shows what its devices still do in the next."""
        if sync.collectives.ops.step in self._steps:
            self.subgraphs.meet(sync.collectives.ops)

    def add(self, seen: SomeRanks) -> None:
        """Take in what some ranks did."""
        parts = self._accounts.parts_of(seen)
        chosen = np.isin(seen.rank, self._members) & np.isin(seen.step, list(self._steps))
        place = np.searchsorted(self._members, seen.rank[chosen])
        np.add.at(self._parts_ns.T, place, parts.T[chosen])
        self.subgraphs.add(seen, chosen)
        np.add.at(self._completed, place, completed(seen.ops, chosen, self._width_ns)[chosen])
        np.add.at(self._seen, place, 1)
        if seen.ops.runs_ahead:
            known = lead(seen.ops)
            for step in np.unique(seen.step[chosen]).tolist():
                cells = np.flatnonzero(chosen & (seen.step == step))
                self._leads.append((seen.rank[cells], known.of(cells)))

    @property
    def leads(self) -> Leads | None:
        """How far hosts are ahead of their devices in these steps; None where they do not run ahead."""
        if not self._leads:
            return None
        ranks = np.unique(np.concatenate([of_step for of_step, _ in self._leads]))
        return Leads.of(ranks, [(np.searchsorted(ranks, of_step), known) for of_step, known in self._leads])

    def parts_ns(self, rank: int) -> Floats:
        """(PARTS and UNKNOWN): of the rank's mean step."""
        mine = int(np.searchsorted(self._members, rank))
        return np.asarray(self._parts_ns[:, mine] / max(float(self._seen[mine]), 1.0))

    def means(self, rank: int) -> _Role:
        """Of the rank and its peers."""
        mine = int(np.searchsorted(self._members, rank))
        peers = np.flatnonzero((self._seen > 0) & (self._members != rank))
        order = np.concatenate(([mine], peers))
        parts = self._parts_ns[:, order] / np.maximum(self._seen[order], 1) / 1e3
        curves = self._completed[order] / np.maximum(self._seen[order], 1)[:, None]
        parts[self._unknown_to] += parts[UNKNOWN]
        distance, at = distances(curves[0], curves[1:])
        return _Role(self._members[peers], parts[:UNKNOWN], float(parts[UNKNOWN, 0]), curves, distance, at)


def _recorded_by(trace: Trace, rank: int) -> Trace:
    """Return the trace narrowed to the steps that the rank recorded whole."""
    times = trace.job.step_times
    recorded = {step for one, step in zip(times.rank, times.step, strict=True) if one == rank}
    steps = tuple(step for step in trace.steps if step in recorded and rank not in trace.job.cut_off.get(step, ()))
    if not steps:
        raise UsageError(f"rank {rank} recorded none of the chosen steps")
    return replace(trace, steps=steps)


def _longest_ns(trace: Trace, members: Ints) -> int:
    wanted, ranks, times = set(trace.steps), set(members.tolist()), trace.job.step_times
    columns = zip(times.rank, times.step, times.duration_ns, strict=True)
    return max((length for rank, step, length in columns if step in wanted and rank in ranks), default=0)


def _typical(values: Floats) -> float | None:
    """Return the role's median, the rank included; None without peers."""
    return float(np.median(values)) if len(values) > 1 else None


def _parts(role: _Role) -> Iterator[PartOfStep]:
    whole = max(float(role.parts_us[:, 0].sum()), 1e-3)
    for name, values in zip(PARTS, role.parts_us, strict=True):
        own = float(values[0])
        yield PartOfStep(part=name, own_us=own, share=own / whole, typical_us=_typical(values))


def _curve(role: _Role, width_us: float) -> Iterator[CurvePoint]:
    own, peers = role.curves[0], role.curves[1:]
    times = np.arange(1, POINTS + 1) * width_us
    if not len(peers):
        for time, share in zip(times.tolist(), own.tolist(), strict=True):
            yield CurvePoint(time, share, None, None, None, None)
        return
    low, high = np.quantile(peers, BAND, axis=0)
    columns = (times, own, low, np.median(peers, axis=0), high, peers[role.distance.argmax()])
    for point in np.stack(columns, axis=1).tolist():
        yield CurvePoint(*point)


def _farthest(role: _Role, width_us: float) -> CurveDistance | None:
    if not len(role.peers):
        return None
    first = int(role.distance.argmax())
    point = int(role.at[first])
    return CurveDistance(
        peer=Rank(int(role.peers[first])),
        distance=float(role.distance[first]),
        time_us=(point + 1) * width_us,
        completed=float(role.curves[0, point]),
        peer_completed=float(role.curves[1 + first, point]),
    )


def _warnings(rank: int, role: _Role, step_time_us: float, *, alone: bool) -> Iterator[KairWarning]:
    if not len(role.peers):
        yield KairWarning("few_peers", f"rank {rank} has no peer in its role to be compared with")
    if role.unknown_us > _MENTIONED_SHARE * step_time_us:
        counts_as = "exposed communication" if alone else "the rest"
        share = role.unknown_us / step_time_us
        yield UnknownMembers(share_of_step=share, ranks=(Rank(rank),), about=counts_as)


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
    _steps_of: dict[str, list[int]] = field(default_factory=dict)
    """Scope → the steps in which it is one of the longest."""

    def meet(self, ops: Operations) -> None:
        """Take in a step's scopes."""
        for name, _ in longest_scopes(ops):
            self._steps_of.setdefault(name, []).append(ops.step)

    def add(self, seen: SomeRanks, chosen: Bools) -> None:
        """Take in what some ranks did, in the `chosen` of the cells."""
        ops, ranks = seen.ops, len(seen.rank)
        for rank in seen.rank[chosen].tolist():
            self._seen[rank] += 1
        own = unshared_ns(ops)
        own = np.where(seen.own_ns == NONE, own, seen.own_ns)
        counted = (ops.kind != SCOPE) & (ops.on_stream if ops.has_device else ~ops.on_stream) & chosen[ops.rank]
        place = np.searchsorted(self.members, seen.rank[chosen])

        def count(key: tuple[_Sort, str], calls: Ints, inside: Ints, span: Ints | None = None) -> None:
            taken = np.bincount(ops.rank[inside], own[inside], ranks)
            spans = np.zeros(ranks) if span is None else span
            sums = self._sums.setdefault(key, _Sum(*np.zeros((3, len(self.members)))))
            for total, values in ((sums.calls, calls), (sums.own_ns, taken), (sums.span_ns, spans)):
                np.add.at(total, place, values[chosen])

        for code, phase in enumerate(PHASE_NAMES):
            in_phase = np.flatnonzero(counted & (ops.phase == code))
            ran = np.bincount(ops.rank[in_phase], minlength=ranks)
            count(("phase", phase), np.minimum(ran, 1), in_phase)
        for code, name in ops.name_text.items():
            of_steps = np.isin(seen.step, self._steps_of.get(name, ()))
            scopes = np.flatnonzero((ops.kind == SCOPE) & (ops.name == code) & of_steps[ops.rank])
            if len(scopes):
                inside = np.flatnonzero(counted & within(ops, scopes))
                calls = np.bincount(ops.rank[scopes], minlength=ranks)
                count(("scope", name), calls, inside, spans_ns(ops, scopes))

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


POINTS = 200
"""Times at which a curve is known: two in each of the paper's windows."""
BAND = (0.1, 0.9)
"""Quantiles of the peers' curves."""


def completed(ops: Operations, chosen: Bools, width_ns: float) -> Floats:
    """(ranks of the step × POINTS): the share of a rank's operations that ended before (k + 1) · `width_ns`.

    Counted from the rank's own begin of the step; 1 from the last point on. Rows of ranks that are not `chosen` are 0.
    Where hosts run ahead, it is the device's operations: most of what a host does for a step is over before it begins.
    """
    counted = chosen[ops.rank] & (ops.kind != SCOPE)
    rows = np.flatnonzero(counted & ops.on_stream if ops.runs_ahead else counted)
    rank = ops.rank[rows]
    point = ((ops.end_ns[rows] - ops.begin_ns[rank]) // width_ns).clip(0, POINTS - 1).astype(np.int64)
    counts = np.bincount(rank * POINTS + point, minlength=len(ops.ranks) * POINTS).reshape(-1, POINTS)
    total = counts.sum(axis=1, keepdims=True)
    return np.asarray(counts.cumsum(axis=1) / np.maximum(total, 1))


def distances(curve: Floats, peers: Floats) -> tuple[Floats, Ints]:
    """Return the Kolmogorov–Smirnov distance max |F − F_B| of a curve (POINTS) from each peer's, and the points where
    it lies.

    `peers` is (peers × POINTS); of equal distances the first point counts.
    """
    apart = np.abs(peers - curve)
    at = apart.argmax(axis=1)
    return np.take_along_axis(apart, at[:, None], axis=1)[:, 0], at
