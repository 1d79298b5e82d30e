"""Kineto recordings of two tensor-parallel groups, whose collectives say nothing but a kernel's name."""

from pathlib import Path

import numpy as np
from support.kineto_builder import Event, kernel, launch, op, step, trace, write

GROUPS = ((0, 1, 2, 3), (4, 5, 6, 7))


def write_tensor_parallel(
    folder: Path, *, collective: str, slow: dict[int, float], layers: tuple[int, int] = (4, 4), steps: int = 12
) -> Path:
    """Per layer a GEMM of 400 µs, then the group's collective of 30 µs; `slow` multiplies a rank's GEMMs.

    `layers` has how many each group computes.
    """
    random = np.random.default_rng(0)
    events: dict[int, list[Event]] = {rank: [] for group in GROUPS for rank in group}
    for at, group in enumerate(GROUPS):
        begin = 10_000.0 + 70 * at
        for number in range(steps):
            began, calls = begin, 0
            for _ in range(layers[at]):
                took = {rank: 400 * random.lognormal(0, 0.01) * slow.get(rank, 1.0) for rank in group}
                end = begin + max(took.values()) + 30
                for rank in group:
                    correlation = 1000 * (number + 1) + calls
                    asked = began + 5 + 4 * calls
                    events[rank] += [
                        op("aten::mm", asked - 1, 3),
                        launch(asked, 1, correlation),
                        kernel("gemm", begin, took[rank], correlation),
                        launch(asked + 2, 1, correlation + 500),
                        kernel(collective, begin + took[rank], end - begin - took[rank], correlation + 500),
                    ]
                begin, calls = end, calls + 1
            for rank in group:
                events[rank].append(step(number, began, begin - began))
    for rank, of_rank in events.items():
        write(folder / f"rank{rank}.json", trace(of_rank, rank=rank, world=8, deviceProperties=[{"name": "H100"}]))
    return folder
