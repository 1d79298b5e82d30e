"""Samples steps: the framework's profiler is switched between steps, and its recording left in the windows folder.

Without a request it samples one step in so many, and less often if that would cost too much. Ranks are comparable if
they sample the same steps: all use the interval of the rank that can afford least.

A rank's sampling never costs more than its share of the time so far plus one window. Requested steps count too and have
precedence, as do those of other ranks, for which it waits, as far as a coordinator reports them.

An agent requests windows from a rank through words of shared memory.
"""

import mmap
import os
import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from statistics import median, median_low
from typing import Any, Final

from kair_capture.control import ProfileOptions, options_in
from kair_capture.job.connections import Connections
from kair_capture.job.failing import warn, warn_of
from kair_capture.job.framework import Framework, Profile
from kair_capture.job.limits import Halts, Quota, limits
from kair_capture.job.processor_time import CommunicationThreads, Had, HelperThreads
from kair_capture.job.recorder import Recorder, clock

INTERVAL_EVENT: Final = "sampling interval"
"""Name of the event that gives the agent the interval in steps."""
_REMEMBERED: Final = 16
_COSTS: Final = 5
_EASIER: Final = 0.8
"""A shorter interval must stay below this share of the budget, so that one on the edge does not alternate."""


class Periodic:
    """Unasked sampling of one rank; it waits for no other rank, which may be dead.

    Intervals are `every` times a power of two: until ranks know each other's, the steps of the longer interval are
    among those of the shorter.
    """

    def __init__(self, every: int, share: float) -> None:
        """At most one step in `every` is sampled, within this `share` of the time; 1 sets no limit."""
        self.interval = self._every = every
        self._share = share
        self._steps: deque[int] = deque(maxlen=_REMEMBERED)
        self._costs: deque[int] = deque(maxlen=_COSTS)
        self._spent = self._elapsed = 0

    def change(self, every: int, share: float) -> None:
        """Change the settings; the time spent so far counts."""
        if (every, share) != (self._every, self._share):
            self.interval = self._every = every
            self._share = share
            self._costs.clear()

    def is_due(self, step: int, job_overhead: float = 0.0, job_interval: int = 0) -> bool:
        """Return whether to sample this step.

        `job_overhead` is the share of the time that sampling took on all ranks, `job_interval` the longest of their
        intervals.
        """
        if not (self._every and self._share) or step % max(self.interval, job_interval):
            return False
        return self._is_free or (self._spent <= self._share * self._elapsed and job_overhead <= self._share)

    def passed(self, length: int) -> None:
        """Note the length (ns) of a step that was not sampled."""
        self._steps.append(length)
        self._elapsed += length

    def spent(self, lengths: list[int], pauses: int, *, is_own: bool) -> None:
        """Note the steps of a finished window, and how long training waited for its profiler (ns).

        `is_own`: it was not requested and was completed, so it predicts the next one's cost.
        """
        usual = median(self._steps) if self._steps else 0.0
        cost = pauses + round(sum(max(length - usual, 0.0) for length in lengths))
        self._spent += cost
        self._elapsed += round(usual * len(lengths))
        if is_own:
            self._costs.append(cost)
            self._space(usual)

    @property
    def overhead(self) -> float:
        """Return the share of the time that sampling took."""
        return self._spent / self._elapsed if self._elapsed else 0.0

    @property
    def _is_free(self) -> bool:
        return self._share >= 1

    def _space(self, usual: float) -> None:
        if self._is_free or not usual or not self._every:
            return
        # The first window includes the profiler's setup.
        fewest = median_low(self._costs) / (self._share * usual)
        needed = self._interval_of(fewest)
        if needed > self.interval or self._interval_of(fewest / _EASIER) < self.interval:
            self.interval = needed

    def _interval_of(self, steps: float) -> int:
        return self._every << ceil(log2(max(steps / self._every, 1.0)))


CONTROL_BYTES: Final = 64
MOST_STEPS: Final = 100

_GENERATION, _FIRST_STEP, _STEPS, _OVERHEAD, _EVERY, _OPTIONS, _CONTROL, _DELAYS = range(8)
_MILLION: Final = 1_000_000


