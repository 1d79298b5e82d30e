"""Finds the training steps of one recording: from the profiler's marks, else from other signs.

Without ProfilerStep marks it tries, in this order: annotations that span each iteration, the optimizer's marks, and
repetition. Annotations are the host's, else the device's (`gpu_user_annotation`). Steps found on the device are cut by
launches if these were recorded.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import Bools, Ints, is_one_of
from kair_engine.frozen import dataclass
from kair_engine.readers.kineto.classify import DEVICE_CATEGORIES, STEP_MARK, Category, NameClass
from kair_engine.readers.kineto.events import Records, chosen, joined
from kair_engine.readers.kineto.tables import EventTables, Track
from kair_engine.readers.launch_queue import found_ids
from kair_engine.readers.step_marks import Mark, Repetition, Steps, between_optimizers, marked_steps, repetition

Int64s = npt.NDArray[np.int64]


OUTSIDE: Final = -1
_BEFORE_ALL: Final = np.iinfo(np.int64).min


@dataclass(frozen=True)
class StepWindows:
    """Steps by their begin: number, begin and end in ns, and the track of the thread that ran them."""

    number: Int64s
    begin: Int64s
    end: Int64s
    track: int
    marked: bool
    """False if nothing marked a step and the whole recording counts as one."""
    inferred_from: str | None = None
    """The operation from which the steps were inferred, without marks."""
    on_device: bool = False
    """True if times are the device's: then its operations belong to the step they ran in, whatever launched them."""

    def index_at(self, start: Int64s) -> Int64s:
        """Return the index of the step whose window contains each time, or OUTSIDE."""
        index = np.searchsorted(self.begin, start, "right") - 1
        # Times before all steps find the last entry, and lie after its end.
        outside = start >= np.append(self.end, _BEFORE_ALL).take(index)
        # The recording's last event may begin at the very end of the window that was made for it.
        if not self.marked:
            outside &= start != self.end[0]
        index[outside] = OUTSIDE
        return index


class StepFinder:
    """Collects step marks and the recording's extent from batches of records."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[int, int, int]] = {}
        self._of_process: dict[int | str, dict[int, tuple[int, int, int]]] = {}
        self._host_rows: dict[int, int] = {}
        self.device_rows: dict[int, int] = {}
        """Track → its number of records, for tracks with device operations."""
        self._extent: tuple[int, int] | None = None
        self.processes: set[int | str] = set()
        """Processes that mark the same step at the same time: with two, the file holds several ranks."""

    def add(self, batch: Records, tables: EventTables) -> None:
        """Add one batch."""
        if not len(batch):
            return
        tracks, classes = batch["track"].copy(), tables.name_classes()
        host = is_one_of(tables.categories(), (Category.CPU_OP, Category.ANNOTATION))
        marks = np.flatnonzero((classes == NameClass.STEP).take(batch["name"]))
        for record in batch[marks[host[tracks[marks]]]]:
            self._mark(record, tables)
        rows = np.bincount(tracks, minlength=len(host))
        for track in np.flatnonzero(host & (rows > 0)).tolist():
            self._host_rows[track] = self._host_rows.get(track, 0) + int(rows[track])
        device = is_one_of(tables.categories(), DEVICE_CATEGORIES)
        for track in np.flatnonzero(device & (rows > 0)).tolist():
            self.device_rows[track] = self.device_rows.get(track, 0) + int(rows[track])
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
        """Return the steps, or None for a recording without operations; `batches` are all records once more."""
        if self._extent is None:
            return None
        if self._marks:
            return _marked(self._marks)
        return UnmarkedSteps(batches, tables, self._extent, self._busiest()).found() or self._whole(self._extent)

    def windows_of(self, process: int | str) -> StepWindows:
        """Return the steps marked by one of `processes`."""
        return _marked(self._of_process[process])

    def _whole(self, extent: tuple[int, int]) -> StepWindows:
        begin, end = extent
        return StepWindows(np.array([0]), np.array([begin]), np.array([end]), self._busiest(), marked=False)

    def _busiest(self) -> int:
        """Return the track of the thread with most records."""
        return max(self._host_rows, key=lambda track: self._host_rows[track], default=-1)


def _marked(marks: Mapping[int, tuple[int, int, int]]) -> StepWindows:
    """Return the steps from their marks, (begin, duration, track) by number."""
    steps = sorted(marks.items(), key=lambda item: item[1][0])
    begin_ns = np.array([start for _, (start, _, _) in steps], np.int64)
    end_ns = begin_ns + np.array([duration for _, (_, duration, _) in steps], np.int64)
    numbers = np.array([step for step, _ in steps], np.int64)
    return StepWindows(numbers, begin_ns, end_ns, steps[0][1][2], marked=True)


_COARSER: Final = 1.5
"""A later candidate sequence is only used if its steps are this many times longer."""
_STREAMS: Final = 4
"""Streams that are examined, those with most kernels first."""
_LAUNCHED: Final = 0.5
"""Share of a stream's operations that need recorded launches if steps are to be cut by launches."""
_Extent = tuple[int, int]
_Marks = Mapping[int, list[Mark]]
"""The ranges of each thread or stream, by its track."""
_Method = Callable[[list[Mark], Int64s], Steps | None]


