"""Types that several results share."""

from typing import Literal

Method = Literal["robust", "paper"]
StepClock = Literal["rank", "job"]
"""When a step begins for the paper's method: with each rank itself, or for all when the first rank begins it."""
TimedOn = Literal["host", "device"]
"""Whose times those of steps are: the devices' where hosts run ahead of them, else the hosts', who mark the steps."""