@dataclass(frozen=True)
class Window:
    """Steps to sample: `steps` of them, from number `first` on."""

    first: int
    steps: int
    options: int = 0
    """Extra data, as ProfileOptions."""

    @property
    def last(self) -> int:
        """Return the last of the steps."""
        return self.first + self.steps - 1


class ControlWords:
    """64 bytes of shared memory, as 64-bit words: generation, first step, number of steps; sampling's share so far, and
    the interval of unasked sampling; the window's extra data, and the rank's settings; the number of the last order to
    delay ranks.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises OSError."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Without an allocated page, a full /dev/shm would end the training process by SIGBUS at the first access.
            os.posix_fallocate(handle, 0, CONTROL_BYTES)
            self.memory: Final = mmap.mmap(handle, CONTROL_BYTES)
        finally:
            os.close(handle)
        self._words = memoryview(self.memory).cast("Q")
        # Requests to an earlier process of this rank do not apply to this one.
        self._seen = self._words[_GENERATION]

    def asked(self) -> Window | None:
        """Return a window requested since the last call; None without one, which costs 0.1 µs."""
        generation = self._words[_GENERATION]
        if generation == self._seen:
            return None
        steps = min(self._words[_STEPS], MOST_STEPS)
        window = Window(self._words[_FIRST_STEP], steps, self._words[_OPTIONS] & 0xFF)
        # The generation changes last: if it changed meanwhile, the next call reads the other words.
        if generation != self._words[_GENERATION]:
            return None
        self._seen = generation
        return window if window.steps else None

    @property
    def overhead(self) -> float:
        """Return the share of the job's time that sampling took, as the coordinator has it; 0 without one."""
        return self._words[_OVERHEAD] / _MILLION

    @property
    def sampled_every(self) -> int:
        """Return the largest interval, in steps, at which a rank samples unasked; 0 if not known."""
        return self._words[_EVERY]

    def tell_pace(self, overhead_ppm: int, every: int) -> None:
        """Set both, the overhead in millionths; called by an agent."""
        self._words[_OVERHEAD], self._words[_EVERY] = overhead_ppm, every

    @property
    def control(self) -> int:
        """Return the changed settings, as RankControl packs them; 0 for none."""
        return self._words[_CONTROL]

    def tell_control(self, control: int) -> None:
        """Set it; called by an agent."""
        self._words[_CONTROL] = control

    @property
    def delays(self) -> int:
        """Return the number of the last order to delay ranks, which is in a file; 0 before the first."""
        return self._words[_DELAYS]

    def tell_delays(self, number: int) -> None:
        """Set it, once the file exists; called by an agent."""
        self._words[_DELAYS] = number

    def ask(self, window: Window) -> None:
        """Request a window; called by an agent."""
        self._words[_OPTIONS] = window.options
        self._words[_FIRST_STEP], self._words[_STEPS] = window.first, window.steps
        self._words[_GENERATION] = (self._words[_GENERATION] + 1) & (2**64 - 1)

    def close(self) -> None:
        """Release the memory; the file stays."""
        self._words.release()
        self.memory.close()


MOST_WAITING: Final = 64
"""Windows that were not collected: beyond these none is recorded, so that memory does not fill."""


