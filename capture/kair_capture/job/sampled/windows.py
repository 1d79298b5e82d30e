"""Sampled steps: the framework's profiler is switched between steps, and what it saw left in the windows folder."""

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from kair_capture.job.failing import warn, warn_of
from kair_capture.job.framework import Framework, Profile
from kair_capture.job.processor_time import Had
from kair_capture.job.recorder import Recorder, clock
from kair_capture.job.sampled.communication_threads import CommunicationThreads
from kair_capture.job.sampled.connections import Connections
from kair_capture.job.sampled.control import ControlWords, Window
from kair_capture.job.sampled.halts import Halts
from kair_capture.job.sampled.helper_threads import HelperThreads
from kair_capture.job.sampled.limits import limits
from kair_capture.job.sampled.periodic import INTERVAL_EVENT, Periodic
from kair_capture.job.sampled.quota import Quota

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
        self._sent: list[tuple[int, str, str, int, int, int, int, int, int]] = []
        """Of steps, what went from one address to another, as `Connections.sent` tells it."""
        self._quota, self._communicating, self._halts = Quota(), CommunicationThreads(), Halts()
        self._helpers = HelperThreads(self._communicating)
        self._connections = Connections()
        self._is_off = False
        self.profiles = False
        """A profiler of capture's runs now."""
        self.missed = False
        """A window that was asked for was missed; who tells of it takes that back."""

    def scope(self, name: str) -> AbstractContextManager[object] | None:
        """A scope for the profiler's recording; None in steps that are not sampled."""
        opened = self._open  # which the training thread may close while another one asks
        return None if opened is None else opened[1].scope(name)

    def given(self, size: int) -> None:
        """In the present step a model is given so many bytes."""
        self._given_so_far += size

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
        """Gives up a window that is not over."""
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
        if wanted is None and self._periodic is not None and self._is_due(self._periodic, following):
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
        profile = self._framework.start_profile()
        if profile is None:
            self._miss(window)
            self._tell_refusal()
            return
        self._open = (window, profile)
        self._steps, self._processor, self._given, self._sent = [], [], {}, []
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

    def _finish(self, window: Window, profile: Profile, end: int) -> None:
        """Ends the profile, and says how long training stood still for it."""
        if profile.is_lost:
            self._miss(window)
            return
        self._stop_looking()
        profile.stop()
        stopped = clock()
        details = self._details(profile, stopped - end)
        path = self._folder / f"rank-{self._rank}-{window.first}-{self._steps[-1][0]}{profile.suffix}"
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            profile.save(temporary, details)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._recorder.event("window stop ns", stopped - end)
        self._recorder.event("window save ns", clock() - stopped)

    def _details(self, profile: Profile, stop_ns: int) -> dict[str, Any]:
        _, _, first_unix, _ = self._steps[0]
        _, _, last_unix, last_length = self._steps[-1]
        return {
            "rank": self._rank,
            "world_size": self._world_size,
            "steps": self._steps,
            "processor": self._processor,
            "limits": limits(self._quota),
            "given": list(self._given.items()),
            "sent": self._sent,
            "stop_ns": stop_ns,
            "collectives": profile.collectives(first_unix, last_unix + last_length),
        }

    def _give_up(self, error: Exception) -> None:
        self._is_off, self._open, self._wanted = True, None, None
        warn_of(error, "no more steps are sampled, the rest of capture goes on", self._folder.parent)


def _unix(monotonic: int) -> int:
    return time.time_ns() - (clock() - monotonic)
