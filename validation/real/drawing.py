"""What a take is: a training job, its surroundings and its faults, drawn from a seed and nothing else.

`draw(seed)` gives the same take everywhere. Half of the takes are healthy. Only what can be run is drawn:
a fault that a layout cannot have is not among those that the layout chooses from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar

import numpy as np

Model = Literal["attention", "convolution", "mlp", "embedding"]
Parallel = Literal["ddp", "fsdp2", "pipeline", "two_groups"]
Pinning = Literal["own_core", "round_robin", "shared_core", "none"]
Load = Literal["none", "steady", "bursts", "other_job"]
Place = Literal["forward", "blocks", "backward", "optimizer", "input", "kernel", "outside", "end", "end_met"]
"""At the step's end the others go on meanwhile (`end`), or wait at a barrier (`end_met`)."""

Name = TypeVar("Name", bound=str)

# What is wrong with one rank; the ways are those of faults.py, and of outside.py where the place is "outside".
ONE_RANK = {
    "extra_work": 1.0,
    "larger_batch": 1.0,
    "slower_kernel": 1.0,
    "slow_input": 1.0,
    "busy_python": 1.0,
    "sleep": 1.0,
    "sigstop": 1.0,
    "nice": 0.7,
    "quota": 1.0,
    # These two need two ranks, each on a core of its own, which is drawn rarely; and the third two hosts.
    "core_hog": 2.0,
    "bandwidth_hog": 2.0,
    "garbage_collection": 1.0,
    "slow_link": 3.0,
}
ALL_RANKS = {
    "quota_on_all": 1.0,
    "busy_processes_x2": 0.5,
    "busy_processes_x4": 0.5,
    "threads_x2": 0.5,
    "threads_x4": 0.5,
    "stops_on_all": 1.0,
}
# Of jobs of several hosts: what one sends is slow, or what all do.
OF_NETWORKS = ("slow_link", "slow_links")
# What rank 0 alone does at the end of every n-th step: chores.py.
CHORES = ("checkpointing", "evaluating", "logging")
OUTSIDE = {"sigstop", "nice", "quota", "core_hog", "bandwidth_hog", *OF_NETWORKS} | set(ALL_RANKS)
CORES = 2
MICROBATCHES = 2
CHUNKS = 4
# Examples that one core trains on in a millisecond, in one block of each model at the narrower width.
EXAMPLES_PER_MS = {"attention": 3.3, "convolution": 3.5, "mlp": 100.0, "embedding": 150.0}
WIDTHS = {"attention": (96, 128), "convolution": (24, 32), "mlp": (384, 512), "embedding": (256, 384)}


@dataclass(frozen=True)
class Fault:
    """One thing wrong: what, with which ranks, how much of a step it is to cost, and from when on."""

    kind: str
    ranks: tuple[int, ...]
    severity: float
    # The recorded step, from 0, that it begins with; 0 is before the first.
    onset: int
    place: Place
    # The share of steps that it affects (sleep, sigstop); 1.0 means every step. Of a chore 1/n: every n-th step.
    share_of_steps: float


@dataclass(frozen=True, kw_only=True)
class AnyTake:
    """What is decided of any recording before it begins, whatever it trains."""

    cores: ClassVar[int] = CORES
    """Of the machine."""
    cores_per_rank: ClassVar[int] = 1
    lead_steps = 2
    """Before the recorded ones, faults and load included; what was drawn may have a field of this name."""
    # So with these.
    device = "cpu"
    threads = 1

    seed: int
    parallel: str
    ranks: int
    host_of_rank: tuple[int, ...]
    steps: int
    workers: int
    pinning: Pinning
    load: Load
    load_processes: int
    record_shapes: bool
    gzip: bool
    faults: tuple[Fault, ...]
    captured: bool = False
    """By Kair's capture, instead of torch.profiler alone."""

    @property
    def hosts(self) -> int:
        """How many hosts the ranks are on."""
        return len(set(self.host_of_rank))

    def cores_of(self, rank: int) -> set[int] | None:
        """The cores that the rank may run on; None for all."""
        if self.pinning == "none":
            return None
        if self.pinning == "shared_core":
            return {0}
        first = rank * self.cores_per_rank
        cores = min(self.cores, os.cpu_count() or 1)
        return {core % cores for core in range(first, first + self.cores_per_rank)}


