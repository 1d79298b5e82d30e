"""An answer with what it is about: what every format is made from."""

from typing import Any

from kair_engine.frozen import dataclass
from kair_tui.render.words.warnings import WarningInWords


@dataclass(frozen=True)
class JobInfo:
    """Which job a document is about, and which of its steps were analysed."""

    name: str
    source: str
    world_size: int
    ranks: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Note:
    """What a person wrote of something in the job, on the full screen."""

    text: str
    about: str
    """What was under the cursor."""
    screen: str
    """Where that is seen."""
    written_at: str
    """UTC, ISO 8601."""
    rank: int | None = None
    operator: str | None = None
    step: int | None = None
    steps: tuple[int, ...] | None = None
    """The steps that were chosen; null for all."""
    at_us: float | None = None
    """The moment on a timeline."""


@dataclass(frozen=True)
class Answer:
    """What one command found."""

    command: str
    result: Any
    job: JobInfo | None
    warnings: tuple[WarningInWords, ...]
    notes: tuple[Note, ...] = ()
    """Of the job, whatever was asked."""
