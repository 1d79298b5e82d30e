"""Jobs whose hosts run ahead of their devices: how far, from when on they are recorded, and what a recording holds.

A recording of such a job opens in full flight. What was launched before is not in it, but the kernels of those launches
that begin later are: they have no launch, and belong to steps that were not recorded. At the end the profiler waits for
the device, so that the last step is whole.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
from fault_model import Truth
from launch_queue import launches_of, reads_loss
from layouts import JobLayout
from programs import program_of
from recording import Columns, Recording, StageTimes
from rows import ABSENT
from timeline import WAKE_UP_NS

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SHORTEST_QUEUE, LONGEST_QUEUE = 40, 1024
"""Launches; the longest is what current drivers have."""
STEPS_AHEAD: Final = 8
"""The queue holds no more steps than these: the simulated steps have fewer launches than real ones."""
GRAPHS_QUEUED: Final = (2, 6)
"""The shortest and the longest queue of a job whose step is one launch."""
FEWEST_WARM_UP: Final = 10
QUEUES_OF_WARM_UP: Final = 3
"""Before the recording begins, so many queues have been launched."""
MEASURED: Final = 41
"""Steps after the warm-up that tell the job's period: 40 from one to the next."""
ABSORBED: Final = 0.005
"""A fault that costs less of the period than this is absorbed: nobody is to blame for anything."""
PROFILER_NS: Final = 15_000
"""The window is open this long before its first step, and the profiler waits for the device so long after the last."""
SYNCHRONIZE: Final = "cudaDeviceSynchronize"


@dataclass(frozen=True)
class Ahead:
    """How far a job's hosts can be ahead, and what of it is recorded."""

    queue: int
    """The depth of the launch queue: a launch waits for the kernel that was launched so many launches before."""
    warm_up: int
    """Steps that are over when the recording begins."""
    measured: int = MEASURED
    """Steps after them that are simulated, to tell the job's period; the first of them are recorded."""


def ahead_of(layout: JobLayout, seed: int) -> Ahead:
    """How far the job of one seed runs ahead."""
    per_step = min(map(len, launches_of(program_of(layout))))
    shortest, longest = GRAPHS_QUEUED if layout.graphed else (SHORTEST_QUEUE, LONGEST_QUEUE)
    longest = min(longest, STEPS_AHEAD * per_step) if not layout.graphed else longest
    random = np.random.default_rng((seed, 2000))
    return ahead_with(layout, round(math.exp(random.uniform(math.log(shortest), math.log(longest)))))


def ahead_with(layout: JobLayout, queue: int) -> Ahead:
    """A job with a launch queue of this depth, recorded once that had time to become full."""
    per_step = min(map(len, launches_of(program_of(layout))))
    return Ahead(queue, max(FEWEST_WARM_UP, math.ceil(QUEUES_OF_WARM_UP * queue / per_step)))


