"""Backward blame: from a collective that waited, back through the graph to what made its last member late.

Waiting of every pair of ranks, added up over steps.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from kair_engine.arrays import NONE, Bools, Ints
from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.blame import STEP_BEGIN, PathNode, RankWaiting, RoleInPath
from kair_engine.timeline.collectives import Collectives
from kair_engine.timeline.graph import ExecutionGraph, Lateness
from kair_engine.trace.operations import GC, INPUT, KIND_NAMES, PHASE_NAMES, SYNC, Operations


class Contribution(NamedTuple):
    """One place on the path where time was lost: an operation, or (edge) the idle time before it."""

    # A tuple: paths consist of hundreds of thousands, and a dataclass takes five times as long to make.

    row: int
    is_edge: bool
    cause: Cause
    late_ns: float = 0.0
    named: str | None = None
    """What stands for its row: STEP_BEGIN where the lateness was there when the path's earliest operation began."""


def path_node(ops: Operations, row: int, late_ns: float, role: RoleInPath) -> PathNode:
    """Return one stop of a path, whose operation begins so late."""
    return PathNode(
        rank=Rank(int(ops.ranks[ops.rank[row]])),
        operator=ops.operator(row),
        kind=KIND_NAMES[ops.kind[row]],
        start_us=float(ops.start_ns[row] - ops.begin_ns[ops.rank[row]]) / 1e3,
        duration_us=float(ops.duration_ns[row]) / 1e3,
        lateness_us=late_ns / 1e3,
        role_in_path=role,
    )


@dataclass(frozen=True)
class Walk:
    """The path back from one late arrival, and where on it the lateness arose."""

    path: tuple[int, ...]
    """Rows from the collective's last member back to where it was on time."""
    contributions: tuple[Contribution, ...]
    """The largest first; they add up to the lateness of the path's first row, less what is noise."""
    late_ns: float
    """The lateness of the path's first row."""
    in_order: tuple[Contribution, ...]
    """The contributions as they lie on the path."""


def walk_back(
    graph: ExecutionGraph, late: Lateness, row: int, noise_ns: float, walks: Mapping[int, Walk] = MappingProxyType({})
) -> Walk:
    """Follows binding predecessors while they are late [K stage 3]; crosses ranks at collectives.

    What counts is lateness that was never made up again: going back, each place answers for what it takes the
    lateness below everything seen after it. So the contributions add up to the lateness of `row`, but for the
    last `noise_ns` of it, and jitter that cancels out is nobody's. Between an operation's begin and its cut the
    operation answers, between a cut and the next begin the edge.

    `walks` are those known from other rows: where the path comes to one of these, the rest of it is known.
    """
    # One element of an array at a time: `item` takes a third of what indexing does.
    predecessor, instance_of = graph.predecessor.item, graph.instance.item
    begin, cut = late.begin.item, late.cut.item
    path, seen, known = [row], {row}, 0
    account = _Account(0.0 if math.isnan(late_ns := begin(row)) else late_ns)
    while account.standing > noise_ns:
        rest = walks.get(row)
        if rest is not None and account.standing <= rest.late_ns and seen.isdisjoint(rest.path[1:]):
            account.take(rest)
            return account.closed((*path, *rest.path[1:]))
        before = predecessor(row)
        if before == NONE or before in seen:
            return account.closed(path)
        # What no peer runs has a lateness of NaN, which is below nothing and shows nothing.
        if (late_ns := cut(before)) < account.standing:
            account.charge(late_ns, _between(graph, before, path[known:]))
        instance = instance_of(before)
        if instance != NONE:
            before = int(graph.sync.collectives.row[graph.sync.collectives.last[instance]])
        late_ns = begin(before)
        if late_ns < account.standing and not _synchronised(graph, before):
            crossed = instance != NONE
            where = Contribution(before, True, "communication") if crossed else _operation(graph, before)
            account.charge(late_ns, where)
        row = before
        seen.add(row)
        path.append(row)
        if instance != NONE or not math.isnan(late_ns):
            known = len(path) - 1
    account.standing = 0.0
    return account.closed(path)


