"""Simulates small jobs for kinds.py: what each rank's host does and launches in a step, and when devices run it.

Every rank has a list of operations for a step (`Op`); a fault is a function that changes the list of one rank and step.
The noise of an operation is drawn by its place in the healthy list, so that a job and the same job without its faults
differ by the faults alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from device_operations import KERNELS

Floats = npt.NDArray[np.float64]
What = Literal["kernel", "collective", "host", "open", "close", "read", "free"]
MS: Final = 1e6
LAUNCH_NS, LATENCY_NS, GAP_NS, WAKE_NS = 5_000.0, 4_000.0, 1_000.0, 10_000.0
STREAMS: Final = {"world": 24, "reduce": 28, "tp": 26, "cp": 27}


@dataclass(frozen=True)
class Op:
    """One thing a rank's host does: a launch, work of its own, a wait."""

    what: What
    name: str
    """Of the kernel or copy; of host work its name in the recording, '' for none."""
    ns: float
    """On the device, of a collective the transfer alone; of host work on the host."""
    scope: str = ""
    """The operator around the launch."""
    thread: int = 0
    """0: the main thread; 1: autograd's."""
    category: str = "cpu_op"
    group: str = "world"
    size: int = 0
    tag: str = ""
    """What later operations await this collective by."""
    awaits: str = ""
    stream: int = 7
    shapes: tuple[tuple[int, ...], ...] = ()
    family: str = ""
    """For faults: gemm, attention, memory."""
    noise: int = -1
    """Its column in the drawn noise; −1 for none."""


READ: Final = Op("read", "Memcpy DtoH (Device -> Pinned)", 2e3, "aten::item", size=4)
"""The host reads a number, and waits for the device."""


@dataclass(frozen=True)
class Ran:
    """When something ran."""

    op: Op
    step: int
    launch: float
    launched: float
    begin: float
    end: float
    """Of host work `launch` to `launched`; of the rest on the device."""
    seq: int = 0


Fault = Callable[[int, int, list[Op]], list[Op]]
"""(rank, step, operations) → operations."""


@dataclass(frozen=True)
class Job:
    """A job to simulate, and how it is recorded."""

    layout: Literal["fsdp", "ddp", "tp", "cp"]
    ranks: int
    group: int = 1
    """Ranks of a tp or cp group."""
    layers: int = 3
    steps: int = 10
    first: int = 10
    """The number of the first recorded step."""
    warm_up: int = 2
    scale: float = 1.0
    """Of all work on the device."""
    links: float = 1.0
    """Of all transfers."""
    read_every: int = 1
    """The loss is read so often; 0: never (the host runs ahead)."""
    queue: int = 1024
    jitter: float = 0.015
    spread: float = 0.0015
    """Of the devices' persistent speeds."""
    seed: int = 0
    per_host: int = 8
    names: Literal["host and process", "host number", "rank"] = "host and process"
    """What files are named by; the second and the third name no host."""
    vendor: Literal["cuda", "xpu", "hip", "hpu"] = "cuda"
    models: tuple[str, ...] = ()
    """Of each rank's device; empty for one model."""
    host_ns: float = 7_000.0
    """Of an operator around a launch."""
    inline: bool = False
    """Collectives run on the computing stream, as in servers."""
    faults: tuple[Fault, ...] = field(default=(), compare=False)
    hosts: tuple[float, ...] = ()
    """Factors on each rank's host work; empty for 1."""

    @property
    def runs_ahead(self) -> bool:
        """Whether the host never waits within the recording."""
        return self.read_every != 1

    def members(self, group: str, rank: int) -> tuple[int, ...]:
        """The ranks of a rank's process group."""
        if group in ("tp", "cp"):
            first = rank - rank % self.group
            return tuple(range(first, first + self.group))
        if group == "dp":
            return tuple(range(rank % self.group, self.ranks, self.group))
        return tuple(range(self.ranks))


@dataclass(frozen=True)
class Run:
    """What was simulated: per rank what ran, and begin and end of each step's mark."""

    ran: list[list[Ran]]
    marks: list[list[tuple[float, float]]]
    over: list[float]
    """When the devices of all ranks were over with each step."""

    def step_ms(self, job: Job) -> float:
        """The mean of the recorded steps, from device end to device end."""
        first = job.warm_up - 1
        return (self.over[-1] - self.over[first]) / (len(self.over) - 1 - first) / MS


@dataclass(frozen=True)
class Noise:
    """Factors by step, rank and operation; of transfers by step and operation."""

    device: Floats
    host: Floats
    transfer: Floats

    def of(self, step: int, rank: int, op: Op) -> tuple[float, float]:
        """On the device and on the host."""
        if op.noise < 0:
            return 1.0, 1.0
        return float(self.device[step, rank, op.noise]), float(self.host[step, rank, op.noise])


