"""Profiles that XLA's profiler writes, of JAX and TensorFlow: a folder of their own, of which one file is kept."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kair_capture.job.sampled.step_marks import StepMarks

STEP_MARK: Final = "kair step"
"""The name of capture's own marks of steps; the script may have marks too, with numbers of its own."""


class XplaneProfile(StepMarks):
    """One use of the profiler."""

    suffix = ".xplane.pb"

    def __init__(self, run_dir: Path) -> None:
        """Makes the folder. Raises OSError."""
        self.is_lost = False
        self._folder = Path(tempfile.mkdtemp(prefix=f"profile-{os.getpid()}-", dir=run_dir))
        self._is_over = False

    def begin(self, start: Callable[[str], object], taken: tuple[type[Exception], ...]) -> bool:
        """Starts the profiler by `start(folder)`; false where another profile is under way, which raises `taken`."""
        try:
            self._wait()
            start(str(self._folder))
        except BaseException as error:
            self._is_over = True
            self.discard()
            if isinstance(error, taken):
                return False
            raise
        return True

    def stop(self) -> None:
        """Ends the recording, once the devices are done."""
        if not self._is_over:
            self._is_over = True
            try:
                self._wait()
                self._end()
            except BaseException:
                self.discard()
                raise

    def give_way(self) -> None:
        """Gives the recording up: the job wants the profiler itself."""
        if not self._is_over:
            self.is_lost = True
            self.discard()

    def save(self, path: Path, _: Mapping[str, Any]) -> None:
        """Leaves the profile as `path`. Raises OSError."""
        try:
            written = next(self._folder.glob("plugins/profile/*/*.xplane.pb"), None)
            if written is None:
                raise FileNotFoundError("the profiler left no profile")
            shutil.move(written, path)
        finally:
            self.discard()

    def collectives(self, begin: int, end: int) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002  # the protocol's
        """None: they are operations of the profile."""
        return []

    def discard(self) -> None:
        """Ends the recording without waiting for anything, and keeps nothing of it."""
        if not self._is_over:
            self._is_over = True
            with suppress(Exception):
                self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> None:
        """For what the devices have left to do."""
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class ProfilerTurns:
    """Who has the process' one profiler: the job's own use of it goes before capture's."""

    def __init__(self, make: Callable[[], XplaneProfile | None]) -> None:
        """`make` starts a profile of capture's; None where the job has the profiler."""
        self._make = make
        self._own: XplaneProfile | None = None

    def start(self) -> XplaneProfile | None:
        """A profile for capture; None where the job itself profiles."""
        self._own = self._make()
        return self._own

    def giving_way(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The profiler's `start`, before which capture's own profile ends."""

        def start(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            own, self._own = self._own, None
            if own is not None:
                own.give_way()
            return original(*args, **kwargs)

        return start
