"""An answer with what it is about: what every format is made from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kair_engine.trace.model import KairWarning


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
    warnings: tuple[KairWarning, ...]


def merge_warnings(*sources: Iterable[KairWarning]) -> tuple[KairWarning, ...]:
    """All warnings, each once, in the order they first come."""
    return tuple(dict.fromkeys(warning for source in sources for warning in source))
