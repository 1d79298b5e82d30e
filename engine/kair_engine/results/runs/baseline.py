"""Saved baselines, and what was done to them."""

from dataclasses import dataclass
from typing import Literal

BaselineAction = Literal["save", "list", "use", "rm"]


@dataclass(frozen=True)
class SavedBaseline:
    """What a healthy run spent its steps on, kept under a name."""

    name: str
    in_use: bool
    """Whether localize and triage hold runs against it."""
    saved_at: str
    """UTC, ISO 8601."""
    job: str
    """The run that it was made of."""
    source: str
    """Where that was read from."""
    world_size: int
    steps: int
    """How many it was made of."""
    operators: int
    """How many it knows."""
    step_time_us: float


@dataclass(frozen=True)
class BaselineResult:
    """The store's baselines, after what was asked for was done."""

    store: str
    action: BaselineAction
    """What was asked for."""
    name: str | None
    """The baseline that was saved, put to use or removed; null of a list, and where none is in use any more."""
    current: str | None
    """The one in use."""
    baselines: tuple[SavedBaseline, ...]
    """By name."""
