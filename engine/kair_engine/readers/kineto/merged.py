"""Files that hold several ranks' recordings, merged into one: whose each thread and each stream is."""

from collections.abc import Collection, Iterable, Sequence
from itertools import permutations
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, is_one_of
from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.kineto.classify import DEVICE_CATEGORIES, Category
from kair_engine.readers.kineto.rows import Records
from kair_engine.readers.kineto.steps.found import StepFinder
from kair_engine.readers.kineto.steps.windows import Int64s, StepWindows
from kair_engine.readers.kineto.tables import EventTables

Process = int | str
_TOLERANCE: Final = 0.02
"""Share of kernels by which the order of processes and devices may explain fewer launches than another."""
_MOST_TRIED: Final = 7
"""Devices of which every order is tried; of more only each device's own best process."""


@dataclass(frozen=True)
class Member:
    """One rank's part of a file: its steps, and which tracks are its own (None: all)."""

    windows: StepWindows
    tracks: Bools | None = None

    def own(self, batches: Iterable[Records]) -> Iterable[Records]:
        """Of each batch what is this rank's."""
        if self.tracks is None:
            return batches
        return (batch[self.tracks[batch["track"]]] for batch in batches)


def members(steps: StepFinder, tables: EventTables, batches: Iterable[Records], source: str) -> tuple[Member, ...]:
    """The ranks in a file of which several processes mark the same steps, in the order of their processes' numbers.

    Raises InputError where it cannot be told which process a device belongs to.
    """
    processes = sorted(steps.processes, key=lambda one: (isinstance(one, str), one))
    tracks = tables.tracks.items_
    on_device = np.array([track.category in DEVICE_CATEGORIES for track in tracks], dtype=bool)
    devices = sorted({track.device for track in tracks if track.category in DEVICE_CATEGORIES}, key=str)
    owner = _owners(processes, devices, tables, batches)
    if owner is None:
        text = f"{source} holds the recordings of {len(processes)} processes merged into one"
        way_out = "give the files of the single ranks, in one folder"
        raise InputError(f"{text}, and does not tell whose each kernel is", way_out)
    found = []
    for process in processes:
        own = [
            owner.get(track.device) == process if device else track.device == process
            for track, device in zip(tracks, on_device.tolist(), strict=True)
        ]
        found.append(Member(steps.windows_of(process), np.array(own, dtype=bool)))
    return tuple(found)


def _owners(
    processes: Sequence[Process], devices: Sequence[Process], tables: EventTables, batches: Iterable[Records]
) -> dict[Process, Process] | None:
    """device → the process that launches what runs on it; None where that cannot be told."""
    if not devices:
        return {}
    if len(devices) < len(processes):
        return None
    explained = _explained(processes, devices, tables, batches)
    in_order = sorted(range(len(devices)), key=lambda at: (isinstance(devices[at], str), devices[at]))
    if len(devices) == len(processes):
        # Ranks of one program number their launches alike: then the order of both is as good as any.
        place = np.empty(len(devices), dtype=np.int64)
        place[in_order] = np.arange(len(devices))
        if len(devices) <= _MOST_TRIED:
            best = max(permutations(range(len(processes))), key=lambda of: _sum(explained, of))
        else:
            best = tuple(explained.argmax(axis=1).tolist())
        if _sum(explained, place.tolist()) < _sum(explained, best) - _TOLERANCE * len(devices):
            place = np.array(best)
        if len(set(place.tolist())) < len(place):
            return None
        return {device: processes[at] for device, at in zip(devices, place.tolist(), strict=True)}
    return {device: processes[int(row.argmax())] for device, row in zip(devices, explained, strict=True)}


def _sum(explained: Floats, of: Collection[int]) -> float:
    return float(explained[np.arange(len(explained)), list(of)].sum())


def _explained(
    processes: Sequence[Process], devices: Sequence[Process], tables: EventTables, batches: Iterable[Records]
) -> Floats:
    """(devices × processes): the share of a device's kernels that a call of the process before it can have launched."""
    tracks = tables.tracks.items_
    category, device = tables.categories(), [track.device for track in tracks]
    rows = np.concatenate([batch[batch["correlation"] >= 0] for batch in batches])
    kinds = category[rows["track"]]
    calls, kernels = rows[kinds == Category.RUNTIME], rows[is_one_of(kinds, DEVICE_CATEGORIES)]
    result = np.zeros((len(devices), len(processes)))
    for column, process in enumerate(processes):
        own = calls[_of(calls, device, process)]
        own = own[np.argsort(own["correlation"], kind="stable")]
        for row, one in enumerate(devices):
            result[row, column] = _share_launched(own, kernels[_of(kernels, device, one)])
    return result


def _of(rows: Records, device: Sequence[Process], wanted: Process) -> Bools:
    return np.asarray(np.array([one == wanted for one in device], dtype=bool)[rows["track"]])


def _share_launched(calls: Records, kernels: Records) -> float:
    if not len(calls) or not len(kernels):
        return 0.0
    ids: Int64s = calls["correlation"]
    at = np.minimum(np.searchsorted(ids, kernels["correlation"]), len(calls) - 1)
    known = (ids[at] == kernels["correlation"]) & (calls["start"][at] <= kernels["start"])
    return float(known.mean())
