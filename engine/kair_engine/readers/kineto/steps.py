"""The training steps of one recording: as the profiler marks them, else as other signs tell them.

The steps of a recording in which no ProfilerStep marks them.

In this order: annotations that span each iteration, the optimizer's marks, what repeats. Annotations are the host's,
else the device's (`gpu_user_annotation`). Steps that the device tells are cut by launches where these were recorded.
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
    """False where nothing marked a step and the whole recording stands for one."""
    inferred_from: str | None = None
    """The operation that tells the steps, where no mark does."""
    on_device: bool = False
    """True where times are the device's: then what it ran is of the step it ran in, whatever launched it."""

    def index_at(self, start: Int64s) -> Int64s:
        """Return the index of the step whose window holds each time, or OUTSIDE."""
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
        self.device_rows: dict[int, int] = {}
        """track → how many records it has, of those on which devices ran something."""
        self._extent: tuple[int, int] | None = None
        self.processes: set[int | str] = set()
        """Those that mark a step of one number at one time: with two, the file holds several ranks."""

    def add(self, batch: Records, tables: EventTables) -> None:
        """Take in one batch."""
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
        """Return the steps, or None for a recording without operations; `batches` are all of it once more."""
        if self._extent is None:
            return None
        if self._marks:
            return _marked(self._marks)
        return UnmarkedSteps(batches, tables, self._extent, self._busiest()).found() or self._whole(self._extent)

    def windows_of(self, process: int | str) -> StepWindows:
        """Return the steps that one of `processes` marks."""
        return _marked(self._of_process[process])

    def _whole(self, extent: tuple[int, int]) -> StepWindows:
        begin, end = extent
        return StepWindows(np.array([0]), np.array([begin]), np.array([end]), self._busiest(), marked=False)

    def _busiest(self) -> int:
        """Return the track of the thread that ran most."""
        return max(self._host_rows, key=lambda track: self._host_rows[track], default=-1)


def _marked(marks: Mapping[int, tuple[int, int, int]]) -> StepWindows:
    """Return the steps as their marks, (begin, duration, track) by number, have them."""
    steps = sorted(marks.items(), key=lambda item: item[1][0])
    begin_ns = np.array([start for _, (start, _, _) in steps], np.int64)
    end_ns = begin_ns + np.array([duration for _, (_, duration, _) in steps], np.int64)
    numbers = np.array([step for step, _ in steps], np.int64)
    return StepWindows(numbers, begin_ns, end_ns, steps[0][1][2], marked=True)


_COARSER: Final = 1.5
"""Times as long steps must be in a sequence that is looked at later, to be told by that."""
_STREAMS: Final = 4
"""Of those with most kernels as many are looked at."""
_LAUNCHED: Final = 0.5
"""Share of a stream's operations whose launches are recorded, where it is launches that steps are cut by."""
_Extent = tuple[int, int]
_Marks = Mapping[int, list[Mark]]
"""The ranges of each thread or stream, by its track."""
_Method = Callable[[list[Mark], Ints], Steps | None]


