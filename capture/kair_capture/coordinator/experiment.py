"""Holds one `kair confirm`: the reported steps, the leases by which ranks are delayed, and the result so far.

A lease is charged before it is given and settled once its steps are reported: delays never cost more than the budget.
"""

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from kair_capture.coordinator.step_table import ReportedSteps, StepTable
from kair_capture.delays import (
    DEFAULT_SHARES,
    LONGEST_LEASE,
    TOO_LONG,
    Arm,
    Mode,
    Order,
    Place,
    arm_of,
    dose_of,
    most_cost_ns,
)
from kair_capture.ring import StepFlag
from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.confirm.budget import Account, allowed_us
from kair_engine.confirm.decide import LOOK_EVERY, decided, which_rank
from kair_engine.confirm.estimate import Recorded
from kair_engine.confirm.worth import swept
from kair_engine.ranks import Rank
from kair_engine.results.confirm import ConfirmResult, DelayPlace
from kair_engine.stats import known_median

SHORTEST_LEASE: Final = 8
"""Steps; a shorter lease waits for the budget."""
LOOK_AT_ALL_EVERY: Final = 100
"""Steps between looks if no rank is accused: the test is for one look, and a few change little."""
_LEFT_OUT: Final = StepFlag.SAMPLED | StepFlag.INCOMPLETE | StepFlag.SKIPPED
_OVERSHOOT: Final = 1.5
"""A delay this many times longer than ordered cannot be dosed."""
_FEWEST_DOSES: Final = 8


@dataclass(frozen=True)
class Plan:
    """What to find out."""

    accused: tuple[int, ...]
    """Empty if no rank is accused."""
    ranks: tuple[int, ...]
    """All ranks of the job."""
    place: Place
    mode: Mode
    doses_us: tuple[float, ...]
    most_steps: int
    budget: float
    """Share of the job's time that delays may cost."""
    step_us: float
    """Median of earlier steps."""


@dataclass
class _Lease:
    order: Order
    charged_us: float
    is_settled: bool = False


