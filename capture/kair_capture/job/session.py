"""Captures one process: started once, ended once, and off for good after any failure.

It writes the rank's identity next to its rings, and finds where one step ends and the next begins from the optimizers.
"""

import atexit
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, Final

from kair_capture.control import RankControl
from kair_capture.delays import DELAYS_FILE
from kair_capture.files import make_secure_dir, write_atomically
from kair_capture.job.delaying import Delays
from kair_capture.job.device_time import DeviceTime
from kair_capture.job.dumping import Dumps
from kair_capture.job.failing import RankLock, described, warn, warn_of
from kair_capture.job.framework import COMMUNICATION_FROM, COMMUNICATION_UNTIL, Communication, Framework
from kair_capture.job.identity import IdentityFile
from kair_capture.job.processor_time import Had, ProcessorTime
from kair_capture.job.recorder import Recorder, ScopeStack, ThreadRings, clock
from kair_capture.job.thinning import BLOCK, Thinning
from kair_capture.job.windows import CONTROL_BYTES, ControlWords, Periodic, Windows
from kair_capture.ring import StepFlag, process_namespace, start_ticks
from kair_capture.settings import Settings


def write_identity(
    settings: Settings,
    rank: int,
    world_size: int,
    framework: Mapping[str, Any],
    communication: Communication | None = None,
    *,
    dump_signal: int = 0,
) -> None:
    """Write `rank-<r>.json` atomically, and again once the rank's communication is known. Raises OSError."""
    identity = {
        "job": settings.job,
        "rank": rank,
        "world_size": world_size,
        "local_rank": settings.local_rank,
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "start_ticks": start_ticks(os.getpid()),
        "pid_namespace": process_namespace(),
        "started_ns": time.time_ns(),
        "python": platform.python_version(),
        "clock": "CLOCK_MONOTONIC",
        "dump_signal": dump_signal,
        "delays_allowed": settings.delays,
        **framework,
    }
    if communication is not None:
        identity["communication"] = asdict(communication)
    write_atomically(settings.run_dir / f"rank-{rank}.json", json.dumps(identity).encode())


_MOST_SAMPLES: Final = 0xFFFF_FFFF
"""The largest number in a record."""
_FORGET_AFTER: Final = 64
"""After this many runs of other optimizers, the last one counts as no longer used."""


class StepTracker:
    """Cuts time into steps.

    A step is over when the last of its optimizers has run; the first steps show which one that is. It ends when
    anything of the next one begins: waiting for data, forward, a scope. So the profiler, which is switched there, never
    cuts an optimizer's own scope.
    """

    def __init__(
        self, recorder: Recorder, between: Callable[[int, int, int, Had | None], bool], *, begin: int | None
    ) -> None:
        """`between(step, begin, end, had)` runs between two steps and returns whether that took time outside of steps.

        `had` is the training thread's processor time, for sampled steps. Without `begin` the first step has begun
        already.
        """
        self._recorder = recorder
        self._between = between
        self._flags = 0 if begin is not None else int(StepFlag.INCOMPLETE)
        self._begin = clock() if begin is None else begin
        self._optimizers: list[int] = []
        self._since_last = 0
        self.over_since: int | None = None
        """When its last optimizer ran, if it did: the step ends with whatever begins next (`phase_begins`)."""
        self._is_explicit = False
        self._thread: int | None = None
        self._processor: ProcessorTime | None = None
        self.in_backward = False
        """Whether the training thread waits for autograd, which may use other threads."""
        self.backwards = self.backwards_before = 0
        """Backward passes in the present step, and in the previous one."""
        self.samples = 0
        """Samples of the present step, as far as reported."""
        self._thinning, self._thinned = Thinning(), 0
        self.device: DeviceTime | None = None
        """Own time by events on a device's stream; None without a device."""
        self.thins = True
        """Whether the present step may be thinned: only recording affects it."""
        self.sampled = False
        """Whether the profiler is on in the present step."""
        self.runs_ahead = False
        """Whether the host hands steps to a device and continues before they are over."""

    def optimizer_ran(self, optimizer: int, *, skipped: bool = False) -> None:
        """Note that an optimizer's step is over, or was skipped."""
        if self._is_explicit:
            return
        self._thread = get_ident()
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        if skipped:
            self._flags |= StepFlag.SKIPPED
        self._since_last += 1
        if self._since_last > _FORGET_AFTER:
            self._optimizers = [optimizer]
        if optimizer == self._optimizers[-1]:
            self.over_since = clock()
            self._since_last = 0

    def phase_begins(self) -> None:
        """Note the begin of a phase, which belongs to the next step if the present one is over."""
        if self.over_since is not None and get_ident() == self._thread:
            self._end(clock())

    def flag(self, flag: StepFlag) -> None:
        """Add a flag to the present step."""
        self._flags |= flag

    def concerns(self) -> bool:
        """Return whether this thread's waiting delays the step; background saving does not."""
        return self.in_backward or self.is_of_loop()

    def is_of_loop(self) -> bool:
        """Return whether this thread trains, rather than prefetches, as far as that is known."""
        return self._thread is None or get_ident() == self._thread

    def trains_here(self) -> bool:
        """Return whether this thread is known to train."""
        return self._thread == get_ident()

    def step(self) -> None:
        """End a step explicitly; from then on only this ends steps."""
        if not self._is_explicit:
            self._is_explicit = True
            self._thread = get_ident()
            self._optimizers.clear()
        self._end(clock())

    def takes(self, samples: int) -> None:
        """Add samples to the current step, or to the one that begins now."""
        self.phase_begins()
        if self.is_of_loop():
            self.samples = min(max(self.samples + samples, 0), _MOST_SAMPLES)

    def watch_processor(self, *, waits_busily: bool) -> None:
        """Measure the training thread's processor time from here on; no CPU time if it waits busily."""
        self._processor = ProcessorTime(waits_busily=waits_busily)

    def finish(self) -> None:
        """End the steps: one whose optimizer has run is complete, except for work left on a device."""
        if self.over_since is not None:
            if self.runs_ahead:
                self._flags |= StepFlag.INCOMPLETE
            self._end(self.over_since)

    def _end(self, end: int) -> None:
        begin, recorder = self._begin, self._recorder
        flags = self._flags | self._thinned
        if self.backwards > 1:
            flags |= StepFlag.ACCUMULATING
        if self.sampled:
            flags |= StepFlag.SAMPLED
        processor, thinning, had = self._processor, self._thinning, 0
        if processor is not None and recorder.is_on:
            had = processor.after_step(thinning.every, alone=self.sampled)
        if self.device is not None:
            recorder.device(self.device.step_is_over())
        recorder.end_step(begin, end, flags, had, self.samples)
        self.over_since, self._flags = None, 0
        self.backwards, self.backwards_before = 0, self.backwards
        paused = self._between(recorder.step, begin, end, None if processor is None else processor.alone)
        recorder.step += 1
        self._begin, self.samples = end, 0
        self._thinned = recorder.shortest_ns = 0
        if thinning.every > 1 or not recorder.step % BLOCK:
            thinned = thinning.begin(recorder.step, end)
            if self.thins:
                self._thinned, recorder.shortest_ns = thinned, thinning.shortest_ns
        if paused:
            if processor is not None:
                processor.begin()
            self._begin = clock()


