"""Decides which ranks to sample and when: suspects with random peers, within a budget, and what that costs.

Except for windows that a user requests, sampling never costs more than its share of the job's time so far plus one
window. A window is ordered if its cost is saved or, as a loan for ranks known to be slow, if nothing is owed. Windows
that ranks sampled unasked count too.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kair_capture.coordinator.step_table import HISTORY, StepTable
from kair_capture.ring import StepFlag
from kair_engine.arrays import Bools, Floats, Ints

_MOST_SAVED_STEPS: Final = 80
_MOST_SAVED_US: Final = 1e6
"""Most time that is saved, in steps and in µs: a job that was quiet for a week is not sampled for an hour."""


@dataclass
class Budget:
    """An account in µs of the job's time. A negative balance is a debt, which must be earned before more sampling."""

    share: float
    held_us: float = 0.0
    spent_us: float = 0.0
    elapsed_us: float = 0.0
    step: int = 0
    """Step up to which time was credited."""

    def pass_time(self, step_us: float, until: int) -> None:
        """Credit the job's progress to step `until`. A job that goes back to a checkpoint earns nothing by that."""
        steps, self.step = max(until - self.step, 0), until
        self.elapsed_us += step_us * steps
        most = max(_MOST_SAVED_STEPS * step_us, _MOST_SAVED_US)
        self.held_us = max(self.held_us, min(self.held_us + self.share * step_us * steps, most))

    def spend(self, cost_us: float) -> None:
        """Charge a cost, into debt if necessary."""
        self.held_us -= cost_us
        self.spent_us += cost_us

    @property
    def lends(self) -> bool:
        """Return whether a window may be ordered on credit."""
        return self.share > 0 and self.held_us >= 0

    @property
    def overhead(self) -> float:
        """Return the share of the job's time that sampling took."""
        return self.spent_us / self.elapsed_us if self.elapsed_us else 0.0


WINDOW_STEPS: Final = 8
"""Fewer if the budget does not allow as many yet: a young job is sampled gradually."""
WINDOW_RANKS: Final = 16
"""The same in every window, because analyses leave out steps that few ranks recorded."""
_COST: Final = 0.5
"""Extra time of a sampled step, as a share of it, until it is measured (23 % was, plus the profiler's own end)."""
_COOL_DOWN_S: Final = 300.0
_MOST_COOL_DOWN_S: Final = 3600.0
_STEPS_AT_ONCE: Final = 3 * WINDOW_STEPS
"""Steps of a suspect before the first pause: one window seldom shows why it is slow."""
_MOST_COST_US: Final = 500_000.0
"""Most that a window may cost: if its steps cost more than estimated, the next one has fewer."""
_FEWEST_STEPS: Final = 2
_FEWEST_LENT: Final = 4
"""Fewest steps of a suspect's window on credit: with fewer its rank seldom stands out from chance."""
_AGENT_TURN_S: Final = 0.1
_WORSE: Final = 1.5
"""A suspect this many times worse than when it was sampled is sampled again at once."""


@dataclass(frozen=True)
class Window:
    """Steps to sample on some ranks."""

    generation: int
    first: int
    steps: int
    ranks: tuple[int, ...]
    why: str
    options: int = 0
    """Extra data, as ProfileOptions."""

    @property
    def last(self) -> int:
        """Return the last of the steps."""
        return self.first + self.steps - 1


@dataclass
class Sampled:
    """When a rank was last sampled."""

    at_s: float
    """Unix."""
    excess: float
    """Its excess then."""
    steps: int
    """Steps of all its windows."""


