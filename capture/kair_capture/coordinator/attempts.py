"""Assigns steps to attempts of a job: the starts of its processes.

A job that is restarted, by hand or by an elastic launcher, may have fewer, more or other ranks, and counts its steps
from 0 again. Attempts are recognised by when each rank's process began, which its agent reads from the rank's ring: all
processes of a synchronous job exist before its first step is over. So an attempt begins with a process that began after
the last step of the previous one, or with a second process of a rank that reported steps in it. Processes that survive
the start of another one (such as when a launcher replaces a single rank) belong to the new attempt with later steps.
"""

from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from kair_capture.agent.step_rows import Rows

Column = npt.NDArray[Any]

_SAME_S = 1
"""A restarted agent reads the clocks again: a process's begin may shift to the next second."""


class Attempts:
    """Attempts of one job; the first has the number 1."""

    def __init__(self) -> None:
        self.number = 0
        """The present attempt; 0 before the first step."""
        self._began_s: dict[int, float] = {}
        """Attempt → when the first of its processes began (Unix)."""
        self._ended_s: dict[int, float] = {}
        """Attempt → end of its last reported step."""
        self._process_s: dict[int, int] = {}
        """Rank → begin of its latest process."""
        self._first: dict[tuple[int, int], int] = {}
        """Rank and process → the attempt that it began in."""
        self._told: dict[int, int] = {}
        """Rank → the attempt of its last step."""

    def label(self, rows: Rows, ahead_us: float = 0.0) -> None:
        """Write each row's attempt into `rows`. `ahead_us` is their host's clock minus the coordinator's."""
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
        """Learn from rows that were labelled before the coordinator restarted."""
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
        """Return the first and the last attempt that a process belongs to, as far as is known."""
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
        """Return the attempt of a new process; start another one if it belongs to none so far."""
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