_LIKELIEST: Final = ("jax", "tensorflow", "torch", "none")
"""PyTorch's hooks detect nearly all of its training, the others' less."""


class Session:
    """The target of the hooks."""

    def __init__(self, settings: Settings, framework: Framework, *, begin: int | None) -> None:
        """Create the process's files. `begin` is the first step's (CLOCK_MONOTONIC, ns); None if it has begun already.

        Raises TakenError if another process is this rank, OSError.
        """
        rank, world_size = framework.place() or (settings.rank, settings.world_size)
        make_secure_dir(settings.run_dir)
        with ExitStack() as unless_made:
            self._rank_lock = RankLock(settings.run_dir / f"rank-{rank}.lock", f"rank {rank}")
            unless_made.callback(self._rank_lock.release)
            rings = ThreadRings(settings.run_dir, rank, settings.ring_records)
            self.recorder: Final = Recorder(rings, settings.run_dir / f"rank-{rank}-{os.getpid()}.names")
            self.recorder.is_on = not settings.attachable
            self.depths: Final = ScopeStack()
            self._control = control = ControlWords(settings.run_dir / f"rank-{rank}.control")
            self._settings, self._obeyed = settings, 0
            folder = settings.run_dir / "windows"
            every = settings.sample_every
            periodic = Periodic(every, settings.max_overhead) if every else None
            self._windows = Windows(
                folder, (rank, world_size), self.recorder, framework, control=control, periodic=periodic
            )
            self.steps: Final = StepTracker(self.recorder, self._between, begin=begin)
            self._delays = Delays(rank, control, settings.run_dir / DELAYS_FILE, self.recorder)
            self._words_of_last = b""
            """Control words after which nothing was due between two steps; empty if something is."""
            self.delays: Delays | None = None
            """Delays of the present step; None without any."""
            self._marks_input = framework.marks_input
            self.recorder.watch_pauses()
            self._framework = framework
            self._dumps = _dumps(settings.run_dir, rank)
            of_dumps = 0 if self._dumps is None else self._dumps.signal
            self._identify = partial(write_identity, settings, rank, world_size, dump_signal=of_dumps)
            description = framework.description()
            self._identify(description)
            self._identity = IdentityFile(settings.run_dir, rank, description)
            self._identity.tell()
            # With a GPU the host waits busily for it, so its CPU time means nothing.
            self.steps.watch_processor(waits_busily=description.get("device") != "cpu")
            unless_made.pop_all()

    def sampled_scope(self, name: str) -> AbstractContextManager[object] | None:
        """Return a scope in the profiler's recording; None in steps that are not sampled."""
        return self._windows.scope(name) if self._windows.profiles else None

    def input_scope(self) -> AbstractContextManager[object]:
        """Return the same for waiting for data, which some profilers mark themselves."""
        scope = None if self._marks_input else self.sampled_scope("input")
        return nullcontext() if scope is None else scope

    def given(self, size: int) -> None:
        """Note the bytes of a model's input in a sampled step."""
        self._windows.given(size)

    def close(self) -> None:
        """End the last step, and the recording."""
        try:
            if self._dumps is not None:
                self._dumps.close()
            self.steps.finish()
            self._windows.close()
            self.recorder.close()
        finally:
            self._rank_lock.release()

    def _between(self, step: int, begin: int, end: int, had: Had | None) -> bool:
        # Read before they are handled: later changes are seen after the next step.
        if (words := self._control.memory[:CONTROL_BYTES]) == self._words_of_last:
            return False
        paused, delays = self._switch(step, begin, end, had), self._delays
        is_free = self.recorder.is_on and not self._windows.profiles and self._settings.delays is not False
        if delays.between(step + 1, end - begin, self.steps.backwards_before, is_free=is_free):
            self.steps.flag(StepFlag.DELAYED)
        self.delays = delays if delays.is_due else None
        self._windows.holds_off = delays.is_followed
        self.steps.thins = not (self._windows.profiles or delays.is_followed)
        is_idle = step > COMMUNICATION_UNTIL and self._windows.is_idle and delays.is_idle
        self._words_of_last = words if is_idle else b""
        return paused

    def _switch(self, step: int, begin: int, end: int, had: Had | None) -> bool:
        if (word := self._control.control) != self._obeyed and not self._windows.profiles:
            self._obeyed = word
            return self._obey(RankControl.read(word))
        if not self.recorder.is_on:
            return False
        if step <= COMMUNICATION_UNTIL:
            self._learn_communication(step)
        if self.steps.sampled and self.steps.samples:
            self._windows.took(step, self.steps.samples)
        paused = self._windows.between(step, begin, end, had)
        self.steps.sampled = self._windows.profiles
        if self._windows.missed:
            self._windows.missed = False
            self.steps.flag(StepFlag.MISSED)
        return paused

    def _obey(self, control: RankControl) -> bool:
        """Apply settings ordered while the job runs; return True, because the next step begins after it."""
        every = self._settings.sample_every if control.sample_every is None else control.sample_every
        share = self._settings.max_overhead if control.max_overhead is None else control.max_overhead
        self._windows.pace(every, share)
        self.recorder.is_on = not self._settings.attachable if control.is_on is None else control.is_on
        return True

    def _learn_communication(self, step: int) -> None:
        """Between two steps, observe communication; later, add it and the device to the rank's files."""
        if step == COMMUNICATION_FROM:
            self._framework.watch_communication()
        elif step == COMMUNICATION_UNTIL:
            self._identity.tell()
            if (seen := self._framework.communication()) is not None:
                self._identify(self._framework.description(), seen)


