"""Sampled steps: the framework's profiler is switched between steps, and what it saw left in the windows folder.

Samples one step in so many without being asked, and more seldom where that would cost too much.

Ranks are compared where they sampled the same steps: all keep to the interval of the one that can afford least.

At no time has a rank's sampling cost more than its share of the time so far, and one window. Steps that it was asked
for count, and go before; so do those of other ranks, for which it waits, as far as a coordinator tells of them.

The words by which an agent asks a rank for a window of sampled steps.
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
"""Name of the event that tells the agent how many steps there are from one to the next."""
_REMEMBERED: Final = 16
_COSTS: Final = 5
_EASIER: Final = 0.8
"""So much of the budget a shorter interval must leave unused: one on the edge would come and go."""


class Periodic:
    """Of one rank; it waits for no other, which may be dead.

    Intervals are `every` times a power of two: until ranks hear of each other's, the steps of the longer interval are
    among those of the shorter.
    """

    def __init__(self, every: int, share: float) -> None:
        """`every`: at most one step in so many. `share`: of the time, that sampling may take; 1 sets no bound."""
        self.interval = self._every = every
        self._share = share
        self._steps: deque[int] = deque(maxlen=_REMEMBERED)
        self._costs: deque[int] = deque(maxlen=_COSTS)
        self._spent = self._elapsed = 0

    def change(self, every: int, share: float) -> None:
        """From now on; what was spent so far counts."""
        if (every, share) != (self._every, self._share):
            self.interval = self._every = every
            self._share = share
            self._costs.clear()

    def is_due(self, step: int, job_overhead: float = 0.0, job_interval: int = 0) -> bool:
        """Whether to sample this step.

        `job_overhead`: the share of the time that sampling took on all ranks. `job_interval`: the longest of theirs.
        """
        if not (self._every and self._share) or step % max(self.interval, job_interval):
            return False
        return self._is_free or (self._spent <= self._share * self._elapsed and job_overhead <= self._share)

    def passed(self, length: int) -> None:
        """Note the length (ns) of a step that was not sampled."""
        self._steps.append(length)
        self._elapsed += length

    def spent(self, lengths: list[int], pauses: int, *, is_own: bool) -> None:
        """Note the steps of a window that is over, and how long training stood still for its profiler (ns).

        `is_own`: nobody asked for it, and it came to its end: it tells what the next one will cost.
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
        """The share of the time that sampling took."""
        return self._spent / self._elapsed if self._elapsed else 0.0

    @property
    def _is_free(self) -> bool:
        return self._share >= 1

    def _space(self, usual: float) -> None:
        if self._is_free or not usual or not self._every:
            return
        # The first window also sets the profiler up, once and for all.
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
    """What is recorded besides, as ProfileOptions."""

    @property
    def last(self) -> int:
        """The last of the steps."""
        return self.first + self.steps - 1


class ControlWords:
    """64 bytes of shared memory, 64-bit words: generation, first step, number of steps; what sampling took so far, and
    steps between those that are sampled unasked; what the window records besides, and how the rank is controlled; the
    number of the last order to delay ranks."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it. Raises OSError."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Without its page a full /dev/shm would end the training process by SIGBUS at the first touch.
            os.posix_fallocate(handle, 0, CONTROL_BYTES)
            self.memory: Final = mmap.mmap(handle, CONTROL_BYTES)
        finally:
            os.close(handle)
        self._words = memoryview(self.memory).cast("Q")
        # What was asked of an earlier process of this rank is not this one's.
        self._seen = self._words[_GENERATION]

    def asked(self) -> Window | None:
        """Return a window that was asked for since the last call. Costs 0.1 µs where there is none."""
        generation = self._words[_GENERATION]
        if generation == self._seen:
            return None
        steps = min(self._words[_STEPS], MOST_STEPS)
        window = Window(self._words[_FIRST_STEP], steps, self._words[_OPTIONS] & 0xFF)
        # The generation changes last: one that changed meanwhile brings other words, which the next call reads.
        if generation != self._words[_GENERATION]:
            return None
        self._seen = generation
        return window if window.steps else None

    @property
    def overhead(self) -> float:
        """The share of the job's time that sampling took, as the coordinator has it; 0 without one."""
        return self._words[_OVERHEAD] / _MILLION

    @property
    def sampled_every(self) -> int:
        """Steps between those that ranks sample unasked, of the one that does so least; 0 where nobody says."""
        return self._words[_EVERY]

    def tell_pace(self, overhead_ppm: int, every: int) -> None:
        """Says both, the overhead in millionths; what an agent does."""
        self._words[_OVERHEAD], self._words[_EVERY] = overhead_ppm, every

    @property
    def control(self) -> int:
        """What to do otherwise than as started, as RankControl packs it; 0 for nothing."""
        return self._words[_CONTROL]

    def tell_control(self, control: int) -> None:
        """Says it; what an agent does."""
        self._words[_CONTROL] = control

    @property
    def delays(self) -> int:
        """Number of the last order to delay ranks, which lies in a file; 0 before the first."""
        return self._words[_DELAYS]

    def tell_delays(self, number: int) -> None:
        """Says it, once the file is there; what an agent does."""
        self._words[_DELAYS] = number

    def ask(self, window: Window) -> None:
        """Asks for a window; what an agent does."""
        self._words[_OPTIONS] = window.options
        self._words[_FIRST_STEP], self._words[_STEPS] = window.first, window.steps
        self._words[_GENERATION] = (self._words[_GENERATION] + 1) & (2**64 - 1)

    def close(self) -> None:
        """Lets the memory go; the file stays."""
        self._words.release()
        self.memory.close()