class UnmarkedSteps:
    """Looks for the steps of a recording, whose records are `batches`, in one way after another."""

    def __init__(self, batches: Iterable[Records], tables: EventTables, extent: _Extent, busiest: int) -> None:
        """`busiest` is the track of the thread that ran most, -1 for none."""
        self._batches, self._tables, self._extent, self._busiest = batches, tables, extent, busiest
        self._category = tables.categories()

    @cached_property
    def _calls(self) -> Records:
        return self._of(self._category == Category.RUNTIME)

    @cached_property
    def _launches(self) -> Records:
        """The calls by what they launched."""
        return chosen(self._calls, np.argsort(self._calls["correlation"], kind="stable"))

    @cached_property
    def _device(self) -> Records:
        return self._of(is_one_of(self._category, DEVICE_CATEGORIES))

    def found(self) -> StepWindows | None:
        """Return the steps, numbered from 0 where names do not number them; None where nothing tells them."""
        host = self._marks(is_one_of(self._category, (Category.CPU_OP, Category.ANNOTATION)), of_host=True)
        device = self._marks(self._category == Category.DEVICE_ANNOTATION, of_host=False)
        optimizers: _Method = lambda marks, work: between_optimizers(marks, work, self._extent)  # noqa: E731
        told = self._told_by(host, device, marked_steps) or self._told_by(host, device, optimizers)
        return self._without_unfinished(told or self._repeating())

    def _of(self, tracks: Bools) -> Records:
        """All records of some tracks, in order of their starts."""
        records = joined(chosen(batch, tracks.take(batch["track"])) for batch in self._batches)
        return chosen(records, np.argsort(records["start"], kind="stable"))

    def _marks(self, tracks: Bools, *, of_host: bool) -> _Marks:
        """Return the ranges of each thread, or stream. (Of operators those that mark an optimizer or a data loader.)"""
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

    def _told_by(self, host: _Marks, device: _Marks, steps_of: _Method) -> StepWindows | None:
        """Return what the marks of the host tell, else those of the device."""
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
    def _host_work(self) -> Ints:
        """When the host launched what devices run; without one, when it called its operators."""
        launching = chosen(self._calls, self._launching)
        calls = launching if len(launching) else self._of(self._category == Category.CPU_OP)
        return np.asarray(calls["start"].astype(np.int64))

    @cached_property
    def _ran(self) -> Bools:
        """Of each call whether the recording has what it launched."""
        return found_ids(np.unique(self._device["correlation"]), self._calls["correlation"])[1]

    @cached_property
    def _launching(self) -> Bools:
        """Of each call whether it is to a function that launches something in most calls."""
        often, ran = np.bincount(self._calls["name"]), np.bincount(self._calls["name"], weights=self._ran)
        return np.asarray((2 * ran >= often).take(self._calls["name"]))

    def _repeating(self) -> StepWindows | None:
        """Return what repeats in the host's operators, or in longer steps in what else is recorded.

        That is its calls that wait for the device, since loops wait once where their operators show no iteration, or
        what a stream runs.
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
            return self._cut(rows, begins, ends, number, found.told_by)
        edges = np.append(rows["start"], self._extent[1] + 1)
        return StepWindows(number, edges[begins], edges[ends], self._busiest, True, found.told_by)

    def _streams(self) -> Iterator[Records]:
        """Yield what ran on each of the streams with most kernels."""
        kernels = self._category.take(self._device["track"]) == Category.KERNEL
        often = np.bincount(self._device["track"], weights=kernels)
        for track in np.argsort(-often, kind="stable")[:_STREAMS].tolist():
            if often[track]:
                yield self._stream(self._tables.tracks.items_[track])

    def _stream(self, track: Track) -> Records:
        """Return what ran on the stream that a track is of, in order.

        Its kernels and copies have tracks of their own.
        """
        tracks = self._tables.tracks.items_
        of_stream = [(one.device, one.lane) == (track.device, track.lane) for one in tracks]
        return chosen(self._device, np.array(of_stream, dtype=bool).take(self._device["track"]))

    def _cut(self, stream: Records, begins: Ints, ends: Ints, number: Ints, told_by: str | None) -> StepWindows | None:
        """Return steps from places in a stream: on the host, after the launch of what is before each, where that is
        recorded.

        Else on the device, after what is before it.
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
        return StepWindows(*steps, self._busiest, True, told_by, on_device=on_device)

    def _without_unfinished(self, windows: StepWindows | None) -> StepWindows | None:
        """Return the steps but for the last ones of which the recording has launches whose work it ended before."""
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


def _longest(marks: _Marks, steps_of: _Method, work: Ints) -> tuple[int, Steps] | None:
    """Of the threads whose marks tell steps the one whose steps take most time; numbered ones first."""
    found = [(track, steps) for track, some in marks.items() if (steps := steps_of(some, work)) is not None]
    return max(
        found, key=lambda one: (one[1].inferred_from is None, int((one[1].end - one[1].begin).sum())), default=None
    )
