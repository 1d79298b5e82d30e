"""One process that is being captured: started once, ended once, and off for good where anything fails.

Says who a rank is: the file beside its rings.

Where one step ends and the next begins, found from what the optimizers do.
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
    """Write `rank-<r>.json` whole, again once it is known how the rank communicates. Raises OSError."""
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
"""What a record holds."""
_FORGET_AFTER: Final = 64
"""Steps of the first optimizer without one of the last: it is not used any more."""


class StepTracker:
    """Cuts time into steps.

    A step is over when the last of its optimizers has run; which one that is shows in the first steps. Its end is the
    begin of whatever comes first then: waiting for data, forward, a scope. So the profiler, which is switched there,
    never cuts an optimizer's own scope in two.
    """

    def __init__(
        self, recorder: Recorder, between: Callable[[int, int, int, Had | None], bool], *, begin: int | None
    ) -> None:
        """`between(step, begin, end, had)` is called between two steps; true where it took time that is no step's.

        `had`: what the training thread had of the processor, of steps that are sampled.
        `begin` is None where the first step is under way already.
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
        """The training thread waits for autograd, whose threads may be others."""
        self.backwards = self.backwards_before = 0
        """Backward passes in the present step, and in the one before."""
        self.samples = 0
        """That the present step takes, as far as somebody said so."""
        self._thinning, self._thinned = Thinning(), 0
        self.device: DeviceTime | None = None
        """What is told by events on a device's stream; None where there is none."""
        self.thins = True
        """The present step may be thinned: nothing more is done to it than to record it."""
        self.sampled = False
        """The profiler is on in the present step."""
        self.runs_ahead = False
        """The host hands steps to a device, and goes on before they are over."""

    def optimizer_ran(self, optimizer: int, *, skipped: bool = False) -> None:
        """Note that an optimizer's step is over, or was left out."""
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
        """Something of a step begins: of the next one, where the present one is over."""
        if self.over_since is not None and get_ident() == self._thread:
            self._end(clock())

    def flag(self, flag: StepFlag) -> None:
        """Says something more of the present step."""
        self._flags |= flag

    def concerns(self) -> bool:
        """Whether what this thread waits for holds up the step: not where it saves beside it."""
        return self.in_backward or self.is_of_loop()

    def is_of_loop(self) -> bool:
        """Whether this thread trains, rather than loads ahead, as far as it is known which one does."""
        return self._thread is None or get_ident() == self._thread

    def trains_here(self) -> bool:
        """Whether this thread is known to be the one that trains."""
        return self._thread == get_ident()

    def step(self) -> None:
        """End a step as the script itself says; from then on it alone does."""
        if not self._is_explicit:
            self._is_explicit = True
            self._thread = get_ident()
            self._optimizers.clear()
        self._end(clock())

    def takes(self, samples: int) -> None:
        """Add so many samples to the step that is under way, or that begins now."""
        self.phase_begins()
        if self.is_of_loop():
            self.samples = min(max(self.samples + samples, 0), _MOST_SAMPLES)

    def watch_processor(self, *, waits_busily: bool) -> None:
        """From here on it is told what the training thread had of the processor; CPU time not where it waits busily."""
        self._processor = ProcessorTime(waits_busily=waits_busily)

    def finish(self) -> None:
        """No more steps: one whose optimizer has run is whole, but for what a device has left to do."""
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
"""PyTorch's hooks see nearly all of its training, the others' less."""


class Session:
    """What the hooks write to."""

    def __init__(self, settings: Settings, framework: Framework, *, begin: int | None) -> None:
        """Make the process' files. `begin`: of the first step (CLOCK_MONOTONIC, ns); None where it is under way.

        Raises TakenError where another process is this rank, OSError.
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
            """The control words after which nothing was left to do between two steps; none where something is."""
            self.delays: Delays | None = None
            """What holds up the present step at one of its places; None where nothing does."""
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
            # With a GPU the host waits for it busily: then its CPU time says nothing.
            self.steps.watch_processor(waits_busily=description.get("device") != "cpu")
            unless_made.pop_all()

    def sampled_scope(self, name: str) -> AbstractContextManager[object] | None:
        """Return a scope in the profiler's recording; None in steps that are not sampled."""
        return self._windows.scope(name) if self._windows.profiles else None

    def input_scope(self) -> AbstractContextManager[object]:
        """Return the same for waiting for data, of which some profilers tell by themselves."""
        scope = None if self._marks_input else self.sampled_scope("input")
        return nullcontext() if scope is None else scope

    def given(self, size: int) -> None:
        """Note that a model is given so many bytes, in a step that is sampled."""
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
        # Read before they are acted on: what changes meanwhile is seen after the next step.
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
        """Set what was ordered while the job runs, and return True: the next step begins anew."""
        every = self._settings.sample_every if control.sample_every is None else control.sample_every
        share = self._settings.max_overhead if control.max_overhead is None else control.max_overhead
        self._windows.pace(every, share)
        self.recorder.is_on = not self._settings.attachable if control.is_on is None else control.is_on
        return True

    def _learn_communication(self, step: int) -> None:
        """Between two steps: once these few are over, the rank's files say how it communicates, and on which device."""
        if step == COMMUNICATION_FROM:
            self._framework.watch_communication()
        elif step == COMMUNICATION_UNTIL:
            self._identity.tell()
            if (seen := self._framework.communication()) is not None:
                self._identify(self._framework.description(), seen)


def _dumps(run_dir: Path, rank: int) -> Dumps | None:
    """None where they cannot be made: steps are recorded all the same."""
    try:
        return Dumps(run_dir, rank)
    except (OSError, RuntimeError) as error:
        warn(f"where this rank is when the job hangs is not recorded: {described(error)}")
        return None


class Current:
    """The session of this process, if there is one. Hooks are installed once and look here."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self._starts: dict[str, Callable[[int | None], Session]] = {}
        self._run_dir: Path | None = None
        self._failed = False

    def arm(self, framework: str, start: Callable[[int | None], Session], run_dir: Path) -> None:
        """Have a session started by `start(begin)` at the first sign that this framework trains."""
        if not self._failed:
            self._starts[framework], self._run_dir = start, run_dir

    def begin(self, begin: int | None = None, *, framework: str | None = None, alone: bool = False) -> Session | None:
        """Return the session, started now where it is armed. `begin` as in Session.

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
                    self._stop_with_worker()
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
        """End the session."""
        session, self.session = self.session, None
        self._starts.clear()
        if session is not None:
            _closed(session)

    def _stop_with_worker(self) -> None:
        """End the session with a process that multiprocessing forked, which leaves without `atexit`."""
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util.Finalize(None, self.stop, exitpriority=0)

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
