"""When what is read again: every so often, and less often where that would cost more than its share of a core."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from kair_capture.agent.telemetry.rows import Rows

PACES: Final = (1.0, 5.0, 10.0, 30.0)
"""s between readings."""
EACH, OFTEN, SELDOM, RARE = range(len(PACES))
"""Places in PACES."""
BURST_S: Final = 0.25
"""Between readings of pace EACH while a step is sampled."""
SHAKEN: Final = 0.3
"""By this share of the interval a look is earlier or later, at random: looks as regular as the steps that they are to
tell of would meet the same part of each step."""
_EARLY: Final = SHAKEN + 0.05
"""Of an interval; who sleeps may wake a bit before the time as well."""
BUDGET: Final = 0.0004
"""Of a core, for everything that is read of a host; writing and delivering it takes about a tenth of that besides, and
joining the files as much."""
_SHARE: Final = 0.0001
"""Of a core, for one task that is not of pace EACH: one that costs more is done as much less often."""
_MOST_STRETCHED: Final = 10.0
_SETTLE_S: Final = 30.0
"""Between changes of the stretch: the interval shall be the same for long. The first time is not counted."""
_NO_CHANGE: Final = 1.2
"""A stretch that differs by no more than this factor stays."""
_RECENT: Final = 0.2
"""The weight of the last run in a task's mean cost."""


class Task:
    """Something that is read at a pace."""

    def __init__(self, words: str, pace: int, run: Callable[[int], None]) -> None:
        """`words` for people: `NFS mounts`; `run` is given the time, Unix ns, and raises nothing that is known of."""
        self.words: Final = words
        self.pace: Final = pace
        self.run: Final = run
        self.due_s = float("-inf")
        self.cost_s: float | None = None
        """CPU time of a run, the mean of late ones; None before the second, as the first opens files."""
        self._runs = 0

    @property
    def period_s(self) -> float:
        """Between runs, by its pace and what it costs."""
        least = PACES[self.pace]
        return least if self.pace == EACH else max(least, (self.cost_s or 0) / _SHARE)

    def spent(self, seconds: float) -> None:
        """Note that a run has cost so much."""
        self._runs += 1
        if self._runs > 1:
            self.cost_s = seconds if self.cost_s is None else self.cost_s + _RECENT * (seconds - self.cost_s)


class Pacer:
    """Runs tasks when they are due. Where all of them together cost more than the budget, all wait longer."""

    def __init__(self, rows: Rows, tasks: Sequence[Task], budget: float = BUDGET) -> None:
        """`budget`: share of a core."""
        self.tasks: Final = list(tasks)
        self.stretched = 1.0
        """How many times as long as their paces say tasks wait."""
        self._rows, self._budget = rows, budget
        self._is_warm = False
        self._settled: tuple[float, float] | None = None
        """When the stretch was thought over last, and the CPU time of this thread then, s."""

    def run(self, now_s: float, time_ns: int, *, is_burst: bool = False) -> None:
        """Do what is due. `now_s`: of a clock that never goes back; `time_ns`: Unix."""
        for task in self.tasks:
            # A bit early is on time: who reads wakes a bit before or after the interval (SHAKEN).
            is_due = now_s >= task.due_s - _EARLY * PACES[EACH] * self.stretched
            if not is_due and not (is_burst and task.pace == EACH):
                continue
            before = time.thread_time_ns()
            task.run(time_ns)
            task.spent((time.thread_time_ns() - before) / 1e9)
            self._rows.looked(task.pace, time_ns)
            # In step with when it was due, unless it is late by more than that: then from now on.
            began_s = task.due_s if now_s - task.due_s < task.period_s else now_s
            if is_due:
                task.due_s = began_s + task.period_s * self.stretched
        self._settle(now_s, time.thread_time())

    def _settle(self, now_s: float, spent_s: float) -> None:
        """`spent_s`: CPU time of the thread that reads, with what it takes to wake it."""
        before = self._settled
        if before is not None and now_s - before[0] < _SETTLE_S:
            return
        # The first readings open files and find what there is: they are no measure of the others.
        self._settled = (now_s, spent_s)
        if before is None or not self._is_warm:
            self._is_warm = before is not None
            return
        share = (spent_s - before[1]) / (now_s - before[0])
        stretched = min(max(1.0, share * self.stretched / self._budget), _MOST_STRETCHED)
        if not 1 / _NO_CHANGE < stretched / self.stretched < _NO_CHANGE or stretched == 1.0:
            self.stretched = stretched

    def notes(self) -> tuple[str, ...]:
        """Return what a reader should know of intervals that are not those of the paces."""
        found = [
            f"{task.words}: read every {task.period_s * self.stretched:.0f} s, as more would cost too much"
            for task in self.tasks
            if task.period_s > 1.5 * PACES[task.pace]
        ]
        return tuple(found)
