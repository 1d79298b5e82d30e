"""Replays a window of steps whose hosts run ahead, again and again, until it is as it always is [W §3].

The graph of a window of steps that comes again and again: what waits for what in it, and in the windows before.

In their steady state the steps of a job whose hosts run ahead are like those before them. So the window is replayed
several times in a row (laps), and the last lap counts: nothing need be known of what was in flight when the recording
began. Besides what a single step shows, a launch waits for the kernel that was launched a queue's depth before it.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense
from kair_engine.frozen import dataclass
from kair_engine.results.whatif import Fix
from kair_engine.stats import median_by
from kair_engine.timeline.roles import main_lane_rows
from kair_engine.trace.model import LaunchQueue, usual_queue
from kair_engine.trace.operations import MEMORY, SCOPE, SYNC, Operations, lane_order
from kair_engine.whatif.model import Counterfactual
from kair_engine.whatif.operators.batches import StepsTogether, Together, step_time
from kair_engine.whatif.operators.dependencies import GAP, REST, NodeParts, OperatorDependencies, node_parts, rests_ns
from kair_engine.whatif.operators.fixed_durations import FixedDurations
from kair_engine.whatif.operators.steady_window import Contraction, Edges, Window, contracted, window_of
from kair_engine.whatif.operators.step_graph import StepGraph, shared_keys, step_graph, waits_between_streams
from kair_engine.whatif.replay import Graph, Plan, plan, replay, side_by_side

PAUSE_NS = 200_000
"""After this much time without waiting a host may meet a queue that is no longer full: that is checked there."""
LOOKS = 4
"""In each queue's depth the host is held to the queue so often, and after pauses."""
MOST_LAPS = 6


@dataclass(frozen=True)
class SteadyGraph:
    """One lap, and what its nodes wait for in laps before."""

    graph: Graph
    step_end: Ints
    """(steps × ranks): the nodes at which devices have done each step's operations."""
    waiting: tuple[tuple[int, Edges], ...]
    """(so many laps before, edges from nodes there)."""
    in_order: Ints
    """The nodes of the streams' operations, stream after stream."""


def steady_graph(
    of: StepGraph, window: Window, earlier: tuple[Ints, Ints], queues: Mapping[int, LaunchQueue], took_ns: Floats
) -> SteadyGraph:
    """`queues` are by the number of the rank; `earlier` are waits of streams for others in the window before.

    `took_ns` is what each node takes that waits for nothing.
    """
    ops = window.ops
    streams = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE))
    ordered = lane_order(ops.lane_key, ops.start_ns, ops.duration_ns, streams)
    nodes = len(of.time_ns)
    steps, ranks = len(window.place), len(ops.ranks)
    step_end = nodes + np.arange(steps * ranks).reshape(steps, ranks)
    before, after = _without_repeated_launches(of, ops, ordered)
    ends = _step_ends(of, window, ordered, step_end)
    within, waiting = _queue_edges(of, ops, queues, took_ns)
    laps = [(1, _continued(of, ops, ordered, earlier, step_end)), *waiting]
    graph = Graph(
        nodes + steps * ranks,
        np.concatenate((before, ends.before, within.before)),
        np.concatenate((after, ends.after, within.after)),
        np.concatenate((of.group, np.full(steps * ranks, NONE))),
    )
    return SteadyGraph(graph, step_end, tuple(laps), of.over[ordered])


def _without_repeated_launches(of: StepGraph, ops: Operations, ordered: Ints) -> tuple[Ints, Ints]:
    """Return the edges, but those from one launch to more than the first of its operations on a stream (of a CUDA
    graph).
    """
    launch, lane = ops.launch[ordered], ops.lane_key[ordered]
    again = np.flatnonzero((launch[1:] != NONE) & (launch[1:] == launch[:-1]) & (lane[1:] == lane[:-1])) + 1
    repeated = np.zeros(len(of.time_ns), dtype=bool)
    repeated[of.arrival[ordered[again]]] = True
    is_host = np.zeros(len(of.time_ns), dtype=bool)
    is_host[of.host] = True
    kept = ~(is_host[of.before] & repeated[of.after])
    return of.before[kept], of.after[kept]


