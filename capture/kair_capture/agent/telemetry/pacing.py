"""Schedules readings: each at its pace, and less often if it would exceed its share of a core."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from kair_capture.agent.telemetry.rows import Rows

PACES: Final = (1.0, 5.0, 10.0, 30.0)
"""Seconds between readings."""
EACH, OFTEN, SELDOM, RARE = range(len(PACES))
"""Indices into PACES."""
BURST_S: Final = 0.25
"""Seconds between readings of pace EACH while a step is sampled."""
SHAKEN: Final = 0.3
"""Random jitter of looks, as a share of the interval: looks in phase with the steps would always meet the same part of
a step.
"""
_EARLY: Final = SHAKEN + 0.05
"""Share of an interval by which tasks may run early, because sleeps may end early too."""
BUDGET: Final = 0.0004
"""Share of a core for all readings of a host; writing and delivering take about a tenth more, joining as much."""
_SHARE: Final = 0.0001
"""Share of a core for one task that is not of pace EACH; a costlier one runs less often."""
_MOST_STRETCHED: Final = 10.0
_SETTLE_S: Final = 30.0
"""Seconds between changes of the stretch, so that intervals stay constant for long. The first period does not count."""
_NO_CHANGE: Final = 1.2
"""Changes of the stretch below this factor are ignored."""
_RECENT: Final = 0.2
"""Weight of the last run in a task's mean cost."""


class Task:
    """Something that is read at a pace."""

    def __init__(self, words: str, pace: int, run: Callable[[int], None]) -> None:
        """`words` is its name for users: `NFS mounts`; `run` takes the time (Unix ns) and raises no known errors."""
        self.words: Final = words
        self.pace: Final = pace
        self.run: Final = run
        self.due_s = float("-inf")
        self.cost_s: float | None = None
        """Mean CPU time of recent runs; None before the second, because the first opens files."""
        self._runs = 0

    @property
    def period_s(self) -> float:
        """Return the seconds between runs, by its pace and cost."""
        least = PACES[self.pace]
        return least if self.pace == EACH else max(least, (self.cost_s or 0) / _SHARE)

    def spent(self, seconds: float) -> None:
        """Note the CPU time of a run."""
        self._runs += 1
        if self._runs > 1:
            self.cost_s = seconds if self.cost_s is None else self.cost_s + _RECENT * (seconds - self.cost_s)


class Pacer:
    """Runs tasks when they are due. If they exceed the budget together, all are stretched."""

    def __init__(self, rows: Rows, tasks: Sequence[Task], budget: float = BUDGET) -> None:
        """`budget` is a share of a core."""
        self.tasks: Final = list(tasks)
        self.stretched = 1.0
        """Factor on all intervals."""
        self._rows, self._budget = rows, budget
        self._is_warm = False
        self._settled: tuple[float, float] | None = None
        """When the stretch was last decided, and this thread's CPU time then (s)."""

    def run(self, now_s: float, time_ns: int, *, is_burst: bool = False) -> None:
        """Run due tasks. `now_s` is monotonic, `time_ns` Unix."""
        for task in self.tasks:
            # Slightly early is on time: sleeps are jittered (SHAKEN).
            is_due = now_s >= task.due_s - _EARLY * PACES[EACH] * self.stretched
            if not is_due and not (is_burst and task.pace == EACH):
                continue
            before = time.thread_time_ns()
            task.run(time_ns)
            task.spent((time.thread_time_ns() - before) / 1e9)
            self._rows.looked(task.pace, time_ns)
            # Keep the phase, unless it is late by more than a period: then start a new one.
            began_s = task.due_s if now_s - task.due_s < task.period_s else now_s
            if is_due:
                task.due_s = began_s + task.period_s * self.stretched
        self._settle(now_s, time.thread_time())

    def _settle(self, now_s: float, spent_s: float) -> None:
        """Adjust the stretch. `spent_s` is the reading thread's CPU time, including wake-ups."""
        before = self._settled
        if before is not None and now_s - before[0] < _SETTLE_S:
            return
        # The first readings open files and discover things, which is not representative.
        self._settled = (now_s, spent_s)
        if before is None or not self._is_warm:
            self._is_warm = before is not None
            return
        share = (spent_s - before[1]) / (now_s - before[0])
        stretched = min(max(1.0, share * self.stretched / self._budget), _MOST_STRETCHED)
        if not 1 / _NO_CHANGE < stretched / self.stretched < _NO_CHANGE or stretched == 1.0:
            self.stretched = stretched

    def notes(self) -> tuple[str, ...]:
        """Return what readers should know about intervals that differ from the paces."""
        found = [
            f"{task.words}: read every {task.period_s * self.stretched:.0f} s, as more would cost too much"
            for task in self.tasks
            if task.period_s > 1.5 * PACES[task.pace]
        ]
        return tuple(found)
