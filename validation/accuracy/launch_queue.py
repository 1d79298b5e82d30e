"""When everything begins and ends in jobs whose hosts run ahead of their devices, as far as the launch queue lets them.

A launch is queued for the device and returns. Once the queue is full it lasts until there is a place: until the kernel
that was launched a queue's depth before it is over. Launches of all streams of a rank share one queue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import TopologicalSorter
from typing import Final

import numpy as np
from costs import JobCosts, quiet_costs
from device_operations import COMPUTE_STREAM, Operation
from layouts import JobLayout
from programs import Node, Place, Program
from timeline import (
    BETWEEN_KERNELS_NS,
    BETWEEN_STEPS_NS,
    LATENCY_NS,
    SCOPE_EDGE_NS,
    WAKE_UP_NS,
    Batch,
    Floats,
    Timeline,
    Views,
)

NODE_OF_GRAPH_NS: Final = 1_500.0
"""What each further kernel of a CUDA graph adds to its launch."""
PLACE_FREE: Final = 0.1
"""A blocked launch returns so much of its own time after its place is free: about a microsecond."""
ENDLESS: Final = 1 << 30
"""The depth of a queue that is never full."""
_SETTLED, _NOMINAL_STEPS = 4, 13
"""A job without noise repeats itself after so many steps; so many are run to tell its period."""


@dataclass(frozen=True)
class Launch:
    """One call of the host, and the operations that it launches: one, or all of a CUDA graph."""

    stage: int
    number: int
    """Among the launches of a step."""
    slots: tuple[int, ...]


def run_queued(program: Program, jobs: Sequence[JobCosts], queue: int) -> Timeline:
    """Lets every job of the batch run its steps with a launch queue of `queue` launches per rank.

    Raises graphlib.CycleError where stages would wait for each other for ever, since the queue is too short.
    """
    return _QueuedBatch(program, jobs, queue).run()


def device_ends(timeline: Timeline) -> Floats:
    """When each rank's device was over with each step, (steps × jobs × ranks)."""
    return np.concatenate([of_stage.max(axis=1) for of_stage in timeline.end], axis=2)


@lru_cache(maxsize=32)
def launches_of(program: Program) -> tuple[tuple[Launch, ...], ...]:
    """The launches of a step, per stage in their order."""
    return tuple(
        tuple(
            Launch(stage, number, slots) for number, slots in enumerate(_launched_together(operations, program.layout))
        )
        for stage, operations in enumerate(program.stages)
    )


@dataclass(frozen=True)
class NominalPeriod:
    """A job that runs ahead where nothing varies and the queue is endless, ns per step."""

    period_ns: float
    host_ns: tuple[float, ...]
    """Per rank: what the host needs for a step as long as it does not wait."""


@lru_cache(maxsize=32)
def nominal_period(program: Program) -> NominalPeriod:
    """How often a job without noise completes a step, and what its hosts need for one."""
    every = program.layout.reads_loss or 1
    quiet = _repeated(quiet_costs(program), _NOMINAL_STEPS * every)
    timeline = run_queued(program, [quiet], ENDLESS)
    ends, first = device_ends(timeline)[:, 0], _SETTLED * every
    period = float((ends[-1] - ends[first - 1]).max()) / (len(ends) - first)
    hosts = timeline.step_begin[1, 0] - timeline.step_begin[0, 0]
    return NominalPeriod(period, tuple(hosts.tolist()))


def reads_loss(layout: JobLayout, step: int) -> bool:
    """Whether the host waits for its device at the end of a step."""
    return layout.reads_loss > 0 and (step + 1) % layout.reads_loss == 0


