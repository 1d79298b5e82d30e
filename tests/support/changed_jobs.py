"""A job simulated step by step, so that two runs of it differ by what a test changes and by noise, and nothing else.

Each rank's main thread fetches input and launches kernels ahead of its device, which computes on one stream and reduces
gradients on another; the step is over when both are done.
"""

from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
from support.trace_builder import Row, build

from kair_engine.arrays import Floats
from kair_engine.trace.model import Trace

RANKS, STEPS = 4, 8
Longer = Callable[[str, int, int], float]
"""(operation, which call in the step, rank) → how much longer it takes, in µs."""

CALLS = ("norm", "gemm", "gelu", "gemm", "gelu", "gemm", "norm", "gemm", "reduce", "gemm", "reduce", "gemm", "update")
_TAKES = {"fetch": 250.0, "norm": 80.0, "gemm": 500.0, "gelu": 120.0, "reduce": 300.0, "update": 200.0, "launch": 8.0}


def as_it_is(_name: str, _call: int, _rank: int) -> float:
    """Nothing is changed."""
    return 0.0


def job(
    folder: Path,
    longer: Longer = as_it_is,
    *,
    seed: int = 0,
    jitter: float = 0.003,
    calls: tuple[str, ...] = CALLS,
    ranks: int = RANKS,
    steps: Collection[int] = range(STEPS),
) -> Trace:
    """The recording of one run, longer in some `steps`; `seed` is its noise, `jitter` what operations vary by (1 σ)."""
    noise = np.random.default_rng(seed)
    rows: list[Row] = []
    spans: dict[tuple[int, int], tuple[float, float]] = {}
    now = np.zeros(ranks)
    for step in range(STEPS):
        seen: dict[str, int] = {}
        changed = longer if step in steps else as_it_is

        def takes(name: str, seen: dict[str, int] = seen, changed: Longer = changed) -> Floats:
            call = seen[name] = seen.get(name, -1) + 1
            wanted = np.array([_TAKES.get(name, 100.0) + changed(name, call, rank) for rank in range(ranks)])
            return wanted * np.maximum(1 + jitter * noise.standard_normal(ranks), 0.0)

        begin, host, compute, reduced = now.copy(), now + 2.0, now.copy(), now.copy()
        fetch = takes("fetch")
        rows += [Row(rank, "main", "fetch", host[rank], fetch[rank], step, kind="input") for rank in range(ranks)]
        host = host + fetch + 1.0
        for number, name in enumerate(calls):
            launch, took = takes("launch"), takes(name)
            correlation = 1000 * step + number + 1
            for rank in range(ranks):
                rows.append(
                    Row(rank, "main", "launch", host[rank], launch[rank], step, kind="host", correlation=correlation)
                )
            launched, host = host + 1.0, host + launch + 0.5
            if name == "reduce":
                start = np.maximum(np.maximum(launched, compute), reduced)
                reduced = np.full(ranks, start.max()) + took.mean()
                for rank in range(ranks):
                    length = reduced[rank] - start[rank]
                    rows.append(
                        Row(rank, "gpu20", name, start[rank], length, step, group="dp", correlation=correlation)
                    )
                continue
            start = np.maximum(launched, compute)
            if name == "update":
                start = np.maximum(start, reduced)
            compute = start + took
            rows += [
                Row(rank, "gpu7", name, start[rank], took[rank], step, correlation=correlation) for rank in range(ranks)
            ]
        now = np.maximum(host, np.maximum(compute, reduced)) + 3.0
        for rank in range(ranks):
            rows.append(Row(rank, "main", "synchronize", host[rank], now[rank] - 1.0 - host[rank], step, kind="sync"))
            spans[rank, step] = begin[rank], now[rank] - begin[rank]
    return build(folder, rows, spans)
