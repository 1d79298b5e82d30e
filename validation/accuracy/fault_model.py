"""What can be wrong with a simulated job. Each fault changes the costs of a job and says what it did."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from costs import JobCosts
from device_operations import Operation
from layouts import JobLayout

Cause = Literal[
    "compute",
    "communication",
    "input",
    "host",
    "garbage_collection",
    "stage_imbalance",
    "sequence_imbalance",
]


@dataclass(frozen=True)
class Truth:
    """What is really wrong, in Kair's words; empty where a fault has no such thing."""

    fault: str
    cause: Cause
    ranks: tuple[int, ...] = ()
    """Guilty of it."""
    hosts: tuple[str, ...] = ()
    """Of the guilty ranks."""
    operator: str | None = None
    edge: tuple[int, int] | None = None
    """The two ranks of a slow connection between pipeline stages."""
    group: tuple[int, ...] | None = None
    """The ranks of a slow process group."""
    by_step: tuple[tuple[int, ...], ...] = ()
    """The guilty ranks of every step, where they change."""


@dataclass(frozen=True)
class Pause:
    """A host's thread stands still before it launches an operation."""

    step: int
    rank: int
    slot: int
    """Index of the operation in the program of the rank's stage."""
    duration_ns: float
    visible: bool = False
    """Whether the trace has a row for it."""


@dataclass(frozen=True)
class Scene:
    """What a fault may look at besides the costs: the length of a noise-free step, and a generator of its own."""

    step_ns: float
    random: np.random.Generator
    queue: int | None = None
    """The depth of the launch queue, where hosts run ahead of their devices."""


@dataclass(frozen=True)
class Effect:
    """What a fault leaves behind besides changed costs."""

    truths: tuple[Truth, ...] = ()
    pauses: tuple[Pause, ...] = ()
    host_offset_ns: tuple[float, ...] = ()
    """What each host's clock is ahead."""


class Fault(Protocol):
    """A kind of fault with its severity."""

    def apply(self, costs: JobCosts, scene: Scene, /) -> Effect:
        """Changes `costs`."""
        ...


def on_device(operations: tuple[Operation, ...]) -> list[int]:
    """Indices of what a slow GPU is slow at: all but communication."""
    return [index for index, operation in enumerate(operations) if not operation.communication]


def hosts_of(layout: JobLayout, ranks: Sequence[int]) -> tuple[str, ...]:
    """The hosts of `ranks`, each once."""
    return tuple(dict.fromkeys(layout.host(rank) for rank in ranks))


def accuse(fault: str, cause: Cause, layout: JobLayout, *ranks: int, operator: str | None = None) -> Effect:
    """The effect of a fault whose ranks are the same in every step."""
    return Effect((Truth(fault, cause, ranks, hosts_of(layout, ranks), operator),))


def accuse_by_step(fault: str, cause: Cause, layout: JobLayout, by_step: Sequence[Sequence[int]]) -> Truth:
    """The truth of a fault whose ranks change."""
    ranks = sorted({rank for of_step in by_step for rank in of_step})
    return Truth(fault, cause, tuple(ranks), hosts_of(layout, ranks), by_step=tuple(map(tuple, by_step)))
