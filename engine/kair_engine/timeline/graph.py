"""The execution graph of one step, reduced to what blame walks on: every operation's binding predecessor.

Of all reasons an operation can wait for another (order on its stream or thread, its launch, another stream,
a synchronisation with the device, a collective), the binding one is the one that ended last.
Integer arrays throughout: a step has 10⁵–10⁷ operations.

Sub-graphs of a step: the operations that run within a scope that somebody annotated, and all that they launch.
"""

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.stats import median
from kair_engine.timeline.clocks import Synchronisation
from kair_engine.timeline.roles import PeerGroups, logical_keys
from kair_engine.timeline.self_time import issuing_rows
from kair_engine.trace.operations import SCOPE, STEP_SCOPE, SYNC, Operations, lane_order, latest_ended
from kair_engine.trace.side_threads import SHORTEST_WAIT_NS

NOTED_LATE_NS = 100_000
"""A collective may be recorded as over this much after the thread that waited for it went on."""


@dataclass(frozen=True)
class ExecutionGraph:
    """Arrays with one entry per operation.

    `predecessor` is the binding one (NONE for the first). `cut_ns` is where an operation stops holding up
    what follows it: its end, or on a thread the start of the operation nested in it.
    """

    ops: Operations
    sync: Synchronisation
    predecessor: Ints
    cut_ns: Ints
    instance: Ints
    """The collective an operation is a member of, else NONE."""


@dataclass(frozen=True)
class Lateness:
    """How much later than its role's median each operation began and let go, on the job's clock, in ns.

    NaN where fewer than two ranks run it, or not equally often.
    """

    begin: Floats
    cut: Floats
    groups: PeerGroups
    """The operations that were compared, by what they are on every rank."""

    @cached_property
    def _group(self) -> Ints:
        """Of every operation its place among the groups, or NONE."""
        sizes = self.groups.sizes
        # Groups that are not compared were left out: their rows lie between those of others.
        skipped = self.groups.starts - np.r_[0, np.cumsum(sizes)[:-1]] if len(sizes) else sizes
        place = np.arange(sizes.sum()) + np.repeat(skipped, sizes)
        found = np.full(len(self.begin), NONE, dtype=np.int64)
        found[self.groups.rows[place]] = np.repeat(np.arange(len(sizes)), sizes)
        return found

    def peers(self, row: int) -> Ints:
        """Return the rows of one operation on all ranks of its role, its own among them.

        Return None where it is not compared.
        """
        group = int(self._group[row])
        if group == NONE:
            return np.zeros(0, dtype=np.int64)
        first = int(self.groups.starts[group])
        return self.groups.rows[first : first + int(self.groups.sizes[group])]


def build(ops: Operations, sync: Synchronisation) -> ExecutionGraph:
    """Find every operation's binding predecessor."""
    predecessor = np.full(len(ops), NONE, dtype=np.int64)
    cut = ops.end_ns.copy()
    threads = ops.nesting.order[~ops.of_side_threads[ops.nesting.order]]
    follows = np.diff(ops.lane_key[threads]) == 0
    before, after = threads[:-1][follows], threads[1:][follows]
    predecessor[after] = before
    cut[before] = np.minimum(cut[before], ops.start_ns[after])
    streams = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE))
    waits, awaited = synchronisations(ops, threads, streams[~ops.of_side_streams[streams]])
    predecessor[waits] = awaited
    _stream_predecessors(ops, streams, predecessor)
    off_stream = np.flatnonzero(ops.communication & ~ops.on_stream)
    if len(off_stream):
        _wait_for_communication(ops, threads, off_stream, predecessor)
        _issued_by(ops, threads, off_stream, predecessor)
    instance = np.full(len(ops), NONE, dtype=np.int64)
    instance[sync.collectives.row] = sync.collectives.instance
    return ExecutionGraph(ops, sync, predecessor, cut, instance)


def lateness(graph: ExecutionGraph, role_of_rank: Ints) -> Lateness:
    """Compare every operation's begin and cut with the same operation's on the ranks of its role."""
    ops = graph.ops
    offset = graph.sync.clocks.offset_ns[ops.rank] if len(ops) else np.zeros(0)
    groups = _called_alike(ops, logical_keys(ops, role_of_rank))
    begin, cut = (_beyond_median(times - offset, groups) for times in (ops.start_ns, graph.cut_ns))
    return Lateness(begin, cut, groups)