class Windows:
    """Starts a requested window, or ends one, between two steps."""

    def __init__(
        self,
        folder: Path,
        place: tuple[int, int],
        recorder: Recorder,
        framework: Framework,
        *,
        control: ControlWords,
        periodic: Periodic | None = None,
    ) -> None:
        """`place` is rank and world size; `periodic` decides on unasked sampling, None for none."""
        self._folder = folder
        self._rank, self._world_size = place
        self._recorder = recorder
        self._framework = framework
        self._control = control
        self._periodic = periodic
        control.tell_pace(0, 0)  # until this process receives it
        control.tell_control(0)
        self._has_ignored = False
        self._told_interval = 0
        """Reported again after each window, since the agent may be another one by then."""
        self._is_asked = False
        """Whether the wanted or last window was requested."""
        self._pauses = 0
        """How long training waited for the open one."""
        self._wanted: Window | None = None
        self._open: tuple[Window, Profile] | None = None
        self._steps: list[tuple[int, int, int, int]] = []
        self._processor: list[tuple[int, int | None, int | None, int | None, int | None, int | None, int]] = []
        """For each step: its number, CPU time and delay (ns) of the training thread, stops by a quota, the delay of
        communication threads, stops by signals, and the CPU time of helpers.
        """
        self._given: dict[int, int] = {}
        """Step → bytes of models' inputs, as far as known."""
        self._given_so_far = 0
        self._samples: dict[int, int] = {}
        """Step → its number of samples, as far as known."""
        self._sent: list[tuple[int, str, str, int, int, int, int, int, int]] = []
        """For each step, what was sent between addresses, as in `Connections.sent`."""
        self._quota, self._communicating, self._halts = Quota(), CommunicationThreads(), Halts()
        self._helpers = HelperThreads(self._communicating)
        self._connections = Connections()
        self._is_off = False
        self.profiles = False
        """Whether capture's profiler runs now."""
        self.holds_off = False
        """Whether unasked sampling is suspended because ranks are being delayed."""
        self.missed = False
        """Whether a requested window was missed; reset when that is reported."""

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is open, awaited, or sampled unasked: then only the control words can change that."""
        return self._open is None and self._wanted is None and (self._periodic is None or self._is_off)

    def scope(self, name: str) -> AbstractContextManager[object] | None:
        """Return a scope for the profiler's recording; None in steps that are not sampled."""
        opened = self._open  # the training thread may close it concurrently
        return None if opened is None else opened[1].scope(name)

    def pace(self, every: int, share: float) -> None:
        """Sample one step in `every` unasked from now on, 0 for none, within this share of the time."""
        if self._periodic is None and every:
            self._periodic = Periodic(every, share)
        elif self._periodic is not None:
            self._periodic.change(every, share)

    def given(self, size: int) -> None:
        """Note the bytes of a model's input in the present step."""
        self._given_so_far += size

    def took(self, step: int, samples: int) -> None:
        """Note a sampled step's number of samples."""
        self._samples[step] = samples

    def between(self, step: int, begin: int, end: int, had: Had | None) -> bool:
        """Handle the end of `step` (CLOCK_MONOTONIC, ns), with the training thread's processor time.

        Return whether that took time outside of steps.
        """
        given, self._given_so_far = self._given_so_far, 0
        if self._open is None:
            if self._periodic is not None:
                self._note_step(self._periodic, end - begin)
            if not self._is_wanted(step + 1):
                return False
        before, steps, is_asked = self._open, self._steps, self._is_asked
        try:
            self._switch(step, begin, end, had, given)
        except Exception as error:  # whatever the profiler does, steps are recorded without it
            self._give_up(error)
        self._pauses += clock() - end
        if self._periodic is not None and before is not None and self._open is not before:
            is_own = not is_asked and not before[1].is_lost
            self._periodic.spent([length for *_, length in steps], self._pauses, is_own=is_own)
            self._pauses = self._told_interval = 0
        self.profiles = self._open is not None
        return True

    def close(self) -> None:
        """Discard an unfinished window."""
        if self._open is not None:
            profile, self._open = self._open[1], None
            profile.discard()
        self._stop_looking()
        self._control.close()

    def _note_step(self, periodic: Periodic, length: int) -> None:
        periodic.passed(length)
        if self._told_interval != periodic.interval:
            self._told_interval = periodic.interval
            self._recorder.event(INTERVAL_EVENT, periodic.interval)

    def _is_wanted(self, following: int) -> bool:
        """Return whether a window begins with the following step."""
        if (asked := self._control.asked()) is not None:
            self._wanted, self._is_asked = asked, True
        wanted = self._wanted
        if wanted is not None and (wanted.first < following or self._is_off):
            self._miss(wanted)
            wanted = self._wanted = None
        if self._is_off:
            return False
        may = wanted is None and not self.holds_off
        if may and self._periodic is not None and self._is_due(self._periodic, following):
            wanted = self._wanted = Window(following, 1)
            self._is_asked = False
        return wanted is not None and wanted.first == following

    def _is_due(self, periodic: Periodic, following: int) -> bool:
        return periodic.is_due(following, self._control.overhead, self._control.sampled_every)

    def _switch(self, step: int, begin: int, end: int, had: Had | None, given: int) -> None:
        if self._open is not None:
            window, profile = self._open
            helped = self._helpers.cpu_ns()
            profile.end_step()
            self._steps.append((step, begin, _unix(begin), end - begin))
            if given:
                self._given[step] = given
            self._sent += [(step, *one) for one in self._connections.sent()]
            if had is not None:
                figures = self._quota.stops(), self._communicating.delay_ns(), self._halts.count()
                self._processor.append((step, *had, *figures, helped))
            if step < window.last and not profile.is_lost:
                profile.begin_step(step + 1)
                self._helpers.begin()
                return
            self._open = None
            self._finish(window, profile, end)
        if self._is_wanted(step + 1) and self._wanted is not None:
            self._start(self._wanted)

    def _start(self, window: Window) -> None:
        self._wanted = None
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if sum(not name.name.endswith(".tmp") for name in self._folder.glob(f"rank-{self._rank}-*")) >= MOST_WAITING:
            self._miss(window)
            return
        options = options_in(window.options)
        self._tell_ignored(options & ~self._framework.profile_options)
        profile = self._framework.start_profile(options & self._framework.profile_options)
        if profile is None:
            self._miss(window)
            self._tell_refusal()
            return
        self._open = (window, profile)
        self._steps, self._processor, self._given, self._samples, self._sent = [], [], {}, {}, []
        self._quota.look()
        self._communicating.look()
        self._halts.look()
        self._connections.look()
        profile.begin_step(window.first)
        self._helpers.begin()

    def _stop_looking(self) -> None:
        self._communicating.close()
        self._halts.close()

    def _miss(self, window: Window) -> None:
        self._recorder.event("window missed", window.first)
        self.missed |= self._is_asked

    def _tell_refusal(self) -> None:
        if self._framework.refusal is not None and not self._is_off:
            self._is_off = True
            warn(f"no steps are sampled, the rest of capture goes on: {self._framework.refusal}")

    def _tell_ignored(self, options: ProfileOptions) -> None:
        if options and not self._has_ignored:
            self._has_ignored = True
            framework = self._framework.description().get("framework")
            warn(f"{', '.join(options.names)} are not recorded: PyTorch's profiler alone does that, not {framework}'s")

    def _finish(self, window: Window, profile: Profile, end: int) -> None:
        """End the profile and save it; record how long training waited for it."""
        if profile.is_lost:
            self._miss(window)
            return
        self._stop_looking()
        profile.stop()
        stopped = clock()
        details = self._details(window, profile, stopped - end)
        path = self._folder / f"rank-{self._rank}-{window.first}-{self._steps[-1][0]}{profile.suffix}"
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            profile.save(temporary, details)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._recorder.event("window stop ns", stopped - end)
        self._recorder.event("window save ns", clock() - stopped)

    def _details(self, window: Window, profile: Profile, stop_ns: int) -> dict[str, Any]:
        _, _, first_unix, _ = self._steps[0]
        _, _, last_unix, last_length = self._steps[-1]
        return {
            "rank": self._rank,
            **({"options": names} if (names := options_in(window.options).names) else {}),
            "world_size": self._world_size,
            "steps": self._steps,
            "processor": self._processor,
            "limits": limits(self._quota),
            "given": list(self._given.items()),
            **({"samples": list(self._samples.items())} if self._samples else {}),
            "sent": self._sent,
            "stop_ns": stop_ns,
            "collectives": profile.collectives(first_unix, last_unix + last_length),
        }

    def _give_up(self, error: Exception) -> None:
        self._is_off, self._open, self._wanted = True, None, None
        warn_of(error, "no more steps are sampled, the rest of capture goes on", self._folder.parent)


def _unix(monotonic: int) -> int:
    return time.time_ns() - (clock() - monotonic)
