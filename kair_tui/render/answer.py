"""An answer with what it is about: what every format is made from."""

from dataclasses import dataclass
from typing import Any

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
class Answer:
    """What one command found."""

    command: str
    result: Any
    job: JobInfo | None
    warnings: tuple[WarningInWords, ...]
