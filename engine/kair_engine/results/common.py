"""Types that several results share."""

from typing import Literal

Method = Literal["robust", "paper"]
StepClock = Literal["rank", "job"]
"""When a step begins for the paper's method: with each rank itself, or for all when the first rank begins it."""
