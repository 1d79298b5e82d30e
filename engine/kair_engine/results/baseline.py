"""Saved baselines, and what a run differs from one in."""

from dataclasses import dataclass
from typing import Literal

from kair_engine.results.compare import OperatorChange
from kair_engine.results.run_profile import RunProfile

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


@dataclass(frozen=True)
class AgainstBaseline:
    """What takes longer than in a baseline: what peers that are slow alike cannot show."""

    baseline: str
    """Its name."""
    step_change_us: float
    """This run's step time less the baseline's."""
    step_change_share: float
    """The same over the baseline's step time."""
    step_p_value: float
    """That the step times do not differ."""
    slower: tuple[OperatorChange, ...]
    """Beyond chance, what takes most longer first; of communication the transfer itself, waiting excluded. Not
    replayed."""


@dataclass(frozen=True)
class ChosenBaseline:
    """The baseline that a run is to be held against."""

    name: str
    profile: RunProfile
    named: bool
    """Whether somebody asked for it, and did not just leave it in use."""
