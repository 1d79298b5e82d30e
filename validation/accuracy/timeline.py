"""When everything begins and ends in a batch of jobs that run one program: the event simulation itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from costs import JobCosts, communication_slots, quiet_costs
from programs import Node, Program

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SCOPE_EDGE_NS = 5_000.0
"""From the step's begin to its input fetch, and from its last synchronisation to its end."""
LATENCY_NS = 4_000.0
"""From a launch's return to the earliest begin of its kernel."""
WAKE_UP_NS = 10_000.0
"""From the end of the device's work to the return of the host that waits for it."""
BETWEEN_KERNELS_NS = 1_000.0
BETWEEN_STEPS_NS = 20_000.0


@dataclass(frozen=True)
class Timeline:
    """Times in ns since the job's begin; device and launch times per stage, (steps × operations × jobs × ranks)."""

    begin: tuple[Floats, ...]
    end: tuple[Floats, ...]
    launch_begin: tuple[Floats, ...]
    launch_end: tuple[Floats, ...]
    step_begin: Floats
    """This and what follows: (steps × jobs × ranks of the job)."""
    step_end: Floats
    fetch_begin: Floats
    fetch_end: Floats
    wait_begin: Floats
    """The host's synchronisation with its device."""
    wait_end: Floats


def run(program: Program, jobs: Sequence[JobCosts]) -> Timeline:
    """Lets every job of the batch run its steps."""
    return Batch(program, jobs).run()


@lru_cache(maxsize=32)
def nominal_step_ns(program: Program) -> float:
    """From one step to the next where nothing varies."""
    timeline = run(program, [quiet_costs(program)])
    return float((timeline.step_end - timeline.step_begin).max()) + BETWEEN_STEPS_NS


@dataclass(frozen=True)
class Views:
    """One stage in one step, by operation: (jobs × ranks) each."""

    begin: list[Floats]
    end: list[Floats]
    device: list[Floats]
    leave: dict[int, Floats]


