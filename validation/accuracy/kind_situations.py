"""The situations of kinds.py: how each is drawn, and what is true of it."""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
from compute_faults import SlowGpu
from kinds_files import START_NS, write
from kinds_jobs import MS, Fault, Job, Op, Run, program, run
from kineto import BASE_NS, write_kineto
from layouts import STANDARD
from simulator import JobSpec, simulate

Random = np.random.Generator
LEAST_SHARE: Final = 0.03
"""A culprit that costs less of the step is drawn anew: the smallest size that was asked for."""
SHARED_SHARE: Final = 0.06
"""The same of what no rank is to blame for: less than the smallest share that the verdict speaks of is none."""
FREE_SHARE: Final = 0.004
"""What may cost nothing costs less than this."""
MODELS: Final = (
    ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", 2.1),
    ("NVIDIA H200", "NVIDIA H100 PCIe", 1.4),
    ("NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB", 2.4),
)


@dataclass(frozen=True)
class Truth:
    """What is right to say."""

    about: str
    verdicts: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    """To accuse, all of them; empty for nobody."""
    cause: str = ""
    """A pattern of the finding's cause; '' where there is no finding."""
    operator: str = ""
    steps: tuple[int, ...] = ()
    """That the answer has to name."""
    told: tuple[str, ...] = ()
    """Patterns that the text has to hold."""
    healthy: bool = False
    ms: float = 0.0
    """Of the mean step: without the fault it is shorter by this."""
    step_ms: float = 0.0


@dataclass(frozen=True)
class Situation:
    """A job, what is done to it, and the truth but for its cost."""

    job: Job
    truth: Truth
    faults: tuple[Fault, ...] = ()
    left_out: tuple[int, ...] = ()
    least: float = LEAST_SHARE
    """Of the step; else it is drawn anew."""
    most: float = 1.0
    hosts: tuple[float, ...] = ()
    clock_csv: int | None = None
    """The rank whose GPU is hot in nvidia-smi's CSV."""


Kind = Callable[[Random], Situation]
STRAGGLER, JOB_WIDE, QUIET, UNSURE = ("straggler",), ("job_wide",), ("no_straggler",), ("inconclusive",)
HEALTHY: Final = Truth("healthy", ("no_straggler", "job_wide"), healthy=True)


def draw(kind: str, seed: int, take: int, folder: Path) -> Truth:
    """Writes a job's recording into `folder` and returns what is true of it."""
    key = zlib.crc32(kind.encode())
    if kind in ROLES:
        return _of_roles(np.random.default_rng((key, seed, take)), seed * 1000 + take, folder, slow=ROLES[kind])
    for attempt in range(40):
        random = np.random.default_rng((key, seed, take, attempt))
        situation = KINDS[kind](random)
        job = situation.job
        made = run(replace(job, faults=situation.faults, hosts=situation.hosts))
        cost = made.step_ms(job) - run(job).step_ms(job) if situation.faults or situation.hosts else 0.0
        if situation.least <= cost / made.step_ms(job) <= situation.most or (
            situation.truth.healthy and not situation.faults
        ):
            break
    else:
        raise ValueError(f"{kind} {seed} {take}: no size fits")
    clocks = (random.uniform(-0.9, 0.9, job.ranks) * MS).astype(int).tolist()
    clocks[0] += int(38 * MS) if random.random() < 0.1 else 0
    write(job, made, folder, clocks, left_out=situation.left_out)
    if situation.clock_csv is not None:
        _write_clocks(job, made, situation.clock_csv, folder)
    about = f"{job.layout}{job.ranks} {situation.truth.about}{', run ahead' if job.runs_ahead else ''}"
    return replace(situation.truth, about=about, ms=cost, step_ms=made.step_ms(job))