def program(job: Job) -> list[Op]:
    """A healthy rank's step."""
    ops = [
        Op("host", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 120e3, category="user_annotation"),
        Op("kernel", "Memcpy HtoD (Pinned -> Device)", 4e3, "aten::copy_", size=65536),
    ]
    fsdp, cp, tp = job.layout == "fsdp", job.layout == "cp", job.layout == "tp"
    if fsdp:
        ops.append(_collective(job, "all_gather", 0.45, "ag0"))
    for layer in range(job.layers):
        if fsdp and layer + 1 < job.layers:
            ops.append(_collective(job, "all_gather", 0.45, f"ag{layer + 1}"))
        ops += _layer(job, layer, backward=False, awaits=f"ag{layer}" if fsdp else "", cp=cp, tp=tp)
    ops.append(_kernel("loss", 0.3, "aten::cross_entropy_loss", family="memory"))
    if fsdp:
        ops.append(_collective(job, "all_gather", 0.45, "bg0"))
    for layer in range(job.layers):
        if fsdp and layer + 1 < job.layers:
            ops.append(_collective(job, "all_gather", 0.45, f"bg{layer + 1}"))
        ops += _layer(job, layer, backward=True, awaits=f"bg{layer}" if fsdp else "", cp=cp, tp=tp)
        if fsdp:
            ops.append(_collective(job, "reduce_scatter", 0.5, f"rs{layer}"))
        elif job.ranks > job.group or cp:
            ops.append(_collective(job, "all_reduce", 0.6, f"ar{layer}", "dp" if tp else "world"))
    last = f"rs{job.layers - 1}" if fsdp else f"ar{job.layers - 1}"
    ops.append(replace(_kernel("norm", 0.06, "aten::_foreach_norm", family="memory"), awaits=last))
    ops += [_collective(job, "norm_all_reduce", 0.02, "norm"), Op("open", "Optimizer.step#AdamW.step", 0)]
    for part in range(4):
        ops.append(
            replace(_kernel("optimizer", 0.35, "aten::_fused_adamw_", family="memory"), awaits="" if part else "norm")
        )
    ops.append(Op("close", "", 0, category="user_annotation"))
    ops.append(READ)
    return [replace(op, noise=index) for index, op in enumerate(ops)]


def _kernel(label: str, ms: float, scope: str, *, thread: int = 0, family: str = "gemm", dims: int = 4096) -> Op:
    shapes = ((8192, 4096), (4096, dims)) if family == "gemm" else ((8192, dims),)
    return Op("kernel", KERNELS[label], ms * MS, scope, thread, shapes=shapes, family=family)


def _collective(job: Job, label: str, ms: float, tag: str, group: str = "world") -> Op:
    stream = (
        7 if job.inline else STREAMS["reduce" if label == "reduce_scatter" else "world" if group == "dp" else group]
    )
    size = 8 if label == "norm_all_reduce" else 58_720_256
    return Op("collective", label, ms * MS, group=group, size=size, tag=tag, stream=stream)


def _layer(job: Job, layer: int, *, backward: bool, awaits: str, cp: bool, tp: bool) -> list[Op]:
    thread, factor = (1, 2.0) if backward else (0, 1.0)
    suffix = "_backward" if backward else ""
    norm = "aten::native_layer_norm" + suffix
    gemm, side = ("gemm_backward", "b") if backward else ("gemm", "f")
    attention = _kernel(
        "attention" + suffix,
        0.6 * factor,
        f"flash_attn::_flash_attn_{'back' if backward else 'for'}ward",
        thread=thread,
        family="attention",
    )
    made = [
        replace(_kernel("layer_norm" + suffix, 0.06 * factor, norm, thread=thread, family="memory"), awaits=awaits),
        _kernel(gemm, 0.4 * factor, "aten::mm", thread=thread, dims=12288),
        attention,
        _kernel(gemm, 0.25 * factor, "aten::mm", thread=thread),
        _kernel("gelu", 0.05 * factor, "aten::add", thread=thread, family="memory"),
        _kernel("layer_norm" + suffix, 0.06 * factor, norm, thread=thread, family="memory"),
        _kernel(gemm, 0.55 * factor, "aten::mm", thread=thread, dims=11008),
        _kernel("gelu", 0.07 * factor, "aten::silu" + suffix, thread=thread, family="memory"),
        _kernel(gemm, 0.5 * factor, "aten::mm", thread=thread, dims=11008),
    ]
    if cp:
        tag = f"kv{side}{layer}"
        made.insert(2, replace(_collective(job, "all_gather", 0.15 * factor, tag, "cp")))
        made[3] = replace(made[3], awaits=tag)
    if tp:
        for at, name in ((4, "a"), (len(made) + 1, "m")):
            made.insert(at, _collective(job, "all_reduce", 0.12, f"t{name}{side}{layer}", "tp"))
        made[5] = replace(made[5], awaits=f"ta{side}{layer}")
        made.append(
            replace(_kernel("gelu", 0.03, "aten::add", thread=thread, family="memory"), awaits=f"tm{side}{layer}")
        )
    return made


class _Rank:
    def __init__(self, speed: float, host: float) -> None:
        self.speed, self.host = speed, host
        self.now, self.free = 0.0, 0.0
        self.streams: dict[int, float] = {}
        self.tags: dict[str, float] = {}
        self.ends: list[float] = []
        self.open: list[tuple[Op, float]] = []
        self.ran: list[Ran] = []
        self.seq: dict[str, int] = {}

    def device_end(self) -> float:
        return max([self.free, *self.streams.values()])


