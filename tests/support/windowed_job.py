"""Small jobs without marks of the profiler, recorded in windows that begin anywhere; times in µs.

An iteration of every rank is a number of layers, a GEMM and an all-reduce each, and a kernel that ends it. Kernels run
one after another; an all-reduce ends for all ranks at once. The host launches an iteration and waits for it.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from support.kineto_builder import Event, annotation, event, kernel, launch, op, trace, write

ALL_REDUCE, LAST, EVERY, JITTER = 30.0, 120.0, 10.0, 0.03
"""What these take, from one launch to the next, and by what a GEMM's time varies."""
BASE_NS = 1_764_000_000_000_000_000
GROUP = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": 4, "dtype": "Float"}


@dataclass(frozen=True)
class WindowedJob:
    """What its ranks run, and what is recorded of it."""

    ranks: int = 4
    iterations: int = 24
    layers: int = 3
    gemm: float = 400.0
    slow: Mapping[int, float] = field(default_factory=lambda: {1: 1.2})
    """rank → by what its GEMMs take longer."""
    last: str = "void multi_tensor_apply_kernel<AdamFunctor>"
    """The kernel that ends an iteration."""
    marks: str | None = None
    """The annotation around an iteration, or with a `#` around its last operator."""
    host: bool = True
    """Whether the host is recorded, or kernels alone."""
    numbered: bool = False
    """Whether collectives carry their numbers."""
    ahead: Mapping[int, float] = field(default_factory=dict)
    """rank → by what its clock is ahead."""
    known: bool = True
    """Whether files say their ranks."""
    seed: int = 0


@dataclass
class _Rank:
    events: list[Event] = field(default_factory=list)
    host: float = 0.0
    device: float = 0.0


def lost_us(job: WindowedJob) -> float:
    """What the slow ranks cost an iteration: the same job without them takes so much less."""
    return (_end(_run(job)) - _end(_run(replace(job, slow={})))) / job.iterations


def write_windows(
    folder: Path, job: WindowedJob, windows: Mapping[int, tuple[float, float]] | None = None, names: Sequence[str] = ()
) -> Path:
    """A trace of each rank, of what began and ended in its window: from and to a share of the whole time."""
    ranks = _run(job)
    for rank, of in enumerate(ranks):
        first, last = (share * _end(ranks) for share in (windows or {}).get(rank, (0.0, 1.0)))
        kept = [one for one in of.events if one["ts"] >= first and one["ts"] + one["dur"] <= last + 1e-6]
        moved = [{**one, "ts": 1e6 + one["ts"] + job.ahead.get(rank, 0.0)} for one in kept]
        content = trace(moved, rank=rank if job.known else None, world=job.ranks, baseTimeNanoseconds=BASE_NS)
        write(folder / (names[rank] if names else f"rank{rank}.json"), content)
    return folder


def _end(ranks: Sequence[_Rank]) -> float:
    return max(float(one["ts"] + one["dur"]) for rank in ranks for one in rank.events)


def _run(job: WindowedJob) -> list[_Rank]:
    chance = random.Random(job.seed)
    ranks = [_Rank() for _ in range(job.ranks)]
    for iteration in range(job.iterations):
        begun = [rank.host for rank in ranks]
        launched = [_launch(job, rank, iteration) for rank in ranks]
        for layer in range(job.layers):
            for number, rank in enumerate(ranks):
                takes = job.gemm * job.slow.get(number, 1.0) * (1 + chance.uniform(-JITTER, JITTER))
                _kernel(rank, "gemm_128x128", takes, launched[number][2 * layer])
            over = max(rank.device for rank in ranks) + ALL_REDUCE
            for number, rank in enumerate(ranks):
                told = {**GROUP, "Seq": 500 + iteration * job.layers + layer} if job.numbered else {}
                can_run, correlation = launched[number][2 * layer + 1]
                begin = max(rank.device, can_run)
                reduce = kernel("ncclDevKernel_AllReduce_Sum_f32", begin, over - begin, correlation, stream=20, **told)
                rank.events.append(reduce)
                rank.device = over
        for number, rank in enumerate(ranks):
            _kernel(rank, job.last, LAST, launched[number][-1])
            if job.host:
                wait = rank.device - rank.host
                sync = event("cudaDeviceSynchronize", "cuda_runtime", rank.host, wait, correlation=10**6 + iteration)
                rank.events.append(sync)
            rank.host = rank.device + chance.uniform(1, 4)
            if job.marks and "#" not in job.marks:
                span = annotation(job.marks, begun[number], rank.host - begun[number])
                on_stream = {**span, "cat": "gpu_user_annotation", "pid": 0, "tid": 7}
                rank.events.append(span if job.host else on_stream)
    return ranks


def _launch(job: WindowedJob, rank: _Rank, iteration: int) -> list[tuple[float, int]]:
    """Launches an iteration; from when on each kernel can run, and the number of its launch."""
    last = "aten::_fused_adam_" if "Adam" in job.last else "aten::item"
    names = [*["aten::mm", "c10d::allreduce_"] * job.layers, last]
    launched = []
    for place, name in enumerate(names):
        begin, correlation = rank.host + EVERY, iteration * len(names) + place + 1
        launched.append((begin + 8, correlation))
        rank.host = begin
        if not job.host:
            continue
        rank.events += [op(name, begin, 9), launch(begin + 2, 3, correlation)]
        if name == last and job.marks and "#" in job.marks:
            rank.events.append(annotation(job.marks, begin - 1, 11))
    rank.host += EVERY
    return launched


def _kernel(rank: _Rank, name: str, takes: float, launched: tuple[float, int]) -> None:
    begin = max(rank.device, launched[0])
    rank.events.append(kernel(name, begin, takes, launched[1]))
    rank.device = begin + takes
