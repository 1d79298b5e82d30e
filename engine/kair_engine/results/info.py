"""The inventory of a recording: ranks, layout, steps, operators, clocks."""

from dataclasses import dataclass, field
from typing import Literal

from kair_engine.ranks import Rank
from kair_engine.results.common import TimedOn
from kair_engine.trace.model import KairWarning, Layout


@dataclass(frozen=True)
class ClockInfo:
    """How far the ranks' clocks agree."""

    source: Literal["collectives", "none", "recorded"]
    residual_us: float | None
    """Median disagreement of collective ends after correction."""
    max_offset_us: float


@dataclass(frozen=True)
class OperatorUse:
    """How often an operator ran, on all ranks together."""

    operator: str
    count: int
    phases: tuple[str, ...]
    """Those it ran in; none where the recording does not tell."""


@dataclass(frozen=True)
class RankRecord:
    """What one rank's recording holds of the chosen steps."""

    rank: Rank
    files: int
    """That hold it."""
    steps: int
    """Of the chosen ones, those that it has whole."""
    operations: int
    """Of the chosen steps."""
    collectives: int
    """Collectives, sends and receives among them."""
    odd: tuple[str, ...]
    """Why it cannot be compared with its peers: codes of warnings; empty where it can."""


@dataclass(frozen=True)
class InfoResult:
    """What the recording holds."""

    format: str
    world_size: int
    ranks: tuple[Rank, ...]
    missing_ranks: tuple[Rank, ...]
    hosts: dict[str, tuple[int, ...]]
    layout: Layout | None
    roles: dict[str, tuple[int, ...]]
    device: str | None
    steps: tuple[int, ...]
    operations: int
    """Of the chosen steps, all ranks together; the rows that mark steps are none."""
    operations_by_kind: dict[str, int]
    collectives: int
    """Of all chosen steps, with sends and receives: each once for all of its members."""
    matched_collectives: int
    clock: ClockInfo
    warnings: tuple[KairWarning, ...]
    operators: tuple[OperatorUse, ...] = ()
    """Only when asked for, the most frequent first."""
    by_rank: tuple[RankRecord, ...] = ()
    """What is odd first."""
    timed_on: TimedOn = "host"
    """Whose step times all commands print: the devices' where hosts run ahead of them."""
    launch_queue_depth: dict[int, int] = field(default_factory=dict)
    """rank → how many launches can wait for its device before its host has to; empty where none was seen to wait."""
    launch_queue_per_stream: bool | None = None
    """Whether each stream has a queue that deep, or all of a process share it; null where no depth is known."""