@dataclass(frozen=True, kw_only=True)
class Take(AnyTake):
    """A job of drawn blocks."""

    parallel: Parallel
    model: Model
    width: int
    blocks: int  # of a rank
    examples: int  # of a rank in a step
    compile: bool
    bucket_mb: float


def draw(seed: int) -> Take:
    """The take of this seed."""
    rng = np.random.default_rng(seed)
    parallel: Parallel = pick(rng, {"ddp": 0.60, "fsdp2": 0.15, "pipeline": 0.12, "two_groups": 0.13})
    ranks = draw_ranks(rng, parallel)
    compiled = parallel == "ddp" and ranks <= 4 and rng.random() < 0.10
    steps = log_uniform_int(rng, 3, 40)
    model: Model = pick(rng, {"attention": 1, "convolution": 1, "mlp": 1, "embedding": 1})
    width, blocks, examples = draw_size(rng, model, ranks)
    hosts = 2 if rng.random() < 0.30 else 1
    pinning = draw_pinning(rng, ranks)
    kinds = draw_kinds(rng, possible_kinds(parallel, compiled, hosts, pinning), possible_shared_kinds(ranks))
    guilty = [int(rank) for rank in rng.permutation(ranks)]
    host_of_rank = draw_hosts(rng, ranks, hosts, guilty[0] if kinds[:1] == ["slow_link"] else None)
    places = possible_places(parallel, compiled)
    faults = tuple(
        draw_fault(rng, kind, tuple(range(ranks)) if kind in ALL_RANKS else (guilty[index],), steps, places)
        for index, kind in enumerate(kinds)
    )
    load, load_processes = draw_load(rng, "nice" in kinds)
    return Take(
        seed=seed,
        model=model,
        width=width,
        blocks=blocks,
        examples=examples,
        parallel=parallel,
        compile=compiled,
        ranks=ranks,
        host_of_rank=host_of_rank,
        steps=steps,
        bucket_mb=float(rng.choice([0.1, 0.5, 2.0, 25.0])),
        # A worker process fetches ahead, out of reach of a fault in the rank.
        workers=0 if {"slow_input", "larger_batch"} & set(kinds) else int(rng.random() < 0.4),
        pinning=pinning,
        load=load,
        load_processes=load_processes,
        record_shapes=bool(rng.random() < 0.6),
        gzip=bool(rng.random() < 0.7),
        faults=faults,
    )


def draw_pair(seed: int) -> Take:
    """A take with a fault of all ranks, of which each has a core of its own; it is recorded without the fault, too.

    So what the fault costs is known: it is the difference of two recordings, one after the other.
    """
    rng = np.random.default_rng((seed, 0x70616972))
    drawn = draw(seed)
    size = draw_size(rng, drawn.model, CORES)
    steps = int(rng.integers(20, 41))
    kind = list(ALL_RANKS)[seed % len(ALL_RANKS)]
    parallel: Parallel = pick(rng, {"ddp": 0.8, "fsdp2": 0.2})
    fault = draw_fault(rng, kind, tuple(range(CORES)), steps, {"forward": 1})
    return _with_own_cores(drawn, parallel, size, steps, (replace(fault, onset=0),))


def draw_own_cores(seed: int) -> Take:
    """A take of which each rank has a core of its own and nothing else runs: healthy, or with a fault of one rank.

    So ranks differ by what they do, not by who gets a core. A fault that shows beside a load only, or whose two ends
    are all that there is, is not drawn.
    """
    rng = np.random.default_rng((seed, 0x6F776E))
    drawn = draw(seed)
    parallel: Parallel = pick(rng, {"ddp": 0.8, "fsdp2": 0.2})
    size = draw_size(rng, drawn.model, CORES)
    steps = log_uniform_int(rng, 3, 40)
    possible = possible_kinds(parallel, False, 1, "own_core")
    kinds = [pick(rng, {kind: weight for kind, weight in possible.items() if kind != "nice"})] * (rng.random() < 0.5)
    guilty, places = (int(rng.integers(CORES)),), possible_places(parallel, False)
    faults = tuple(draw_fault(rng, kind, guilty, steps, places) for kind in kinds)
    return _with_own_cores(drawn, parallel, size, steps, faults)


