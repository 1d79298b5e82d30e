"""The training steps of one recording: as the profiler marks them, else as other signs tell them."""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import is_one_of
from kair_engine.readers.kineto.classify import STEP_MARK, Category, NameClass
from kair_engine.readers.kineto.rows import Records
from kair_engine.readers.kineto.steps.unmarked import UnmarkedSteps
from kair_engine.readers.kineto.steps.windows import StepWindows
from kair_engine.readers.kineto.tables import EventTables

Int64s = npt.NDArray[np.int64]


class StepFinder:
    """Collects step marks and the recording's extent while batches pass by."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[int, int, int]] = {}
        self._of_process: dict[int | str, dict[int, tuple[int, int, int]]] = {}
        self._host_rows: dict[int, int] = {}
        self._extent: tuple[int, int] | None = None
        self.processes: set[int | str] = set()
        """Those that mark a step of one number at one time: with two, the file holds several ranks."""

    def add(self, batch: Records, tables: EventTables) -> None:
        """Takes in one batch."""
        if not len(batch):
            return
        tracks, classes = batch["track"].copy(), tables.name_classes()
        host = is_one_of(tables.categories(), (Category.CPU_OP, Category.ANNOTATION))
        told = np.flatnonzero((classes == NameClass.STEP).take(batch["name"]))
        for record in batch[told[host[tracks[told]]]]:
            self._mark(record, tables)
        rows = np.bincount(tracks, minlength=len(host))
        for track in np.flatnonzero(host & (rows > 0)).tolist():
            self._host_rows[track] = self._host_rows.get(track, 0) + int(rows[track])
        start = batch["start"].copy()
        first, last = int(start.min()), int((start + batch["duration"]).max())
        known = self._extent or (first, last)
        self._extent = (min(known[0], first), max(known[1], last))

    def _mark(self, record: np.void, tables: EventTables) -> None:
        match = STEP_MARK.match(tables.names.items_[record["name"]])
        assert match is not None
        step, start, duration = int(match.group(1)), int(record["start"]), int(record["duration"])
        process = tables.tracks.items_[record["track"]].device
        self._see_process(step, start, start + duration, process, tables)
        for marks in (self._marks, self._of_process.setdefault(process, {})):
            if duration > marks.get(step, (0, -1, 0))[1]:
                marks[step] = (start, duration, int(record["track"]))

    def _see_process(self, step: int, start: int, end: int, process: int | str, tables: EventTables) -> None:
        if step not in self._marks:
            return
        known, length, track = self._marks[step]
        other = tables.tracks.items_[track].device
        if other != process and min(end, known + length) > max(start, known):
            self.processes |= {process, other}

    def windows(self, batches: Iterable[Records], tables: EventTables) -> StepWindows | None:
        """The steps, or None for a recording without operations; `batches` are all of it once more."""
        if self._extent is None:
            return None
        if self._marks:
            return _marked(self._marks)
        return UnmarkedSteps(batches, tables, self._extent, self._busiest()).found() or self._whole(self._extent)

    def windows_of(self, process: int | str) -> StepWindows:
        """The steps that one of `processes` marks."""
        return _marked(self._of_process[process])

    def _whole(self, extent: tuple[int, int]) -> StepWindows:
        begin, end = extent
        return StepWindows(np.array([0]), np.array([begin]), np.array([end]), self._busiest(), marked=False)

    def _busiest(self) -> int:
        """The track of the thread that ran most."""
        return max(self._host_rows, key=lambda track: self._host_rows[track], default=-1)


def _marked(marks: Mapping[int, tuple[int, int, int]]) -> StepWindows:
    """The steps as their marks, (begin, duration, track) by number, have them."""
    steps = sorted(marks.items(), key=lambda item: item[1][0])
    begin_ns = np.array([start for _, (start, _, _) in steps], np.int64)
    end_ns = begin_ns + np.array([duration for _, (_, duration, _) in steps], np.int64)
    numbers = np.array([step for step, _ in steps], np.int64)
    return StepWindows(numbers, begin_ns, end_ns, steps[0][1][2], marked=True)