def cause_of(ops: Operations, row: int) -> Cause:
    """Return what kind of slowness it is when this operation itself is slow."""
    kind = int(ops.kind[row])
    if kind == GC:
        return "garbage_collection"
    if kind == INPUT or ops.phase[row] == PHASE_NAMES.index("input"):
        return "input"
    if KIND_NAMES[kind] in {"host", "sync"}:
        return "host"
    return "communication" if KIND_NAMES[kind] in {"collective", "send", "recv"} else "compute"


def _operation(graph: ExecutionGraph, row: int) -> Contribution:
    # A compiler is one call, however many it consists of.
    while (around := int(graph.ops.nesting.parent[row])) != NONE and graph.ops.compiling[around]:
        row = around
    return Contribution(row, False, cause_of(graph.ops, row))


def _synchronised(graph: ExecutionGraph, row: int) -> bool:
    """Whether a synchronisation lasted until the device, or communication, was done: then its length is theirs."""
    before = int(graph.predecessor[row])
    if graph.ops.kind[row] != SYNC or before == NONE:
        return False
    return bool(graph.ops.on_stream[before] or graph.ops.communication[before])


def _between(graph: ExecutionGraph, before: int, passed: Sequence[int]) -> Contribution:
    """Who answers for the time from `before` to the first of `passed`: its longest piece.

    The others of `passed`, in order back to `before`, are operations that cannot be compared: no peer runs them
    (a checkpoint, garbage collection), or not as often. Each answers for its own length.
    """
    start_ns, cut_ns = graph.ops.start_ns.item, graph.cut_ns.item
    pieces: list[tuple[int, int, int]] = []
    for after, row in zip(passed, (*passed[1:], before), strict=True):
        pieces.append((int(start_ns(after) - cut_ns(row)), row, after))
        if row != before:
            pieces.append((int(cut_ns(row) - start_ns(row)), row, row))
    _, row, after = max(pieces, key=lambda piece: piece[0])
    return _operation(graph, row) if row == after else _edge(graph, row, after)


def _edge(graph: ExecutionGraph, before: int, row: int) -> Contribution:
    """Who answers for the time between `before` letting go and `row` beginning: its longest piece.

    On a thread that is the rest of an operation around `before`, the beginning of one around `row`, or a gap.
    """
    ops = graph.ops
    gap = _gap(ops, before, row)
    if ops.on_stream[before] or ops.rank[before] != ops.rank[row] or ops.lane[before] != ops.lane[row]:
        return gap
    around_row = int(ops.nesting.parent[row])
    longest, found = -1, gap
    reached, around = int(graph.cut_ns[before]), int(ops.nesting.parent[before])
    while around not in (NONE, around_row) and ops.end_ns[around] <= ops.start_ns[row]:
        piece = int(ops.end_ns[around]) - reached
        if piece > longest:
            longest, found = piece, _operation(graph, around)
        reached, around = int(ops.end_ns[around]), int(ops.nesting.parent[around])
    if int(ops.start_ns[row]) - reached > longest:
        return gap if around_row == NONE else _operation(graph, around_row)
    return found


def _gap(ops: Operations, before: int, row: int) -> Contribution:
    if not (ops.on_stream[row] or ops.of_program[row]):
        # A thread that serves the program, gloo's say, idles because nobody has work for it: no host is late for that.
        return Contribution(row, True, "communication" if ops.communication[row] else "unknown")
    covered = _collected_garbage(ops, before, row)
    return Contribution(row, True, "garbage_collection" if covered else "host")


def _collected_garbage(ops: Operations, before: int, row: int) -> bool:
    if not len(ops.garbage_collections):
        return False
    rows = ops.garbage_collections[ops.rank[ops.garbage_collections] == ops.rank[row]]
    begin, end = ops.end_ns[before], ops.start_ns[row]
    inside = np.minimum(ops.end_ns[rows], end) - np.maximum(ops.start_ns[rows], begin)
    return bool(len(rows) and inside.clip(0).sum() * 2 > end - begin > 0)


