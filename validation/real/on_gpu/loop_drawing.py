"""What a training loop of one process on one GPU is, drawn from a seed of its own: the program and its faults.

`draw_loop(seed)` gives the same loop everywhere. Each is recorded several times healthy, as the ranks of a
data-parallel job would run it, and once with each of its faults. Half of the loops are of an ordinary shape in which
nothing makes the host wait but a full launch queue. Seeds below `FIRST_FOR_REPORTING` are for tuning.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from drawing import pick

LoopModel = Literal["mlp", "transformer", "convolution"]
Way = Literal["eager", "graphed_blocks", "whole_graph", "compile"]
Sync = Literal["every_step", "every_k", "never", "copied", "lagged"]
Input = Literal["on_device", "pinned", "pinned_ahead", "pageable"]
LoopPrecision = Literal["float32", "bfloat16"]
Optimizer = Literal["fused", "foreach", "for_loop"]
Cause = Literal["larger_product", "more_data", "co_running", "sleeping_host", "slow_input", "busy_python"]

FIRST_FOR_REPORTING = 4
HEALTHY = 4
"""Recordings without a fault: the ranks of the job that they are composed into."""

WEIGHTS: dict[Cause, float] = {
    "larger_product": 1.2,
    "more_data": 1.0,
    "co_running": 0.8,
    "sleeping_host": 1.0,
    "slow_input": 1.0,
    "busy_python": 1.0,
}
ON_DEVICE: tuple[Cause, ...] = ("larger_product", "more_data", "co_running")
BLOCKS = {"mlp": (6, 17), "transformer": (2, 7), "convolution": (4, 11)}
WIDTHS = {"mlp": (1024, 2048, 3072), "transformer": (512, 768, 1024), "convolution": (64, 128, 192)}
SHORTEST_MS, LONGEST_MS = 5.0, 40.0


@dataclass(frozen=True)
class LoopFault:
    """What is wrong with one recording."""

    cause: Cause
    severity: float
    """What it takes, as a share of a step without it."""
    probability: float
    """The share of the steps that it is in."""


@dataclass(frozen=True)
class Loop:
    """A program, and the faults that it is recorded with."""

    seed: int
    model: LoopModel
    blocks: int
    width: int
    step_ms: float
    """What a step is to take on the device; the number of examples is chosen for it."""
    way: Way
    precision: LoopPrecision
    accumulation: int
    """Micro-batches of a step."""
    optimizer: Optimizer
    clipped: bool
    """The norm of the gradients is computed and kept to 1."""
    sync: Sync
    sync_every: int
    """Steps from one reading of the loss to the next, or by which a lagged reading is late."""
    input: Input
    input_ms: float
    """What the data loader computes for a batch."""
    buckets: int
    """Gradients are reduced in so many collectives."""
    bandwidth: float
    """GB/s at which they would be reduced, which tells how long the kernels last that stand for them."""
    steps: int
    """Profiled, at most: fewer where a step has very many kernels."""
    faults: tuple[LoopFault, ...]

    @classmethod
    def of(cls, drawn: dict[str, Any]) -> Loop:
        """The loop that `told` made this of."""
        return cls(**drawn | {"faults": tuple(LoopFault(**one) for one in drawn["faults"])})

    def told(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def draw_loop(seed: int) -> Loop:
    """The loop of this seed."""
    rng = np.random.default_rng((seed, 0x6C6F6F70))
    model: LoopModel = pick(rng, {"mlp": 1.0, "transformer": 1.4, "convolution": 0.8})
    way: Way = pick(rng, {"eager": 0.66, "graphed_blocks": 0.13, "whole_graph": 0.13, "compile": 0.08})
    sync: Sync = pick(rng, {"every_step": 0.22, "every_k": 0.20, "never": 0.34, "copied": 0.12, "lagged": 0.12})
    optimizer: Optimizer = pick(rng, {"fused": 0.4, "foreach": 0.45, "for_loop": 0.15})
    precision: LoopPrecision = pick(rng, {"float32": 0.4, "bfloat16": 0.6})
    given: Input = pick(rng, {"on_device": 0.25, "pinned": 0.3, "pinned_ahead": 0.3, "pageable": 0.15})
    return Loop(
        seed=seed,
        model=model,
        blocks=int(rng.integers(*BLOCKS[model])),
        width=int(rng.choice(WIDTHS[model])),
        step_ms=round(float(np.exp(rng.uniform(np.log(SHORTEST_MS), np.log(LONGEST_MS)))), 2),
        way=way,
        precision=precision,
        accumulation=int(pick(rng, {"1": 0.7, "2": 0.2, "4": 0.1})),
        optimizer=optimizer,
        clipped=bool(rng.random() < 0.25),
        sync=sync,
        sync_every=int(rng.integers(2, 5)) if sync in ("every_k", "lagged") else 1,
        input=given,
        input_ms=round(float(rng.uniform(0.05, 1.0)), 3),
        buckets=int(rng.integers(1, 7)),
        bandwidth=round(float(np.exp(rng.uniform(np.log(60.0), np.log(300.0)))), 1),
        steps=int(rng.integers(8, 11)),
        faults=_faults(rng, way),
    )


def _faults(rng: np.random.Generator, way: Way) -> tuple[LoopFault, ...]:
    """One, or two of different causes."""
    possible = {cause: weight for cause, weight in WEIGHTS.items() if way != "compile" or cause != "more_data"}
    found = []
    for _ in range(2 if rng.random() < 0.6 else 1):
        cause = pick(rng, possible)
        del possible[cause]
        low, high = (0.04, 0.8) if cause in ON_DEVICE else (0.1, 1.6)
        severity = float(np.exp(rng.uniform(np.log(low), np.log(high))))
        seldom = cause in ("sleeping_host", "busy_python") and rng.random() < 0.3
        found.append(LoopFault(cause, round(severity, 4), 0.3 if seldom else 1.0))
    return tuple(found)