def any_job(random: Random, layouts: Sequence[str] = ("fsdp", "ddp", "tp", "cp"), **fixed: Any) -> Job:  # noqa: ANN401
    """A layout of 2 to 16 ranks that runs ahead or not, on hosts with names or without."""
    layout = str(random.choice(layouts))
    group = int(random.choice([2, 4])) if layout in ("tp", "cp") else 1
    ranks = int(random.choice([2, 4, 8, 8, 16] if group == 1 else [4, 8, 16]))
    chosen: dict[str, Any] = {
        "layout": layout,
        "ranks": max(ranks, 2 * group if layout == "tp" else group),
        "group": group,
        "layers": int(random.integers(2, 4)),
        "steps": int(random.integers(9, 13)),
        "first": int(random.integers(3, 60)),
        "scale": float(random.uniform(0.6, 1.6)),
        "jitter": float(random.uniform(0.01, 0.03)),
        "read_every": int(random.choice([1, 1, 0, 4])),
        "per_host": int(random.choice([4, 8])),
        "names": str(random.choice(["host and process", "host and process", "host number", "rank"])),
        "seed": int(random.integers(1 << 30)),
        **fixed,
    }
    job = Job(**chosen)
    if job.runs_ahead:
        launches = sum(op.what in ("kernel", "collective") for op in program(job))
        job = replace(job, queue=int(launches * random.uniform(0.4, 2.0)), warm_up=8)
    return job


def synced(random: Random, layouts: Sequence[str] = ("fsdp", "ddp", "tp", "cp"), **fixed: Any) -> Job:  # noqa: ANN401
    """The same, whose hosts wait for the device in every step."""
    return any_job(random, layouts, read_every=1, **fixed)


# What is done to a job.


def slower(factors: dict[int, float], family: str = "", since: int = 0) -> Fault:
    """Ranks take longer in all kernels, or those of a family."""

    def change(rank: int, step: int, ops: list[Op]) -> list[Op]:
        if rank not in factors or step < since:
            return ops
        return [_times(op, factors[rank]) if op.family and family in op.family else op for op in ops]

    return change


def added(where: Callable[[int, int], Sequence[Op]], at: float = 1.0) -> Fault:
    """More operations for (rank, step), after that part of the step's list; 1: behind all else."""

    def change(rank: int, step: int, ops: list[Op]) -> list[Op]:
        new = where(rank, step)
        place = len(ops) if at == 1.0 else round(at * len(ops))
        return [*ops[:place], *new, *ops[place:]] if new else ops

    return change


def fetching(where: Callable[[int, int], float]) -> Fault:
    """The fetch of (rank, step) takes so long; 0: as ever."""

    def change(rank: int, step: int, ops: list[Op]) -> list[Op]:
        ns = where(rank, step)
        return [replace(ops[0], ns=ns), *ops[1:]] if ns else ops

    return change


def _times(op: Op, factor: float) -> Op:
    return replace(op, ns=op.ns * factor)


def _around(name: str, *ops: Op, category: str = "cpu_op") -> list[Op]:
    return [Op("open", name, 0), *ops, Op("close", "", 0, category=category)]


def _pause(ns: float, mark: str = "") -> list[Op]:
    """The host does something that nothing shows, or its mark alone."""
    return _around(mark, Op("host", "", ns), category="user_annotation") if mark else [Op("host", "", ns)]


def _compiling(ns: float) -> list[Op]:
    inner = Op("host", "compile_fx_inner (dynamo_timed)", 0.6 * ns)
    return _around("_compile.compile_inner (dynamo_timed)", Op("host", "", 0.37 * ns), inner, Op("host", "", 0.03 * ns))


def _allocating(ns: float) -> list[Op]:
    calls = [Op("free", "cudaFree", 0.15 * ns, thread=1, category="runtime")]
    parts = (("cudaFree", 0.15), ("cudaMalloc", 0.3), ("cudaMalloc", 0.4))
    calls += [Op("host", name, part * ns, thread=1, category="runtime") for name, part in parts]
    return [Op("open", "aten::empty_strided", 0, thread=1), *calls, Op("close", "", 0)]


