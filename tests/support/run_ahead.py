"""Small jobs whose hosts run ahead of their devices, run event by event and written as Kineto traces; times in µs.

Every rank launches its kernels one after another, then an all-reduce on a stream of its own, then what waits for that.
Nothing waits for the device but a launch that meets a full queue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.kineto_builder import Event, annotation, event, kernel, launch, op, step, trace, write

LAUNCH, CALL_EVERY, LATENCY, BETWEEN, FREED = 4.0, 6.0, 3.0, 1.0, 1.0
"""What a launch takes, the host's own time before it, from its return to the kernel's begin, from one kernel to the
next, and from the end that makes room in the queue to the return of the launch that waited for it."""
ALL_REDUCE = 40.0


@dataclass(frozen=True)
class AheadJob:
    """What its ranks run."""

    ranks: int = 4
    steps: int = 6
    kernels: Sequence[float] = (60.0, 80.0, 50.0, 70.0)
    """What each kernel of a step takes."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """rank → by what all its kernels take longer."""
    fetch: Mapping[int, float] = field(default_factory=dict)
    """rank → what its host fetches for in each step."""
    queue: int | None = 12
    """Launches under way at most, of a process; None: no queue."""
    warm_up: int = 8
    """Steps before the recording."""
    synchronised: bool = False
    """Whether each step ends with a synchronisation."""


@dataclass
class _Rank:
    host: float = 0.0
    compute: float = 0.0
    transfers: float = 0.0
    over: list[float] = field(default_factory=list)
    """When each launched operation was over, in the order of launches."""
    events: list[list[Event]] = field(default_factory=list)
    """Of each step."""


def period_of(job: AheadJob, steps: int = 60) -> float:
    """The device's period in the long run, µs."""
    ranks = _run(job, job.warm_up + steps)
    each = len(job.kernels) + 2
    return (ranks[0].over[-1] - ranks[0].over[(job.warm_up - 1) * each + each - 1]) / steps


def write_ahead_job(folder: Path, job: AheadJob) -> Path:
    """One trace per rank, of the steps after the warm-up; what was launched before has no launch in it."""
    for number, rank in enumerate(_run(job, job.warm_up + job.steps)):
        begin = next(one["ts"] for one in rank.events[job.warm_up] if one["name"].startswith("ProfilerStep"))
        kept = [one for of_step in rank.events[job.warm_up :] for one in of_step]
        before = [one for of_step in rank.events[: job.warm_up] for one in of_step]
        kept += [one for one in before if one["cat"] == "kernel" and one["ts"] > begin]
        end = max(one["ts"] + one["dur"] for one in kept)
        kept.append(event("cudaDeviceSynchronize", "cuda_runtime", rank.host + 50, max(end - rank.host - 50, 1)))
        write(folder / f"rank{number}.json.gz", trace(kept, rank=number, world=job.ranks))
    return folder


def _run(job: AheadJob, steps: int) -> list[_Rank]:
    ranks = [_Rank(host=100_000.0) for _ in range(job.ranks)]
    for number in range(steps):
        for at, rank in enumerate(ranks):
            rank.events.append([])
            _begin(job, at, rank)
        for place, length in enumerate(job.kernels):
            for at, rank in enumerate(ranks):
                _kernel(job, rank, f"kernel{place}", length * job.slow.get(at, 1.0))
        arrived = [_launched(job, rank, "c10d::allreduce_") for rank in ranks]
        began = [max(call, rank.transfers, rank.compute) for call, rank in zip(arrived, ranks, strict=True)]
        over = max(began) + ALL_REDUCE
        for rank, start in zip(ranks, began, strict=True):
            name, correlation = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", len(rank.over) + 1
            rank.events[-1].append(kernel(name, start, over - start, correlation, stream=20))
            rank.transfers = over
            rank.over.append(over)
        for at, rank in enumerate(ranks):
            _kernel(job, rank, "optimizer", 20 * job.slow.get(at, 1.0), after=rank.transfers)
            _end(job, number, rank)
    return ranks


def _begin(job: AheadJob, at: int, rank: _Rank) -> None:
    rank.events[-1].append(step(0, rank.host, 0.0))
    rank.host += 2
    if fetch := job.fetch.get(at):
        rank.events[-1].append(
            annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", rank.host, fetch)
        )
        rank.host += fetch


def _launched(job: AheadJob, rank: _Rank, name: str) -> float:
    """Calls a launch; returns when what it launches may begin."""
    called, number = rank.host + CALL_EVERY, len(rank.over)
    back = called + LAUNCH
    if job.queue is not None and number >= job.queue:
        back = max(back, rank.over[number - job.queue] + FREED)
    rank.events[-1].append(op(name, called - 2, back - called + 3))
    rank.events[-1].append(launch(called, back - called, number + 1))
    rank.host = back
    return back + LATENCY


def _kernel(job: AheadJob, rank: _Rank, name: str, length: float, after: float = 0.0) -> None:
    start = max(_launched(job, rank, f"aten::{name}"), rank.compute + BETWEEN, after)
    rank.compute = start + length
    rank.events[-1].append(kernel(name, start, length, len(rank.over) + 1))
    rank.over.append(rank.compute)


def _end(job: AheadJob, number: int, rank: _Rank) -> None:
    if job.synchronised:
        done = max(rank.compute, rank.host + 2)
        rank.events[-1].append(event("cudaDeviceSynchronize", "cuda_runtime", rank.host + 1, done + 3 - rank.host))
        rank.host = done + 4
    rank.host += 2
    mark = rank.events[-1][0]
    mark |= step(number, mark["ts"], rank.host - mark["ts"])
    rank.host += 1