@dataclass(frozen=True)
class AheadRecording:
    """What is recorded of a job that runs ahead, beside all that was simulated of it."""

    simulated: Recording
    """From the first step of the warm-up."""
    ahead: Ahead
    steps: int
    """So many are recorded, after the warm-up."""

    @property
    def layout(self) -> JobLayout:
        """The job's shape."""
        return self.simulated.layout

    @property
    def truths(self) -> tuple[Truth, ...]:
        """What is wrong in the steps that are recorded."""
        return self._simulated(self.ahead.warm_up).truths

    @cached_property
    def device_ends(self) -> Ints:
        """When each rank's device was over with each step after the warm-up, (steps × ranks)."""
        ends = [stage.end[self.ahead.warm_up :].max(axis=1) for stage in self.simulated.stages]
        return np.concatenate(ends, axis=1)

    @property
    def period_ns(self) -> float:
        """How often the job completes a step once it is warm: the devices' median over all steps simulated since."""
        last, every = len(self.device_ends) - 1, self.layout.reads_loss or 1
        # Where the loss is read every few steps, as many of those as of the others.
        last = last // every * every
        return float(np.median((self.device_ends[last] - self.device_ends[0]) / last))

    def columns(self, *, host_operators: bool = True) -> Columns:
        """The operations that the trace has; those of steps before the recorded ones have no launch."""
        per_step = min(map(len, launches_of(self.simulated.program)))
        before = min(self.ahead.warm_up, self.ahead.queue // per_step + 2)
        part = self._simulated(self.ahead.warm_up - before)
        columns = part.columns(host_operators=host_operators)
        opened = part.step_begin[before] + part.clock_offset_ns - PROFILER_NS
        kept = self._recorded(columns, before, opened)
        return _with_last_wait(_chosen(columns, kept), part)

    def _recorded(self, columns: Columns, before: int, opened: Ints) -> Bools:
        """Which rows are in the trace: kernels that begin once it is `opened`, and the host's from then on."""
        step, rank = columns.arrays["step"], columns.arrays["rank"]
        on_device = _of_text(columns, "lane", lambda lane: lane.startswith("stream"))
        reading = np.array([reads_loss(self.layout, self.ahead.warm_up - before + at) for at in range(step.max() + 1)])
        of_read = _of_text(columns, "kind", lambda kind: kind == "sync")
        if self.layout.reads_loss:
            copies = _of_text(columns, "kind", lambda kind: kind == "memory")
            of_read |= copies | np.isin(columns.arrays["correlation"], columns.arrays["correlation"][copies])
            of_read |= _of_text(columns, "name", lambda name: name == "aten::item")
        begun = on_device & (columns.start_ns >= opened[rank])
        kept: Bools = np.where(step >= before, begun | ~on_device, begun) & (reading[step] | ~of_read)
        return kept

    def _simulated(self, first: int) -> Recording:
        """From the step `first` to the last that is recorded."""
        return _steps(self.simulated, first, self.ahead.warm_up + self.steps)


def _steps(recording: Recording, first: int, last: int) -> Recording:
    """Some of a recording's steps, numbered from 0."""
    chosen = slice(first, last)
    times = ("step_begin", "step_end", "fetch_begin", "fetch_end", "wait_begin", "wait_end")
    stages = tuple(
        StageTimes(stage.begin[chosen], stage.end[chosen], stage.launch_begin[chosen], stage.launch_end[chosen])
        for stage in recording.stages
    )
    return replace(
        recording,
        **{name: getattr(recording, name)[chosen] for name in times},
        stages=stages,
        pauses=(),
        truths=tuple(replace(truth, by_step=truth.by_step[chosen]) for truth in recording.truths),
    )


def _of_text(columns: Columns, column: str, holds: Callable[[str], bool]) -> Bools:
    """The rows whose text in a column is such."""
    such: Bools = np.array([holds(text) for text in columns.texts[column]])[columns.arrays[column]]
    return such


def _chosen(columns: Columns, rows: Bools) -> Columns:
    arrays = {name: values[rows] for name, values in columns.arrays.items()}
    return Columns(arrays, columns.start_ns[rows], columns.duration_ns[rows], columns.texts, None)


def _with_last_wait(columns: Columns, part: Recording) -> Columns:
    """The rows, and after them one per rank: the profiler waits for all that was launched."""
    ranks = np.arange(part.layout.ranks)
    begin = part.step_end[-1] + PROFILER_NS
    over = np.concatenate([stage.end.max(axis=(0, 1)) for stage in part.stages])
    duration = np.maximum(over, begin) + int(WAKE_UP_NS) - begin
    texts = {**columns.texts, "name": (*columns.texts["name"], SYNCHRONIZE)}
    new = {name: np.full(len(ranks), ABSENT, np.int32) for name in columns.arrays}
    lane = next(code for code, text in enumerate(texts["lane"]) if text.startswith("thread"))
    new |= {
        "step": np.full(len(ranks), columns.arrays["step"].max(), np.int32),
        "rank": ranks.astype(np.int32),
        "lane": np.full(len(ranks), lane, np.int32),
        "name": np.full(len(ranks), len(texts["name"]) - 1, np.int32),
        "kind": np.full(len(ranks), texts["kind"].index("sync"), np.int32),
        "occurrence": np.zeros(len(ranks), np.int32),
        "correlation": np.full(len(ranks), columns.arrays["correlation"].max() + 1, np.int32),
    }
    arrays = {name: np.concatenate((values, new[name])) for name, values in columns.arrays.items()}
    start = np.concatenate((columns.start_ns, begin + part.clock_offset_ns))
    return Columns(arrays, start, np.concatenate((columns.duration_ns, duration)), texts, None)
