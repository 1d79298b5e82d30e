"""What a coordinator must know when it starts again: a small file in the job's folder."""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kair_capture.wire.messages import Communication
from kair_engine.results.runs.watch import Alert, WatchedWindow
from kair_engine.trace.permissions import read_kept, write_whole


@dataclass
class Remembered:
    """Written whole whenever it changes."""

    generation: int = 0
    held_us: float = 0.0
    spent_us: float = 0.0
    elapsed_us: float = 0.0
    budget_step: int = 0
    unasked_until: int = -1
    """The last step whose windows that nobody asked for are charged."""
    charged_us: float = 0.0
    step_cost_us: float | None = None
    sampled: dict[int, tuple[float, float, int]] = field(default_factory=dict)
    """rank → when it was last sampled (Unix s), its excess then, and how many steps."""
    windows: list[WatchedWindow] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    communication: list[Communication] = field(default_factory=list)
    """How ranks communicate, as their agents told it."""
    fragments: int = 0
    refused: int = 0
    duplicates: int = 0


def remembered(path: Path) -> Remembered:
    """What the file says; nothing where there is none, or it is damaged."""
    try:
        return msgspec.json.decode(read_kept(path), type=Remembered)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return Remembered()


def remember(path: Path, what: Remembered) -> None:
    """Raises OSError when there is no room."""
    write_whole(path, msgspec.json.encode(what))


def bounded(windows: list[WatchedWindow], most: int = 20) -> list[WatchedWindow]:
    """The last ones."""
    return list(deque(windows, maxlen=most))
