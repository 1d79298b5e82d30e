"""The training steps of one recording, and the step each event belongs to."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import is_one_of
from kair_engine.frozen import dataclass
from kair_engine.readers.kineto.classify import STEP_MARK, Category, NameClass
from kair_engine.readers.kineto.rows import Records, chosen, joined
from kair_engine.readers.kineto.steps.repeating import repeating
from kair_engine.readers.kineto.steps.signs import SIGN_CLASSES, StepSigns
from kair_engine.readers.kineto.tables import EventTables

OUTSIDE: Final = -1
_BEFORE_ALL: Final = np.iinfo(np.int64).min
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StepWindows:
    """Steps by their begin: number, begin and end in ns, and the track of the thread that ran them."""

    number: Int64s
    begin: Int64s
    end: Int64s
    track: int
    marked: bool
    """False where nothing marked a step and the whole recording stands for one."""
    inferred_from: str | None = None
    """The operation that tells the steps, where no mark does."""

    def index_at(self, start: Int64s) -> Int64s:
        """The index of the step whose window holds each time, or OUTSIDE."""
        index = np.searchsorted(self.begin, start, "right") - 1
        # What is before all finds the last entry, and is behind its end.
        outside = start >= np.append(self.end, _BEFORE_ALL).take(index)
        # The recording's last event may begin at the very end of the window that was made for it.
        if not self.marked:
            outside &= start != self.end[0]
        index[outside] = OUTSIDE
        return index


class StepFinder:
    """Collects step marks and the recording's extent while batches pass by."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[int, int, int]] = {}
        self._of_process: dict[int | str, dict[int, tuple[int, int, int]]] = {}
        self._host_rows: dict[int, int] = {}
        self._extent: tuple[int, int] | None = None
        self._signs = StepSigns()
        self.processes: set[int | str] = set()
        """Those that mark a step of one number at one time: with two, the file holds several ranks."""

    def add(self, batch: Records, tables: EventTables) -> None:
        """Takes in one batch."""
        if not len(batch):
            return
        tracks, classes = batch["track"].copy(), tables.name_classes()
        host = is_one_of(tables.categories(), (Category.CPU_OP, Category.ANNOTATION))
        # Few are of these classes: whether they are the host's is asked of those alone.
        told = np.flatnonzero(is_one_of(classes, (NameClass.STEP, *SIGN_CLASSES)).take(batch["name"]))
        told = told[host[tracks[told]]]
        of_told = classes[batch["name"][told]]
        for record in batch[told[of_told == NameClass.STEP]]:
            self._mark(record, tables)
        for record in batch[told[of_told != NameClass.STEP]]:
            begin, name = int(record["start"]), tables.names.items_[record["name"]]
            self._signs.see(name, begin, begin + int(record["duration"]), int(record["track"]))
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
        if not self._marks:
            return self._inferred(batches, tables) or self._whole(self._extent)
        return _marked(self._marks)

    def windows_of(self, process: int | str) -> StepWindows:
        """The steps that one of `processes` marks."""
        return _marked(self._of_process[process])

    def _inferred(self, batches: Iterable[Records], tables: EventTables) -> StepWindows | None:
        """The steps that the optimizer or the data loader shows, else a sequence of operators that repeats."""
        assert self._extent is not None
        if (found := self._signs.steps(self._extent)) is not None:
            numbers = np.arange(len(found.begin))
            return StepWindows(numbers, found.begin, found.end, found.track, marked=True, inferred_from=found.sign)
        categories = tables.categories()
        of_host = [chosen(batch, categories[batch["track"]] == Category.CPU_OP) for batch in batches]
        rows = joined(of_host)
        rows = chosen(rows, np.argsort(rows["start"], kind="stable"))
        repeats = repeating(rows["name"].astype(np.int64), rows["start"], tables.names.items_)
        if repeats is None:
            return None
        name, bounds = repeats
        sign = f"what repeats from {name} on"
        numbers = np.arange(len(bounds) - 1)
        return StepWindows(numbers, bounds[:-1], bounds[1:], self._busiest(), marked=True, inferred_from=sign)

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
