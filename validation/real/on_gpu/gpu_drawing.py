"""What a take on a GPU is, drawn from a seed of its own: the job, its surroundings and its faults.

Ranks share one GPU and speak through gloo (NCCL refuses two ranks on one device). `draw_gpu(seed)` gives the same
take everywhere; its seeds are not those of `drawing.draw`. Half of the takes are healthy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from drawing import CHUNKS, MICROBATCHES, Fault, Load, Model, Parallel, Pinning, Place, Take, log_uniform_int, pick

Precision = Literal["float32", "bfloat16"]
Profiled = Literal["all", "first", "first_deeply"]

ONE_RANK_ON_GPU = {
    "extra_work": 1.5,
    "larger_batch": 1.0,
    # float32 where the others compute in bfloat16.
    "slower_kernel": 1.0,
    "slow_input": 1.0,
    "busy_python": 1.5,
    "sleep": 1.0,
    "sigstop": 1.0,
    "quota": 1.0,
    "core_hog": 1.0,
    "garbage_collection": 1.0,
    "synchronising_copies": 1.5,
}
ALL_RANKS_ON_GPU = {
    # Another process that computes on the GPU.
    "gpu_hog": 1.0,
    "quota_on_all": 1.0,
    "stops_on_all": 0.7,
    "busy_processes_x2": 0.5,
    "busy_processes_x4": 0.5,
    "slow_input_on_all": 1.0,
    # Many kernels too small to be worth their launch.
    "launch_bound": 1.0,
    "synchronising_copies_on_all": 1.0,
}
PAIRED = ("gpu_hog", "quota_on_all", "busy_processes_x4", "slow_input_on_all", "stops_on_all")
# From outside of the ranks' processes.
OUTSIDE_ON_GPU = {"sigstop", "quota", "core_hog"} | {
    kind for kind in ALL_RANKS_ON_GPU if kind.endswith(("_hog", "quota_on_all", "stops_on_all", "_x2", "_x4"))
}
CORES_ON_GPU = 16
# Examples that the GPU trains on in a millisecond, in one block of each model at the narrower width, roughly.
EXAMPLES_PER_GPU_MS = {"attention": 60.0, "convolution": 45.0, "mlp": 12_000.0, "embedding": 40_000.0}
WIDTHS_ON_GPU = {"attention": (192, 256), "convolution": (64, 96), "mlp": (512, 768), "embedding": (256, 384)}
# Of a step, by tiny kernels: more of them would be hundreds of megabytes of trace.
MOST_TINY_KERNELS = 0.6
LEAST_GPU_MS, MOST_GPU_MS = 0.5, 24.0


@dataclass(frozen=True, kw_only=True)
class GpuTake(Take):
    """A take whose ranks share one GPU."""

    cores: ClassVar[int] = CORES_ON_GPU
    cores_per_rank: ClassVar[int] = 2

    device: str
    """Where it is to run; "cpu" rehearses it."""
    precision: Precision
    graphs: bool
    """Each block is a CUDA graph."""
    awaited: bool
    """The host waits for the GPU at the end of a step, as where the loss is logged."""
    pinned_memory: bool
    profiled: Profiled

    @classmethod
    def of(cls, drawn: dict[str, Any]) -> GpuTake:
        """The take that `asdict` made this of."""
        faults = tuple(Fault(**one | {"ranks": tuple(one["ranks"])}) for one in drawn["faults"])
        return cls(**drawn | {"faults": faults, "host_of_rank": tuple(drawn["host_of_rank"])})

    def told(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def draw_gpu(seed: int, shared: str | None = None) -> GpuTake:
    """The take of this seed; with `shared`, that fault of all ranks whatever was drawn."""
    rng = np.random.default_rng((seed, 0x6B616972))
    parallel: Parallel = pick(rng, {"ddp": 0.58, "fsdp2": 0.16, "pipeline": 0.11, "two_groups": 0.15})
    ranks = int(pick(rng, {"2": 30, "3": 12, "4": 33, "6": 10, "8": 15}))
    if parallel in ("pipeline", "two_groups"):
        ranks = int(pick(rng, {"4": 60, "6": 20, "8": 20}))
    model: Model = pick(rng, {"attention": 1.3, "convolution": 1, "mlp": 0.8, "embedding": 0.8})
    way: str = pick(rng, {"eager": 0.74, "graphs": 0.16, "compile": 0.10}) if parallel == "ddp" else "eager"
    way = "eager" if model == "embedding" and way == "graphs" else way
    steps = log_uniform_int(rng, 4, 26)
    pinning: Pinning = pick(rng, {"own_core": 0.45, "none": 0.55})
    kinds = [shared] if shared else _kinds(rng, _possible(parallel, way, pinning))
    precision: Precision = "float32"
    if parallel in ("ddp", "fsdp2") and way != "graphs":
        precision = pick(rng, {"float32": 0.4, "bfloat16": 0.6})
    if "slower_kernel" in kinds:
        precision = "bfloat16"
    width, blocks, examples = _size(rng, model, ranks, kinds)
    guilty = [int(rank) for rank in rng.permutation(ranks)]
    faults = tuple(
        _fault(rng, kind, tuple(range(ranks)) if kind in ALL_RANKS_ON_GPU else (guilty[at],), steps, way != "eager")
        for at, kind in enumerate(kinds)
    )
    load: Load = pick(rng, {"none": 0.60, "steady": 0.20, "bursts": 0.20})
    return GpuTake(
        seed=seed,
        model=model,
        width=width,
        blocks=blocks,
        examples=examples,
        parallel=parallel,
        compile=way == "compile",
        ranks=ranks,
        host_of_rank=(0,) * ranks,
        steps=steps,
        bucket_mb=float(rng.choice([0.5, 2.0, 25.0])),
        # A worker process fetches ahead, out of reach of a fault in the rank.
        workers=0 if {"slow_input", "slow_input_on_all", "larger_batch"} & set(kinds) else int(rng.random() < 0.4),
        pinning=pinning,
        load=load,
        load_processes=0 if load == "none" else int(rng.integers(2, 13)),
        record_shapes=bool(rng.random() < 0.6),
        gzip=False,
        faults=faults,
        device="cuda",
        precision=precision,
        graphs=way == "graphs",
        awaited=bool(rng.random() < 0.5),
        pinned_memory=bool(rng.random() < 0.5),
        profiled="all",
    )


def draw_gpu_pair(seed: int) -> GpuTake:
    """The take of this seed with a fault that all ranks share from the first step on; the kinds take turns."""
    return draw_gpu(seed, PAIRED[seed % len(PAIRED)])


def _possible(parallel: Parallel, way: str, pinning: Pinning) -> Mapping[str, float]:
    """The faults of one rank that the layout can have, weighted."""
    without: set[str] = set()
    if parallel in ("pipeline", "two_groups"):
        without |= {"larger_batch", "slower_kernel"}
    if way != "eager":
        without |= {"larger_batch", "slower_kernel"}
    if pinning != "own_core":
        without |= {"core_hog"}
    return {kind: weight for kind, weight in ONE_RANK_ON_GPU.items() if kind not in without}


def _kinds(rng: np.random.Generator, possible: Mapping[str, float]) -> list[str]:
    scope: str = pick(rng, {"none": 0.50, "one": 0.33, "two": 0.03, "all": 0.14})
    if scope == "none":
        return []
    if scope == "all":
        return [pick(rng, ALL_RANKS_ON_GPU)]
    first = pick(rng, possible)
    others = {kind: weight for kind, weight in possible.items() if kind != first}
    return [first] if scope == "one" else [first, pick(rng, others)]


def _size(rng: np.random.Generator, model: Model, ranks: int, kinds: list[str]) -> tuple[int, int, int]:
    """Width, blocks and examples of a rank; each rank takes less of the GPU where more share it."""
    most = MOST_GPU_MS / ranks
    # Kernels that are slower show where the GPU is what a step waits for.
    least = most / 2 if "slower_kernel" in kinds else LEAST_GPU_MS
    gpu_ms = float(np.exp(rng.uniform(np.log(least), np.log(most))))
    width, blocks = int(rng.choice(WIDTHS_ON_GPU[model])), int(rng.integers(2, 5))
    wider = (width / WIDTHS_ON_GPU[model][0]) ** 2
    unit = MICROBATCHES * CHUNKS
    return width, blocks, max(unit, unit * round(gpu_ms * EXAMPLES_PER_GPU_MS[model] / blocks / wider / unit))


def _fault(rng: np.random.Generator, kind: str, ranks: tuple[int, ...], steps: int, closed: bool) -> Fault:
    """`closed`: there is no place between the operators of a compiled or captured model."""
    severity = float(np.exp(rng.uniform(np.log(0.05), np.log(2.0))))
    if kind == "launch_bound":
        severity = min(severity, MOST_TINY_KERNELS)
    onset = int(rng.integers(1, steps)) if rng.random() < 0.15 and len(ranks) == 1 else 0
    places: dict[Place, float] = {"forward": 1, "optimizer": 1, "backward": 1}
    fixed: dict[str, Place] = {
        "slow_input": "input",
        "slow_input_on_all": "input",
        "larger_batch": "input",
        "slower_kernel": "kernel",
    }
    if not closed:
        places["blocks"] = 2
        fixed |= dict.fromkeys(("synchronising_copies", "synchronising_copies_on_all", "launch_bound"), "blocks")
    place: Place = "outside" if kind in OUTSIDE_ON_GPU else fixed.get(kind) or pick(rng, places)
    seldom = kind in ("sleep", "sigstop") and rng.random() < 0.4
    return Fault(kind, ranks, round(severity, 4), onset, place, 0.3 if seldom else 1.0)
