"""What a written take is: a training script, how its author profiles it, and its faults, drawn from a seed of its own.

The scripts were written from a description alone, apart from the recorder of `drawing.draw` and from triage: other
models, other ways to communicate, other ways to profile. `draw_written(seed)` gives the same take everywhere. Half of
the takes are healthy; faults, loads and pinning are drawn as everywhere else, and two kinds are only here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from drawing import (
    ALL_RANKS,
    ONE_RANK,
    AnyTake,
    Fault,
    draw_fault,
    draw_kinds,
    draw_load,
    draw_pinning,
    log_uniform_int,
    pick,
    possible_places,
    possible_shared_kinds,
)

Options = dict[str, Any]
"""What is drawn of a script."""
ONLY_HERE = {
    # Layers that a rank alone has, which also go backward.
    "extra_layers": 1.0,
    # An operator's work done row by row, as a detour that somebody left in.
    "small_operators": 1.0,
}
# Where a rank alone in its stage, its expert's share or its part of each layer says how large a batch is.
FIXED_BATCH = {"stages", "tensor", "ring"}
# Those without torch.optim, by which capture finds steps.
WITHOUT_OPTIMIZER = {"flat"}
# Those with a rectifier.
WITH_RELU = {"cnn", "gan", "recsys"}
CHROME = (
    "rank{rank}.json",
    "trace_{rank}.json",
    "trace_rank_{rank}.json",
    "rank-{rank:02d}_trace.json",
    "job_{rank}.json",
)
WORKERS = ("rank{rank}", "rank_{rank}", "node0_rank{rank}", "worker{rank}", None)


@dataclass(frozen=True)
class ProfilerUse:
    """How the script's author uses torch.profiler."""

    scheduled: bool
    """With a schedule, without which torch marks no steps."""
    wait: int
    warmup: int
    stacks: bool
    memory: bool
    ranges: bool
    """The script names its parts."""
    handler: Literal["chrome", "tensorboard"]
    name: str | None
    """Of a rank's file, or worker; None leaves it to torch."""


@dataclass(frozen=True, kw_only=True)
class WrittenTake(AnyTake):
    """A job that a script is."""

    parallel: Literal["alike", "stages"]
    """Whether each rank is a pipeline's stage of its own."""
    script: str
    options: Options
    threads: int
    profiler: ProfilerUse

    @property
    def lead_steps(self) -> int:  # type: ignore[override]  # a constant of other takes
        """Before the recorded ones; capture is asked for steps that have not begun.

        Where a fault is calibrated by layers of its own, capture takes their first forward pass for a step's begin.
        """
        return max(self.profiler.wait + self.profiler.warmup, 2 * int(self.captured))


def draw_written(seed: int) -> WrittenTake:
    """The take of this seed."""
    rng = np.random.default_rng((seed, 0x777269))
    script: str = pick(rng, dict.fromkeys(SCRIPTS, 1.0))
    ranks = int(pick(rng, {"2": 35, "3": 15, "4": 30, "6": 20}))
    if script == "stages":
        ranks = int(pick(rng, {"2": 25, "3": 35, "4": 40}))
    elif script == "tensor":
        ranks = int(pick(rng, {"2": 40, "4": 60}))
    options = {name: one_of(rng, choices) for name, choices in SCRIPTS[script](ranks).items()}
    steps, pinning = log_uniform_int(rng, 4, 30), draw_pinning(rng, ranks)
    staged = script == "stages"
    possible = possible_of(script, pinning)
    kinds = draw_kinds(rng, possible, possible_shared_kinds(ranks))
    guilty = [int(rank) for rank in rng.permutation(ranks)]
    faults = tuple(
        fault_of(rng, kind, tuple(range(ranks)) if kind in ALL_RANKS else (guilty[at],), steps, staged=staged)
        for at, kind in enumerate(kinds)
    )
    load, load_processes = draw_load(rng, "nice" in kinds)
    reached = {"slow_input", "larger_batch"} & set(kinds)
    return WrittenTake(
        seed=seed,
        parallel="stages" if staged else "alike",
        script=script,
        options=options,
        ranks=ranks,
        host_of_rank=(0,) * ranks,
        steps=steps,
        # Only one script loads in processes of its own; they fetch ahead, out of reach of a fault in the rank.
        workers=int(script == "cnn" and not reached and rng.random() < 0.4),
        pinning=pinning,
        load=load,
        load_processes=load_processes,
        record_shapes=bool(rng.random() < 0.5),
        gzip=bool(rng.random() < 0.5),
        faults=faults,
        threads=2 if ranks <= 3 and pinning == "none" and rng.random() < 0.25 else 1,
        profiler=draw_use(rng),
    )


def draw_use(rng: np.random.Generator) -> ProfilerUse:
    scheduled = bool(rng.random() < 0.75)
    handler: Literal["chrome", "tensorboard"] = pick(rng, {"chrome": 0.55, "tensorboard": 0.45})
    return ProfilerUse(
        scheduled=scheduled,
        wait=int(rng.integers(0, 3)) if scheduled else 0,
        warmup=int(rng.integers(1, 4)) if scheduled else 0,
        stacks=bool(rng.random() < 0.2),
        memory=bool(rng.random() < 0.2),
        ranges=bool(rng.random() < 0.4),
        handler=handler,
        name=one_of(rng, CHROME if handler == "chrome" else WORKERS),
    )