def _step_ends(of: StepGraph, window: Window, ordered: Ints, step_end: Ints) -> Edges:
    """From the last operation of each step on each stream to its end, and from one step's end to the next one's."""
    ops = window.ops
    works = ordered[ops.kind[ordered] != MEMORY]
    step = window.step[works]
    lane = ops.lane_key[works]
    last = np.concatenate(((np.diff(lane) != 0) | (np.diff(step) != 0), [True])) if len(works) else works
    works = works[last]
    before = [of.over[works], step_end[:-1].ravel()]
    after = [step_end[window.step[works], ops.rank[works]], step_end[1:].ravel()]
    return Edges(np.concatenate(before), np.concatenate(after))


def _continued(of: StepGraph, ops: Operations, ordered: Ints, earlier: tuple[Ints, Ints], step_end: Ints) -> Edges:
    """Return what goes on from one lap to the next: streams, threads, what streams waited for, the steps' ends."""
    lane = ops.lane_key[ordered]
    first = np.flatnonzero(np.concatenate(([True], np.diff(lane) != 0))) if len(lane) else lane
    last = np.concatenate((first[1:], [len(lane)])) - 1 if len(lane) else lane
    parts = [(of.over[ordered[last]], of.arrival[ordered[first]]), (step_end[-1], step_end[0])]
    events = of.events
    if len(of.host):
        ends = events.last_of_lane
        lanes = ops.lane_key[events.row]
        opens = np.flatnonzero(events.before == NONE)
        begins = opens[np.argsort(lanes[opens], kind="stable")]
        ends = ends[np.argsort(lanes[ends], kind="stable")]
        parts.append((of.host[events.node[ends]], of.host[events.node[begins]]))
        main = ends[main_lane_rows(ops)[events.row[ends]]]
        parts.append((of.host[events.node[main]], of.begin[ops.rank[events.row[main]]]))
    waited_for, waited = earlier
    parts.append((of.over[waited_for], of.arrival[waited]))
    before, after = (np.concatenate(side) for side in zip(*parts, strict=True))
    return Edges(before, after)