MOST_WAITING: Final = 64
"""Windows that nobody took away: past these, none is recorded, so that memory does not fill."""


class Windows:
    """Between two steps: starts a window that was asked for, or ends one."""

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
        """`place`: rank and world size. `periodic`: which steps are sampled without being asked; None for none."""
        self._folder = folder
        self._rank, self._world_size = place
        self._recorder = recorder
        self._framework = framework
        self._control = control
        self._periodic = periodic
        control.tell_pace(0, 0)  # until this process is told
        control.tell_control(0)
        self._has_ignored = False
        self._told_interval = 0
        """Told anew after each window: the agent may be another one by then."""
        self._is_asked = False
        """Whether the window that is wanted, or was last, was asked for."""
        self._pauses = 0
        """How long training stood still for the one that is open."""
        self._wanted: Window | None = None
        self._open: tuple[Window, Profile] | None = None
        self._steps: list[tuple[int, int, int, int]] = []
        self._processor: list[tuple[int, int | None, int | None, int | None, int | None, int | None, int]] = []
        """Of each step its number, CPU time and delay (ns) of the training thread, how often a quota stopped it, the
        delay of the threads that communicate, how often a signal stopped the process, and the CPU time of helpers."""
        self._given: dict[int, int] = {}
        """Of each step the bytes that models were given, where somebody told that."""
        self._given_so_far = 0
        self._samples: dict[int, int] = {}
        """Of each step how many it took, where somebody told that."""
        self._sent: list[tuple[int, str, str, int, int, int, int, int, int]] = []
        """Of steps, what went from one address to another, as `Connections.sent` tells it."""
        self._quota, self._communicating, self._halts = Quota(), CommunicationThreads(), Halts()
        self._helpers = HelperThreads(self._communicating)
        self._connections = Connections()
        self._is_off = False
        self.profiles = False
        """A profiler of capture's runs now."""
        self.holds_off = False
        """Nothing is sampled unasked: ranks are being delayed."""
        self.missed = False
        """A window that was asked for was missed; who tells of it takes that back."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open, awaited, or sampled unasked: then only the control words can change that."""
        return self._open is None and self._wanted is None and (self._periodic is None or self._is_off)

    def scope(self, name: str) -> AbstractContextManager[object] | None:
        """Return a scope for the profiler's recording; None in steps that are not sampled."""
        opened = self._open  # which the training thread may close while another one asks
        return None if opened is None else opened[1].scope(name)

    def pace(self, every: int, share: float) -> None:
        """From now on, unasked, one step in so many is sampled, 0 for none, and may take such a share of the time."""
        if self._periodic is None and every:
            self._periodic = Periodic(every, share)
        elif self._periodic is not None:
            self._periodic.change(every, share)

    def given(self, size: int) -> None:
        """In the present step a model is given so many bytes."""
        self._given_so_far += size

    def took(self, step: int, samples: int) -> None:
        """Note how many samples of data a sampled step took."""
        self._samples[step] = samples

    def between(self, step: int, begin: int, end: int, had: Had | None) -> bool:
        """After `step` (CLOCK_MONOTONIC, ns), in which the training thread had so much of the processor.

        Whether it took time that is no step's.
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
        except Exception as error:  # whatever the profiler does, steps are still recorded without it
            self._give_up(error)
        self._pauses += clock() - end
        if self._periodic is not None and before is not None and self._open is not before:
            is_own = not is_asked and not before[1].is_lost
            self._periodic.spent([length for *_, length in steps], self._pauses, is_own=is_own)
            self._pauses = self._told_interval = 0
        self.profiles = self._open is not None
        return True

    def close(self) -> None:
        """Give up a window that is not over."""
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
        """Whether a window begins with the following step."""
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
        """End the profile, and return how long training stood still for it."""
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
