"""Fixes: what a what-if analysis takes to be as it should be, or scales."""

import re
from dataclasses import dataclass
from fnmatch import translate

from kair_engine.causes import FixKind

FIX_KINDS: tuple[FixKind, ...] = ("compute", "input", "host", "communication", "gc")
"""What every part of a step's time is one of."""
STOPS: FixKind = "stops"
ASKED_KINDS: tuple[FixKind, ...] = (*FIX_KINDS, STOPS)
"""What a fix can name: stops are in the time of any kind that threads spend."""


@dataclass(frozen=True)
class Fix:
    """Which operations are changed: those that meet all that is given; an empty field stands for all."""

    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    stages: tuple[int, ...] = ()
    kinds: tuple[FixKind, ...] = ()
    """Of operators `host` stands for garbage collection too, as in triage's classes."""
    operators: tuple[str, ...] = ()
    """Shell patterns (* ? []) of operators or operation types."""
    scale: float | None = None
    """Their durations times this; None brings them to their peers' ideal. Delays only where kinds name `host`."""

    def named(self, operator: str) -> bool:
        """Whether an operator's name fits a pattern."""
        return not self.operators or any(re.match(translate(one), operator) for one in self.operators)
