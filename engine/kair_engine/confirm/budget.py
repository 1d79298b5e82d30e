"""How long delays may be, how many steps they will take, and what they may cost; all times in microseconds.

Whoever gives orders keeps an Account: the most that a lease can cost is charged before it begins, and what the job did
not pay comes back.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from kair_engine.errors import InputError

LARGEST_SHARE: Final = 0.05
"""Of the step: what hang detectors that learn from steps do not take for a hang."""
LARGEST_US: Final = 250_000.0
OF_TIMEOUT: Final = 0.01
"""Of the smallest timeout of a process group."""
SMALLEST_SHARE: Final = 0.01
"""Of the step: what a smaller one adds drowns in any step's noise."""
SPREADS: Final = 5
"""A dose is at least this many of its standard deviations."""
STEPS_FACTOR: Final = 40
FEWEST_STEPS: Final = 55
"""Until 12 steps of 22 % are there."""
SWEEP_SHARE: Final = 0.3
"""Of the step: the largest dose of a sweep. Only what exceeds the worth of a fix costs time."""
SWEEP_DOSES: Final = 6
BUDGET_SHARE: Final = 0.01
"""Of the time that the job ran."""


def dose_us(step_us: float, excess_us: float, spread_us: float = 0.0, timeout_us: float | None = None) -> float:
    """Return the dose for ranks that take `excess_us` longer than the others: half of that, within what is safe and
    seen.

    `spread_us` is the standard deviation of a delay around what was asked, `timeout_us` the smallest timeout of a
    process group. Raises InputError where no dose is both.
    """
    if not step_us > 0:
        raise InputError("the job has no steps yet whose time is known")
    most = min(LARGEST_SHARE * step_us, _limit_us(timeout_us))
    least = max(SMALLEST_SHARE * step_us, SPREADS * spread_us)
    if least > most:
        raise InputError(
            f"a delay must be {least / 1e3:.2g} ms or more to be seen here, and at most {most / 1e3:.2g} ms is allowed",
            "delays vary less on hosts that have free cores; a longer timeout of the process groups allows longer ones",
        )
    return min(max(excess_us / 2, least), most)


def sweep_us(step_us: float, excess_us: float, timeout_us: float | None = None) -> tuple[float, ...]:
    """Return the doses of a sweep, ascending: to a third more than the excess, so that the savings can level off."""
    largest = min(excess_us * 4 / 3, SWEEP_SHARE * step_us, _limit_us(timeout_us))
    if not largest > 0:
        raise InputError("a fix is worth nothing where the rank takes no longer than the others")
    return tuple(largest * (at + 1) / SWEEP_DOSES for at in range(SWEEP_DOSES))


def _limit_us(timeout_us: float | None) -> float:
    return LARGEST_US if timeout_us is None else min(LARGEST_US, OF_TIMEOUT * timeout_us)


def forecast_steps(noise_us: float, dose: float) -> int:
    """About how many steps a decision takes. `noise_us` is what self times leave of the steps' standard deviation."""
    return max(FEWEST_STEPS, ceil(STEPS_FACTOR * (noise_us / dose) ** 2))


def require_steps(noise_us: float, dose: float, most_steps: int) -> int:
    """Return the forecast. Raises InputError where it is above `most_steps`: the job's steps vary too much."""
    steps = forecast_steps(noise_us, dose)
    if steps > most_steps:
        raise InputError(
            f"the steps vary by {noise_us / 1e3:.2g} ms beyond what the ranks' own times explain: delays of "
            f"{dose / 1e3:.2g} ms would take about {steps:,} steps to decide, and {most_steps:,} are allowed",
            "allow more steps, or look first for what makes steps vary",
        )
    return steps


@dataclass(frozen=True)
class Account:
    """What delays may cost, and what of that is spent or held back."""

    allowed_us: float
    held_us: float = 0.0
    """Charged for leases that are not settled."""
    spent_us: float = 0.0

    @property
    def left_us(self) -> float:
        """What can be charged."""
        return self.allowed_us - self.held_us - self.spent_us

    def charged(self, us: float) -> "Account":
        """Return the account once a lease that can cost `us` has begun.

        Raises ValueError where that is more than is left.
        """
        if not 0 <= us <= self.left_us:
            raise ValueError(f"{us:.0f} us are to be charged and {self.left_us:.0f} us are left")
        return replace(self, held_us=self.held_us + us)

    def settled(self, us: float, cost_us: float) -> "Account":
        """Return the account once the lease that `us` was charged for has ended, and cost `cost_us`, as estimated.

        Never more than was charged is spent, and never less than nothing. Raises ValueError where less is held.
        """
        if not 0 <= us <= self.held_us * (1 + 1e-9):
            raise ValueError(f"{us:.0f} us are to be settled and {self.held_us:.0f} us are held")
        spent = self.spent_us + min(max(cost_us, 0.0), us)
        return replace(self, held_us=max(self.held_us - us, 0.0), spent_us=spent)


def allowed_us(step_us: float, steps: int, share: float = BUDGET_SHARE) -> float:
    """Return what delays may cost in so many steps."""
    return share * step_us * steps
