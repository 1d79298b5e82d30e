"""Whom to sample, and when: suspects with random peers, within a budget, not again and again; and what that costs.

The promise, but for windows that a person asks for: at no time has sampling cost more than its share of the job's time
so far, and one window. A window is ordered where its cost is saved, or, as a loan for ranks that are known to be slow,
where nothing is owed. Windows that ranks had without being asked count.
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
"""So many steps' time, or so much, is saved at most: a job that was quiet for a week is not sampled for an hour."""


@dataclass
class Budget:
    """An account in µs of the job's time. Below zero it is a debt: nothing else is sampled until it is paid off."""

    share: float
    held_us: float = 0.0
    spent_us: float = 0.0
    elapsed_us: float = 0.0
    step: int = 0
    """Up to which time has passed."""

    def pass_time(self, step_us: float, until: int) -> None:
        """Note that the job is at step `until`. A job that went back to a checkpoint earns nothing by going back."""
        steps, self.step = max(until - self.step, 0), until
        self.elapsed_us += step_us * steps
        most = max(_MOST_SAVED_STEPS * step_us, _MOST_SAVED_US)
        self.held_us = max(self.held_us, min(self.held_us + self.share * step_us * steps, most))

    def spend(self, cost_us: float) -> None:
        """Take what was spent, into debt where it must."""
        self.held_us -= cost_us
        self.spent_us += cost_us

    @property
    def lends(self) -> bool:
        """Whether a window may be had that is not saved for."""
        return self.share > 0 and self.held_us >= 0

    @property
    def overhead(self) -> float:
        """The share of the job's time that sampling took."""
        return self.spent_us / self.elapsed_us if self.elapsed_us else 0.0


WINDOW_STEPS: Final = 8
"""Fewer, where the budget has not earned so many yet: a young job is sampled by and by."""
WINDOW_RANKS: Final = 16
"""Of every window, so that all of them have as many ranks: an analysis leaves out steps that few ranks recorded."""
_COST: Final = 0.5
"""Of a step's time: what a sampled step takes more, until it is measured (23 % were, and the profiler's own end)."""
_COOL_DOWN_S: Final = 300.0
_MOST_COOL_DOWN_S: Final = 3600.0
_STEPS_AT_ONCE: Final = 3 * WINDOW_STEPS
"""That a suspect is given before the first pause: one window is seldom enough to tell why it is slow."""
_MOST_COST_US: Final = 500_000.0
"""What a window may cost: where its steps cost more than was thought, the next one has fewer."""
_FEWEST_STEPS: Final = 2
_FEWEST_LENT: Final = 4
"""Of a suspect's window that is not saved for: with fewer its rank is rarely told from chance."""
_AGENT_TURN_S: Final = 0.1
_WORSE: Final = 1.5
"""A suspect that is so much worse than when it was sampled is sampled again at once."""


@dataclass(frozen=True)
class Window:
    """Steps to sample on some ranks."""

    generation: int
    first: int
    steps: int
    ranks: tuple[int, ...]
    why: str
    options: int = 0
    """What is recorded besides, as ProfileOptions."""

    @property
    def last(self) -> int:
        """The last of the steps."""
        return self.first + self.steps - 1


@dataclass
class Sampled:
    """When a rank was sampled last."""

    at_s: float
    """Unix."""
    excess: float
    """What it was then."""
    steps: int
    """Of all its windows."""


