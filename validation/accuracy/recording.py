"""What a simulated job leaves behind: times, the truth, and the operations table's columns as arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from fault_model import Pause, Truth
from layouts import JobLayout
from programs import Program
from rows import ABSENT, GC_NAME, Row, StageRows, Template, template_of

Ints = npt.NDArray[np.int64]

BEFORE_LAUNCH_NS = 4_000
"""A pause is over this long before the launch it holds up."""


@dataclass(frozen=True)
class StageTimes:
    """Times of one stage in ns since the job's begin, (steps × operations × ranks of the stage)."""

    begin: Ints
    end: Ints
    launch_begin: Ints
    launch_end: Ints


@dataclass(frozen=True)
class Columns:
    """The operations table: equally long arrays by (step, rank, lane, start), ABSENT (−1) for null.

    lane, name, kind, phase and group are codes that `texts` explains.
    """

    arrays: dict[str, npt.NDArray[np.int32]]
    start_ns: Ints
    """On the clock of the rank's host."""
    duration_ns: Ints
    texts: dict[str, tuple[str, ...]]
    template: Template | None
    """Where the arrays come from, unless rows were added to them."""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class Recording:
    """A simulated job. Times are true times in ns since its begin; (steps × ranks) unless they say otherwise."""

    program: Program
    stages: tuple[StageTimes, ...]
    step_begin: Ints
    step_end: Ints
    fetch_begin: Ints
    fetch_end: Ints
    wait_begin: Ints
    wait_end: Ints
    clock_offset_ns: Ints
    """Per rank: how much its host's clock is ahead."""
    pauses: tuple[Pause, ...]
    truths: tuple[Truth, ...]

    @property
    def layout(self) -> JobLayout:
        """The job's shape."""
        return self.program.layout

    @property
    def steps(self) -> int:
        """How many steps were recorded, numbered from 0."""
        return len(self.step_begin)

    @property
    def hosts(self) -> dict[int, str]:
        """rank → host."""
        return {rank: self.layout.host(rank) for rank in range(self.layout.ranks)}

    @property
    def step_time_ns(self) -> float:
        """The job's mean time from one step to the next, on its slowest rank."""
        return float((self.step_end[-1] - self.step_begin[0]).max() / self.steps)

    def columns(self, *, host_operators: bool = False) -> Columns:
        """The operations table; `host_operators` adds the operators around every launch."""
        template = template_of(self.program, self.steps, host_operators)
        start = np.empty((self.steps, template.rows_per_step), np.int64)
        end = np.empty_like(start)
        filled = 0
        for stage, rows in enumerate(template.stages):
            begins, ends = self._times(stage, rows)
            size = begins.shape[1] * begins.shape[2]
            start[:, filled : filled + size] = begins.reshape(self.steps, size)
            end[:, filled : filled + size] = ends.reshape(self.steps, size)
            filled += size
        end -= start
        columns = Columns(template.columns, start.ravel(), end.ravel(), template.texts, template)
        visible = [pause for pause in self.pauses if pause.visible]
        return _with_pauses(columns, [self._pause_row(pause, template) for pause in visible]) if visible else columns

    def pause_span(self, pause: Pause) -> tuple[int, int]:
        """Begin and duration of a pause, on its host's clock."""
        stage, position = self.layout.place(pause.rank)
        launch = self.stages[stage].launch_begin[pause.step, pause.slot, position]
        duration = int(pause.duration_ns)
        return int(launch + self.clock_offset_ns[pause.rank]) - BEFORE_LAUNCH_NS - duration, duration

    def _times(self, stage: int, rows: StageRows) -> tuple[Ints, Ints]:
        """Begin and end of one stage's rows, (steps × ranks × rows), on the hosts' clocks."""
        times, ranks = self.stages[stage], self.layout.stage_ranks(stage)
        chosen = slice(ranks.start, ranks.stop)
        ahead = self.clock_offset_ns[None, chosen, None]
        once_begin = np.stack([one[:, chosen] for one in (self.step_begin, self.fetch_begin, self.wait_begin)], axis=1)
        once_end = np.stack([one[:, chosen] for one in (self.step_end, self.fetch_end, self.wait_end)], axis=1)
        begins = np.concatenate([times.begin, times.launch_begin, once_begin], axis=1)
        ends = np.concatenate([times.end, times.launch_end, once_end], axis=1)
        return (
            begins.transpose(0, 2, 1)[:, :, rows.begin] + (rows.begin_shift + ahead),
            ends.transpose(0, 2, 1)[:, :, rows.end] + (rows.end_shift + ahead),
        )

    def _pause_row(self, pause: Pause, template: Template) -> tuple[int, Row, int, int]:
        """Where a pause stands in the table (before which row), and its row with begin and duration."""
        stage, position = self.layout.place(pause.rank)
        before = sum(len(template.stages[one].rows) for one in range(stage)) * self.layout.ranks_per_stage
        rows = template.stages[stage].rows
        first = next(i for i, row in enumerate(rows) if row.slot == pause.slot and row.lane.startswith("thread"))
        at = pause.step * template.rows_per_step + before + position * len(rows) + first
        return at, Row(rows[first].lane, GC_NAME, "gc", "forward", 0, 0), *self.pause_span(pause)


def _with_pauses(columns: Columns, pauses: list[tuple[int, Row, int, int]]) -> Columns:
    """The columns with rows for pauses, each before the row that it holds up."""
    pauses = sorted(pauses, key=lambda pause: pause[0])
    at = [pause[0] for pause in pauses]
    texts = {name: (*values, *({GC_NAME, "gc"} & _new_texts(name))) for name, values in columns.texts.items()}
    arrays = {name: np.insert(values, at, ABSENT) for name, values in columns.arrays.items()}
    new = np.array(at) + np.arange(len(at))
    for name in ("step", "rank", "lane"):
        arrays[name][new] = columns.arrays[name][at]
    arrays["name"][new] = texts["name"].index(GC_NAME)
    arrays["kind"][new] = texts["kind"].index("gc")
    arrays["phase"][new] = texts["phase"].index("forward")
    arrays["occurrence"][new] = _ordinals(arrays["step"][new], arrays["rank"][new])
    start, duration = ([pause[field] for pause in pauses] for field in (2, 3))
    return Columns(
        arrays, np.insert(columns.start_ns, at, start), np.insert(columns.duration_ns, at, duration), texts, None
    )


def _new_texts(column: str) -> set[str]:
    return {"name": {GC_NAME}, "kind": {"gc"}}.get(column, set())


def _ordinals(step: npt.NDArray[np.int32], rank: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """For each entry how many before it are of the same step and rank; equal ones stand together."""
    fresh = np.r_[True, (np.diff(step) != 0) | (np.diff(rank) != 0)]
    place = np.arange(len(step))
    return (place - np.maximum.accumulate(np.where(fresh, place, 0))).astype(np.int32)