class Batch:
    """Jobs of one program whose hosts wait for their devices at the end of every step."""

    def __init__(self, program: Program, jobs: Sequence[JobCosts]) -> None:
        self._program, self._layout = program, program.layout
        stages = range(len(program.stages))
        self._device = [_whole_ns([job.device[stage] for job in jobs], axis=2) for stage in stages]
        self._leave = [_whole_ns([job.leave[stage] for job in jobs], axis=2) for stage in stages]
        launch = [_whole_ns([job.launch[stage] for job in jobs], axis=2) for stage in stages]
        since = [_whole_ns([job.before_launch[stage] for job in jobs], axis=2) for stage in stages]
        for stage in stages:
            since[stage] += launch[stage]
        # From the end of the input fetch; the hosts never wait within a step.
        self._launch_end = [np.cumsum(times, axis=1, out=times) for times in since]
        self._launch_begin = [end - taken for end, taken in zip(self._launch_end, launch, strict=True)]
        self._fetch = _whole_ns([job.fetch for job in jobs], axis=1)
        self._now = _whole_ns([job.begin for job in jobs], axis=0)
        self._begin = [np.empty_like(times) for times in self._device]
        self._end = [np.empty_like(times) for times in self._device]
        self._communication = [communication_slots(operations) for operations in program.stages]

    def run(self) -> Timeline:
        """Step after step, each in the program's order of nodes."""
        host = [np.empty_like(self._fetch) for _ in range(6)]
        step_begin, step_end, fetch_begin, fetch_end, wait_begin, wait_end = host
        for step in range(len(self._fetch)):
            step_begin[step] = self._now
            np.add(self._now, SCOPE_EDGE_NS, out=fetch_begin[step])
            np.add(fetch_begin[step], self._fetch[step], out=fetch_end[step])
            self._run_device(step, fetch_end[step])
            np.add(self._of_last(self._launch_end, step), SCOPE_EDGE_NS, out=wait_begin[step])
            done = np.maximum(self._of_last(self._end, step), wait_begin[step])
            np.add(done, WAKE_UP_NS, out=wait_end[step])
            np.add(wait_end[step], SCOPE_EDGE_NS, out=step_end[step])
            self._now = step_end[step] + BETWEEN_STEPS_NS
        return self._timeline(host)

    def _timeline(self, host: list[Floats]) -> Timeline:
        """All that was timed; `host` is Timeline's, from `step_begin` to `wait_end`."""
        for stage, operations in enumerate(self._program.stages):
            kernels = [index for index, operation in enumerate(operations) if not operation.communication]
            self._end[stage][:, kernels] -= BETWEEN_KERNELS_NS
        return Timeline(tuple(self._begin), tuple(self._end), tuple(self._launch_begin), tuple(self._launch_end), *host)

    def _run_device(self, step: int, fetched: Floats) -> None:
        views = [self._views(stage, step, fetched) for stage in range(len(self._program.stages))]
        for node in self._program.nodes:
            self._time(node, views)

    def _time(self, node: Node, views: list[Views]) -> None:
        """Begin and end of a node, whose operations may begin when `views` says, and what they wait for is over."""
        for (stage, slot), after in zip(node.places, node.after, strict=True):
            begin, ends = views[stage].begin[slot], views[stage].end
            for earlier in after:
                np.maximum(begin, ends[earlier], out=begin)
        if node.operation.dimension == "world":
            self._leave_at_once(node, views)
        elif node.operation.kind == "collective":
            self._leave_together(node, views)
        elif node.operation.kind == "send":
            self._hand_over(node, views)
        else:
            ((stage, slot),) = node.places
            view = views[stage]
            np.add(view.begin[slot], view.device[slot], out=view.end[slot])

    def _views(self, stage: int, step: int, fetched: Floats) -> Views:
        """One stage's arrays in one step; sets the launches, and begins that are not yet held up by anything else."""
        ranks = self._layout.stage_ranks(stage)
        self._launch_begin[stage][step] += fetched[:, ranks.start : ranks.stop]
        self._launch_end[stage][step] += fetched[:, ranks.start : ranks.stop]
        np.add(self._launch_end[stage][step], LATENCY_NS, out=self._begin[stage][step])
        return self._step(stage, step)

    def _step(self, stage: int, step: int) -> Views:
        """One stage's arrays in one step."""
        leave = dict(zip(self._communication[stage], self._leave[stage][step], strict=True))
        return Views(
            list(self._begin[stage][step]), list(self._end[stage][step]), list(self._device[stage][step]), leave
        )

    def _leave_together(self, node: Node, views: list[Views]) -> None:
        """A collective is over for all members a transfer after the last of them came."""
        ((stage, slot),) = node.places
        view, axis = views[stage], 2 if node.operation.dimension == "tp" else 1
        shape = (-1, self._layout.dp, self._layout.tp)
        last = view.begin[slot].reshape(shape).max(axis=axis, keepdims=True)
        np.add(view.device[slot].reshape(shape), last, out=view.end[slot].reshape(shape))
        view.end[slot] += view.leave[slot]

    def _leave_at_once(self, node: Node, views: list[Views]) -> None:
        """The same, among all ranks of the job."""
        last = np.max([views[stage].begin[slot].max(axis=1) for stage, slot in node.places], axis=0)
        stage, slot = node.places[0]
        done = last[:, None] + views[stage].device[slot][:, :1]
        for stage, slot in node.places:
            np.add(views[stage].leave[slot], done, out=views[stage].end[slot])

    def _hand_over(self, node: Node, views: list[Views]) -> None:
        """A send and its receive are over a transfer after the later of them came."""
        (sender, sent), (receiver, received) = node.places
        done = np.maximum(views[sender].begin[sent], views[receiver].begin[received])
        done += views[sender].device[sent]
        np.add(done, views[sender].leave[sent], out=views[sender].end[sent])
        np.add(done, views[receiver].leave[received], out=views[receiver].end[received])

    def _of_last(self, times: list[Floats], step: int) -> Floats:
        """Of the last operation of every rank, which the host waits for."""
        return np.concatenate([of_stage[step, -1] for of_stage in times], axis=1)


def _whole_ns(of_jobs: list[Floats], axis: int) -> Floats:
    """Costs of several jobs in one array, of whole numbers: sums of those are exact, and so are their differences."""
    stacked = np.stack(of_jobs, axis=axis)
    return np.rint(stacked, out=stacked)
