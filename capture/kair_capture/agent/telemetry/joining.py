"""Joins delivered files, so that a job of many hosts and hours has few of them.

The joined file names its parts and is delivered before they are removed: readers ignore the parts while both exist,
also if the agent was killed in between. The next agent continues from the folder of this one.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from kair_capture.agent.spool import sync
from kair_capture.files import make_secure_dir
from kair_engine.errors import InputError
from kair_engine.trace.evidence_table import EvidenceFile, read_evidence, together, write_evidence
from kair_engine.trace.files import remove_unwritten

JOIN_FROM: Final = 16
"""Files: a day's 280 become 17, and at most 15 are not joined yet."""
JOIN_BYTES: Final = 4 << 20
"""Bytes that are joined even if they are fewer files: 400,000 rows, which briefly need 40 MB."""


class DeliveredFiles:
    """Copies of delivered files that are not joined yet: `samples-MS.parquet`, later ones with greater MS."""

    def __init__(self, folder: Path, put: Callable[[Path, str], None], remove: Callable[[str], None]) -> None:
        """`put` brings a file into the store next to delivered ones, `remove` deletes one there; both may raise."""
        self._folder, self._put, self._remove = folder, put, remove

    def keep(self, path: Path) -> None:
        """Keep a delivered file; one that cannot be kept is never joined."""
        try:
            make_secure_dir(self._folder)
            path.rename(self._folder / path.name)
        except OSError:
            path.unlink(missing_ok=True)

    def join(self, *, is_last: bool = False) -> None:
        """Join what is there if it is enough, or the last. Raises what `put` does; the next call continues."""
        for joined in self._folder.glob("joined-*.parquet"):
            self._deliver(joined)
        # After a store was away there are many: join the usual amount at a time.
        while len(parts := _at_once(in_order(self._folder))) > 1:
            is_enough = len(parts) >= JOIN_FROM or sum(part.stat().st_size for part in parts) >= JOIN_BYTES
            if not is_enough and not is_last:
                break
            self._join(parts)
            if parts[0].exists():
                break  # it would be the same again
        if is_last:
            self._forget(in_order(self._folder))
            with suppress(OSError):
                self._folder.rmdir()

    def _join(self, parts: list[Path]) -> None:
        """Join files; without room, or if one is damaged, they stay as they are."""
        remove_unwritten(self._folder)
        joined = self._folder / parts[-1].name.replace("samples", "joined")
        read: dict[str, EvidenceFile] = {}
        for part in parts:
            with suppress(InputError):
                read[part.name] = read_evidence(part)
        self._forget([part for part in parts if part.name not in read])
        if len(read) < 2:
            return
        try:
            write_evidence(joined, replace(together(read.values()), parts=tuple(read)))
            # Otherwise a power cut could join the parts again under another name.
            sync(joined)
            sync(self._folder)
        except OSError:
            joined.unlink(missing_ok=True)
            self._forget(parts)
        else:
            self._deliver(joined)

    def _deliver(self, joined: Path) -> None:
        """Deliver a joined file, then remove its parts, here last; a store may refuse to remove."""
        try:
            names = read_evidence(joined).parts
        except InputError:  # a power cut before delivery
            joined.unlink(missing_ok=True)
            return
        self._put(joined, joined.name)
        with suppress(Exception):  # any error of a write-only store
            for name in names:
                self._remove(name)
        self._forget([self._folder / name for name in names])
        joined.unlink(missing_ok=True)

    def _forget(self, parts: list[Path]) -> None:
        for part in parts:
            part.unlink(missing_ok=True)


def _at_once(parts: list[Path]) -> list[Path]:
    """Return the oldest files, up to the bytes that are joined at once, but at least two."""
    sizes, count = 0, 0
    for part in parts:
        sizes, count = sizes + part.stat().st_size, count + 1
        if sizes >= JOIN_BYTES and count > 1:
            break
    return parts[:count]


def in_order(folder: Path) -> list[Path]:
    """Return a sampler's files in a folder, oldest first."""
    found = [path for path in folder.glob("samples-*.parquet") if path.stem[8:].isdecimal()]
    return sorted(found, key=lambda path: int(path.stem[8:]))
