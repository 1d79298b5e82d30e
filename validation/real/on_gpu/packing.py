"""Recordings in a few files of limited size, whole after each of them: whatever ends the recorder, they can be read."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Final

LARGEST: Final = 15_000_000
"""Bytes of one file."""
MOST_FILES: Final = 5
MOST_BYTES: Final = 60_000_000


class FullError(Exception):
    """No further recording fits."""


class Packer:
    """Archives `loops_0.tar`, `loops_1.tar`, … in a folder; those that are there already are gone on with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.sizes = [path.stat().st_size for path in sorted(folder.glob("loops_*.tar"))]

    def add(self, members: dict[str, bytes]) -> str:
        """Keep these together; the archive's name. Raises FullError."""
        needed = sum(len(data) + 1024 for data in members.values()) + 10_240
        if not self.sizes or self.sizes[-1] + needed > LARGEST:
            if len(self.sizes) == MOST_FILES or needed > LARGEST:
                raise FullError(f"{len(self.sizes)} archives are full")
            self.sizes.append(0)
        if sum(self.sizes) + needed > MOST_BYTES:
            raise FullError(f"{sum(self.sizes) / 1e6:.1f} MB are packed")
        path = self.folder / f"loops_{len(self.sizes) - 1}.tar"
        with tarfile.open(path, "a") as archive:
            for name, data in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        self.sizes[-1] = path.stat().st_size
        return path.name


def packed(text: bytes) -> bytes:
    """The trace as it is kept."""
    return gzip.compress(text, 9, mtime=0)


def unpack(archives: Path, folder: Path) -> None:
    """Everything that `archives` holds of recordings, as folders of seeds."""
    for path in sorted(archives.glob("loops_*.tar")):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
