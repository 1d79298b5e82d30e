"""Which step each event belongs to: what a device ran, to the step that launched it, whenever it ran."""

from collections.abc import Iterable
from dataclasses import field
from typing import Final

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import Bools, is_one_of
from kair_engine.frozen import dataclass
from kair_engine.readers.kineto.classify import DEVICE_CATEGORIES, Category
from kair_engine.readers.kineto.rows import Records, joined
from kair_engine.readers.kineto.steps.windows import OUTSIDE, StepWindows
from kair_engine.readers.kineto.tables import EventTables
from kair_engine.readers.launch_queue import Calls, Work, are_earlier, found_ids, queue_of
from kair_engine.trace.format import QUEUE_FULL
from kair_engine.trace.model import LaunchQueue

_LAUNCHED_BY: Final = (("correlation", Category.RUNTIME), ("external_id", Category.CPU_OP))
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Launches:
    """Where host calls put work on a device: sorted ids, and the index of the step each call was made in."""

    ids: Int64s
    step: Int64s

    def step_of(self, ids: Int64s) -> tuple[Int64s, Bools]:
        """The step of each id's launch, and whether there was one."""
        at, known = found_ids(self.ids, ids)
        return self.step.take(at) if len(self.ids) else np.full(len(ids), OUTSIDE), known


@dataclass(frozen=True)
class LaunchTables:
    """What all steps of a recording share: who launched what, and how long launches waited for a place in the queue."""

    windows: StepWindows
    by: tuple[Launches, Launches]
    """By correlation, and by external id."""
    earlier: Int64s
    """The numbers of the launches of what was launched before the recording began, in order."""
    queue: LaunchQueue | None = None
    waited: Launches = field(default_factory=lambda: Launches(np.empty(0, np.int64), np.empty(0, np.int64)))
    """The launches that waited for a place, by correlation, and for how long, in place of their steps."""

    def step_indices(self, batch: Records, tables: EventTables) -> tuple[Int64s, int]:
        """The step of every record: host events by their start, device events by their launch, else their own.

        And how many were launched before the recording began, which are of no step of it.
        """
        step = self.windows.index_at(batch["start"])
        category = tables.categories().take(batch["track"])
        step[category == Category.DEVICE_ANNOTATION] = OUTSIDE
        if self.windows.on_device:
            return step, 0
        device = np.flatnonzero(is_one_of(category, DEVICE_CATEGORIES))
        by_correlation, by_external_id = self.by
        for name, launches in (("external_id", by_external_id), ("correlation", by_correlation)):
            of, known = launches.step_of(batch[name][device])
            step[device[known]] = of[known]
        before = device[found_ids(self.earlier, batch["correlation"][device])[1]]
        step[before] = OUTSIDE
        return step, len(before)

    def with_waits(self, batch: Records, step: Int64s, tables: EventTables) -> tuple[Records, Int64s]:
        """The batch with each launch that waited for a place as two calls: the wait, and then the launch."""
        if not len(self.waited.ids):
            return batch, step
        calls = np.flatnonzero(tables.categories().take(batch["track"]) == Category.RUNTIME)
        at, known = found_ids(self.waited.ids, batch["correlation"][calls])
        calls, lasted = calls[known], self.waited.step[at[known]]
        if not len(calls):
            return batch, step
        batch, waits = batch.copy(), batch[calls].copy()
        batch["start"][calls] += lasted
        batch["duration"][calls] -= lasted
        waits["duration"], waits["name"] = lasted, tables.names[QUEUE_FULL]
        for name in ("correlation", "external_id", "size", "detail"):
            waits[name] = -1
        return joined([batch, waits]), np.concatenate([step, step[calls]])


def find_launches(batches: Iterable[Records], tables: EventTables, windows: StepWindows) -> LaunchTables:
    """Every host call by its id: runtime calls by `correlation`, operators by `external_id`; and the launch queue."""
    categories = tables.categories()
    on_device = is_one_of(categories, DEVICE_CATEGORIES)
    found: dict[str, list[tuple[Int64s, Int64s]]] = {name: [] for name, _ in _LAUNCHED_BY}
    calls, work = Calls(), list[tuple[Int64s, ...]]()
    for batch in batches:
        of_rows = categories.take(batch["track"])
        for name, category in _LAUNCHED_BY:
            chosen = np.flatnonzero(of_rows == category)
            chosen = chosen[batch[name][chosen] >= 0]
            found[name].append((batch[name][chosen], windows.index_at(batch["start"][chosen])))
            if category is Category.RUNTIME:
                calls.see(*(batch[of][chosen] for of in ("correlation", "name", "start", "duration")))
        rows = np.flatnonzero(on_device.take(batch["track"]))
        names = ("correlation", "external_id", "track", "start", "duration")
        work.append(tuple(batch[name][rows] for name in names))
    if not work:
        return LaunchTables(windows, (_launches([]), _launches([])), np.zeros(0, np.int64))
    by_correlation, by_external_id = by = _launches(found["correlation"]), _launches(found["external_id"])
    correlation, external_id, track, start, over = (np.concatenate(column) for column in zip(*work, strict=True))
    over += start
    launched = by_correlation.step_of(correlation)[1] | by_external_id.step_of(external_id)[1]
    stream = _streams(tables)[track]
    earlier = are_earlier(correlation, stream, start, launched)
    found_waits = queue_of(calls, by_correlation.ids, Work(correlation, stream, over, earlier))
    numbers = np.sort(correlation[earlier])
    if found_waits is None:
        return LaunchTables(windows, by, numbers)
    return LaunchTables(windows, by, numbers, found_waits.queue, Launches(found_waits.ids, found_waits.waited_ns))


def _streams(tables: EventTables) -> Int64s:
    """Per track its stream, as a small number: kernels and copies have tracks of their own on one."""
    numbers: dict[tuple[int | str, int | str], int] = {}
    of = [numbers.setdefault((track.device, track.lane), len(numbers)) for track in tables.tracks.items_]
    return np.array(of, np.int64)


def _launches(parts: list[tuple[Int64s, Int64s]]) -> Launches:
    """Those of all parts, in the order of their ids."""
    if not parts:
        return Launches(np.empty(0, np.int64), np.empty(0, np.int64))
    ids, steps = map(np.concatenate, zip(*parts, strict=True))
    if np.any(ids[1:] < ids[:-1]):
        order = np.argsort(ids, kind="stable")
        ids, steps = ids[order], steps[order]
    return Launches(ids, steps)
