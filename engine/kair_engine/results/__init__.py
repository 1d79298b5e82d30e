"""Answers of the analyses: frozen records of plain values, shared by tables, JSON and the screens.

Field names and meanings follow the command-line contract; units are in the names (`_us`, `_ns`, `_bytes`).
Floats are finite.
"""

from typing import Literal

Method = Literal["robust", "paper"]
StepClock = Literal["rank", "job"]
"""When a step begins for the paper's method: with each rank itself, or for all when the first rank begins it."""
TimedOn = Literal["host", "device"]
"""Whose times those of steps are: the devices' where hosts run ahead of them, else the hosts', who mark the steps."""

SMALLEST_SHARE = 0.01
"""What is flagged must cost at least this share of the step."""