def _batch(kernels: int, each_ns: float, *, read: bool) -> list[Op]:
    """Forward alone: of evaluation or generation."""
    names = [op for op in program(Job("ddp", 2)) if op.family and op.thread == 0][:8]
    ops = [replace(names[index % 8], ns=each_ns, awaits="", noise=-1, family="") for index in range(kernels)]
    return [*ops, Op("read", "Memcpy DtoH (Device -> Pinned)", 2e3, "aten::item", size=4)] if read else ops


# Sizes.


def _share(random: Random, least: float = 0.04, most: float = 0.55) -> float:
    return float(np.exp(random.uniform(np.log(least), np.log(most))))


def _excess_ns(job: Job, share: float) -> float:
    """What has to come on top so that it is this share of the longer step."""
    return run(replace(job, steps=3)).step_ms(job) * MS * share / (1 - share)


def _device_factor(job: Job, share: float, family: str = "") -> float:
    own = sum(op.ns * job.scale for op in program(job) if op.family and family in op.family)
    return 1 + _excess_ns(job, share) / own


def _rank(random: Random, job: Job) -> int:
    return int(random.integers(job.ranks))


def _every(random: Random, job: Job, least: int = 2, most: int = 8) -> tuple[int, int, tuple[int, ...]]:
    """A period with at least two hits: it, its phase, and the recorded steps."""
    period = int(random.integers(least, min(most, job.steps // 2) + 1))
    phase = int(random.integers(period))
    return period, phase, tuple(step for step in _recorded(job) if step % period == phase)


def _recorded(job: Job) -> range:
    return range(job.first, job.first + job.steps)


def _middle(random: Random, job: Job) -> int:
    return job.first + int(random.integers(3, job.steps - 3))


# Healthy jobs.


def _healthy(random: Random) -> Situation:
    return Situation(any_job(random), HEALTHY)


def _healthy_many(random: Random) -> Situation:
    return Situation(_many(random), replace(HEALTHY, about="64 ranks"))


def _many(random: Random, **fixed: Any) -> Job:  # noqa: ANN401
    layout = str(random.choice(["ddp", "fsdp"]))
    return any_job(random, (layout,), ranks=64, layers=2, steps=6, per_host=8, read_every=1, **fixed)


def _side_work(random: Random) -> Situation:
    """Logging, saving, the host's part of evaluation on rank 0 in the time that its queue leaves."""
    job = any_job(random, read_every=0)
    period, phase, _ = _every(random, job, 1, 4)
    ns = _excess_ns(job, 0.5) * random.uniform(0.1, 0.6)
    mark = str(random.choice(["", "log_metrics", "save_checkpoint", "evaluate"]))
    fault = added(lambda rank, step: _pause(ns, mark) if rank == 0 and step % period == phase else ())
    about = f"rank 0 {mark or 'pauses'} {ns / MS:.1f} ms every {period}, absorbed"
    return Situation(job, replace(HEALTHY, about=about), (fault,), least=-1.0, most=FREE_SHARE)


def _warm_up(random: Random) -> Situation:
    job = any_job(random)
    factor = 1 + 0.3 * random.random()
    everyone = dict.fromkeys(range(job.ranks), factor)
    slow = slower(everyone)
    return Situation(
        job,
        replace(HEALTHY, about=f"first step {factor:.2f} × on all"),
        (lambda rank, step, ops: slow(rank, step, ops) if step == job.first else ops,),
        least=-1.0,
    )


def _spread(random: Random) -> Situation:
    return Situation(any_job(random, spread=0.006), replace(HEALTHY, about="devices differ by 0.6 %"))


def _short_batch(random: Random) -> Situation:
    job = any_job(random)
    rank, step, factor = _rank(random, job), _recorded(job)[-1 - int(random.integers(3))], random.uniform(0.4, 0.8)
    short = slower({rank: factor})
    return Situation(
        job,
        replace(HEALTHY, about=f"rank {rank} has a short batch in step {step}"),
        (lambda number, at, ops: short(number, at, ops) if at == step else ops,),
        least=-1.0,
    )


def _eval_on_all(random: Random) -> Situation:
    """All evaluate alike in one step: no fault at all."""
    job = any_job(random)
    step, kernels = _middle(random, job), int(random.integers(20, 80))
    fault = added(lambda _, at: _batch(kernels, 0.3 * MS, read=True) if at == step else ())
    truth = replace(
        HEALTHY, about=f"all evaluate in step {step}", verdicts=("no_straggler", "job_wide", "inconclusive")
    )
    return Situation(job, truth, (fault,), least=-1.0)


def _healthy_missing(random: Random) -> Situation:
    """Nobody waits for who left no trace."""
    job = any_job(random, ranks=int(random.choice([4, 8, 16])))
    missing = _rank(random, job)
    truth = Truth(f"rank {missing} left no trace, healthy", (*HEALTHY.verdicts, "inconclusive"), healthy=True)
    return Situation(job, truth, left_out=(missing,))


# One rank or several.


def _device(random: Random, **fixed: Any) -> Situation:  # noqa: ANN401
    job = any_job(random, **fixed)
    rank, factor = _rank(random, job), _device_factor(job, _share(random))
    truth = Truth(f"rank {rank}'s device {factor:.2f} ×", STRAGGLER, (rank,), "compute|device")
    return Situation(job, truth, (slower({rank: factor}),))


def _onset(random: Random) -> Situation:
    job = any_job(random)
    rank, since = _rank(random, job), _middle(random, job)
    factor = _device_factor(job, _share(random, 0.08))
    truth = Truth(
        f"rank {rank}'s device {factor:.2f} × since step {since}",
        STRAGGLER,
        (rank,),
        "compute|device",
        told=(rf"\b{since}\b",),
    )
    return Situation(job, truth, (slower({rank: factor}, since=since),))


def _several(random: Random) -> Situation:
    job = any_job(random, ranks=int(random.choice([8, 16])))
    ranks = sorted(random.choice(job.ranks, int(random.integers(2, job.ranks // 4 + 1)), replace=False).tolist())
    factor = _device_factor(job, _share(random, 0.06))
    factors = {rank: float(factor * random.choice([1.0, random.uniform(0.97, 1.03)])) for rank in ranks}
    truth = Truth(f"ranks {ranks}' devices {factor:.2f} ×", STRAGGLER, tuple(ranks), "compute|device")
    return Situation(job, truth, (slower(factors),))


def _node(random: Random, job: Job | None = None) -> Situation:
    """All ranks of one of four hosts."""
    job = job or any_job(random, ranks=16, per_host=4)
    host = int(random.integers(job.ranks // job.per_host))
    ranks = tuple(range(host * job.per_host, (host + 1) * job.per_host))
    factor = 1.1 if job.ranks == 64 else _device_factor(job, _share(random, 0.05))
    truth = Truth(f"node of ranks {ranks[0]}-{ranks[-1]} {factor:.2f} ×", STRAGGLER, ranks, "compute|device")
    return Situation(job, truth, (slower(dict.fromkeys(ranks, factor)),))


def _node_of_64(random: Random) -> Situation:
    return _node(random, _many(random, names=str(random.choice(["host and process", "host number", "rank", "rank"]))))


def _older(random: Random) -> Situation:
    """Half of the GPUs, or two or three of eight, are of an older model: that has to be said."""
    quick, old, factor = MODELS[int(random.integers(len(MODELS)))]
    job = any_job(random, ("fsdp", "ddp"), ranks=8, per_host=4)
    count = int(random.choice([4, 4, 3, 2]))
    ranks = tuple(range(8 - count, 8)) if random.integers(2) else tuple(range(count))
    models = tuple(old if rank in ranks else quick for rank in range(8))
    factors = dict.fromkeys(ranks, float(factor * random.uniform(0.95, 1.05)))
    faults = (
        slower(factors),
        slower(dict.fromkeys(ranks, 1.1), "attention"),
        slower(dict.fromkeys(ranks, 0.8), "memory"),
    )
    truth = Truth(f"ranks {ranks} on {old}, {factor} ×", STRAGGLER, ranks, "", told=(re.escape(old),))
    return Situation(replace(job, models=models), replace(truth, cause="compute|device|model"), faults)


def _varlen(random: Random) -> Situation:
    job = any_job(random, ("fsdp", "ddp"))
    rank, factor = _rank(random, job), _device_factor(job, _share(random, 0.05, 0.4), "attention")
    truth = Truth(
        f"rank {rank}'s attention {factor:.2f} ×",
        STRAGGLER,
        (rank,),
        "uneven|compute|data",
        "attn|flash",
        told=("pack|sequence|length|data",),
    )
    return Situation(job, truth, (slower({rank: factor}, "attention"),))


def _blocking(random: Random) -> Situation:
    vendor = str(random.choice(["xpu", "hpu", "hip"]))
    job = synced(random, ("fsdp", "ddp"), vendor=vendor)
    rank, factor = _rank(random, job), _device_factor(job, _share(random))
    truth = Truth(f"rank {rank}'s {vendor} device {factor:.2f} ×", STRAGGLER, (rank,), "compute|device")
    return Situation(job, truth, (slower({rank: factor}),))


def _two_ranks(random: Random) -> Situation:
    """A server of two ranks, bound by launches; one host is slow. Nothing else is to be found."""
    job = Job(
        "tp",
        2,
        2,
        layers=4,
        steps=12,
        first=20,
        scale=0.012,
        links=0.06,
        inline=True,
        seed=int(random.integers(1 << 30)),
        names=str(random.choice(["host and process", "host number"])),
        host_ns=9_000.0,
    )
    rank, factor = _rank(random, job), float(random.uniform(1.2, 1.7))
    hosts = tuple(factor if number == rank else 1.0 for number in range(2))
    truth = Truth(f"rank {rank}'s host {factor:.2f} ×", STRAGGLER, (rank,), "launch|host")
    return Situation(job, truth, hosts=hosts)


def _hot_gpu(random: Random) -> Situation:
    job = synced(random, ("ddp", "fsdp"), ranks=8, per_host=8, names="host and process", scale=30.0)
    rank, factor = _rank(random, job), float(random.uniform(1.15, 1.5))
    truth = Truth(
        f"rank {rank}'s device {factor:.2f} ×, hot",
        STRAGGLER,
        (rank,),
        "compute|device",
        told=("1,?395|thermal",),
    )
    return Situation(job, truth, (slower({rank: factor}),), clock_csv=rank)


def _input_of_one(random: Random) -> Situation:
    job = any_job(random)
    rank, share = _rank(random, job), _share(random, 0.06)
    # A host that runs ahead hides a step of it.
    ns = _excess_ns(job, share) * (1.0 if job.read_every == 1 else 1.3) + (
        0 if job.read_every == 1 else _excess_ns(job, 0.5)
    )
    truth = Truth(f"rank {rank} fetches {ns / MS:.1f} ms", STRAGGLER, (rank,), "input")
    return Situation(job, truth, (fetching(lambda number, _: ns if number == rank else 0.0),))


# The host at the step's end, compilation, the allocator.


def _end_of_step(random: Random, when: str) -> Situation:
    job = synced(random)
    rank = 0 if random.random() < 0.6 else _rank(random, job)
    mark = str(random.choice(["", "log_metrics", "save_checkpoint"]))
    if when == "every":
        ns, steps, period, phase = _excess_ns(job, _share(random)), (), 1, 0
    else:
        job = replace(job, steps=int(random.integers(12, 21)), layers=2)
        period, phase, steps = _every(random, job, 2, 5)
        ns = _excess_ns(job, _share(random, 0.06)) * period
    kernels = int(random.integers(0, 24))
    fault = added(
        lambda number, step: (
            [*_batch(kernels, 4e3, read=bool(kernels)), *_pause(ns, mark)]
            if number == rank and step % period == phase
            else ()
        )
    )
    truth = Truth(
        f"rank {rank} {mark or 'pauses'} {ns / MS:.1f} ms at the end of every {period}",
        STRAGGLER,
        (rank,),
        "host|pause|log|sav|after|end",
        steps=steps,
        told=(mark,) if mark else (),
    )
    return Situation(job, truth, (fault,))


def _evaluates_often(random: Random) -> Situation:
    """Rank 0 runs evaluation batches on its device at the end of every n-th step."""
    job = replace(synced(random), steps=int(random.integers(12, 19)), layers=2)
    period, phase, steps = _every(random, job, 1, 5)
    each = 0.25 * MS
    batches = max(1, round(_excess_ns(job, _share(random, 0.08)) * period / each / 8))
    work = [op for _ in range(batches) for op in _batch(8, each, read=True)]
    fault = added(lambda rank, step: work if rank == 0 and step % period == phase else ())
    truth = Truth(
        f"rank 0 runs {batches} evaluation batches every {period}",
        STRAGGLER,
        (0,),
        "compute|eval|host|uneven|work|pause",
        steps=steps if period > 1 else (),
    )
    return Situation(job, truth, (fault,))


def _event(random: Random, what: str) -> Situation:
    """Once, in the middle: told with step and rank, and nobody is accused for good."""
    job = any_job(random) if what == "compiles" else synced(random)
    rank = 0 if what != "compiles" and random.random() < 0.6 else _rank(random, job)
    step = _middle(random, job)
    ns = _excess_ns(job, _share(random, 0.12, 0.5)) * job.steps
    if what == "evaluates":
        each = 0.25 * MS
        batches = max(2, round(ns / each / 8))
        work = [op for _ in range(batches) for op in _batch(8, each, read=True)]
        together = [
            Op("collective", "norm_all_reduce", 2e4, size=8, tag="barrier", stream=24),
            Op("read", "Memcpy DtoH (Device -> Pinned)", 2e3, "aten::item", size=4),
        ]
        faults = (added(lambda number, at: [*(work if number == rank else ()), *together] if at == step else ()),)
    elif what == "compiles":
        faults = (added(lambda number, at: _compiling(ns) if (number, at) == (rank, step) else (), 0.1),)
    else:
        faults = (added(lambda number, at: _pause(ns, "save_checkpoint") if (number, at) == (rank, step) else ()),)
    told = (rf"\brank {rank}\b", *(("compil",) if what == "compiles" else ()))
    truth = Truth(f"rank {rank} {what} {ns / MS:.0f} ms once, in step {step}", UNSURE, steps=(step,), told=told)
    return Situation(job, truth, faults)


def _recompiles(random: Random) -> Situation:
    job = any_job(random)
    rank = _rank(random, job)
    count = int(random.integers(max(4, job.steps // 3), job.steps // 2 + 1))
    steps = tuple(sorted(random.choice(_recorded(job), count, replace=False).tolist()))
    ns = _excess_ns(job, _share(random, 0.1)) * job.steps / count * (1.0 if job.read_every == 1 else 1.5)
    fault = added(lambda number, at: _compiling(ns) if number == rank and at in steps else (), 0.1)
    truth = Truth(
        f"rank {rank} compiles {ns / MS:.0f} ms in {steps}", STRAGGLER, (rank,), "host|pause|compil", told=("compil",)
    )
    return Situation(job, truth, (fault,))


def _frees(random: Random, *, on_all: bool) -> Situation:
    job = any_job(random, per_host=4)
    rank, ns = _rank(random, job), _excess_ns(job, _share(random, 0.06, 0.4)) / 2
    at = float(random.uniform(0.55, 0.7))
    fault = added(lambda number, _: _allocating(ns) if on_all or number == rank else (), at)
    again = added(lambda number, _: _allocating(ns) if on_all or number == rank else (), at + 0.15)
    who, verdict = ((), JOB_WIDE) if on_all else ((rank,), STRAGGLER)
    cause = "alloc|memory" if on_all else "alloc|memory|host|pause"
    truth = Truth(f"cudaFree on {'all' if on_all else f'rank {rank}'}", verdict, who, cause, told=("cudaFree|alloc",))
    return Situation(job, truth, (again, fault), least=SHARED_SHARE if on_all else LEAST_SHARE)


# What all share.


def _input_of_all(random: Random) -> Situation:
    job = synced(random, steps=int(random.integers(12, 25)), layers=2)
    period, phase, steps = _every(random, job, 2, 8)
    ns = _excess_ns(job, _share(random, 0.08)) * period
    waits = dict(zip(steps, ns * random.uniform(0.9, 1.1, len(steps)), strict=True))
    fault = fetching(lambda _, step: waits.get(step, ns if step % period == phase else 0.0))
    truth = Truth(f"all fetch {ns / MS:.0f} ms every {period}", JOB_WIDE, (), "input", steps=steps)
    return Situation(job, truth, (fault,), least=SHARED_SHARE)


def _rollout(random: Random) -> Situation:
    job = any_job(random, ("fsdp", "ddp"), ranks=int(random.choice([4, 8, 8, 16])), steps=int(random.integers(8, 13)))
    least, most = int(random.integers(8, 16)), int(random.integers(28, 44))
    count = random.integers(least, most, (job.warm_up + job.steps, job.ranks))
    mean = round(float(count.mean()))
    each = job.scale * random.uniform(0.05, 0.2) * MS

    def lengths(rank: int, step: int) -> list[Op]:
        return _around(
            "generate_sequences",
            *_batch(4 * int(count[step % len(count), rank]), each, read=True),
            category="user_annotation",
        )

    def even(*_: int) -> list[Op]:
        return _around("generate_sequences", *_batch(4 * mean, each, read=True), category="user_annotation")

    truth = Truth(f"{least} to {most} iterations", JOB_WIDE, (), "uneven|imbalance|changing|compute|rollout")
    return Situation(replace(job, faults=(added(even, 0.03),)), truth, (added(lengths, 0.03),), least=SHARED_SHARE)


def _ladder(random: Random) -> Situation:
    """Causal attention cut in order: 1 : 3 : 5 : 7, or milder where blocks are cut finer."""
    group = int(random.choice([2, 4, 4, 8]))
    job = any_job(random, ("cp",), group=group, ranks=int(random.choice([max(8, group), 16])), layers=3)
    strength = float(random.choice([1.0, 1.0, 0.4]))
    rungs = 1 + strength * (2 * np.arange(group) + 1 - group) / group

    def uneven(rank: int, _: int, ops: list[Op]) -> list[Op]:
        return [_times(op, rungs[rank % group]) if op.family == "attention" else op for op in ops]

    truth = Truth(
        f"ladder {np.round(rungs, 2).tolist()} in groups of {group}",
        JOB_WIDE,
        (),
        "uneven|imbalance|place",
        told=("attn|flash|attention", "mesh_cp|place"),
    )
    return Situation(job, truth, (uneven,), least=SHARED_SHARE)


# Whose file is not there.


def _missing_culprit(random: Random) -> Situation:
    job = any_job(random, ("fsdp", "ddp"), ranks=int(random.choice([4, 8, 16])))
    rank, factor = _rank(random, job), _device_factor(job, _share(random, 0.08))
    truth = Truth(f"rank {rank}, {factor:.2f} ×, left no trace", UNSURE, told=(rf"\brank {rank}\b",))
    return Situation(job, truth, (slower({rank: factor}),), left_out=(rank,), least=SHARED_SHARE)


def _missing_healthy(random: Random) -> Situation:
    situation = _device(random, ranks=int(random.choice([4, 8, 16])))
    (guilty,) = situation.truth.ranks
    missing = (guilty + 1 + int(random.integers(situation.job.ranks - 1))) % situation.job.ranks
    truth = replace(situation.truth, about=f"{situation.truth.about}, healthy rank {missing} left no trace")
    return replace(situation, truth=truth, left_out=(missing,))


ROLES: Final = {"healthy_roles": False, "device_in_role": True}
"""Pipelines of four stages, by the simulator; whether a rank is slow."""


def _of_roles(random: Random, seed: int, folder: Path, *, slow: bool) -> Truth:
    layout = STANDARD[str(random.choice(["3d16", "3d16", "3d16 in 16 microbatches"]))]
    rank, factor = int(random.integers(layout.ranks)), 1.1 if random.integers(2) else float(random.uniform(1.08, 1.4))
    spec = JobSpec(layout, 8, seed, (SlowGpu(rank, factor),) if slow else ())
    faulty, healthy = simulate([spec, spec.healthy()])
    means = [float(one.step_end[-1].max() - one.step_begin[0].min()) / 8 / MS for one in (faulty, healthy)]
    paths = write_kineto(faulty, folder, compress=False)
    if random.integers(2):
        for number, path in enumerate(paths):
            path.rename(path.with_name(f"rank{number}_trace.json"))
    if not slow:
        return replace(HEALTHY, about=f"pipeline of 16 ranks, {layout.microbatches} micro-batches", step_ms=means[0])
    about = f"pipeline of 16 ranks, rank {rank}'s device {factor:.2f} ×"
    return Truth(about, STRAGGLER, (rank,), "compute|device", ms=means[0] - means[1], step_ms=means[0])


KINDS: Final[dict[str, Kind]] = {
    "healthy": _healthy,
    "healthy_many": _healthy_many,
    "healthy_roles": _healthy,
    "healthy_side_work": _side_work,
    "healthy_warm_up": _warm_up,
    "healthy_spread": _spread,
    "healthy_short_batch": _short_batch,
    "healthy_eval_on_all": _eval_on_all,
    "healthy_missing": _healthy_missing,
    "device": _device,
    "device_onset": _onset,
    "device_several": _several,
    "device_node": _node,
    "device_node_of_64": _node_of_64,
    "device_in_role": _device,
    "device_older": _older,
    "device_hot": _hot_gpu,
    "device_blocking": _blocking,
    "device_missing_healthy": _missing_healthy,
    "varlen": _varlen,
    "two_ranks": _two_ranks,
    "input_of_one": _input_of_one,
    "end_every": lambda random: _end_of_step(random, "every"),
    "end_periodic": lambda random: _end_of_step(random, "periodic"),
    "end_once": lambda random: _event(random, "saves"),
    "eval_periodic": _evaluates_often,
    "eval_once": lambda random: _event(random, "evaluates"),
    "recompile_once": lambda random: _event(random, "compiles"),
    "recompile_often": _recompiles,
    "free_one": lambda random: _frees(random, on_all=False),
    "free_all": lambda random: _frees(random, on_all=True),
    "input_all": _input_of_all,
    "rollout": _rollout,
    "ladder": _ladder,
    "missing_culprit": _missing_culprit,
}
"""By name: how one is drawn."""


def _write_clocks(job: Job, made: Run, hot: int, folder: Path) -> None:
    """nvidia-smi's CSV of every second, of the host that all ranks are on."""
    begin = datetime.fromtimestamp((BASE_NS + START_NS) / 1e9, UTC) - timedelta(seconds=3)
    seconds = int(made.marks[0][-1][1] / 1e9) + 6
    lines = [
        "timestamp, index, uuid, clocks.current.sm [MHz], clocks.max.sm [MHz], temperature.gpu, "
        "clocks_event_reasons.active"
    ]
    for second in range(seconds):
        at = (begin + timedelta(seconds=second)).strftime("%Y/%m/%d %H:%M:%S.000")
        for gpu in range(job.ranks):
            clock, heat, reason = (1395, 86, "0x60") if gpu == hot else (1980, 61, "0x0")
            lines.append(
                f"{at}, {gpu}, GPU-{gpu:08}-1111-2222-3333-444444444444, {clock} MHz, 1980 MHz, {heat}, {reason}"
            )
    path = folder / "evidence" / "host=gpu-n0" / "clock.csv"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")