def _queue_edges(
    of: StepGraph, ops: Operations, queues: Mapping[int, LaunchQueue], took_ns: Floats
) -> tuple[Edges, list[tuple[int, Edges]]]:
    """(edges within a lap, those from laps before): from the end of a kernel to the launch a queue's depth later.

    Every launch waits so; the host is held to it now and then, which is enough: in between it can run ahead by no more
    than the queue is deep anyway, and what it launches too early waits for its stream.
    """
    empty = Edges(*(np.zeros(0, dtype=np.int64),) * 2)
    found: list[tuple[Ints, Ints, Ints]] = []
    for launches, over, depth in _in_queues(of, ops, queues):
        count = len(launches)
        looks = _looks(took_ns[launches], depth)
        source = looks - depth
        laps = np.maximum(-(source // count), 0)
        chosen = laps < MOST_LAPS
        looks, source, laps = looks[chosen], source[chosen], laps[chosen]
        found.append((over[source + laps * count], launches[looks], laps))
    if not found:
        return empty, []
    before, after, laps = (np.concatenate(column) for column in zip(*found, strict=True))
    by_lap = [(lap, Edges(before[laps == lap], after[laps == lap])) for lap in np.unique(laps).tolist()]
    within = next((edges for lap, edges in by_lap if lap == 0), empty)
    return within, [(lap, edges) for lap, edges in by_lap if lap]


def _in_queues(of: StepGraph, ops: Operations, queues: Mapping[int, LaunchQueue]) -> Iterator[tuple[Ints, Ints, int]]:
    """Per queue the host's nodes of its launches in their order, the nodes at which these were over, its depth."""
    if not queues or not len(of.host):
        return
    usual = usual_queue(queues.values())
    rows = np.flatnonzero(ops.on_stream & (ops.launch != NONE) & (of.over != NONE))
    for place, number in enumerate(ops.ranks.tolist()):
        queue = queues.get(number, usual)
        queue = queue if queue.per_stream == usual.per_stream else usual
        mine = rows[ops.rank[rows] == place]
        for lane in np.unique(ops.lane[mine]) if queue.per_stream else (NONE,):
            some = mine if lane == NONE else mine[ops.lane[mine] == lane]
            # Of what one call launched, the last to end.
            order = np.lexsort((ops.end_ns[some], ops.start_ns[ops.launch[some]]))
            some = some[order]
            launch = ops.launch[some]
            last = np.concatenate((launch[1:] != launch[:-1], [True])) if len(launch) else launch
            event = of.events.last_of_row[launch[last]]
            known = event != NONE
            if known.any():
                yield of.host[of.events.node[event[known]]], of.over[some[last][known]], queue.depth


def _looks(took_ns: Floats, depth: int) -> Ints:
    """At which launches the host is held to the queue: some in each depth of it, and after pauses."""
    every = np.arange(0, len(took_ns), max(depth // LOOKS, 1))
    return np.union1d(every, np.flatnonzero(took_ns > PAUSE_NS))


_AT_ONCE = 8_000_000
"""Durations that are replayed together (nodes × scenarios): bounds memory."""


class SteadyBatch(Together):
    """Some steps in a row; it is asked what `Batch` is."""

    def __init__(self, together: StepsTogether, *, queues: Mapping[int, LaunchQueue], whole: bool) -> None:
        """`queues` are the ranks' launch queues, as far as known; `whole`: every operation's time will be asked."""
        self.steps = steps = together.steps
        syncs, role = together.syncs, together.role
        self._synchronised = any(len(sync.collectives) > 0 for sync in syncs)
        window = window_of(steps, syncs)
        of_window = _roles(window, role)
        (key,) = shared_keys([window.ops], [of_window])
        ((within, earlier),) = waits_between_streams([window.ops], [key])
        of = step_graph(window.ops, window.sync, *within)
        parts = _parts_of_steps(node_parts(of, of_window, key), of, window)
        took = np.bincount(parts.node, weights=parts.value_ns, minlength=len(of.time_ns)).astype(float)
        steady = steady_graph(of, window, earlier, queues, took)
        self.dependencies = OperatorDependencies((steady.graph,), parts, tuple(ops.ranks for ops in steps))
        self._laps = _Laps.of(steady, of)
        self._whole = WholeWindow(window, of, steady) if whole else None
        self._devices = _with_device(window.ops)
        """Per rank, whether it has one: a rank that recorded none shows no device's period."""
        have = window.ops.ranks[self._devices]
        self._in_steps = [_or_all(np.isin(ops.ranks, have)) for ops in steps]
        self._recorded = np.concatenate((took, np.zeros(steady.graph.nodes - len(took))))
        self._durations = FixedDurations(self.dependencies, steps, role, together.places, together.processor)

    def times(self, scenarios: Sequence[Counterfactual], carried: object) -> tuple[None, tuple[Floats, Floats]]:  # noqa: ARG002
        """(each step's time as recorded, (steps × scenarios) replayed), ns; nothing is carried on to other steps."""
        lengths: list[Floats] = []
        at_once = max(1, _AT_ONCE // max(self._laps.plan.place.size, 1))
        for begin in range(0, len(scenarios), at_once):
            durations = [self._changed(one) for one in scenarios[begin : begin + at_once]]
            lengths.append(self._laps.lengths(durations))
        of_ranks = np.concatenate(lengths, axis=2)
        measured = [
            step_time(ops.length_ns[chosen].astype(float), synchronised=self._synchronised)
            for ops, chosen in zip(self.steps, self._in_steps, strict=True)
        ]
        replayed = step_time(of_ranks.swapaxes(0, 1)[self._devices], synchronised=self._synchronised)
        return None, (np.array(measured), replayed)

    def last_lap(self, fixes: tuple[Fix, ...]) -> "LastLap":
        """When everything ends in the last lap with all of `fixes` made; of a batch that was made `whole`."""
        assert self._whole is not None
        parts, durations = self.dependencies.parts, self._changed(fixes)
        values = self._durations.values_ns(fixes)[parts.own]
        own = np.bincount(parts.node[parts.own], weights=values, minlength=len(self._recorded)).astype(float)
        begin, end = self._laps.last_lap(self._whole.steady, durations)
        return LastLap(self._whole, own, begin, end)

    def _changed(self, of: Counterfactual) -> Floats:
        (one,) = self._durations.changed([of])
        of_both = [one, self._durations.at_ideal()] if one.from_ideal else [one]
        durations = self._recorded.astype(float)
        for change in of_both:
            durations += np.bincount(change.node, weights=change.change_ns, minlength=len(durations))
        return durations


@dataclass(frozen=True)
class WholeWindow:
    """A batch's steps as one, and both graphs of it."""

    window: Window
    graph: StepGraph
    steady: SteadyGraph


@dataclass(frozen=True)
class LastLap:
    """The last lap of a batch, in which all is as it always is; ns since the first lap began."""

    whole: WholeWindow
    own_ns: Floats
    """Per node what its operation takes by itself."""
    begin_ns: Floats
    """Per rank of the window, when its device had done the lap before."""
    end_ns: Floats
    """Per node of the steady graph; NaN of those that wait for one another in a circle."""


@dataclass(frozen=True)
class _Laps:
    """The plan of all laps."""

    small: Contraction
    plan: Plan
    laps: int
    step_end: Ints
    """(steps × ranks), in the numbers of one lap."""

    @classmethod
    def of(cls, steady: SteadyGraph, recorded: StepGraph) -> "_Laps":
        is_host = np.zeros(steady.graph.nodes, dtype=bool)
        is_host[recorded.host] = True
        waiting = [edges for _, edges in steady.waiting]
        everything = Edges(*(np.concatenate([getattr(of, side) for of in waiting]) for side in ("before", "after")))
        small = contracted(steady.graph, everything, steady.in_order, is_host)
        laps = 1 + max(lap for lap, _ in steady.waiting)
        return cls(small, plan(_repeated(small, steady, laps)), laps, small.place[steady.step_end])

    def lengths(self, durations: Sequence[Floats]) -> Floats:
        """Return (steps × ranks × scenarios): how long (ns) each step of the last lap takes, given all durations."""
        nodes, end = self.small.graph.nodes, self._replayed(durations)
        last = self.plan.place[self.step_end + (self.laps - 1) * nodes]
        before = self.plan.place[self.step_end[-1] + (self.laps - 2) * nodes]
        return np.diff(end[last], axis=0, prepend=end[before][None])

    def last_lap(self, steady: SteadyGraph, durations: Floats) -> tuple[Floats, Floats]:
        """(per rank, when the lap before was over; per node of one lap when it ends in the last), ns.

        What the laps before leave to wait for is known; so one lap of the whole graph is enough.
        """
        nodes, small = steady.graph.nodes, self.small.graph.nodes
        of_laps = self._replayed([durations])[self.plan.place, 0]
        waited, after = [], []
        for back, edges in steady.waiting:
            waited.append(of_laps[self.small.place[edges.before] + (self.laps - 1 - back) * small])
            after.append(edges.after)
        until, then = np.concatenate(waited), np.concatenate(after)
        outside = nodes + np.arange(len(until))
        graph = Graph(
            nodes + len(until),
            np.concatenate((steady.graph.before, outside)),
            np.concatenate((steady.graph.after, then)),
            np.concatenate((steady.graph.group, np.full(len(until), NONE))),
        )
        of = plan(graph)
        end = np.empty((graph.nodes, 1))
        end[of.place, 0] = np.concatenate((durations, until))
        replay(of, end)
        return of_laps[self.step_end[-1] + (self.laps - 2) * small], end[of.place, 0][:nodes]

    def _replayed(self, durations: Sequence[Floats]) -> Floats:
        """(places of the plan × scenarios)."""
        end = np.empty((self.small.graph.nodes * self.laps, len(durations)))
        for at, of in enumerate(durations):
            end[self.plan.place, at] = np.tile(self.small.durations(of), self.laps)
        replay(self.plan, end)
        return end


def _repeated(small: Contraction, steady: SteadyGraph, laps: int) -> Graph:
    """Return the graph of all laps, one after another."""
    one, nodes = side_by_side([small.graph] * laps), small.graph.nodes
    before, after = [one.before], [one.after]
    for back, edges in steady.waiting:
        for lap in range(back, laps):
            before.append(small.place[edges.before] + nodes * (lap - back))
            after.append(small.place[edges.after] + nodes * lap)
    return Graph(one.nodes, np.concatenate(before), np.concatenate(after), one.group)


def _with_device(ops: Operations) -> Bools:
    rows = np.flatnonzero(ops.on_stream & (ops.kind != SCOPE))
    return _or_all(np.bincount(ops.rank[rows], minlength=len(ops.ranks)) > 0)


def _or_all(chosen: Bools) -> Bools:
    """Those, or all where there are none."""
    return chosen if chosen.any() else np.ones(len(chosen), dtype=bool)


def _roles(window: Window, role: Sequence[Ints]) -> Ints:
    """Per rank of the window its role's code."""
    result = np.zeros(len(window.ops.ranks), dtype=np.int64)
    for place, of_step in zip(window.place, role, strict=True):
        known = place != NONE
        result[known] = of_step[place[known]]
    return result


def _parts_of_steps(parts: NodeParts, of: StepGraph, window: Window) -> NodeParts:
    """Return the parts of a window as those of its steps, without what it was only waited for in them.

    What the first operations of a thread or a stream waited for lies before the window: their delay is as in other
    steps. What a launch waited for a place in the queue is not the launch's time.
    """
    value, row = _explained(parts, of, window), parts.row
    known = np.flatnonzero((row != NONE) & ~np.isin(parts.node, of.end))
    row = row[known]
    step = window.step[row]
    place = np.stack(window.place)[step, parts.rank[known]]
    kept = {name: getattr(parts, name)[known] for name in NodeParts.__dataclass_fields__ if name != "node_over_ns"}
    kept |= {
        "node_over_ns": parts.node_over_ns,
        "value_ns": value[known],
        "step": step.astype(np.int32),
        "row": window.row[row].astype(np.int32),
        "rank": place.astype(np.int32),
    }
    return NodeParts(**kept)


def _explained(parts: NodeParts, of: StepGraph, window: Window) -> Floats:
    value, ops = _without_waits(parts, of, window), window.ops
    first = _first_of_lanes(of, window)
    gaps = np.flatnonzero((parts.key % (REST + 1) == GAP) & (parts.row != NONE))
    opens = first[parts.row[gaps]]
    if opens.any():
        same = dense(np.stack((parts.rank[gaps].astype(np.int64), parts.key[gaps])))
        others = gaps[~opens]
        usual = np.zeros(int(same.max()) + 1)
        if len(others):
            usual[same[~opens]] = median_by(same[~opens], value[others])
        value[gaps[opens]] = np.minimum(value[gaps[opens]], np.maximum(usual[same[opens]], 0.0))
        on_threads = ~ops.on_stream[parts.row[gaps[opens]]]
        value[gaps[opens][on_threads]] = np.maximum(usual[same[opens]][on_threads], 0.0)
    return value


def _without_waits(parts: NodeParts, of: StepGraph, window: Window) -> Floats:
    """Return the parts without what threads waited for a place in the queue meanwhile, whichever operation has that
    time.

    Nor is it the host's own what it waited in a synchronisation for what had been launched before the window.
    """
    value, events, ops = parts.value_ns.copy(), of.events, window.ops
    full = np.flatnonzero(window.queue_full)
    if len(of.host):
        awaits = ops.kind[events.row] == SYNC
        awaits[events.waits_event] = False
        value[len(events.row) + np.flatnonzero(awaits & np.concatenate(([False], np.diff(events.row) == 0)))] = 0.0
    if not len(full) or not len(of.host):
        return value
    lane, count = ops.lane_key[events.row], len(events.row)
    earlier = np.where(events.before == NONE, ops.begin_ns[ops.rank[events.row]], events.time_ns[events.before])
    low = min(int(earlier.min()), int(ops.start_ns[full].min()))
    span = max(int(events.time_ns.max()), int(ops.end_ns[full].max())) - low + 1
    begun = ops.lane_key[full] * span + (ops.start_ns[full] - low)
    total = np.concatenate(([0], np.cumsum(ops.duration_ns[full])))

    def until(moment: Ints) -> Ints:
        wanted = lane * span + (moment - low)
        at = np.searchsorted(begun, wanted, side="right")
        since = wanted - begun[np.maximum(at - 1, 0)]
        return np.asarray(total[at] - np.where(at > 0, np.maximum(ops.duration_ns[full][at - 1] - since, 0), 0))

    waited = (until(events.time_ns) - until(earlier)).astype(float)
    every, some = np.arange(count), np.flatnonzero(rests_ns(of) > 0)
    # As node_parts has them: the events' own times, their delays, what operations around some of them spent.
    for event, first in ((every, 0), (some, 2 * count), (every, count)):
        rows = first + np.arange(len(event))
        less = np.minimum(np.maximum(value[rows], 0.0), waited[event])
        value[rows] -= less
        waited[event] -= less
    return value


def _first_of_lanes(of: StepGraph, window: Window) -> Bools:
    """Per operation whether it is the first on its thread or stream, of the window or since steps that are left out."""
    ops = window.ops
    taking_part = of.over != NONE
    taking_part[of.events.row] = True
    rows = np.flatnonzero(taking_part)
    first = np.zeros(len(ops), dtype=bool)
    if not len(rows):
        return first
    opens = np.isin(window.step[rows], window.anew)
    new = np.concatenate(([True], np.diff(ops.lane_key[rows]) != 0))
    new |= opens & np.concatenate(([True], np.diff(window.step[rows]) != 0))
    first[rows[new]] = True
    return first