@dataclass
class _Account:
    """The lateness still to be explained, and who answered for the rest."""

    late_ns: float
    standing: float = field(init=False)
    found: list[Contribution] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with all of it."""
        self.standing = self.late_ns

    def charge(self, late_ns: float, where: Contribution) -> None:
        """Charge this place with what stands above `late_ns`, how late the path was before it."""
        left = max(late_ns, 0.0)
        if left < self.standing:
            self.found.append(where._replace(late_ns=self.standing - left))
        self.standing = left

    def take(self, rest: Walk) -> None:
        """Charge what a walk from here found, as far as it lies below what still stands: it may have begun higher."""
        above = rest.late_ns - self.standing
        for one in rest.in_order:
            left = one.late_ns - above
            above = max(-left, 0.0)
            if left > 0:
                self.found.append(one._replace(late_ns=left))
        self.standing = 0.0

    def closed(self, path: Sequence[int]) -> Walk:
        """Return what was found, the largest first; what still stands was there before the path began."""
        if self.standing > 0:
            self.found.append(Contribution(path[-1], True, "unknown", self.standing, STEP_BEGIN))
        largest_first = sorted(self.found, key=lambda c: -c.late_ns)
        return Walk(tuple(path), tuple(largest_first), self.late_ns, tuple(self.found))


MOST_PAIRS = 4096
"""Listed one by one, the longest waiting first: every pair of up to 64 ranks."""
_HALF = 32


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass
class PairWaiting:
    """The waiting of each pair of ranks in ns, in how many collectives; arrays with an entry per pair, in order."""

    pair: Ints = field(default_factory=_none)
    """The rank that was waited for in the upper half, the one that waited in the lower."""
    waited_ns: Ints = field(default_factory=_none)
    times: Ints = field(default_factory=_none)

    def add(self, collectives: Collectives, explained: Ints, waited_ns: Ints) -> None:
        """Add what members of these instances waited because the last one was late; `waited_ns` has all members."""
        ops = collectives.ops
        counted = np.zeros(len(collectives), dtype=bool)
        counted[explained] = True
        member = np.flatnonzero(counted[collectives.instance] & (waited_ns > 0))
        rank = ops.ranks[ops.rank[collectives.row]].astype(np.int64)
        awaited = rank[collectives.last][collectives.instance[member]]
        pair = awaited << _HALF | rank[member]
        self._add(pair, waited_ns[member], np.ones(len(member), dtype=np.int64))

    def merge(self, other: "PairWaiting") -> None:
        """Add what other steps came to."""
        self._add(other.pair, other.waited_ns, other.times)

    def _add(self, pair: Ints, waited_ns: Ints, times: Ints) -> None:
        pair = np.concatenate((self.pair, pair))
        waited, often = np.concatenate((self.waited_ns, waited_ns)), np.concatenate((self.times, times))
        order = np.argsort(pair, kind="stable")
        starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
        if len(starts):
            self.pair = pair[order][starts]
            self.waited_ns = np.add.reduceat(waited[order], starts)
            self.times = np.add.reduceat(often[order], starts)

    def listed(self, for_ranks: Collection[int] | None = None, by_rank: int | None = None) -> tuple[RankWaiting, ...]:
        """Pairs, the longest waiting first; what is beyond MOST_PAIRS is summed for each rank that was waited for.

        With `for_ranks` only the waiting for these, and that of `by_rank` for anybody.
        """
        awaited, waiter = self.pair >> _HALF, self.pair & ((1 << _HALF) - 1)
        asked = np.ones(len(self.pair), dtype=bool)
        if for_ranks is not None:
            asked = np.isin(awaited, list(for_ranks)) | (waiter == (-1 if by_rank is None else by_rank))
        order = np.flatnonzero(asked)[np.argsort(-self.waited_ns[asked], kind="stable")]
        listed, rest = order[:MOST_PAIRS], order[MOST_PAIRS:]
        pairs = [self._row(Rank(int(waiter[at])), Rank(int(awaited[at])), at) for at in listed]
        others = [self._row(None, Rank(int(rank)), rest[awaited[rest] == rank]) for rank in np.unique(awaited[rest])]
        return (*pairs, *sorted(others, key=lambda row: -row.waited_us))

    def _row(self, waiter: Rank | None, awaited: Rank, at: Ints | Bools) -> RankWaiting:
        return RankWaiting(waiter, awaited, float(self.waited_ns[at].sum()) / 1e3, int(self.times[at].sum()))
