"""Joins files that the agent delivered, so that a job of many hosts and hours has few of them.

The joined file is delivered before its parts are removed, and names them: who reads while both are there, or after the
agent was killed in between, leaves the parts out. The next agent goes on from what this one left in its folder.
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
"""Files: of a day's 280 that makes 17, and no more than 15 are not joined yet."""
JOIN_BYTES: Final = 4 << 20
"""That are joined though they are fewer: 400,000 rows, of which the agent needs 40 MB for a moment."""


class DeliveredFiles:
    """Copies of what one host has delivered and not joined yet: `samples-MS.parquet`, the later the greater MS."""

    def __init__(self, folder: Path, put: Callable[[Path, str], None], remove: Callable[[str], None]) -> None:
        """`put` brings a file into the store beside those delivered, by a name, `remove` takes one away, or raises."""
        self._folder, self._put, self._remove = folder, put, remove

    def keep(self, path: Path) -> None:
        """Take a file that was delivered. One that cannot be kept is joined with none."""
        try:
            make_secure_dir(self._folder)
            path.rename(self._folder / path.name)
        except OSError:
            path.unlink(missing_ok=True)

    def join(self, *, is_last: bool = False) -> None:
        """Join what is there once that is enough, or the last. Raises what `put` does; again it goes on from there."""
        for joined in self._folder.glob("joined-*.parquet"):
            self._deliver(joined)
        # After a store was away there are many: as much at once as at other times.
        while len(parts := _at_once(in_order(self._folder))) > 1:
            is_enough = len(parts) >= JOIN_FROM or sum(part.stat().st_size for part in parts) >= JOIN_BYTES
            if not is_enough and not is_last:
                break
            self._join(parts)
            if parts[0].exists():
                break  # the same would come again
        if is_last:
            self._forget(in_order(self._folder))
            with suppress(OSError):
                self._folder.rmdir()

    def _join(self, parts: list[Path]) -> None:
        """Where this host has no room for it they stay alone, and so does a damaged one."""
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
            # Else a power cut could leave the parts to be joined again, under another name.
            sync(joined)
            sync(self._folder)
        except OSError:
            joined.unlink(missing_ok=True)
            self._forget(parts)
        else:
            self._deliver(joined)

    def _deliver(self, joined: Path) -> None:
        """And then removes its parts, here the last: where a store removes nothing they stay there."""
        try:
            names = read_evidence(joined).parts
        except InputError:  # a power cut, before it was delivered
            joined.unlink(missing_ok=True)
            return
        self._put(joined, joined.name)
        with suppress(Exception):  # whatever a store that only takes may raise
            for name in names:
                self._remove(name)
        self._forget([self._folder / name for name in names])
        joined.unlink(missing_ok=True)

    def _forget(self, parts: list[Path]) -> None:
        for part in parts:
            part.unlink(missing_ok=True)


def _at_once(parts: list[Path]) -> list[Path]:
    """Return the oldest, up to as many bytes as are joined at once, and two at least."""
    sizes, count = 0, 0
    for part in parts:
        sizes, count = sizes + part.stat().st_size, count + 1
        if sizes >= JOIN_BYTES and count > 1:
            break
    return parts[:count]


def in_order(folder: Path) -> list[Path]:
    """Return a sampler's files in a folder, the oldest first."""
    found = [path for path in folder.glob("samples-*.parquet") if path.stem[8:].isdecimal()]
    return sorted(found, key=lambda path: int(path.stem[8:]))