def _beyond_median(times: Floats, groups: PeerGroups) -> Floats:
    """Return by how much each time is beyond its group's median; NaN of those without a group."""
    result = np.full(len(times), np.nan)
    for block in groups.blocks(smallest=2):
        of_peers = times[block]
        of_peers -= median(of_peers, axis=1)[:, None]
        result[block] = of_peers
    return result


def _called_alike(ops: Operations, keys: Ints) -> PeerGroups:
    """Logical operators of those names that the ranks call equally often; collectives all.

    Of what a rank calls as often as it likes (cudaEventQuery, from the allocator) the n-th call is not the
    peers' n-th: at megatron-tp8 it hid the true place of a sixth of the waiting.
    """
    groups = PeerGroups.of(keys, np.flatnonzero(ops.kind != SCOPE))
    first = groups.rows[groups.starts]
    family, of_group = np.unique(keys[first] - ops.occurrence[first], return_inverse=True)
    largest = np.zeros(len(family), dtype=np.int64)
    np.maximum.at(largest, of_group, groups.sizes)
    uneven = np.zeros(len(family), dtype=bool)
    np.logical_or.at(uneven, of_group, groups.sizes != largest[of_group])
    kept = ~uneven[of_group] | ops.communication[first]
    return PeerGroups(groups.rows, groups.starts[kept], groups.sizes[kept])


def _stream_predecessors(ops: Operations, streams: Ints, predecessor: Ints) -> None:
    """Add the latest of: the operation before on the stream, the launch, anything else the device had finished."""
    order = lane_order(ops.lane_key, ops.start_ns, ops.duration_ns, streams)
    previous = np.full(len(order), NONE, dtype=np.int64)
    follows = np.flatnonzero(np.diff(ops.lane_key[order]) == 0)
    previous[follows + 1] = order[follows]
    launch = ops.launch[order]
    launched = np.where(launch == NONE, np.iinfo(np.int64).min, np.minimum(ops.end_ns[launch], ops.start_ns[order]))
    stream_free = np.where(previous == NONE, np.iinfo(np.int64).min, ops.end_ns[previous])
    other = latest_ended(ops, order, order[~ops.of_side_streams[order]])
    other_end = np.where(other == NONE, np.iinfo(np.int64).min, ops.end_ns[other])
    best = np.where(launched >= stream_free, launch, previous)
    best_end = np.maximum(launched, stream_free)
    predecessor[order] = np.where((other_end > best_end) & (other != order), other, best)


def synchronisations(ops: Operations, threads: Ints, streams: Ints) -> tuple[Ints, Ints]:
    """Return (synchronisations among the rows of threads, the operation whose end each waited for).

    One ends when the device has caught up: what follows it waited for the device's last. Without a device it is for
    communication on another thread (DTensor's wait_tensor), which may be recorded as over a little later.
    """
    waits = threads[ops.kind[threads] == SYNC]
    others, late = streams, 0
    if not ops.has_device:
        others, late = np.flatnonzero(ops.communication & ~ops.on_stream), NOTED_LATE_NS
    last = latest_ended(ops, waits, others, by=ops.end_ns[waits] + late)
    inside = (last != NONE) & (ops.end_ns[last] > ops.start_ns[waits])
    return waits[inside], last[inside]


def _wait_for_communication(ops: Operations, threads: Ints, communication: Ints, predecessor: Ints) -> None:
    """On a CPU, an operation after a gap that mostly went by before a collective ended waited for that collective."""
    rows = threads[predecessor[threads] != NONE]
    before = predecessor[rows]
    # Of a nested pair the outer one ends after the inner one began: no gap.
    idle = ops.start_ns[rows] - ops.end_ns[before]
    ended = latest_ended(ops, rows, communication, by=ops.start_ns[rows] + NOTED_LATE_NS)
    waited = (ended != NONE) & (idle >= SHORTEST_WAIT_NS)
    waited &= 2 * (ops.end_ns[ended] - ops.end_ns[before]) >= idle
    waited &= ops.start_ns[ended] <= ops.end_ns[before]
    # In an operator that goes on after what is nested in it, a thread waited only if that ended with the collective.
    free = _free_at(ops, before, rows)
    waited &= (free == ops.end_ns[before]) | (free - ops.end_ns[ended] < NOTED_LATE_NS)
    predecessor[rows[waited]] = ended[waited]