@dataclass
class Sampler:
    """Decides on windows; the coordinator carries them out."""

    budget: Budget
    chance: random.Random = field(default_factory=random.SystemRandom)
    generation: int = 0
    window: Window | None = None
    """The last one; another is ordered when it is over."""
    sampled: dict[int, Sampled] = field(default_factory=dict)
    """Rank → when it was last sampled."""
    charged_us: float = 0.0
    """Charge for the last window, until its cost is known."""
    step_cost_us: float | None = None
    """Last measured cost of a sampled step with its part of the pauses; None before the first."""

    def is_due(self, rank: int, excess: float, now_s: float) -> bool:
        """Return whether to sample a suspect: not if it was recently, unless it became much worse."""
        before = self.sampled.get(rank)
        if before is None:
            return True
        if before.steps < _STEPS_AT_ONCE:
            return True
        pause = min(_COOL_DOWN_S * 2 ** min((before.steps - _STEPS_AT_ONCE) // WINDOW_STEPS, 10), _MOST_COOL_DOWN_S)
        is_pause = 0 <= now_s - before.at_s < pause  # not a future time, which means that the clock was set back
        return not is_pause or excess > before.excess * _WORSE

    def affordable(self, step_us: float, *, is_known: bool = False) -> int:
        """Return how many steps the next window may have; 0 for no window.

        `is_known`: it is for ranks that are certainly slow; then a missing amount is lent, one window at a time.
        """
        cost = self._cost(1, step_us)
        most = _MOST_COST_US / cost
        steps = min(self.budget.held_us / cost, WINDOW_STEPS)
        if self.step_cost_us:
            steps = min(steps, max(most, _FEWEST_STEPS))
        if is_known and self.budget.lends:
            steps = max(steps, min(max(most, _FEWEST_LENT), WINDOW_STEPS))
        return int(steps) if steps >= _FEWEST_STEPS else 0

    def order(
        self,
        suspects: Sequence[tuple[int, float]],
        ranks: Sequence[int],
        *,
        first: int,
        steps: int,
        step_us: float,
        now_s: float,
        why: str,
    ) -> Window:
        """Return a window of `steps` steps on the suspects (rank, excess) and random others of `ranks`."""
        for rank, excess in suspects:
            before = self.sampled.get(rank)
            self.sampled[rank] = Sampled(now_s, excess, steps if before is None else before.steps + steps)
        chosen = [rank for rank, _ in suspects][: WINDOW_RANKS // 2]
        others = sorted(set(ranks) - set(chosen))
        chosen += self.chance.sample(others, min(WINDOW_RANKS - len(chosen), len(others)))
        return self._ordered(first, steps, tuple(sorted(chosen)), step_us, why)

    def order_by_hand(
        self, ranks: Sequence[int], steps: int, first: int, step_us: float, *, options: int = 0
    ) -> Window:
        """Return a window that a user requested: at once, and charged to the budget."""
        return self._ordered(first, steps, tuple(sorted(ranks)), step_us, "asked for", options=options)

    def forget_window(self) -> None:
        """Forget the window because the job restarts and counts steps from 0; its estimated cost stays charged."""
        if self.window is not None:
            self.window = Window(self.window.generation, 0, 0, (), self.window.why)
            self.charged_us = 0.0

    def settle(self, cost_us: float) -> None:
        """Replace the last window's estimated cost by the measured one."""
        assert self.window is not None
        self.budget.spend(cost_us - self.charged_us)
        self.charged_us = 0.0
        # Extra data makes steps more expensive than others will be.
        if cost_us > 0 and not self.window.options:
            self.step_cost_us = max(cost_us / self.window.steps, 1.0)

    def _ordered(
        self, first: int, steps: int, ranks: tuple[int, ...], step_us: float, why: str, *, options: int = 0
    ) -> Window:
        self.generation += 1
        self.window = Window(self.generation, first, steps, ranks, why, options)
        self.charged_us = self._cost(steps, step_us)
        self.budget.spend(self.charged_us)
        return self.window

    def _cost(self, steps: int, step_us: float) -> float:
        return steps * (_COST * step_us if self.step_cost_us is None else self.step_cost_us)


def first_step_of(latest: int, step_us: float, interval_s: float, lag_s: float) -> int:
    """Return the first step before which an order can reach every rank, plus three steps.

    An agent learns of a window when it sends its next steps or beat, requests it, and reads the answer in its next
    turn. `lag_s` is how late steps are reported; the way back takes as long.
    """
    step_s = max(step_us * 1e-6, 1e-6)
    ahead = min(1.1 * interval_s, max(step_s, _AGENT_TURN_S)) + 2 * _AGENT_TURN_S + 2 * lag_s
    return latest + 3 + min(math.ceil(ahead / step_s), 100_000)


_NEIGHBOURS: Final = 20
"""Steps before a window with which its own are compared."""
_LONGEST_PAUSE_US: Final = 60e6
"""A longer pause means that a clock was set."""
_LOOK_EVERY: Final = 5
"""Steps between two checks for unasked windows."""
_MOST_LOOKED_AT: Final = HISTORY - 2 * _NEIGHBOURS
"""Steps of one check: earlier ones are no longer stored together with those before them."""


def cost_us(table: StepTable, ranks: Sequence[int], first: int, last: int) -> float | None:
    """Return the cost in µs of steps `first` to `last`, sampled on `ranks`; None if they are not stored (any more).

    Between steps only the profiler (its begin, end and writing) stops a rank. For each such pause the longest of any
    rank counts, because the others wait for it. Sampled steps count by their median, so that a checkpoint among them is
    not charged to the profiler. Ranks that did not sample are ignored.
    """
    steps = table.steps(np.asarray(ranks, np.int64), np.arange(first - _NEIGHBOURS, last + 2))
    window, measured = slice(_NEIGHBOURS, -1), ~np.isnan(steps.step_us)
    if not measured[:, window].any() or not measured[:, :_NEIGHBOURS].any():
        return None
    sampled = measured & ((steps.flags & StepFlag.SAMPLED) > 0)
    sampled = sampled[took_part := sampled[:, window].any(axis=1)]
    begin, length = steps.begin_us[took_part], steps.step_us[took_part]
    pauses = np.where(sampled[:, 1:] | sampled[:, :-1], begin[:, 1:] - begin[:, :-1] - length[:, :-1], np.nan)
    pauses = np.clip(np.nan_to_num(pauses), 0.0, _LONGEST_PAUSE_US)[:, _NEIGHBOURS - 1 :]
    longer = (_longer(length[at], sampled[at], window) for at in range(len(length)))
    return float(pauses.max(axis=0, initial=0.0).sum() + max(longer, default=0.0))


def _longer(length: Floats, sampled: Bools, window: slice) -> float:
    """Return how much longer one rank's sampled steps were in total."""
    usual = length[~sampled & ~np.isnan(length)]
    within = length[window][sampled[window]]
    return max(float(np.median(within) - np.median(usual)), 0.0) * len(within) if len(usual) else 0.0


class Unasked:
    """Windows that ranks sampled unasked, which are charged to the same budget.

    A step's rows show whether it was sampled; the ordered windows show whether that was requested.
    """

    def __init__(self, until: int = -1) -> None:
        self.until = until
        """The last step that was checked."""

    def cost_us(self, table: StepTable, asked: Iterable[tuple[int, int]]) -> float:
        """Return the cost of unasked windows since the last call, in µs of the job's time.

        `asked` has the first and last step of each ordered window, whose cost is known otherwise.
        """
        # The pause after a step shows when the next one is reported.
        last = table.last_common_step - 1
        if table.latest.max(initial=-1) < self.until:
            self.until = last  # the job went back to a checkpoint
        if last - self.until < _LOOK_EVERY:
            return 0.0
        steps = np.arange(max(self.until, last - _MOST_LOOKED_AT) + 1, last + 1)
        measured = table.steps(np.arange(len(table.latest)), steps)
        sampled = ~np.isnan(measured.step_us) & ((measured.flags & StepFlag.SAMPLED) > 0)
        for first, final in asked:
            sampled[:, (steps >= first) & (steps <= final)] = False
        self.until, cost = last, 0.0
        for begin, end in _runs(np.asarray(sampled.any(axis=0))):
            if end == len(steps) and begin:
                # It may continue: charge it when it is complete.
                self.until = int(steps[begin]) - 1
                break
            ranks: Ints = np.flatnonzero(sampled[:, begin:end].any(axis=1))
            cost += cost_us(table, ranks.tolist(), int(steps[begin]), int(steps[end - 1])) or 0.0
        return cost


def _runs(marked: Bools) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each run of marks."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marked.astype(np.int8), [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
