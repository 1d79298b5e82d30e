"""Replays a window of steps whose hosts run ahead, again and again, until it is as it always is [W §3]."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, dense
from kair_engine.frozen import dataclass
from kair_engine.stats import median_by
from kair_engine.timeline.processor_time import ProcessorTimes
from kair_engine.timeline.synchronisation import Synchronisation
from kair_engine.trace.model import LaunchQueue
from kair_engine.trace.operations import SCOPE, SYNC, Operations
from kair_engine.whatif.model import Counterfactual
from kair_engine.whatif.operators.dependencies import OperatorDependencies
from kair_engine.whatif.operators.fixed_durations import FixedDurations, Places
from kair_engine.whatif.operators.parts import GAP, REST, NodeParts, node_parts, rests_ns
from kair_engine.whatif.operators.steady.contraction import Contraction, Edges, contracted
from kair_engine.whatif.operators.steady.graph import SteadyGraph, steady_graph
from kair_engine.whatif.operators.steady.window import Window, window_of
from kair_engine.whatif.operators.step_graph.graph import StepGraph, step_graph
from kair_engine.whatif.operators.step_graph.stream_order import shared_keys, waits_between_streams
from kair_engine.whatif.operators.stops.stopped_parts import StoppedParts
from kair_engine.whatif.replay.levels import Graph
from kair_engine.whatif.replay.plan import Plan, plan
from kair_engine.whatif.replay.replay import replay

_AT_ONCE = 8_000_000
"""Durations that are replayed together (nodes × scenarios): bounds memory."""


class SteadyBatch:
    """Some steps in a row; it is asked what `Batch` is."""

    def __init__(
        self,
        steps: Sequence[Operations],
        syncs: Sequence[Synchronisation],
        role: Sequence[Ints],
        places: Places,
        *,
        queues: Mapping[int, LaunchQueue],
        processor: ProcessorTimes | None = None,
    ) -> None:
        """`queues` are the ranks' launch queues, where they are known; see `Batch` for the rest."""
        self.steps, self.syncs, self.role = steps, syncs, role
        self._synchronised = any(len(sync.collectives) > 0 for sync in syncs)
        window = window_of(steps, syncs)
        of_window = _roles(window, role)
        (key,) = shared_keys([window.ops], [of_window])
        ((within, earlier),) = waits_between_streams([window.ops], [key])
        of = step_graph(window.ops, window.sync, *within)
        parts = _parts_of_steps(node_parts(of, of_window, key, 0), of, window)
        took = np.bincount(parts.node, weights=parts.value_ns, minlength=len(of.time_ns)).astype(float)
        steady = steady_graph(of, window, earlier, queues, took)
        self.dependencies = _dependencies(steady, parts, steps, window)
        self._laps = _Laps.of(steady, of)
        self._devices = _with_device(window.ops)
        """Per rank whether it has one: who recorded none tells of no device's period."""
        have = window.ops.ranks[self._devices]
        self._in_steps = [_or_all(np.isin(ops.ranks, have)) for ops in steps]
        self._recorded = np.concatenate((took, np.zeros(steady.graph.nodes - len(took))))
        self._durations = FixedDurations(self.dependencies, steps, role, places, processor)

    @property
    def stopped(self) -> StoppedParts:
        """What of its parts is stops."""
        return self._durations.stopped

    def excess_ns(self) -> Iterator[tuple[int, float]]:
        """(rank, by how much its operations exceed their peers' ideal), in sum over the steps."""
        ranks, excess = self._durations.excess_ns()
        return zip(ranks.tolist(), excess.tolist(), strict=True)

    def times(self, scenarios: Sequence[Counterfactual], carried: object) -> tuple[None, tuple[Floats, Floats]]:  # noqa: ARG002
        """(each step's time as recorded, (steps × scenarios) replayed), ns; nothing is carried on to other steps."""
        lengths: list[Floats] = []
        at_once = max(1, _AT_ONCE // max(self._laps.plan.place.size, 1))
        for begin in range(0, len(scenarios), at_once):
            durations = [self._changed(one) for one in scenarios[begin : begin + at_once]]
            lengths.append(self._laps.lengths(durations))
        of_ranks = np.concatenate(lengths, axis=2)
        measured = [
            self._of_ranks(ops.length_ns[chosen].astype(float))
            for ops, chosen in zip(self.steps, self._in_steps, strict=True)
        ]
        return None, (np.array(measured), self._of_ranks(of_ranks.swapaxes(0, 1)[self._devices]))

    def _changed(self, of: Counterfactual) -> Floats:
        node, change = self._durations.changed(of)
        return np.asarray(
            self._recorded + np.bincount(node, weights=change, minlength=len(self._recorded)), dtype=float
        )

    def _of_ranks(self, times: Floats) -> Floats:
        """Of times whose first axis is ranks the step's: all are as long where ranks wait for one another."""
        return np.asarray(np.median(times, axis=0) if self._synchronised else times.max(axis=0))


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
        """(steps × ranks × scenarios): how long each step of the last lap takes, ns, given all nodes' durations."""
        nodes = self.small.graph.nodes
        end = np.empty((nodes * self.laps, len(durations)))
        for at, of in enumerate(durations):
            end[self.plan.place, at] = np.tile(self.small.durations(of), self.laps)
        replay(self.plan, end)
        last = self.plan.place[self.step_end + (self.laps - 1) * nodes]
        before = self.plan.place[self.step_end[-1] + (self.laps - 2) * nodes]
        return np.diff(end[last], axis=0, prepend=end[before][None])


def _repeated(small: Contraction, steady: SteadyGraph, laps: int) -> Graph:
    """The graph of all laps, one after another."""
    one, nodes = small.graph, small.graph.nodes
    groups = int(one.group.max(initial=NONE)) + 1
    before = [one.before + nodes * lap for lap in range(laps)]
    after = [one.after + nodes * lap for lap in range(laps)]
    for back, edges in steady.waiting:
        for lap in range(back, laps):
            before.append(small.place[edges.before] + nodes * (lap - back))
            after.append(small.place[edges.after] + nodes * lap)
    group = [np.where(one.group == NONE, NONE, one.group + groups * lap) for lap in range(laps)]
    return Graph(nodes * laps, np.concatenate(before), np.concatenate(after), np.concatenate(group))


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
    """The parts of a window as those of its steps, without what it was only waited for in them.

    What the first operations of a thread or a stream waited for lies before the window: their delay is as in other
    steps. What a launch waited for a place in the queue is no time of its own.
    """
    value, row = _explained(parts, of, window), parts.row
    known = np.flatnonzero((row != NONE) & ~np.isin(parts.node, of.end))
    row = row[known]
    step = window.step[row]
    place = np.stack(window.place)[step, parts.rank[known]]
    kept = {name: getattr(parts, name)[known] for name in NodeParts.__dataclass_fields__}
    kept |= {
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
    """The parts without what threads waited for a place in the queue meanwhile, whatever operation that is told of.

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


def _dependencies(
    steady: SteadyGraph, parts: NodeParts, steps: Sequence[Operations], window: Window
) -> OperatorDependencies:
    ends = tuple(
        steady.step_end[at][place[place != NONE]] if (place == NONE).any() else steady.step_end[at]
        for at, place in enumerate(window.place)
    )
    none = tuple(np.zeros(0) for _ in steps)
    return OperatorDependencies(steady.graph, parts, tuple(ops.ranks for ops in steps), ends, ends, none, none)
