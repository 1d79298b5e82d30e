"""A thread that makes fragments of windows: reading a trace takes seconds, and draining must not wait for it."""

import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from kair_capture.agent.scopes import ScopeSums
from kair_capture.agent.spool import Spool
from kair_capture.agent.windows import HostOfWindow, WindowFile, convert, window_files

_PATIENCE_S: Final = 5.0
"""A window is delivered in parts when a rank's is so much later than the others'."""
_LOOK_S: Final = 0.2
_UNFINISHED: Final = re.compile(r"\.?((rank|window)-\d+-\d+-.+|scopes)\.parquet(\..+)?")


class HostState(Protocol):
    """What a conversion asks the agent."""

    def about(self, first: int) -> HostOfWindow:
        """What the files themselves of the window from step `first` on do not say; `missing`: all that were asked."""

    def expected(self, first: int) -> frozenset[int]:
        """The living ranks that were asked for the window from step `first` on."""


class Conversion:
    """From the folder of windows to the spool."""

    def __init__(  # noqa: PLR0917  (each of another type)
        self, folder: Path, work: Path, spool: Spool, key: "KeyBox", host: HostState, scopes: ScopeSums
    ) -> None:
        self._folder, self._work, self._spool, self._key, self._host = folder, work, spool, key, host
        self._scopes = scopes
        self._hurries = False
        self.discarded = 0
        self.last_error = ""
        self._first_seen: dict[tuple[int, int], float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conversion", daemon=True)

    def start(self) -> None:
        """Begins; windows that an agent before left are there too."""
        self._work.mkdir(mode=0o700, exist_ok=True)
        # A run folder that somebody chose may have had a folder of this name, with other things in it.
        for path in self._work.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Ends after the window that is being converted."""
        self._ended.set()
        self._thread.join(wait_s)

    def hurry(self) -> None:
        """The job is over: what is otherwise delivered now and then is delivered at once."""
        self._hurries = True

    @property
    def waiting(self) -> int:
        """Windows that are no fragments yet."""
        return len({(file.first, file.last) for file in window_files(self._folder)})

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits that can be delivered."""
        return not self.waiting and not (self._key.key is not None and self._scopes.waiting)

    def _run(self) -> None:
        # The priority of this thread alone: a trace takes seconds of CPU, and nobody waits for it.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        while not self._ended.wait(_LOOK_S):
            for files in self._ready(time.monotonic()):
                self._convert(files)
            self._deliver_scopes()

    def _deliver_scopes(self) -> None:
        if self._key.key is not None:
            try:
                self._scopes.deliver(self._spool, self._work, self._key.key, at_once=self._hurries)
            except OSError as error:
                self.last_error = str(error)  # a full disk: the sums wait

    def _ready(self, now: float) -> list[list[WindowFile]]:
        """The windows that all ranks left, or have had time to."""
        windows: dict[tuple[int, int], list[WindowFile]] = {}
        for file in window_files(self._folder):
            windows.setdefault((file.first, file.last), []).append(file)
        self._first_seen = {key: self._first_seen.get(key, now) for key in windows}
        return [
            files
            for key, files in windows.items()
            if now - self._first_seen[key] > _PATIENCE_S or self._host.expected(key[0]) <= {file.rank for file in files}
        ]

    def _convert(self, files: list[WindowFile]) -> None:
        key = self._key.key
        if key is None:
            return  # the coordinator has not been there yet
        try:
            fragments, refused = convert(files, self._work, self._host.about(files[0].first))
            for fragment in fragments:
                self._spool.put(fragment.path, fragment.first, fragment.last, key)
        except OSError as error:
            # A full disk: the windows wait here, in memory of which a job may have so much, and no more.
            self.last_error = str(error)
            self._drop_beyond_limit()
            return
        except Exception as error:  # a defect of a reader must not end the agent
            self.last_error = f"{type(error).__name__}: {error}"
            refused = [(file, self.last_error) for file in files]
        for _, why in refused:
            self.last_error = why
        self.discarded += len(refused)
        for file in files:
            file.path.unlink(missing_ok=True)

    def _drop_beyond_limit(self, limit: int = 256 << 20) -> None:
        sizes = {}
        for file in window_files(self._folder):
            with suppress(FileNotFoundError):
                sizes[file.path] = file.path.stat().st_size
        over = sum(sizes.values()) - limit
        for path, size in sizes.items():
            if over > 0:
                path.unlink(missing_ok=True)
                self.discarded += 1
                over -= size


class KeyBox:
    """The job's key, once there is one."""

    key: bytes | None = None