@dataclass
class Experiment:
    """Experiment on one plan. Steps count from `first` on, those before `begun` without delays."""

    plan: Plan
    seed: int
    first: int
    begun: int
    account: Account
    leases: list[_Lease] = field(default_factory=list)
    result: ConfirmResult | None = None
    is_answered: bool = False
    overshoot: float | None = None
    """Ratio of actual to ordered delay, if too large to dose."""
    is_ignored: bool = False
    """Whether a rank followed none of its last doses."""
    _steps: list[ReportedSteps] = field(default_factory=list)
    _taken: int = 0
    _looked: int = 0
    _settled_us: float = 0.0

    @property
    def until(self) -> int:
        """Return the last step that was processed."""
        return self.first + self._taken - 1

    @property
    def last_order(self) -> Order | None:
        """Return the last order."""
        return self.leases[-1].order if self.leases else None

    @property
    def covered(self) -> int:
        """Return the steps since it began."""
        return max(self.until - self.begun, 0)

    @property
    def ordered(self) -> int:
        """Return the steps of all leases."""
        return sum(lease.order.last_step - lease.order.first_step + 1 for lease in self.leases)

    def take(self, table: StepTable, until: int) -> bool:
        """Add the reported steps up to this one; return whether one of them took far longer than usual."""
        if until <= self.until:
            return False
        steps: Ints = np.arange(self.until + 1, until + 1)
        self._steps.append(table.steps(np.asarray(self.plan.ranks, np.int64), steps))
        self._taken += len(steps)
        return bool((known_median(self._steps[-1].step_us) > TOO_LONG * self.plan.step_us).any())

    def recorded(self) -> Recorded:
        """Return all of them, with the ordered doses. Raises ValueError for fewer than two."""
        begin_us, step_us, own_us, inserted_us = (
            np.concatenate([getattr(one, name) for one in self._steps], axis=1)
            for name in ("begin_us", "step_us", "own_us", "inserted_us")
        )
        flags = np.concatenate([one.flags for one in self._steps], axis=1)
        left_out: Bools = np.asarray(((flags & _LEFT_OUT) > 0).any(axis=0))
        ends: Floats = begin_us + step_us
        ranks = tuple(map(Rank, self.plan.ranks))
        return Recorded(
            ranks, ends, own_us, self._planned_us(), inserted_us, tuple(map(Rank, self.plan.accused)), left_out
        )

    def _planned_us(self) -> Floats:
        planned = np.zeros((len(self.plan.ranks), self._taken))
        for lease in self.leases:
            order = lease.order
            for step in range(max(order.first_step, self.first), min(order.last_step, self.until) + 1):
                if arm_of(order, step) is not Arm.NONE:
                    planned[:, step - self.first] = [dose_of(order, step, rank) / 1e3 for rank in self.plan.ranks]
        return planned

    def look(self) -> None:
        """Evaluate the steps, if enough are new since the last time."""
        every = LOOK_AT_ALL_EVERY if self.plan.mode is Mode.HALVES else LOOK_EVERY
        if not self.leases or (self.covered // every <= self._looked // every and not self.is_through):
            return
        self._looked, recorded = self.covered, self.recorded()
        place: DelayPlace = self.plan.place.value
        self.overshoot, self.is_ignored = _overshoot(recorded), _is_ignored(recorded)
        if self.plan.mode is Mode.ARMS:
            self.result = decided(recorded, place)
        elif self.plan.mode is Mode.HALVES:
            self.result = which_rank(recorded, place)
        else:
            self.result = swept(recorded, place)
        self.is_answered = self.result.verdict != "open"

    @property
    def is_through(self) -> bool:
        """Return whether the allowed steps are used up."""
        return self.covered >= self.plan.most_steps

    def covers(self, step: int) -> bool:
        """Return whether a rank was to be delayed in this step or the one before."""
        return any(arm_of(lease.order, one) is not Arm.NONE for lease in self.leases for one in (step, step - 1))

    def earn(self, steps: int) -> None:
        """Add the budget that this many steps of the job allow."""
        self.account = replace(self.account, allowed_us=allowed_us(self.plan.step_us, steps, self.plan.budget))

    def lease(self, generation: int, first: int) -> Order | None:
        """Return an order from `first` on, as long as the account allows; None if that is too short."""
        steps = min(LONGEST_LEASE, self.begun + self.plan.most_steps - first)
        while steps >= SHORTEST_LEASE:
            order = Order(
                generation,
                self.seed,
                first,
                first + steps - 1,
                self.plan.place,
                self.plan.mode,
                tuple(sorted({max(round(dose * 1e3), 1) for dose in self.plan.doses_us})),
                self.plan.accused,
                DEFAULT_SHARES[self.plan.mode],
            )
            cost_us = most_cost_ns(order) / 1e3
            if cost_us <= self.account.left_us:
                self.account = self.account.charged(cost_us)
                self.leases.append(_Lease(order, cost_us))
                return order
            steps //= 2
        return None

    def cut(self, until: int) -> None:
        """Cut leases at step `until`; those that would begin later cost nothing."""
        kept = []
        for lease in self.leases:
            if lease.order.first_step >= until:
                self.account = self.account.settled(lease.charged_us, 0.0)
                continue
            if lease.order.last_step >= until:
                lease.order = replace(lease.order, last_step=until - 1)
            kept.append(lease)
        self.leases = kept

    def settle(self, *, at_once: bool = False) -> None:
        """Settle finished leases: at the estimated cost, or all that was charged if none is known.

        `at_once`: no more steps will be reported.
        """
        for lease in self.leases:
            if lease.is_settled or not (at_once or self.until > lease.order.last_step + 1):
                continue
            lease.is_settled = True
            cost_us = lease.charged_us
            result = self.result
            if result is not None and all(one.growth_us is not None for one in result.effects if one.n):
                cost_us = min(max(result.cost_us - self._settled_us, 0.0), cost_us)
            self._settled_us += cost_us
            self.account = self.account.settled(lease.charged_us, cost_us)


def _overshoot(recorded: Recorded) -> float | None:
    given = (recorded.planned_us > 0) & (recorded.dose_us > 0)
    if np.count_nonzero(given) < _FEWEST_DOSES:
        return None
    ratio = float(np.median(recorded.dose_us[given] / recorded.planned_us[given]))
    return ratio if ratio > _OVERSHOOT else None


def _is_ignored(recorded: Recorded) -> bool:
    """Return whether a rank got none of its last doses: a step was too long for it alone, or it missed the order."""
    for planned, given in zip(recorded.planned_us, recorded.dose_us, strict=True):
        last = np.flatnonzero((planned > 0) & np.isfinite(given))[-_FEWEST_DOSES:]
        if len(last) == _FEWEST_DOSES and not given[last].any():
            return True
    return False