def draw_chores(seed: int) -> Take:
    """A take as any other, but all that is special is what rank 0 does at the end of every n-th step.

    It is drawn to cost between nothing to speak of and half of the mean step: `severity` is of a step that has it.
    """
    rng = np.random.default_rng((seed, 0x63686F72))
    drawn = draw(seed)
    kind = CHORES[seed % len(CHORES)]
    every = int(pick(rng, {"1": 0.25, "2": 0.25, "5": 0.25, "10": 0.25}))
    share = float(np.exp(rng.uniform(np.log(0.001), np.log(0.5))))
    place: Place = pick(rng, {"end": 0.7, "end_met": 0.3})
    fault = Fault(kind, (0,), round(share * every, 4), 0, place, 1 / every)
    # So many steps that a chore of every tenth comes twice.
    return replace(drawn, steps=log_uniform_int(rng, 20, 50), faults=(fault,), workers=0)


def draw_network(seed: int) -> Take:
    """A take of two to four hosts, of which one has a slow link, or all have; it is recorded without that, too."""
    rng = np.random.default_rng((seed, 0x6E6574))
    drawn = draw(seed)
    hosts = int(pick(rng, {"2": 0.4, "3": 0.3, "4": 0.3}))
    of_host = int(rng.integers(1, 3))
    ranks = hosts * of_host
    two_dimensions = {"pipeline": 0.1, "two_groups": 0.1} if ranks >= 4 and ranks % 2 == 0 else {}
    parallel: Parallel = pick(rng, {"ddp": 0.6, "fsdp2": 0.2} | two_dimensions)
    width, blocks, examples = draw_size(rng, drawn.model, ranks)
    steps, kind = log_uniform_int(rng, 8, 40), OF_NETWORKS[seed % 2]
    guilty = (int(rng.integers(ranks)),) if kind == "slow_link" else tuple(range(ranks))
    fault = draw_fault(rng, kind, guilty, steps, {"forward": 1})
    load, load_processes = draw_load(rng, False)
    return replace(
        drawn,
        width=width,
        blocks=blocks,
        examples=examples,
        parallel=parallel,
        compile=False,
        ranks=ranks,
        host_of_rank=tuple(rank // of_host for rank in range(ranks)),
        steps=steps,
        pinning=draw_pinning(rng, ranks),
        load=load,
        load_processes=load_processes,
        faults=(replace(fault, onset=0),),
    )


def _with_own_cores(
    drawn: Take, parallel: Parallel, size: tuple[int, int, int], steps: int, faults: tuple[Fault, ...]
) -> Take:
    """As drawn, but of as many ranks as cores, with nothing beside them."""
    width, blocks, examples = size
    return replace(
        drawn,
        width=width,
        blocks=blocks,
        examples=examples,
        parallel=parallel,
        compile=False,
        ranks=CORES,
        host_of_rank=(0,) * CORES,
        steps=steps,
        workers=0,
        pinning="own_core",
        load="none",
        load_processes=0,
        faults=faults,
    )


def pick(rng: np.random.Generator, weights: Mapping[Name, float]) -> Name:
    names = list(weights)
    shares = np.array([weights[name] for name in names], dtype=float)
    return names[int(rng.choice(len(names), p=shares / shares.sum()))]


def log_uniform_int(rng: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))


def draw_ranks(rng: np.random.Generator, parallel: Parallel) -> int:
    """Two to eight, more often few; a multiple of two from four on where the layout has two dimensions."""
    shares = {"2": 30, "3": 15, "4": 30, "6": 10, "8": 15}
    if parallel in ("pipeline", "two_groups"):
        shares = {"4": 60, "6": 20, "8": 20}
    return int(pick(rng, {name: float(share) for name, share in shares.items()}))


def draw_size(rng: np.random.Generator, model: Model, ranks: int) -> tuple[int, int, int]:
    """Width, blocks and examples of a rank; a step takes less where more ranks share the cores."""
    longest_ms = 80 if ranks == 2 else 45 if ranks <= 4 else 25
    step_ms = float(np.exp(rng.uniform(np.log(15), np.log(longest_ms))))
    width, blocks = int(rng.choice(WIDTHS[model])), int(rng.integers(2, 5))
    wider = (width / WIDTHS[model][0]) ** 2
    whole = step_ms * EXAMPLES_PER_MS[model] / blocks / wider
    unit = MICROBATCHES * CHUNKS
    return width, blocks, max(unit, unit * round(whole / unit))


