"""Fixes: what a what-if analysis takes to be as it should be, or scales."""

import re
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING

from kair_engine.causes import FixKind
from kair_engine.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

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
    scopes: tuple[str, ...] = ()
    """Shell patterns of annotated scopes: what runs within one, and what that launches."""
    scale: float | None = None
    """Their durations times this; None brings them to their peers' ideal. Delays only where kinds name `host`."""
    even: bool = False
    """Whether each takes instead what it takes in the mean, over the ranks of its role and the steps: as much work."""

    @property
    def is_scale(self) -> bool:
        """Whether it sets durations, and does not bring them to their peers' ideal."""
        return self.even or self.scale is not None

    def named(self, operator: str) -> bool:
        """Whether an operator's name fits a pattern."""
        return not self.operators or _fits(self.operators, operator)

    def within(self, scope: str) -> bool:
        """Whether a scope's name fits one of the patterns of scopes."""
        return _fits(self.scopes, scope)


def _fits(patterns: tuple[str, ...], name: str) -> bool:
    return any(_matcher(one)(name) for one in patterns)


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> "Callable[[str], re.Match[str] | None]":
    """Of a shell pattern, which is asked of every operator's name."""
    return re.compile(translate(pattern)).match
