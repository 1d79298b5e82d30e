"""A thread for what the store makes slow: committing, compacting, packing. The conversation never waits for it."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from kair_capture.coordinator.storage.committing import Committed, Committer, NotOursError
from kair_capture.coordinator.storage.remote_job import RemoteJob
from kair_capture.coordinator.storage.scope_log import ScopeLog
from kair_capture.coordinator.storage.step_log import StepLog
from kair_engine.errors import KairError

_LOOK_S: Final = 10.0
_AGAIN_S: Final = 2.0


class StoreWork:
    """Runs when it is told that something was delivered, and now and then besides."""

    def __init__(self, committer: Committer, log: StepLog, scopes: ScopeLog, remote: RemoteJob | None = None) -> None:
        """`remote`: where the store is behind a URL, and what is worked on is its mirror."""
        self._committer, self._log, self._scopes, self._remote = committer, log, scopes, remote
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self.done: Final[deque[Committed]] = deque()
        """What was committed, for the conversation's thread to take."""
        self.trouble = ""
        """Why the last round failed; empty where it did not."""
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    def start(self) -> None:
        """Begins, with what was delivered before."""
        self._wanted.set()
        self._thread.start()

    def look(self) -> None:
        """Something was delivered."""
        self._wanted.set()

    def stop(self, wait_s: float) -> None:
        """Ends, after one more round."""
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
            failed |= self._try(self._tell_all if is_last else self._tell)
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

    def _tell(self, *, is_last: bool = False) -> None:
        if self._remote is not None:
            self._remote.tell(is_last=is_last)
            self._remote.tidy()

    def _tell_all(self) -> None:
        self._tell(is_last=True)

    def _try(self, work: Callable[[], None]) -> bool:
        """Whether it failed."""
        try:
            work()
        except (OSError, NotOursError, KairError) as error:
            self.trouble = str(error)
            return True
        self.trouble = ""
        return False