def _free_at(ops: Operations, before: Ints, rows: Ints) -> Ints:
    """When the thread of each of `rows` was done with `before`, and with all around that which was over by then."""
    free, around = ops.end_ns[before].copy(), ops.nesting.parent[before]
    while (over := (around != NONE) & (ops.end_ns[around] <= ops.start_ns[rows])).any():
        free[over] = np.maximum(free[over], ops.end_ns[around[over]])
        around = np.where(over, ops.nesting.parent[around], NONE)
    return free


def _issued_by(ops: Operations, threads: Ints, communication: Ints, predecessor: Ints) -> None:
    """Add who issued a collective on its own thread: what hands communication over, else by what was begun last.

    What the program begins next, before the other thread has taken up the collective, issued it not.
    """
    issuing, program = issuing_rows(ops), threads[ops.of_program[threads]]
    issuer = latest_ended(ops, communication, issuing, ends=ops.start_ns)
    last_begun = latest_ended(ops, communication, program, ends=ops.start_ns)
    predecessor[communication] = np.where(issuer == NONE, last_begun, issuer)


MOST = 100
"""Scopes that are looked at, those of a step that take longest: some programs annotate every layer of every step."""


def scopes_named(ops: Operations, fits: Callable[[str], bool]) -> Ints:
    """Return the rows of scopes (`record_function`, `Optimizer.step#…`) whose name `fits`, without the step itself."""
    codes = [code for code, name in ops.name_text.items() if name != STEP_SCOPE and fits(name)]
    return np.flatnonzero((ops.kind == SCOPE) & np.isin(ops.name, codes))


def longest_scopes(ops: Operations) -> Iterator[tuple[str, Ints]]:
    """(name, rows) of the scopes that take longest in the step, over all ranks, at most MOST."""
    rows = scopes_named(ops, lambda _: True)
    if not len(rows):
        return
    taken = np.bincount(ops.name[rows], weights=ops.duration_ns[rows])
    for code in np.argsort(-taken, kind="stable")[: min(MOST, np.count_nonzero(np.bincount(ops.name[rows])))].tolist():
        yield ops.name_text[code], rows[ops.name[rows] == code]


def within(ops: Operations, scopes: Ints) -> Bools:
    """Per row whether it is no scope and begins within one of `scopes` (rows) on its thread, or was launched there.

    What other threads do for a scope (autograd's, or gloo's) is not in it.
    """
    result = np.zeros(len(ops), dtype=bool)
    if not len(scopes):
        return result
    low = int(ops.start_ns.min())
    # A scope may reach beyond all starts, and no further than into its own lane's numbers.
    span = int(ops.end_ns.max()) - low + 2
    key = ops.lane_key * span + (ops.start_ns - low)
    begin = key[scopes]
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(begin[order] + np.maximum(ops.duration_ns[scopes][order], 1))
    at = np.searchsorted(begin, key, side="right") - 1
    result = (at >= 0) & (key < reach[np.maximum(at, 0)]) & ~ops.on_stream
    launch = ops.launch
    launched = launch != NONE
    result[launched] = result[launch[launched]]
    return np.asarray(result & (ops.kind != SCOPE))


def spans_ns(ops: Operations, scopes: Ints) -> Ints:
    """Per rank of the step, the time that its threads spend within the scopes; what lies in another counts once."""
    order = scopes[np.lexsort((-ops.duration_ns[scopes], ops.start_ns[scopes], ops.lane_key[scopes]))]
    lane, begin, end = ops.lane_key[order], ops.start_ns[order], ops.end_ns[order]
    # Hosts that run ahead begin before the step: what counts from its begin is negative.
    low = int(begin.min(initial=0))
    span = int(end.max(initial=0)) - low + 1
    begin, end = lane * span + (begin - low), lane * span + (end - low)
    before = np.r_[NONE, np.maximum.accumulate(end)[:-1]]
    added = np.maximum(end - np.maximum(begin, before), 0)
    return np.bincount(ops.rank[order], weights=added, minlength=len(ops.ranks)).astype(np.int64)