@dataclass
class Sampler:
    """Decides; what it decided is carried out by the coordinator."""

    budget: Budget
    chance: random.Random = field(default_factory=random.SystemRandom)
    generation: int = 0
    window: Window | None = None
    """The last one; another is ordered when it is over."""
    sampled: dict[int, Sampled] = field(default_factory=dict)
    """Rank → when it was sampled last."""
    charged_us: float = 0.0
    """For the last window, until its cost is known."""
    step_cost_us: float | None = None
    """Of a sampled step with its part of the pauses, as it was measured last; None before the first."""

    def is_due(self, rank: int, excess: float, now_s: float) -> bool:
        """Whether a suspect is to be sampled: not of late, unless it became much worse."""
        before = self.sampled.get(rank)
        if before is None:
            return True
        if before.steps < _STEPS_AT_ONCE:
            return True
        pause = min(_COOL_DOWN_S * 2 ** min((before.steps - _STEPS_AT_ONCE) // WINDOW_STEPS, 10), _MOST_COOL_DOWN_S)
        is_pause = 0 <= now_s - before.at_s < pause  # not of a time to come: the clock was set back since
        return not is_pause or excess > before.excess * _WORSE

    def affordable(self, step_us: float, *, is_known: bool = False) -> int:
        """How many steps the next window may have; 0 where there may be none.

        `is_known`: it is for ranks that are slow beyond doubt; then what is not saved is lent, a window at a time.
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
        """Return a window of so many steps on the suspects (rank, excess) and random others of `ranks`."""
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
        """Return a window that a person wants: at once, and on the budget's account."""
        return self._ordered(first, steps, tuple(sorted(ranks)), step_us, "asked for", options=options)

    def forget_window(self) -> None:
        """Forget the window as the job starts again and counts its steps anew: what was ordered is over, and cost what
        was guessed.
        """
        if self.window is not None:
            self.window = Window(self.window.generation, 0, 0, (), self.window.why)
            self.charged_us = 0.0

    def settle(self, cost_us: float) -> None:
        """Put the last window's known cost in the place of the guess."""
        assert self.window is not None
        self.budget.spend(cost_us - self.charged_us)
        self.charged_us = 0.0
        # What was recorded besides makes steps dearer than others' will be.
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
    """Return a step that all ranks will hear of in time, and three steps more.

    An agent hears that there is a window when it tells of its next steps or with its next beat, asks what it is, and
    looks at the answer within its next turn. `lag_s`: how late steps are told of; the way back takes as long again.
    """
    step_s = max(step_us * 1e-6, 1e-6)
    ahead = min(1.1 * interval_s, max(step_s, _AGENT_TURN_S)) + 2 * _AGENT_TURN_S + 2 * lag_s
    return latest + 3 + min(math.ceil(ahead / step_s), 100_000)


_NEIGHBOURS: Final = 20
"""Steps before a window that its own are compared with."""
_LONGEST_PAUSE_US: Final = 60e6
"""What is longer is a clock that was set."""
_LOOK_EVERY: Final = 5
"""Steps between two looks for windows that nobody asked for."""
_MOST_LOOKED_AT: Final = HISTORY - 2 * _NEIGHBOURS
"""Of these looks: steps further back are not remembered together with those before them."""


def cost_us(table: StepTable, ranks: Sequence[int], first: int, last: int) -> float | None:
    """Of steps `first` to `last`, sampled on `ranks`; None where these steps are not remembered (any more).

    Between steps a rank's time stands still for nothing but its profiler, which begins, ends and is written there. Of
    each such pause the longest of any rank counts, since the others wait for it. Of the sampled steps the median
    counts, so that a checkpoint among them is not taken for the profiler's work. Who did not sample does not count.
    """
    steps = table.steps(np.asarray(ranks, np.int64), np.arange(first - _NEIGHBOURS, last + 2))
    window, told = slice(_NEIGHBOURS, -1), ~np.isnan(steps.step_us)
    if not told[:, window].any() or not told[:, :_NEIGHBOURS].any():
        return None
    sampled = told & ((steps.flags & StepFlag.SAMPLED) > 0)
    sampled = sampled[took_part := sampled[:, window].any(axis=1)]
    begin, length = steps.begin_us[took_part], steps.step_us[took_part]
    pauses = np.where(sampled[:, 1:] | sampled[:, :-1], begin[:, 1:] - begin[:, :-1] - length[:, :-1], np.nan)
    pauses = np.clip(np.nan_to_num(pauses), 0.0, _LONGEST_PAUSE_US)[:, _NEIGHBOURS - 1 :]
    longer = (_longer(length[at], sampled[at], window) for at in range(len(length)))
    return float(pauses.max(axis=0, initial=0.0).sum() + max(longer, default=0.0))


def _longer(length: Floats, sampled: Bools, window: slice) -> float:
    """How much longer one rank's sampled steps were, all together."""
    usual = length[~sampled & ~np.isnan(length)]
    within = length[window][sampled[window]]
    return max(float(np.median(within) - np.median(usual)), 0.0) * len(within) if len(usual) else 0.0


class Unasked:
    """Windows that nobody asked for: there is one budget, whoever spends it.

    Whether a step was sampled its rows say; whether it was asked for, the windows that were ordered.
    """

    def __init__(self, until: int = -1) -> None:
        self.until = until
        """The last step that was looked at."""

    def cost_us(self, table: StepTable, asked: Iterable[tuple[int, int]]) -> float:
        """Return what windows that nobody asked for cost since the last call, of the job's time.

        `asked`: first and last step of each window that was ordered, whose costs are known otherwise.
        """
        # The pause after a step shows once the next one is told.
        last = table.last_common_step - 1
        if table.latest.max(initial=-1) < self.until:
            self.until = last  # the job went back to a checkpoint
        if last - self.until < _LOOK_EVERY:
            return 0.0
        steps = np.arange(max(self.until, last - _MOST_LOOKED_AT) + 1, last + 1)
        told = table.steps(np.arange(len(table.latest)), steps)
        sampled = ~np.isnan(told.step_us) & ((told.flags & StepFlag.SAMPLED) > 0)
        for first, final in asked:
            sampled[:, (steps >= first) & (steps <= final)] = False
        self.until, cost = last, 0.0
        for begin, end in _runs(np.asarray(sampled.any(axis=0))):
            if end == len(steps) and begin:
                # It may go on: its cost is asked for when it is whole.
                self.until = int(steps[begin]) - 1
                break
            ranks: Ints = np.flatnonzero(sampled[:, begin:end].any(axis=1))
            cost += cost_us(table, ranks.tolist(), int(steps[begin]), int(steps[end - 1])) or 0.0
        return cost


def _runs(marked: Bools) -> Iterator[tuple[int, int]]:
    """Where each row of marks begins and ends."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marked.astype(np.int8), [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
