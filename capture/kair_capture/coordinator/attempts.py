"""Attempts of a job: which start of its processes a step belongs to.

A job that is started again, by hand or by an elastic launcher, may have fewer, more or other ranks, and counts its
steps anew. What tells is when each rank's process began, which its agent reads from the rank's ring: all processes of a
synchronous job are there before its first step is over. So an attempt begins with a process that began after the last
step of the one before, or with another process of a rank that told steps in it. Processes that live through the start
of another one (as where a launcher replaces a single rank) take part in that attempt with the steps that begin then.
"""

from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from kair_capture.agent.step_rows import Rows

Column = npt.NDArray[Any]

_SAME_S = 1
"""An agent that is started again reads the clocks anew: the second in which a process began may be the next one."""


class Attempts:
    """Of one job; the first has the number 1."""

    def __init__(self) -> None:
        self.number = 0
        """The present one's; 0 before the first step."""
        self._began_s: dict[int, float] = {}
        """Attempt → when the first of its processes began, Unix."""
        self._ended_s: dict[int, float] = {}
        """Attempt → the end of its last step that was told."""
        self._process_s: dict[int, int] = {}
        """Rank → its latest process, by when that began."""
        self._first: dict[tuple[int, int], int] = {}
        """Rank and process → the attempt that it began in."""
        self._told: dict[int, int] = {}
        """Rank → the attempt of its last step."""

    def label(self, rows: Rows, ahead_us: float = 0.0) -> None:
        """Write into `rows` which attempt each is of. `ahead_us`: their host's clock minus the coordinator's."""
        for rank, process_s in np.unique(rows[["rank", "process_s"]]).tolist():
            own = np.flatnonzero((rows["rank"] == rank) & (rows["process_s"] == process_s))
            begin_s = rows["begin_us"][own] * 1e-6 - ahead_us * 1e-6
            first, until = self._attempts_of(rank, process_s, ahead_us * 1e-6)
            numbers = np.full(len(own), first)
            for number in range(first + 1, until + 1):
                numbers[begin_s >= self._began_s[number]] = number
            rows["attempt"][own] = numbers
            self._note(rows["rank"][own], numbers, begin_s + rows["step_us"][own] * 1e-6)

    def learn(self, rows: Rows) -> None:
        """From rows that were labelled before a restart of the coordinator."""
        rows = rows[rows["attempt"] > 0]
        for number in np.unique(rows["attempt"]).tolist():
            of = rows[rows["attempt"] == number]
            self._begin(number, float(of["begin_us"].min()) * 1e-6)
            for rank, process_s in np.unique(of[["rank", "process_s"]]).tolist():
                if process_s and (rank, process_s) not in self._first:
                    self._first[rank, process_s] = number
                    self._process_s[rank] = max(process_s, self._process_s.get(rank, 0))
                    self._began_s[number] = min(self._began_s[number], process_s)
            self._note(of["rank"], of["attempt"], (of["begin_us"] + of["step_us"]) * 1e-6)

    def _attempts_of(self, rank: int, process_s: int, ahead_s: float) -> tuple[int, int]:
        """Return the first and the last that a process takes part in, as far as is known."""
        if not process_s:
            return (self.number or self._begin(1, -inf),) * 2
        latest = self._process_s.get(rank, 0)
        if abs(process_s - latest) <= _SAME_S:
            process_s = latest
        if (rank, process_s) not in self._first:
            self._first[rank, process_s] = self._begun_in(rank, process_s, process_s - ahead_s)
            self._process_s[rank] = max(process_s, latest)
        first = self._first[rank, process_s]
        return first, self.number if process_s >= latest else first

    def _begun_in(self, rank: int, process_s: int, began_s: float) -> int:
        """Return the attempt of a process that is new here; another one, where it is of none so far."""
        now, latest = self.number, self._process_s.get(rank, 0)
        if not now:
            return self._begin(1, -inf)
        if process_s > latest:
            repeats = latest > 0 and self._told.get(rank) == now
            if repeats or began_s > self._ended_s.get(now, inf):
                return self._begin(now + 1, began_s)
            if self._ended_s.get(now - 1, inf) < began_s < self._began_s[now]:
                self._began_s[now] = began_s
        return max((number for number, begun_s in self._began_s.items() if begun_s <= began_s), default=now)

    def _begin(self, number: int, began_s: float) -> int:
        self.number = max(number, self.number)
        self._began_s[number] = began_s
        return number

    def _note(self, ranks: Column, numbers: Column, end_s: Column) -> None:
        for number in np.unique(numbers).tolist():
            of = numbers == number
            self._ended_s[number] = max(float(end_s[of].max()), self._ended_s.get(number, -inf))
            for rank in np.unique(ranks[of]).tolist():
                self._told[rank] = max(number, self._told.get(rank, 0))