class _QueuedBatch(Batch):
    def __init__(self, program: Program, jobs: Sequence[JobCosts], queue: int) -> None:
        super().__init__(program, jobs)
        self._queue = queue
        self._order = _order(program, queue)
        self._earlier = [_of_the_step_before(operations) for operations in program.stages]
        self._launches = launches_of(program)
        self._number_of = [{slot: one.number for one in of_stage for slot in one.slots} for of_stage in self._launches]
        own = [self._own_times(stage) for stage in range(len(program.stages))]
        self._before, self._taken = [before for before, _ in own], [taken for _, taken in own]
        # Of every launch since the job's begin: when what it launched is over.
        self._over = [np.zeros((len(times) * times.shape[1], *times.shape[2:])) for times in self._taken]
        self._launched = [0] * len(program.stages)
        """Before this step, per stage."""

    def run(self) -> Timeline:
        host = [np.zeros_like(self._fetch) for _ in range(6)]
        step_begin, step_end, fetch_begin, fetch_end, wait_begin, wait_end = host
        for step in range(len(self._fetch)):
            step_begin[step] = self._now
            np.add(self._now, SCOPE_EDGE_NS, out=fetch_begin[step])
            np.add(fetch_begin[step], self._fetch[step], out=fetch_end[step])
            reads = reads_loss(self._layout, step)
            returned = self._run_step(step, fetch_end[step], reads=reads)
            wait_begin[step] = wait_end[step] = returned
            if reads:
                wait_begin[step] += SCOPE_EDGE_NS
                wait_end[step] = np.maximum(self._of_last(self._end, step), wait_begin[step]) + WAKE_UP_NS
            np.add(wait_end[step], SCOPE_EDGE_NS, out=step_end[step])
            self._now = step_end[step] + BETWEEN_STEPS_NS
        return self._timeline(host)

    def _run_step(self, step: int, fetched: Floats, *, reads: bool) -> Floats:
        """Times all of a step; returns when each rank's last launch returned."""
        ranks = [self._layout.stage_ranks(stage) for stage in range(len(self._launches))]
        hosts = [fetched[:, of_stage.start : of_stage.stop] for of_stage in ranks]
        views = [self._step(stage, step) for stage in range(len(self._launches))]
        # The loss is read by the last launch, where it is read at all.
        unread = [self._layout.reads_loss > 0 and not reads] * len(self._launches)
        left_out = [of_stage[-1] if without else None for of_stage, without in zip(self._launches, unread, strict=True)]
        for item in self._order:
            if isinstance(item, Node):
                self._time(item, views)
                self._note_ends(item, views)
            elif item == left_out[item.stage]:
                self._leave_out(item, step, hosts[item.stage])
            else:
                hosts[item.stage] = self._launch(item, step, hosts[item.stage])
        for stage, of_stage in enumerate(self._launches):
            self._launched[stage] += len(of_stage) - unread[stage]
        return np.concatenate(hosts, axis=1)

    def _launch(self, launch: Launch, step: int, host: Floats) -> Floats:
        """Returns when the launch returns; what it launches cannot begin before."""
        stage, number = launch.stage, launch.number
        begin = host + self._before[stage][step, number]
        taken = self._taken[stage][step, number]
        end: Floats = begin + taken
        held_up_by = self._launched[stage] + number - self._queue
        if held_up_by >= 0:
            np.maximum(end, self._over[stage][held_up_by] + np.rint(PLACE_FREE * taken), out=end)
        for slot in launch.slots:
            self._launch_begin[stage][step, slot], self._launch_end[stage][step, slot] = begin, end
            ready = np.add(end, LATENCY_NS, out=self._begin[stage][step, slot])
            for earlier in self._earlier[stage].get(slot, ()) if step else ():
                np.maximum(ready, self._end[stage][step - 1, earlier], out=ready)
        return end

    def _leave_out(self, launch: Launch, step: int, host: Floats) -> None:
        """An operation that this step does without takes no time."""
        stage, slots = launch.stage, list(launch.slots)
        self._launch_begin[stage][step, slots] = self._launch_end[stage][step, slots] = host
        self._begin[stage][step, slots] = 0.0
        self._device[stage][step, slots] = 0.0

    def _note_ends(self, node: Node, views: list[Views]) -> None:
        shown = 0.0 if node.operation.communication else BETWEEN_KERNELS_NS
        for stage, slot in node.places:
            number = self._launched[stage] + self._number_of[stage][slot]
            over = self._over[stage][number]
            np.maximum(over, views[stage].end[slot] - shown, out=over)

    def _own_times(self, stage: int) -> tuple[Floats, Floats]:
        """What passes before each launch, and what it takes by itself: (steps × launches × jobs × ranks)."""
        taken = self._launch_end[stage] - self._launch_begin[stage]
        before = self._launch_begin[stage].copy()
        before[:, 1:] -= self._launch_end[stage][:, :-1]
        first = [launch.slots[0] for launch in self._launches[stage]]
        further = np.array([NODE_OF_GRAPH_NS * (len(launch.slots) - 1) for launch in self._launches[stage]])
        return np.add.reduceat(before, first, axis=1), taken[:, first] + further[:, None, None]


def _launched_together(operations: tuple[Operation, ...], layout: JobLayout) -> list[tuple[int, ...]]:
    if not layout.graphed:
        return [(slot,) for slot in range(len(operations))]
    graph = tuple(slot for slot, operation in enumerate(operations) if operation.kind != "memory")
    return [graph, *((slot,) for slot in range(len(operations)) if slot not in graph)]


def _of_the_step_before(operations: tuple[Operation, ...]) -> dict[int, tuple[int, ...]]:
    """Operation → those of the step before that it waits for: the last on its stream, and of communication the last
    computing unless the step itself has computed before.
    """
    last = {operation.stream: slot for slot, operation in enumerate(operations)}
    begun: set[int] = set()
    result = {}
    for slot, operation in enumerate(operations):
        streams = {operation.stream, COMPUTE_STREAM} - begun
        if operation.stream not in begun or (operation.communication and COMPUTE_STREAM not in begun):
            result[slot] = tuple(last[stream] for stream in sorted(streams))
        begun.add(operation.stream)
    return result


@lru_cache(maxsize=64)
def _order(program: Program, queue: int) -> tuple[Launch | Node, ...]:
    """A step's launches and nodes so that none precedes what it needs. Launches are places with negative numbers."""
    launches = launches_of(program)
    node_of = {place: node for node in program.nodes for place in node.places}
    needs: dict[Place, list[Place]] = {node.places[0]: [] for node in program.nodes}
    items: dict[Place, Launch | Node] = {node.places[0]: node for node in program.nodes}
    for node in program.nodes:
        for (stage, _), after in zip(node.places, node.after, strict=True):
            needs[node.places[0]] += [node_of[stage, earlier].places[0] for earlier in after]
    for stage, of_stage in enumerate(launches):
        for launch in of_stage:
            place = (stage, -1 - launch.number)
            items[place] = launch
            full = of_stage[launch.number - queue].slots if launch.number >= queue else ()
            needs[place] = [node_of[stage, slot].places[0] for slot in full]
            needs[place] += [(stage, -launch.number)] if launch.number else []
            for slot in launch.slots:
                needs[node_of[stage, slot].places[0]].append(place)
    return tuple(items[place] for place in TopologicalSorter(needs).static_order())


def _repeated(costs: JobCosts, steps: int) -> JobCosts:
    """The costs of one step so many times."""

    def again(of_stages: tuple[Floats, ...]) -> tuple[Floats, ...]:
        return tuple(np.repeat(times, steps, axis=0) for times in of_stages)

    return JobCosts(
        costs.program,
        device=again(costs.device),
        before_launch=again(costs.before_launch),
        launch=again(costs.launch),
        leave=again(costs.leave),
        fetch=np.repeat(costs.fetch, steps, axis=0),
        begin=costs.begin,
    )
