"""Names of msprof's files and folders: a device's recording may come in pieces of several kinds.

`PROF_000001_…/device_1/timeline/msprof_1_0_7.json` is device 1, model 0, iteration 7. Next to it, `hccl_1_0_7.json` has
the communication, `task_time_1_0_7.json` the tasks and `step_trace_1_0_7.json` the iterations; `msprof_…` may have all
of these, too. One file per iteration is read, completed by the others.

Newer versions write `PROF_…/mindstudio_profiler_output/msprof_20260314093042.json` next to `PROF_…/device_1`, and split
a large one by size: `msprof_slice_0_20260314093042.json`. Slices are read as one file.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.blocks import open_file

PIECE: Final = re.compile(
    r"^(?P<kind>msprof|task_time|hccl|step_trace)_(?P<number>\d{1,5}(?:_\d{1,9}){1,2})(?P<end>\.json.*)$"
)
"""Kind; device and iteration, with the model between them; the file's ending."""
SLICE: Final = re.compile(r"^msprof_slice_(?P<at>\d{1,6})(?P<end>_\d{8,20}\.json.*)$")
READ_ALONE: Final = ("msprof", "task_time", "hccl")
"""Kinds with operations: the first one present is read, and completed from the others."""
_DEVICE: Final = re.compile(r"^device_(\d{1,5})$")
_LARGEST_INFO: Final = 4 << 20
_MOST_SLICES: Final = 1000


@dataclass(frozen=True)
class Device:
    """The device that recorded a file of msprof."""

    number: int
    folder: Path | None
    """The folder named after the device."""

    @property
    def info(self) -> dict[str, Any]:
        """The host, process and rank in `info.json.N` of its folder; empty if it is missing."""
        if self.folder is None:
            return {}
        path = self.folder / f"info.json.{self.number}"
        with suppress(OSError, InputError, ValueError, RecursionError), open_file(path) as file:
            document = msgspec.json.decode(file.read(_LARGEST_INFO))
            return document if isinstance(document, dict) else {}
        return {}

    @property
    def rank(self) -> int:
        """The rank in its information, else its number: a job without ranks states 0 for all devices."""
        stated = self.info.get("rank_id")
        if isinstance(stated, int) and not isinstance(stated, bool) and 0 < stated < 1 << 20:
            return stated
        return self.number


def device_of(path: Path) -> Device | None:
    """Return the device whose folder holds the file, else the only one next to it, else the one in a piece's name."""
    path = path.absolute()
    folders = [folder for folder in path.parents[:2] if _DEVICE.match(folder.name)] or _folders_in(path.parent.parent)
    numbers = {folder: int(match[1]) for folder in folders if (match := _DEVICE.match(folder.name))}
    if len(numbers) == 1:
        ((folder, number),) = numbers.items()
        return Device(number, folder)
    piece = PIECE.match(path.name)
    return None if piece is None else Device(int(piece["number"].partition("_")[0]), None)


def _folders_in(folder: Path) -> list[Path]:
    try:
        return [one for one in folder.iterdir() if _DEVICE.match(one.name)]
    except OSError:
        return []


@dataclass(frozen=True)
class Piece:
    """One file of an iteration."""

    path: Path
    kind: str
    number: str
    """The part of the name that all files of its iteration share."""
    end: str

    @property
    def iteration(self) -> int:
        """The last number of its name."""
        return int(self.number.rpartition("_")[2])

    def beside(self, kind: str) -> Path | None:
        """Return the file of another kind of the same iteration; None if none exists."""
        path = self.path.with_name(f"{kind}_{self.number}{self.end}")
        return path if _is_there(path) else None

    @property
    def read_with(self) -> Path | None:
        """The file that this one is read together with; None if it is read by itself."""
        before = READ_ALONE[: READ_ALONE.index(self.kind)] if self.kind in READ_ALONE else READ_ALONE
        return next((path for kind in before if (path := self.beside(kind)) is not None), None)


def piece_of(path: Path) -> Piece | None:
    """Return the piece that a file is by its name; None for other files."""
    match = PIECE.match(path.name)
    return None if match is None else Piece(path, match["kind"], match["number"], match["end"])


def slices_of(path: Path) -> list[Path]:
    """Return all slices of the recording that a file is a slice of, in order; else the file alone."""
    match = SLICE.match(path.name)
    if match is None:
        return [path]
    named = (path.with_name(f"msprof_slice_{at}{match['end']}") for at in range(_MOST_SLICES))
    found = []
    for one in named:
        if one == path or _is_there(one):
            found.append(one)
        elif found and path in found:
            break
    return found or [path]


def _is_there(path: Path) -> bool:
    with suppress(OSError, InputError), open_file(path):
        return True
    return False