def possible_of(script: str, pinning: str) -> Mapping[str, float]:
    """The faults of one rank that the script can have, weighted."""
    cannot = {"slow_link"}
    if pinning != "own_core":
        cannot |= {"core_hog", "bandwidth_hog"}
    if script in FIXED_BATCH:
        cannot.add("larger_batch")
    if script not in WITH_RELU:
        cannot.add("slower_kernel")
    return {kind: weight for kind, weight in (ONE_RANK | ONLY_HERE).items() if kind not in cannot}


def fault_of(rng: np.random.Generator, kind: str, ranks: tuple[int, ...], steps: int, *, staged: bool) -> Fault:
    fault = draw_fault(rng, kind, ranks, steps, possible_places("pipeline" if staged else "ddp", False))
    return replace(fault, place="blocks") if kind == "extra_layers" else fault


def one_of(rng: np.random.Generator, choices: Any) -> Any:  # noqa: ANN401 -- whatever a script is given
    """One of the choices as it stands there; numpy would make strings of what is mixed."""
    return choices[int(rng.integers(len(choices)))]


Choices = Mapping[str, tuple[Any, ...]]
YES_OR_NO = (True, False)


def transformer(ranks: int) -> Choices:
    """Narrower where more ranks share the cores."""
    return {
        "width": (64, 96, 128) if ranks <= 4 else (48, 64, 96),
        "layers": (2, 3, 4) if ranks <= 4 else (1, 2, 3),
        "batch": (8, 12, 16),
        "length": (16, 32),
    }


SCRIPTS: Mapping[str, Callable[[int], Choices]] = {
    "gpt": lambda ranks: {
        **transformer(ranks),
        "batch": (4, 8),
        "accumulate": (1, 2, 4),
        "fused_attention": YES_OR_NO,
        "bucket_mb": (25, 1),
    },
    "cnn": lambda _ranks: {
        "width": (8, 12, 16),
        "depth": (1, 2),
        "size": (16, 24),
        "batch": (8, 16),
        "sync_buffers": YES_OR_NO,
    },
    "flat": lambda _ranks: {
        "inputs": (128, 256),
        "hidden": (256, 384, 512),
        "layers": (3, 4, 5),
        "batch": (128, 256, 384),
        "mode": ("all_reduce", "all_gather", "sharded", "per_tensor"),
    },
    "recsys": lambda _ranks: {
        "width": (16, 32),
        "bag": (2, 4, 8),
        "tables": (2, 3),
        "rows": (2000, 20_000),
        "hidden": (128, 256, 384),
        "batch": (192, 320, 512),
        "exchange": ("all_to_all", "all_to_all", "gather"),
    },
    "rnn": lambda _ranks: {
        "width": (48, 64),
        "hidden": (48, 64, 96),
        "layers": (1, 2),
        "batch": (8, 16),
        "shortest": (5, 10, 20),
        "longest": (24, 32, 40),
        "cell": ("gru", "lstm"),
        "both_ways": YES_OR_NO,
        "logs": YES_OR_NO,
    },
    "gan": lambda _ranks: {
        "what": ("gan", "gan", "distill"),
        "width": (12, 16, 24),
        "noise": (64,),
        "batch": (16, 24, 32),
    },
    "stages": lambda ranks: {
        "width": (64, 96, 128),
        "blocks": (1, 2, 3),
        "microbatches": (ranks, ranks + 2, 2 * ranks),
        "batch": (2, 4, 8),
        "length": (16, 32),
        "way": ("blocking", "asynchronous", "1f1b", "gpipe"),
        "tells_loss": YES_OR_NO,
    },
    # The last is not used: without it the seeds that were recorded would draw other takes.
    "tensor": lambda ranks: {**transformer(ranks), "over": (2, ranks), "fetch_once": YES_OR_NO},
    "local": lambda ranks: {
        **transformer(ranks),
        "every": (2, 3, 4, 6),
        "flat": YES_OR_NO,
        "checkpoint_every": (0, 0, 2, 4),
    },
    "zero": lambda ranks: {**transformer(ranks), "as_bucket_view": YES_OR_NO},
    "sharded": lambda ranks: {**transformer(ranks), "reshard": YES_OR_NO, "clip": YES_OR_NO},
    "hooked": lambda ranks: {
        **transformer(ranks),
        "hook": (None, "fp16", "allreduce", "clip"),
        "static_graph": YES_OR_NO,
        "as_bucket_view": YES_OR_NO,
        "synchronised_norm": YES_OR_NO,
        "validates": (None, "all", "first", "first"),
        "validate_every": (2, 3, 4),
        "validate_batches": (1, 2, 3),
        "checkpoint_every": (0, 2, 3, 5),
    },
    "experts": lambda ranks: {**transformer(ranks), "skew": (0.5, 1.0, 3.0)},
    "ring": lambda ranks: {**transformer(ranks), "layers": (1, 2, 3)},
    "manual": lambda ranks: {
        **transformer(ranks),
        "asynchronous": YES_OR_NO,
        "barrier": (True, False, False),
        "metrics": (None, "objects", "reduce"),
        "checkpoint_every": (0, 3, 4),
    },
}
"""A script's name → what it is given, and the choices of it, for so many ranks."""
