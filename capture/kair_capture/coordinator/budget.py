"""What sampling may cost: a share of the job's time, and one window of it in advance for who is known to be slow.

The promise, but for windows that a person asks for: at no time has sampling cost more than the share of the job's time
so far, and one window. A window is ordered where its cost is saved, or, as a loan, where nothing is owed.
"""

from dataclasses import dataclass
from typing import Final

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
        """The job is at step `until`. A job that went back to a checkpoint earns nothing by going back."""
        steps, self.step = max(until - self.step, 0), until
        self.elapsed_us += step_us * steps
        most = max(_MOST_SAVED_STEPS * step_us, _MOST_SAVED_US)
        self.held_us = max(self.held_us, min(self.held_us + self.share * step_us * steps, most))

    def spend(self, cost_us: float) -> None:
        """Takes what was spent, into debt where it must."""
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
