"""Runs the store's slow work in a thread: committing, compacting, packing. Communication never waits for it.

For a store behind a URL it also keeps the job there equal to the local mirror on which the coordinator works.

Fragments come from there; everything else goes there: first the files that `job.json` names, then `job.json`, and only
then files that it no longer names are removed. So readers always find a complete job, or retry.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from kair_capture.agent.spool import read_name
from kair_capture.coordinator.committing import Committed, Committer, NotOursError
from kair_capture.coordinator.step_log import ScopeLog, StepLog
from kair_capture.places import JobPlaces
from kair_engine.errors import KairError
from kair_engine.recording.job_file import JOB_FILE, RECORDING, is_job_folder, read_job_file
from kair_engine.store.remote import RemoteStore, remote_of, restore_job

_STEPS_EVERY_S: Final = 30.0
_TIDIED_EVERY_S: Final = 1800.0
_UNFINISHED_S: Final = 3600.0
"""Age at which an unfinished file counts as abandoned."""


def remote_job_of(places: JobPlaces) -> "RemoteJob | None":
    """Return the job behind the URL that the local store mirrors; None for a local store."""
    remote = remote_of(places.store)
    return None if remote is None else RemoteJob(places, remote)


class RemoteJob:
    """One job in the remote store. Methods raise OSError while the store is away, and continue when called again."""

    def __init__(self, places: JobPlaces, remote: RemoteStore) -> None:
        self._places, self._remote = places, remote
        self._there: dict[str, int] = {}
        """Immutable files → their remote sizes."""
        self._told: dict[str, tuple[int, int]] = {}
        """Changing files → size and time when last sent."""
        self._delivered: set[str] = set()
        """Remote fragments that are here too."""
        self._steps_told = self._tidied = float("-inf")
        self._begun: dict[str, float] = {}
        """Unfinished remote files → since when, as far as known (Unix, s)."""

    def restore(self) -> None:
        """Fetch what another host's coordinator stored of the job. Raises InputError if it cannot be read."""
        restore_job(self._places.store, self._places.job)
        kept = {folder.name: any(folder.glob("[!.]*")) for folder in (self._places.steps, self._places.scopes)}
        for name, size in self._remote.sizes(self._places.job).items():
            part = name.split("/")[1]
            if size >= 0 and part.startswith(RECORDING):
                self._there[name] = size
            elif size >= 0 and part in kept:
                # Local files are newer than remote ones.
                if not kept[part]:
                    self._remote.get(name, self._places.store / name)
                self._told[name] = (size, 0)

    def take(self) -> None:
        """Fetch what agents have delivered."""
        for name, size in self._remote.sizes(f"{self._places.job}/fragments").items():
            path = self._places.store / name
            if size < 0 or name in self._delivered or read_name(path.name) is None:
                continue
            if not path.exists():
                self._remote.get(name, path)
            self._delivered.add(name)

    def tidy(self) -> None:
        """Remove old unfinished files of killed agents and coordinators."""
        if time.monotonic() - self._tidied < _TIDIED_EVERY_S:
            return
        now, unfinished = time.time(), self._remote.unfinished(self._places.job)
        self._begun = {
            name: min(self._begun.get(name, now), now if written is None else written)
            for name, written in unfinished.items()
        }
        for name, begun in self._begun.items():
            if now - begun > _UNFINISHED_S:
                self._remote.remove(name)
        self._tidied = time.monotonic()

    def tell(self, *, is_last: bool) -> None:
        """Send what is new here, and remove what is gone here."""
        named = None
        if is_job_folder(self._places.folder):
            named = [fragment.path for fragment in read_job_file(self._places.folder).fragments]
            for path in named:
                self._put_once(path)
            self._put(self._places.folder / JOB_FILE)
        if is_last or time.monotonic() - self._steps_told > _STEPS_EVERY_S:
            self._steps_told = time.monotonic()
            for folder in (self._places.steps, self._places.scopes):
                for part in sorted(folder.glob("[!.]*")):
                    self._put(part)
        for file in (self._places.status, self._places.alerts, *sorted(self._places.confirm.glob("[!.]*.json"))):
            self._put(file)
        if named is not None:
            self._remove_old({f"{self._places.job}/{path}" for path in named})

    def _put_once(self, relative: str) -> None:
        name, path = f"{self._places.job}/{relative}", self._places.folder / relative
        if name in self._delivered or self._there.get(name) == path.stat().st_size:
            return
        self._remote.put(path, name)
        self._there[name] = path.stat().st_size

    def _put(self, path: Path) -> None:
        name = path.relative_to(self._places.store).as_posix()
        with suppress(FileNotFoundError):
            status = path.stat()
            state = status.st_size, status.st_mtime_ns
            if self._told.get(name) != state:
                self._remote.put(path, name)
                self._told[name] = state

    def _remove_old(self, named: set[str]) -> None:
        """Remove packed steps, joined fragments and old recordings."""
        gone = [
            name
            for name in {*self._delivered, *self._there, *self._told}
            if name not in named and not (self._places.store / name).exists()
        ]
        for name in gone:
            self._remote.remove(name)
            self._delivered.discard(name)
            self._there.pop(name, None)
            self._told.pop(name, None)


_LOOK_S: Final = 10.0
_AGAIN_S: Final = 2.0


class StoreWork:
    """Works when notified of a delivery, and regularly."""

    def __init__(self, committer: Committer, log: StepLog, scopes: ScopeLog, remote: RemoteJob | None = None) -> None:
        """`remote` is set if the store is behind a URL and this is its mirror."""
        self._committer, self._log, self._scopes, self._remote = committer, log, scopes, remote
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self.done: Final[deque[Committed]] = deque()
        """Commits, for the main thread to take."""
        self.trouble = ""
        """Why the last round failed; "" if it did not."""
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    def start(self) -> None:
        """Start, with what was delivered before."""
        self._wanted.set()
        self._thread.start()

    def look(self) -> None:
        """Note a delivery."""
        self._wanted.set()

    def stop(self, wait_s: float) -> None:
        """End, after one more round."""
        self._ended.set()
        self._wanted.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        while True:
            self._wanted.wait(_LOOK_S)
            self._wanted.clear()
            is_last = self._ended.is_set()
            failed = self._try(self._commit)
            self._try(self._log.pack)
            self._try(self._scopes.round)
            failed |= self._try(partial(self._tell, is_last=is_last))
            if is_last:
                return
            if failed:
                time.sleep(_AGAIN_S)
                self._wanted.set()

    def _commit(self) -> None:
        if self._remote is not None:
            self._remote.take()
        committed = self._committer.round()
        if committed != Committed():
            self.done.append(committed)
        self._committer.compact()
        self._committer.tidy()

    def _tell(self, *, is_last: bool) -> None:
        if self._remote is not None:
            self._remote.tell(is_last=is_last)
            self._remote.tidy()

    def _try(self, work: Callable[[], None]) -> bool:
        """Run `work`; return whether it failed."""
        try:
            work()
        except (OSError, NotOursError, KairError) as error:
            self.trouble = str(error)
            return True
        self.trouble = ""
        return False