class UnmarkedSteps:
    """Finds the steps of a recording without step marks, by several methods in turn; `batches` are its records."""

    def __init__(self, batches: Iterable[Records], tables: EventTables, extent: _Extent, busiest: int) -> None:
        """`busiest` is the track of the thread with most records, -1 for none."""
        self._batches, self._tables, self._extent, self._busiest = batches, tables, extent, busiest
        self._category = tables.categories()

    @cached_property
    def _calls(self) -> Records:
        return self._of(self._category == Category.RUNTIME)

    @cached_property
    def _launches(self) -> Records:
        """The calls, sorted by correlation."""
        return chosen(self._calls, np.argsort(self._calls["correlation"], kind="stable"))

    @cached_property
    def _device(self) -> Records:
        return self._of(is_one_of(self._category, DEVICE_CATEGORIES))

    def found(self) -> StepWindows | None:
        """Return the steps, numbered from 0 unless names number them; None if no method finds any."""
        host = self._marks(is_one_of(self._category, (Category.CPU_OP, Category.ANNOTATION)), of_host=True)
        device = self._marks(self._category == Category.DEVICE_ANNOTATION, of_host=False)
        optimizers: _Method = lambda marks, work: between_optimizers(marks, work, self._extent)  # noqa: E731
        marked = self._by_marks(host, device, marked_steps) or self._by_marks(host, device, optimizers)
        return self._without_unfinished(marked or self._repeating())

    def _of(self, tracks: Bools) -> Records:
        """Return all records of some tracks, in the order of their starts."""
        records = joined(chosen(batch, tracks.take(batch["track"])) for batch in self._batches)
        return chosen(records, np.argsort(records["start"], kind="stable"))

    def _marks(self, tracks: Bools, *, of_host: bool) -> _Marks:
        """Return the ranges of each thread or stream. (Operators only if they mark an optimizer or a data loader.)"""
        marks: dict[int, list[Mark]] = {}
        names = self._tables.names.items_
        is_mark = np.array(["#" in name or "DataLoader" in name for name in names], dtype=bool)
        for batch in self._batches:
            rows = np.flatnonzero(tracks.take(batch["track"]))
            if of_host:
                operators = self._category.take(batch["track"][rows]) == Category.CPU_OP
                rows = rows[~operators | is_mark.take(batch["name"][rows])]
            for record in batch[rows]:
                begin = int(record["start"])
                mark = Mark(names[record["name"]], begin, begin + int(record["duration"]))
                marks.setdefault(int(record["track"]), []).append(mark)
        return marks

    def _by_marks(self, host: _Marks, device: _Marks, steps_of: _Method) -> StepWindows | None:
        """Return the steps from the host's marks, else from the device's."""
        if (found := _longest(host, steps_of, self._host_work)) is not None:
            track, steps = found
            return StepWindows(steps.number, steps.begin, steps.end, track, True, steps.inferred_from)
        if (found := _longest(device, steps_of, self._device["start"].astype(np.int64))) is not None:
            track, steps = found
            stream = self._stream(self._tables.tracks.items_[track])
            begins, ends = np.searchsorted(stream["start"], steps.begin), np.searchsorted(stream["start"], steps.end)
            return self._cut(stream, begins, ends, steps.number, steps.inferred_from)
        return None

    @cached_property
    def _host_work(self) -> Int64s:
        """Return when the host launched the devices' operations; without a device, when it called its operators."""
        launching = chosen(self._calls, self._launching)
        calls = launching if len(launching) else self._of(self._category == Category.CPU_OP)
        return np.asarray(calls["start"].astype(np.int64))

    @cached_property
    def _ran(self) -> Bools:
        """Return per call whether the recording has the operation that it launched."""
        return found_ids(np.unique(self._device["correlation"]), self._calls["correlation"])[1]

    @cached_property
    def _launching(self) -> Bools:
        """Return per call whether its function launches something in most calls."""
        often, ran = np.bincount(self._calls["name"]), np.bincount(self._calls["name"], weights=self._ran)
        return np.asarray((2 * ran >= often).take(self._calls["name"]))

    def _repeating(self) -> StepWindows | None:
        """Return steps from repetition in the host's operators, or, if those are longer, in other records.

        Those are calls that wait for the device, since loops wait once per iteration even if their operators show none,
        or the operations of a stream.
        """
        operators = self._of(self._category == Category.CPU_OP)
        syncs = self._tables.name_classes().take(self._calls["name"]) == NameClass.SYNCHRONIZE
        with_syncs = joined([operators, chosen(self._calls, syncs)])
        with_syncs = chosen(with_syncs, np.argsort(with_syncs["start"], kind="stable"))
        best: tuple[Records, Repetition] | None = None
        for rows in (operators, with_syncs, *self._streams()):
            found = repetition(rows["name"].astype(np.int64), self._tables.names.items_)
            if found is not None and (best is None or _COARSER * found.steps < best[1].steps):
                best = rows, found
            if best is not None and best[1].is_sure:
                break
        if best is None:
            return None
        rows, found = best
        begins, ends, number = found.bounds[:-1], found.bounds[1:], np.arange(found.steps)
        if is_one_of(self._category.take(rows["track"][:1]), DEVICE_CATEGORIES).any():
            return self._cut(rows, begins, ends, number, found.inferred_from)
        edges = np.append(rows["start"], self._extent[1] + 1)
        return StepWindows(number, edges[begins], edges[ends], self._busiest, True, found.inferred_from)

    def _streams(self) -> Iterator[Records]:
        """Yield the operations on each of the streams with most kernels."""
        kernels = self._category.take(self._device["track"]) == Category.KERNEL
        often = np.bincount(self._device["track"], weights=kernels)
        for track in np.argsort(-often, kind="stable")[:_STREAMS].tolist():
            if often[track]:
                yield self._stream(self._tables.tracks.items_[track])

    def _stream(self, track: Track) -> Records:
        """Return the operations on a track's stream, in order.

        A stream has separate tracks for kernels and copies.
        """
        tracks = self._tables.tracks.items_
        of_stream = [(one.device, one.lane) == (track.device, track.lane) for one in tracks]
        return chosen(self._device, np.array(of_stream, dtype=bool).take(self._device["track"]))

    def _cut(
        self, stream: Records, begins: Ints, ends: Ints, number: Ints, operation: str | None
    ) -> StepWindows | None:
        """Return steps cut at positions in a stream: on the host, after the launch of the preceding operation if
        launches are recorded; else on the device, after that operation.
        """
        at, launched = found_ids(self._launches["correlation"], stream["correlation"])
        on_device = not len(launched) or launched.mean() < _LAUNCHED
        rows = stream if on_device else self._launches[at] if len(self._launches) else stream
        over = np.append(self._extent[0], rows["start"] + rows["duration"])
        known = np.append(True, launched | on_device)
        begin, end = over[begins], over[ends]
        whole = known[begins] & known[ends] & (begin < end)
        if not whole.any():
            return None
        steps = (number[whole], begin[whole], end[whole])
        return StepWindows(*steps, self._busiest, True, operation, on_device=on_device)

    def _without_unfinished(self, windows: StepWindows | None) -> StepWindows | None:
        """Return the steps without the last ones if the recording ended before work that they launched."""
        if windows is None or windows.on_device or not len(self._launches):
            return windows
        unfinished = self._calls["start"][~self._ran & self._launching]
        inside = windows.index_at(unfinished.astype(np.int64))
        lost = np.bincount(inside[inside != OUTSIDE], minlength=len(windows.number))
        kept = len(lost)
        while kept and lost[kept - 1] > np.median(lost):
            kept -= 1
        if not kept:
            return windows
        edges = (windows.number[:kept], windows.begin[:kept], windows.end[:kept])
        return StepWindows(*edges, windows.track, True, windows.inferred_from)


def _longest(marks: _Marks, steps_of: _Method, work: Int64s) -> tuple[int, Steps] | None:
    """Return the track and steps that take most time of those whose marks give steps; numbered ones first."""
    found = [(track, steps) for track, some in marks.items() if (steps := steps_of(some, work)) is not None]
    return max(
        found, key=lambda one: (one[1].inferred_from is None, int((one[1].end - one[1].begin).sum())), default=None
    )
