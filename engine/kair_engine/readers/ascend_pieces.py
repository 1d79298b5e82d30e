"""What msprof calls its files and folders: a device's recording comes in pieces, of several kinds, an iteration each.

`PROF_000001_…/device_1/timeline/msprof_1_0_7.json` is device 1, model 0, iteration 7. `hccl_1_0_7.json` beside it has
the communication, `task_time_1_0_7.json` the tasks, `step_trace_1_0_7.json` the iterations, all of which `msprof_…` may
have, too. Read is one file of an iteration, with what only another one has.
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
READ_ALONE: Final = ("msprof", "task_time", "hccl")
"""Kinds that have operations: the first that is there is read, and takes what it lacks from the others."""
_DEVICE: Final = re.compile(r"^device_(\d{1,5})$")
_LARGEST_INFO: Final = 4 << 20


@dataclass(frozen=True)
class Piece:
    """One file of msprof's."""

    path: Path
    kind: str
    number: str
    """What all files of its iteration have in their names."""
    device: int
    end: str

    @property
    def iteration(self) -> int:
        """The last number of its name."""
        return int(self.number.rpartition("_")[2])

    def beside(self, kind: str) -> Path | None:
        """The file of another kind of the same iteration; None where there is none."""
        path = self.path.with_name(f"{kind}_{self.number}{self.end}")
        with suppress(OSError, InputError), open_file(path):
            return path
        return None

    @property
    def read_with(self) -> Path | None:
        """The file that this one is read with; None where it is read by itself."""
        before = READ_ALONE[: READ_ALONE.index(self.kind)] if self.kind in READ_ALONE else READ_ALONE
        return next((path for kind in before if (path := self.beside(kind)) is not None), None)

    @property
    def info(self) -> dict[str, Any]:
        """What `info.json.N` in the device's folder says of host, process and rank; empty where it is not."""
        for folder in self.path.parents[:3]:
            with (
                suppress(OSError, InputError, ValueError, RecursionError),
                open_file(folder / f"info.json.{self.device}") as file,
            ):
                document = msgspec.json.decode(file.read(_LARGEST_INFO))
                return document if isinstance(document, dict) else {}
        return {}

    @property
    def rank(self) -> int:
        """The rank that the device's information states, else the device's number.

        A job without ranks states 0 for all of its devices.
        """
        stated = self.info.get("rank_id")
        is_told = isinstance(stated, int) and not isinstance(stated, bool) and 0 < stated < 1 << 20
        return stated if is_told else self.device


def piece_of(path: Path) -> Piece | None:
    """The piece that a file is by its name and folder; None of other files."""
    match = PIECE.match(path.name)
    if match is None:
        return None
    folders = (_DEVICE.match(folder.name) for folder in path.absolute().parents[:2])
    named = next((int(of[1]) for of in folders if of), None)
    device = int(match["number"].partition("_")[0]) if named is None else named
    return Piece(path, match["kind"], match["number"], device, match["end"])
