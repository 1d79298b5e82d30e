"""Fragments on their way to the store: in a bounded folder of this host, until the store has them.

Whatever the store does (away, full, read-only, hanging), only the delivery's own thread waits for it.
"""

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from kair_capture.agent.fragment_names import FragmentKind, named, read_name
from kair_capture.secure_dir import make_secure_dir
from kair_engine.errors import UsageError
from kair_engine.store.remote import RemoteStore
from kair_engine.trace.permissions import OWN, begin_file, make_folder, modes_below

_LEAST_WAIT_S, _MOST_WAIT_S = 0.5, 30.0
_COPIED_AT_ONCE: Final = 1 << 20


class Spool:
    """The folder, and what became of what was in it."""

    def __init__(self, folder: Path, limit: int, target: Path, host: str, remote: RemoteStore | None = None) -> None:
        """`target`: the folder of delivered fragments in the store, or in the mirror of `remote`.

        Raises OSError where `folder` cannot be made.
        """
        self.folder: Final = folder
        self._remote = remote
        self._limit, self._host = limit, host
        self._target = target / f"host={host}"
        self.delivered = 0
        self.discarded = 0
        """Given up for want of room."""
        make_secure_dir(folder)
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._deliver_all, name="delivery", daemon=True)

    def start(self) -> None:
        """Begins to deliver, also what an agent before left."""
        for path in self.folder.glob(".*"):
            if read_name(path.name[1:]):  # the folder may be one that somebody chose, with files of their own
                path.unlink(missing_ok=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Fragments that the store does not have yet."""
        return len(self._names())

    def put(self, fragment: Path, first: int, last: int, key: bytes, *, kind: FragmentKind = "steps") -> None:
        """Takes a fragment, which goes from where it is. Without room the oldest go. Raises OSError."""
        name = named(fragment, self._host, first, last, key, kind=kind).text
        beside = self.folder / f".{name}"
        shutil.move(fragment, beside)
        _sync(beside)
        beside.rename(self.folder / name)
        self._make_room(keep=name)
        self._changed.set()

    def stop(self, wait_s: float) -> None:
        """Ends the delivery; what is not delivered by then stays for the next agent."""
        self._ended.set()
        self._changed.set()
        self._thread.join(wait_s)

    def _names(self) -> list[str]:
        """The oldest first; sums of scopes, which are small, go last."""
        with suppress(OSError):
            names = [name for name in os.listdir(self.folder) if read_name(name)]  # noqa: PTH208  (names alone)
            return sorted(names, key=lambda name: (name.startswith("scopes"), name))
        return []

    def _make_room(self, keep: str) -> None:
        names = self._names()
        sizes = {}
        for name in names:
            with suppress(FileNotFoundError):
                sizes[name] = (self.folder / name).stat().st_size
        over = sum(sizes.values()) - self._limit
        for name, size in sizes.items():
            if over <= 0 or name == keep:
                return
            with self._lock, suppress(FileNotFoundError):
                (self.folder / name).unlink()
                self.discarded += 1
            over -= size

    def _deliver_all(self) -> None:
        wait = _LEAST_WAIT_S
        while not self._ended.is_set():
            self._changed.clear()
            try:
                self.deliver_waiting()
                wait = _LEAST_WAIT_S
                self._changed.wait(_MOST_WAIT_S)
            except (OSError, UsageError):
                # Away, full or read-only: again later.
                self._ended.wait(wait)
                wait = min(wait * 2, _MOST_WAIT_S)

    def deliver_waiting(self) -> None:
        """Delivers what waits. Raises OSError where the store is not there."""
        for name in self._names():
            self._deliver(name)

    def _deliver(self, name: str) -> None:
        """Whole or not at all; a second time under the same name is harmless."""
        if self._remote is None:
            deliver_file(self.folder / name, self._target / name)
        elif (self.folder / name).exists():
            fragments, host = self._target.parts[-3:-1], self._target.name
            self._remote.put(self.folder / name, "/".join((*fragments, host, name)))
        with self._lock, suppress(FileNotFoundError):
            (self.folder / name).unlink()
            self.delivered += 1


def deliver_file(source: Path, target: Path) -> None:
    """Copies a file so that it appears whole and stays through a power cut. Raises OSError.

    FileNotFoundError where `source` was given up meanwhile is passed over.
    """
    job = target.parents[2]
    make_folder(job, modes_below(job.parent))
    make_folder(target.parent)
    try:
        content = source.open("rb")
    except FileNotFoundError:
        return
    with content:
        temporary, handle = begin_file(target, OWN)
        # The file stays locked until it has its name: the coordinator removes those of agents that were killed.
        with os.fdopen(handle, "wb") as copy:
            try:
                shutil.copyfileobj(content, copy, _COPIED_AT_ONCE)
                copy.flush()
                os.fsync(handle)
                temporary.rename(target)
                _sync(target.parent)
            finally:
                temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
