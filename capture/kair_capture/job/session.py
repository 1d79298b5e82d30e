"""One process that is being captured: started once, ended once, and off for good where anything fails."""

import atexit
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

from kair_capture.job.failing import described, warn, warn_of
from kair_capture.job.framework import COMMUNICATION_FROM, COMMUNICATION_UNTIL, Framework
from kair_capture.job.identity import write_identity
from kair_capture.job.processor_time import Had
from kair_capture.job.rank_lock import RankLock
from kair_capture.job.recorder import Recorder, ScopeStack
from kair_capture.job.sampled.control import ControlWords
from kair_capture.job.sampled.periodic import Periodic
from kair_capture.job.sampled.windows import Windows
from kair_capture.job.steps import StepTracker
from kair_capture.job.thread_rings import ThreadRings
from kair_capture.ring.layout import StepFlag
from kair_capture.secure_dir import make_secure_dir
from kair_capture.settings import Settings

_LIKELIEST: Final = ("jax", "tensorflow", "torch", "none")
"""PyTorch's hooks see nearly all of its training, the others' less."""


class Session:
    """What the hooks write to."""

    def __init__(self, settings: Settings, framework: Framework, *, begin: int | None) -> None:
        """Makes the process' files. `begin`: of the first step (CLOCK_MONOTONIC, ns); None where it is under way.

        Raises TakenError where another process is this rank, OSError.
        """
        rank, world_size = framework.place() or (settings.rank, settings.world_size)
        make_secure_dir(settings.run_dir)
        with ExitStack() as unless_made:
            self._rank_lock = RankLock(settings.run_dir / f"rank-{rank}.lock", f"rank {rank}")
            unless_made.callback(self._rank_lock.release)
            rings = ThreadRings(settings.run_dir, rank, settings.ring_records)
            self.recorder: Final = Recorder(rings, settings.run_dir / f"rank-{rank}-{os.getpid()}.names")
            self.depths: Final = ScopeStack()
            control = ControlWords(settings.run_dir / f"rank-{rank}.control")
            folder = settings.run_dir / "windows"
            every = settings.sample_every
            periodic = Periodic(every, settings.max_overhead) if every else None
            self._windows = Windows(
                folder, (rank, world_size), self.recorder, framework, control=control, periodic=periodic
            )
            self.steps: Final = StepTracker(self.recorder, self._between, begin=begin)
            self._marks_input = framework.marks_input
            self.recorder.watch_pauses()
            self._framework = framework
            self._identify = partial(write_identity, settings, rank, world_size)
            description = framework.description()
            self._identify(description)
            # With a GPU the host waits for it busily: then its CPU time says nothing.
            self.steps.watch_processor(waits_busily=description.get("device") != "cpu")
            unless_made.pop_all()

    def sampled_scope(self, name: str) -> AbstractContextManager[object] | None:
        """A scope in the profiler's recording; None in steps that are not sampled."""
        return self._windows.scope(name) if self._windows.profiles else None

    def input_scope(self) -> AbstractContextManager[object]:
        """The same for waiting for data, of which some profilers tell by themselves."""
        scope = None if self._marks_input else self.sampled_scope("input")
        return nullcontext() if scope is None else scope

    def given(self, size: int) -> None:
        """A model is given so many bytes, in a step that is sampled."""
        self._windows.given(size)

    def close(self) -> None:
        """Ends the last step, and the recording."""
        try:
            self.steps.finish()
            self._windows.close()
            self.recorder.close()
        finally:
            self._rank_lock.release()

    def _between(self, step: int, begin: int, end: int, had: Had | None) -> bool:
        if step <= COMMUNICATION_UNTIL:
            self._learn_communication(step)
        paused = self._windows.between(step, begin, end, had)
        self.steps.sampled = self._windows.profiles
        if self._windows.missed:
            self._windows.missed = False
            self.steps.flag(StepFlag.MISSED)
        return paused

    def _learn_communication(self, step: int) -> None:
        """Between two steps: once these few are over, the rank's file says how it communicates."""
        if step == COMMUNICATION_FROM:
            self._framework.watch_communication()
        elif step == COMMUNICATION_UNTIL and (seen := self._framework.communication()) is not None:
            self._identify(self._framework.description(), seen)


class Current:
    """The session of this process, if there is one. Hooks are installed once and look here."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self._starts: dict[str, Callable[[int | None], Session]] = {}
        self._run_dir: Path | None = None
        self._failed = False

    def arm(self, framework: str, start: Callable[[int | None], Session], run_dir: Path) -> None:
        """A session is to be started by `start(begin)` at the first sign that this framework trains."""
        if not self._failed:
            self._starts[framework], self._run_dir = start, run_dir

    def begin(self, begin: int | None = None, *, framework: str | None = None, alone: bool = False) -> Session | None:
        """The session, started now where it is armed. `begin` as in Session.

        A job may have imported several frameworks: `framework` says which one trains; with `alone` nothing starts
        where others are armed too. None: the one that is likeliest to train without being noticed.
        """
        if self.session is None and self._starts and not (alone and len(self._starts) > 1):
            name = framework or next(name for name in _LIKELIEST if name in self._starts)
            start = self._starts.get(name)
            if start is not None:
                self._starts.clear()
                try:
                    self.session = start(begin)
                except Exception as error:  # training goes on without capture, whatever it is
                    self.give_up(error)
        return self.session

    def give_up(self, error: Exception) -> None:
        """Says once why, and is off."""
        session, self.session = self.session, None
        self._starts.clear()
        if not self._failed:
            self._failed = True
            warn_of(error, "capture is off, training goes on", self._run_dir)
        if session is not None:
            _closed(session)

    def stop(self) -> None:
        """Ends the session."""
        session, self.session = self.session, None
        self._starts.clear()
        if session is not None:
            _closed(session)

    def forget(self) -> None:
        """In a child forked from a process that is recorded, whose rings it shares: it writes nothing."""
        if self.session is not None:
            self.session, self._failed = None, True
            self._starts.clear()


def _closed(session: Session) -> None:
    try:
        session.close()
    except Exception as error:  # it is over in any case
        warn(f"capture did not end well: {described(error)}")


current: Final = Current()
os.register_at_fork(after_in_child=current.forget)
atexit.register(current.stop)