def draw_pinning(rng: np.random.Generator, ranks: int) -> Pinning:
    pinning: str = pick(rng, {"pinned": 0.45, "shared_core": 0.10, "none": 0.45})
    if pinning == "pinned":
        return "own_core" if ranks <= CORES else "round_robin"
    # More than four on one core would take too long.
    return "shared_core" if pinning == "shared_core" and ranks <= 4 else "none"


def possible_kinds(parallel: Parallel, compiled: bool, hosts: int, pinning: Pinning) -> Mapping[str, float]:
    """The faults of one rank that the layout can have, weighted."""
    possible = dict(ONE_RANK)
    if parallel in ("pipeline", "two_groups") or compiled:
        del possible["larger_batch"]
    if compiled:
        del possible["slower_kernel"]
    if pinning != "own_core":
        del possible["core_hog"], possible["bandwidth_hog"]
    if hosts == 1:
        del possible["slow_link"]
    return possible


def possible_shared_kinds(ranks: int) -> Mapping[str, float]:
    """The faults of all ranks, weighted; threads that wait for cores busily take too long where there are many."""
    most = {"threads_x2": 6, "threads_x4": 4}
    return {kind: weight for kind, weight in ALL_RANKS.items() if ranks <= most.get(kind, ranks)}


def draw_kinds(rng: np.random.Generator, possible: Mapping[str, float], shared: Mapping[str, float]) -> list[str]:
    """The kinds of faults: none, one, or two on different ranks; or one that all ranks share."""
    scope: str = pick(rng, {"none": 0.50, "one": 0.36, "two": 0.04, "all": 0.10})
    if scope == "none":
        return []
    if scope == "all":
        return [pick(rng, shared)]
    first = pick(rng, possible)
    if scope == "one":
        return [first]
    # A link slows a host, which may be the other's too.
    excluded = {first, "slow_link"}
    second = pick(rng, {kind: weight for kind, weight in possible.items() if kind not in excluded})
    return [first, second]


def draw_hosts(rng: np.random.Generator, ranks: int, hosts: int, slow: int | None) -> tuple[int, ...]:
    """The host of each rank: blocks of ranks; or the rank with the slow link alone on its host."""
    if hosts == 1:
        return (0,) * ranks
    if slow is not None and rng.random() < 0.5:
        return tuple(int(rank == slow) for rank in range(ranks))
    return tuple(int(rank >= (ranks + 1) // 2) for rank in range(ranks))


def possible_places(parallel: Parallel, compiled: bool) -> Mapping[Place, float]:
    """Where a fault between operators can be, weighted."""
    places: dict[Place, float] = {"forward": 1, "optimizer": 1}
    if parallel != "pipeline":
        places["backward"] = 1
    if not compiled:
        places["blocks"] = 2
    return places


def draw_fault(
    rng: np.random.Generator, kind: str, ranks: tuple[int, ...], steps: int, places: Mapping[Place, float]
) -> Fault:
    severity = float(np.exp(rng.uniform(np.log(0.03), np.log(2.0))))
    late = rng.random() < 0.2
    onset = int(rng.integers(1, steps)) if late else 0
    fixed: dict[str, Place] = {"slow_input": "input", "larger_batch": "input", "slower_kernel": "kernel"}
    place: Place = "outside" if kind in OUTSIDE else fixed.get(kind) or pick(rng, places)
    seldom = kind in ("sleep", "sigstop") and rng.random() < 0.5
    return Fault(kind, ranks, round(severity, 4), onset, place, 0.3 if seldom else 1.0)


def draw_load(rng: np.random.Generator, needed: bool) -> tuple[Load, int]:
    """What else runs on the machine, and in how many processes; `needed` where a fault shows beside a load only."""
    load: Load = pick(rng, {"none": 0.50, "steady": 0.15, "bursts": 0.20, "other_job": 0.15})
    if needed and load in ("none", "bursts"):
        load = "steady"
    if load == "none":
        return load, 0
    return load, 2 if needed or load == "other_job" else int(rng.integers(1, 3))
