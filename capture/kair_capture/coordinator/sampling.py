"""Whom to sample, and when: suspects with random peers, within a budget, not again and again."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kair_capture.coordinator.budget import Budget

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

    @property
    def last(self) -> int:
        """The last of the steps."""
        return self.first + self.steps - 1


@dataclass
class _Sampled:
    at_s: float
    excess: float
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
    _sampled: dict[int, _Sampled] = field(default_factory=dict)
    charged_us: float = 0.0
    """For the last window, until its cost is known."""
    step_cost_us: float | None = None
    """Of a sampled step with its part of the pauses, as it was measured last; None before the first."""

    def take_up(self, generation: int, sampled: dict[int, tuple[float, float, int]], charged_us: float) -> None:
        """What an earlier coordinator of the job did."""
        self.generation, self.charged_us = generation, charged_us
        self._sampled = {rank: _Sampled(*one) for rank, one in sampled.items()}

    def history(self) -> dict[int, tuple[float, float, int]]:
        """rank → when it was sampled, its excess then, how many steps: for `take_up`."""
        return {rank: (one.at_s, one.excess, one.steps) for rank, one in self._sampled.items()}

    def is_due(self, rank: int, excess: float, now_s: float) -> bool:
        """Whether a suspect is to be sampled: not of late, unless it became much worse."""
        before = self._sampled.get(rank)
        if before is None:
            return True
        if before.steps < _STEPS_AT_ONCE:
            return True
        pause = min(_COOL_DOWN_S * 2 ** min((before.steps - _STEPS_AT_ONCE) // WINDOW_STEPS, 10), _MOST_COOL_DOWN_S)
        return now_s - before.at_s >= pause or excess > before.excess * _WORSE

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
        """A window of so many steps on the suspects (rank, excess) and random others of `ranks`."""
        for rank, excess in suspects:
            before = self._sampled.get(rank)
            self._sampled[rank] = _Sampled(now_s, excess, steps if before is None else before.steps + steps)
        chosen = [rank for rank, _ in suspects][: WINDOW_RANKS // 2]
        others = sorted(set(ranks) - set(chosen))
        chosen += self.chance.sample(others, min(WINDOW_RANKS - len(chosen), len(others)))
        return self._ordered(first, steps, tuple(sorted(chosen)), step_us, why)

    def order_by_hand(self, ranks: Sequence[int], steps: int, first: int, step_us: float) -> Window:
        """A window that a person wants: at once, and on the budget's account."""
        return self._ordered(first, steps, tuple(sorted(ranks)), step_us, "asked for")

    def settle(self, cost_us: float) -> None:
        """The last window's cost is known now: in the place of what it was guessed at."""
        assert self.window is not None
        self.budget.spend(cost_us - self.charged_us)
        self.charged_us = 0.0
        if cost_us > 0:
            self.step_cost_us = max(cost_us / self.window.steps, 1.0)

    def _ordered(self, first: int, steps: int, ranks: tuple[int, ...], step_us: float, why: str) -> Window:
        self.generation += 1
        self.window = Window(self.generation, first, steps, ranks, why)
        self.charged_us = self._cost(steps, step_us)
        self.budget.spend(self.charged_us)
        return self.window

    def _cost(self, steps: int, step_us: float) -> float:
        return steps * (_COST * step_us if self.step_cost_us is None else self.step_cost_us)


def first_step_of(latest: int, step_us: float, interval_s: float, lag_s: float) -> int:
    """A step that all ranks will hear of in time, and three steps more.

    An agent hears that there is a window when it tells of its next steps or with its next beat, asks what it is, and
    looks at the answer within its next turn. `lag_s`: how late steps are told of; the way back takes as long again.
    """
    step_s = max(step_us * 1e-6, 1e-6)
    ahead = min(1.1 * interval_s, max(step_s, _AGENT_TURN_S)) + 2 * _AGENT_TURN_S + 2 * lag_s
    return latest + 3 + min(math.ceil(ahead / step_s), 100_000)
