"""The last steps of every rank, as their agents tell them."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kair_capture.agent.ring_reader import UNFIT
from kair_capture.agent.step_rows import Rows

HISTORY: Final = 256
"""Steps that are remembered of a rank."""
ONE_STEP_US: Final = 2000
"""Between two begins of the same step of the same attempt: an agent that was killed reads its clocks anew, within a
millisecond."""
STEPS_SHOWN: Final = 20
MOST_RANKS: Final = 1 << 17
_NONE: Final = -1

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Recent:
    """The last steps that the ranks have in common: matrices (rank, step) in µs, NaN where a step says nothing."""

    ranks: Ints
    steps: Ints
    step_us: Floats
    self_us: Floats
    cpu_us: Floats
    """What the training threads computed; NaN where that is not told, or may be busy waiting."""
    ready_us: Floats
    """The self times without what threads waited for a core."""


@dataclass(frozen=True)
class Told:
    """Some steps of some ranks as they were told: matrices (rank, step)."""

    begin_us: Floats
    step_us: Floats
    """NaN, as in `begin_us`, where a step was not told or is no longer remembered."""
    flags: npt.NDArray[np.uint32]


class StepTable:
    """Ring buffers, a row per rank; the place of a step is its number modulo HISTORY."""

    def __init__(self) -> None:
        self._step = np.full((0, HISTORY), _NONE, np.int64)
        self._begin_us = np.zeros((0, HISTORY), np.int64)
        self._flags = np.zeros((0, HISTORY), np.uint32)
        self._step_us = np.zeros((0, HISTORY), np.float32)
        self._self_us = np.zeros((0, HISTORY), np.float32)
        self._cpu_us = np.zeros((0, HISTORY), np.float32)
        self._delay_us = np.zeros((0, HISTORY), np.float32)
        self._latest: Ints = np.full(0, _NONE, np.int64)
        self._latest_begin_us: Ints = np.zeros(0, np.int64)
        self._ranks = 0

    @property
    def latest(self) -> Ints:
        """The last step of every rank; −1 before its first."""
        return self._latest[: self._ranks]

    def unknown(self, rows: Rows) -> Rows:
        """Those of `rows` that are not here yet. Rows of impossible ranks are left out."""
        rows = rows[rows["rank"] < MOST_RANKS]
        if not len(rows):
            return rows
        rank, step, begin = _keys(rows)
        self._grow(int(rank.max()) + 1)
        place = step % HISTORY
        known = (self._step[rank, place] == step) & (np.abs(self._begin_us[rank, place] - begin) < ONE_STEP_US)
        unknown: Rows = rows[~known]
        return unknown

    def add(self, rows: Rows) -> None:
        """Takes rows; of one place the later one stays, so that the same twice change nothing."""
        rows = rows[rows["rank"] < MOST_RANKS]
        if not len(rows):
            return
        rank, step, begin = _keys(rows)
        self._grow(int(rank.max()) + 1)
        place = step % HISTORY
        newer = self._begin_us[rank, place] < begin
        rank, step, begin, place, kept = rank[newer], step[newer], begin[newer], place[newer], rows[newer]
        self._step[rank, place], self._begin_us[rank, place] = step, begin
        self._flags[rank, place] = kept["flags"]
        self._step_us[rank, place], self._self_us[rank, place] = kept["step_us"], kept["self_us"]
        self._cpu_us[rank, place], self._delay_us[rank, place] = kept["cpu_us"], kept["delay_us"]
        for one, number, at in zip(rank.tolist(), step.tolist(), begin.tolist(), strict=True):
            # By time, not by number: a job that went back to a checkpoint counts lower ones.
            if at >= self._latest_begin_us[one]:
                self._latest[one], self._latest_begin_us[one] = number, at

    @property
    def last_common_step(self) -> int:
        """The step that nine in ten of the ranks have reached; −1 without ranks. A dead rank holds nobody up."""
        told = self.latest[self.latest >= 0]
        return int(np.quantile(told, 0.1, method="lower")) if len(told) else _NONE

    def recent(self, count: int, until: int) -> Recent:
        """Steps `until − count + 1 … until` of the ranks that have told half of them, but for unfit ones."""
        steps = np.arange(until - count + 1, until + 1)
        place = steps % HISTORY
        there = (self._step[:, place] == steps) & ((self._flags[:, place] & UNFIT) == 0)
        ranks = np.flatnonzero(there.sum(axis=1) * 2 >= count)
        step_us = np.where(there, self._step_us[:, place], np.nan)[ranks].astype(np.float64)
        self_us = np.where(there, self._self_us[:, place], np.nan)[ranks].astype(np.float64)
        cpu_us = np.where(there, self._cpu_us[:, place], np.nan)[ranks].astype(np.float64)
        ready_us = self_us - self._delay_us[:, place][ranks]
        # Who computes longer than it does not wait, waits busily; half a millisecond is the clocks' own.
        cpu_us[(cpu_us <= 0) | (cpu_us > self_us + 500)] = np.nan
        return Recent(ranks, steps, step_us, self_us, cpu_us, ready_us)

    def steps(self, ranks: Ints, steps: Ints) -> Told:
        """These steps, unfit ones too, of those of the ranks that were ever heard."""
        ranks, place = ranks[ranks < self._ranks], steps % HISTORY
        at = np.ix_(ranks, place)
        there = (self._step[at] == steps) & (steps >= 0)
        begin_us, step_us = (np.where(there, of[at], np.nan) for of in (self._begin_us, self._step_us))
        return Told(begin_us.astype(np.float64), step_us.astype(np.float64), self._flags[at])

    def _grow(self, ranks: int) -> None:
        """Makes room for so many; for twice as many as there were, as ranks come host by host."""
        self._ranks = max(self._ranks, ranks)
        held = len(self._latest)
        more = max(2 * held, ranks, 64) - held
        if ranks <= held:
            return

        def grown(array: npt.NDArray[Any], fill: int) -> npt.NDArray[Any]:
            return np.concatenate([array, np.full((more, *array.shape[1:]), fill, array.dtype)])

        self._step, self._begin_us = grown(self._step, _NONE), grown(self._begin_us, 0)
        self._flags = grown(self._flags, 0)
        self._step_us, self._self_us = grown(self._step_us, 0), grown(self._self_us, 0)
        self._cpu_us, self._delay_us = grown(self._cpu_us, 0), grown(self._delay_us, 0)
        self._latest, self._latest_begin_us = grown(self._latest, _NONE), grown(self._latest_begin_us, 0)


def _keys(rows: Rows) -> tuple[Ints, Ints, Ints]:
    """Rank, step and begin (Unix µs) of rows."""
    begin = np.minimum(rows["begin_us"], np.uint64(2**62)).astype(np.int64)
    return rows["rank"].astype(np.int64), rows["step"].astype(np.int64), begin