def run(job: Job) -> Run:
    """Lets the job run; its recorded steps come after `warm_up` others."""
    base = program(job)
    random = np.random.default_rng((job.seed, 1))
    steps = job.warm_up + job.steps
    shape = (steps, job.ranks, len(base))
    device = 1 + job.jitter * random.standard_normal(shape)
    host = np.exp(0.06 * random.standard_normal(shape))
    speeds = 1 + job.spread * random.standard_normal(job.ranks)
    noise = Noise(device, host, 1 + 0.02 * np.abs(random.standard_normal((steps, len(base)))))
    ranks = [_Rank(speed, host) for speed, host in zip(speeds, job.hosts or [1.0] * job.ranks, strict=True)]
    marks: list[list[tuple[float, float]]] = [[] for _ in ranks]
    over = []
    for step in range(steps):
        lists = []
        for number in range(job.ranks):
            ops = base
            for fault in job.faults:
                ops = fault(number, step - job.warm_up + job.first, ops)
            lists.append(ops)
        begins = [rank.now for rank in ranks]
        _step(job, step, ranks, lists, noise)
        for rank, begin, mark in zip(ranks, begins, marks, strict=True):
            mark.append((begin, rank.now))
        over.append(max(rank.device_end() for rank in ranks))
    return Run([rank.ran for rank in ranks], marks, over)


def _step(job: Job, step: int, ranks: Sequence[_Rank], lists: Sequence[Sequence[Op]], noise: Noise) -> None:
    """Runs each rank up to its next collective, has the groups leave it together, and goes on."""
    at = [0] * len(ranks)
    while True:
        waiting: dict[int, tuple[Op, float, float, float]] = {}
        for number, rank in enumerate(ranks):
            while at[number] < len(lists[number]):
                op = lists[number][at[number]]
                at[number] += 1
                factors = noise.of(step, number, op)
                if op.what == "collective":
                    waiting[number] = (op, *_join(job, rank, op, factors[1]))
                    break
                _do(job, step, rank, op, factors)
        if not waiting:
            return
        for number, (op, launch, launched, begin) in waiting.items():
            members = job.members(op.group, number)
            factor = noise.transfer[step, op.noise] if op.noise >= 0 else 1.0
            end = max(waiting[member][3] for member in members) + op.ns * job.links * factor
            rank = ranks[number]
            rank.seq[op.group] = rank.seq.get(op.group, 0) + 1
            rank.streams[op.stream] = rank.tags[op.tag] = end
            if op.stream == 7:
                rank.free = end + GAP_NS
            rank.ends.append(end)
            rank.ran.append(Ran(op, step, launch, launched, begin, end, rank.seq[op.group]))


def _launch(job: Job, rank: _Rank, taken: float) -> tuple[float, float]:
    """The host's launch, which blocks while the queue is full."""
    launch = rank.now + taken / 2
    launched = launch + LAUNCH_NS * rank.host
    if len(rank.ends) >= job.queue:
        launched = max(launched, rank.ends[-job.queue] + 1_000)
    rank.now = launched + taken / 4
    return launch, launched


def _join(job: Job, rank: _Rank, op: Op, host: float) -> tuple[float, float, float]:
    launch, launched = _launch(job, rank, 2.5 * job.host_ns * rank.host * host)
    return launch, launched, max(launched + LATENCY_NS, rank.free, rank.streams.get(op.stream, 0.0))


def _do(job: Job, step: int, rank: _Rank, op: Op, noise: tuple[float, float]) -> None:
    on_device, host = noise
    if op.what == "open":
        rank.open.append((op, rank.now))
    elif op.what == "close":
        opened, since = rank.open.pop()
        rank.ran.append(Ran(replace(opened, what="host", category=op.category), step, since, rank.now, 0, 0))
    elif op.what in ("host", "free"):
        begin = rank.now
        if op.what == "free":
            rank.now = max(rank.now, rank.device_end())
        rank.now += op.ns * (host if op.noise >= 0 else 1.0)
        rank.ran.append(Ran(op, step, begin, rank.now, 0, 0))
    elif op.what == "kernel" or op.noise < 0 or (job.read_every and (step + 1) % job.read_every == 0):
        launch, launched = _launch(job, rank, job.host_ns * rank.host * host)
        if op.awaits:
            rank.free = max(rank.free, rank.tags.get(op.awaits, 0.0) + GAP_NS)
        begin = max(rank.free, launched + LATENCY_NS)
        if op.what == "read":
            begin = max(begin, rank.device_end())
        scaled = op.ns * job.scale if op.family else op.ns
        end = begin + scaled * on_device * rank.speed
        rank.free = rank.streams[7] = end + GAP_NS
        rank.ends.append(end)
        rank.ran.append(Ran(op, step, launch, launched, begin, end))
        if op.what == "read":
            waits_since = rank.now
            rank.now = max(rank.now, end) + WAKE_NS
            rank.ran.append(
                Ran(replace(op, what="host", name="wait", category="wait"), step, waits_since, rank.now, 0, 0)
            )