def _dumps(run_dir: Path, rank: int) -> Dumps | None:
    """Return the dumps; None if they cannot be created: steps are recorded anyway."""
    try:
        return Dumps(run_dir, rank)
    except (OSError, RuntimeError) as error:
        warn(f"where this rank is when the job hangs is not recorded: {described(error)}")
        return None


class Current:
    """The session of this process, if any. Hooks are installed once and look here."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self._starts: dict[str, Callable[[int | None], Session]] = {}
        self._run_dir: Path | None = None
        self._failed = False

    def arm(self, framework: str, start: Callable[[int | None], Session], run_dir: Path) -> None:
        """Have `start(begin)` start a session at the first sign that this framework trains."""
        if not self._failed:
            self._starts[framework], self._run_dir = start, run_dir

    def begin(self, begin: int | None = None, *, framework: str | None = None, alone: bool = False) -> Session | None:
        """Return the session, started now if it is armed. `begin` is as in Session.

        A job may have imported several frameworks: `framework` is the one that trains; with `alone` nothing starts if
        others are armed too. None means the one that most likely trains undetected.
        """
        if self.session is None and self._starts and not (alone and len(self._starts) > 1):
            name = framework or next(name for name in _LIKELIEST if name in self._starts)
            start = self._starts.get(name)
            if start is not None:
                self._starts.clear()
                try:
                    self.session = start(begin)
                    self._stop_with_worker()
                except Exception as error:  # whatever it is, training continues without capture
                    self.give_up(error)
        return self.session

    def give_up(self, error: Exception) -> None:
        """Warn once about the reason, and turn capture off."""
        session, self.session = self.session, None
        self._starts.clear()
        if not self._failed:
            self._failed = True
            warn_of(error, "capture is off, training goes on", self._run_dir)
        if session is not None:
            _closed(session)

    def stop(self) -> None:
        """End the session."""
        session, self.session = self.session, None
        self._starts.clear()
        if session is not None:
            _closed(session)

    def _stop_with_worker(self) -> None:
        """End the session with a process forked by multiprocessing, which leaves without `atexit`."""
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util.Finalize(None, self.stop, exitpriority=0)

    def forget(self) -> None:
        """Turn capture off in a child forked from a recorded process, whose rings it shares."""
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
