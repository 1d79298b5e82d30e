"""Delivers fragments to the store: they wait in a bounded folder of this host until the store has them.

Whatever the store does (away, full, read-only, hanging), only the delivery thread waits for it. The name of a fragment
contains a signature that proves an agent of this job made its content.
"""

import errno
import hashlib
import hmac
import os
import re
import secrets
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kair_capture.files import make_secure_dir, remove_beyond
from kair_engine.errors import UsageError
from kair_engine.store.remote import RemoteStore
from kair_engine.trace.files import OWN, begin_file, make_folder, modes_below

FragmentKind = Literal["steps", "scopes"]
"""Operations of sampled steps, or sums of the script's own scopes of all steps."""
_NAME: Final = re.compile(r"(steps|scopes)-(\d{1,10})-(\d{1,10})-([0-9a-f]{8})-([0-9a-f]{32})\.parquet")
_TAG_BYTES: Final = 16


@dataclass(frozen=True)
class FragmentName:
    """The parts of a fragment's name."""

    first: int
    last: int
    number: str
    """Random: a window may be delivered in parts if a rank was late."""
    tag: str
    kind: FragmentKind = "steps"

    @property
    def text(self) -> str:
        """Return the name of the file."""
        return f"{self.kind}-{self.first:010}-{self.last:010}-{self.number}-{self.tag}.parquet"

    def is_of(self, path: Path, host: str, key: bytes) -> bool:
        """Return whether the file's content was signed for this host and these steps. Raises OSError."""
        about = f"{self.kind}\0{host}\0{self.first}\0{self.last}\0{self.number}"
        return hmac.compare_digest(self.tag, _tag(path, about, key))


def named(path: Path, host: str, first: int, last: int, key: bytes, *, kind: FragmentKind = "steps") -> FragmentName:
    """Return a new name for the file `path`. Raises OSError."""
    number = secrets.token_hex(4)
    return FragmentName(first, last, number, _tag(path, f"{kind}\0{host}\0{first}\0{last}\0{number}", key), kind)


def read_name(text: str) -> FragmentName | None:
    """Return the parts of a file's name; None if it is not a fragment's."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    kind: FragmentKind = "steps" if match[1] == "steps" else "scopes"
    return FragmentName(int(match[2]), int(match[3]), match[4], match[5], kind)


def _tag(path: Path, about: str, key: bytes) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return hmac.digest(key, f"fragment\0{about}\0".encode() + digest, "sha256")[:_TAG_BYTES].hex()


_LEAST_WAIT_S, _MOST_WAIT_S = 0.5, 30.0
_COPIED_AT_ONCE: Final = 1 << 20


class Spool:
    """The folder of waiting fragments, with counts of delivered and discarded ones."""

    def __init__(self, folder: Path, limit: int, target: Path, host: str, remote: RemoteStore | None = None) -> None:
        """`target` is the folder of delivered fragments in the store, or in the mirror of `remote`.

        Raises OSError if `folder` cannot be created.
        """
        self.folder: Final = folder
        self._remote = remote
        self._limit, self._host = limit, host
        self._target = target / f"host={host}"
        self.delivered = 0
        self.discarded = 0
        """Fragments discarded for lack of room."""
        make_secure_dir(folder)
        if remote is None:
            with suppress(OSError):  # from now on a missing store counts as away
                make_folder(target.parents[1])
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._deliver_all, name="delivery", daemon=True)

    def start(self) -> None:
        """Start delivering, including what an earlier agent left."""
        for path in self.folder.glob(".*"):
            if read_name(path.name[1:]):  # a custom folder may hold other files
                path.unlink(missing_ok=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Return how many fragments the store does not have yet."""
        return len(self._names())

    def put(self, fragment: Path, first: int, last: int, key: bytes, *, kind: FragmentKind = "steps") -> None:
        """Move a fragment into the spool; without room the oldest are discarded. Raises OSError."""
        name = named(fragment, self._host, first, last, key, kind=kind).text
        beside = self.folder / f".{name}"
        shutil.move(fragment, beside)
        sync(beside)
        beside.rename(self.folder / name)
        with self._lock:
            there = (self.folder / one for one in self._names())
            self.discarded += len(remove_beyond(there, self._limit, up_to=self.folder / name))
        self._changed.set()

    def stop(self, wait_s: float) -> None:
        """End the delivery; what is left stays for the next agent."""
        self._ended.set()
        self._changed.set()
        self._thread.join(wait_s)

    def _names(self) -> list[str]:
        """Return the names, oldest first; sums of scopes, which are small, come last."""
        with suppress(OSError):
            names = [name for name in os.listdir(self.folder) if read_name(name)]  # noqa: PTH208  (names alone)
            return sorted(names, key=lambda name: (name.startswith("scopes"), name))
        return []

    def _deliver_all(self) -> None:
        wait = _LEAST_WAIT_S
        while not self._ended.is_set():
            self._changed.clear()
            try:
                self.deliver_waiting()
                wait = _LEAST_WAIT_S
                self._changed.wait(_MOST_WAIT_S)
            except (OSError, UsageError):
                # store away, full or read-only: retry later
                self._ended.wait(wait)
                wait = min(wait * 2, _MOST_WAIT_S)

    def deliver_waiting(self) -> None:
        """Deliver what waits. Raises OSError if the store is missing."""
        for name in self._names():
            self._deliver(name)

    def _deliver(self, name: str) -> None:
        """Deliver a file atomically; repeating it under the same name is harmless."""
        if self._remote is None:
            deliver_file(self.folder / name, self._target / name)
        elif (self.folder / name).exists():
            fragments, host = self._target.parts[-3:-1], self._target.name
            self._remote.put(self.folder / name, "/".join((*fragments, host, name)))
        with self._lock, suppress(FileNotFoundError):
            (self.folder / name).unlink()
            self.delivered += 1


def deliver_file(source: Path, target: Path) -> None:
    """Copy a file atomically and durably. Raises OSError.

    A missing store is not created. A `source` that was discarded meanwhile is ignored.
    """
    job = target.parents[2]
    if not job.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(job.parent))
    make_folder(job, modes_below(job.parent))
    make_folder(target.parent)
    try:
        content = source.open("rb")
    except FileNotFoundError:
        return
    with content:
        temporary, handle = begin_file(target, OWN)
        # Locked until it has its name: the coordinator removes unlocked files of killed agents.
        with os.fdopen(handle, "wb") as copy:
            try:
                shutil.copyfileobj(content, copy, _COPIED_AT_ONCE)
                copy.flush()
                os.fsync(handle)
                temporary.rename(target)
                sync(target.parent)
            finally:
                temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
