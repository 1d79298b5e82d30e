"""The situations of kinds.py: how each is drawn, and what is true of it."""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from compute_faults import SlowGpu
from kind_faults import added, allocating, around, batch, batches, compiling, fetching, in_step, pause, slower
from kinds_files import START_NS, write
from kinds_jobs import MS, READ, Fault, Job, Op, Run, program, run
from kineto import BASE_NS, write_kineto
from layouts import STANDARD
from simulator import JobSpec, simulate

Random = np.random.Generator
LEAST_SHARE: Final = 0.03
"""A culprit that costs less of the step is drawn anew: the smallest size that was asked for."""
SHARED_SHARE: Final = 0.06
"""The same of what no rank is to blame for: the verdict need not speak of shares below a twentieth."""
ROLE_SHARE: Final = 0.02
"""The same of a rank of a pipeline, whose stages hide a part of it."""
FREE_SHARE: Final = 0.004
"""What may cost nothing costs less than this."""
MODELS: Final = (
    ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", 2.1),
    ("NVIDIA H200", "NVIDIA H100 PCIe", 1.4),
    ("NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB", 2.4),
)
EVALUATION_BATCH_NS: Final = 2 * MS
ALL_LAYOUTS: Final = ("fsdp", "ddp", "tp", "cp")
SHARDED: Final = ("fsdp", "ddp")
DEVICE: Final = "compute|device"


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
    """Ranks that leave no file."""
    least: float = LEAST_SHARE
    """Of the step; else it is drawn anew."""
    most: float = 1.0
    hosts: tuple[float, ...] = ()
    """Factors on each rank's host work, as a fault."""
    hot: int | None = None
    """The rank whose GPU is hot in nvidia-smi's CSV."""


def healthy(about: str = "healthy", verdicts: tuple[str, ...] = ("no_straggler", "job_wide")) -> Truth:
    """Nobody is to be accused."""
    return Truth(about, verdicts, healthy=True)


def culprit(about: str, ranks: Sequence[int], cause: str = DEVICE, **more: Any) -> Truth:  # noqa: ANN401
    """These ranks are to be accused."""
    return Truth(about, ("straggler",), tuple(ranks), cause, **more)


def draw(kind: str, seed: int, take: int, folder: Path) -> Truth:
    """Writes a job's recording into `folder` and returns what is true of it."""
    key = zlib.crc32(kind.encode())
    if kind in ROLES:
        return _of_roles(np.random.default_rng((key, seed, take)), seed * 1000 + take, folder, slow=ROLES[kind])
    for attempt in range(60):
        random = np.random.default_rng((key, seed, take, attempt))
        drawn = KINDS[kind](random)
        job, is_changed = drawn.job, bool(drawn.faults or drawn.hosts)
        made = run(replace(job, faults=drawn.faults, hosts=drawn.hosts)) if is_changed else run(job)
        step_ms = made.step_ms(job)
        cost = step_ms - run(job).step_ms(job) if is_changed else 0.0
        if not is_changed or drawn.least <= cost / step_ms <= drawn.most:
            break
    else:
        raise ValueError(f"{kind} {seed} {take}: no size fits")
    clocks = (random.uniform(-0.9, 0.9, job.ranks) * MS).astype(int).tolist()
    clocks[0] += int(38 * MS) if random.random() < 0.1 else 0
    write(job, made, folder, clocks, left_out=drawn.left_out)
    if drawn.hot is not None:
        _write_clocks(job, made, drawn.hot, folder)
    about = f"{job.layout}{job.ranks} {drawn.truth.about}{', run ahead' if job.runs_ahead else ''}"
    return replace(drawn.truth, about=about, ms=cost, step_ms=step_ms)


def any_job(random: Random, layouts: Sequence[str] = ALL_LAYOUTS, **fixed: Any) -> Job:  # noqa: ANN401
    """A layout of 4 to 16 ranks that runs ahead or not, on hosts with names or without."""
    layout = str(random.choice(layouts))
    group = int(random.choice([2, 4])) if layout in ("tp", "cp") else 1
    chosen: dict[str, Any] = {
        "layout": layout,
        "ranks": int(random.choice([4, 8, 8, 16] if group == 1 else [2 * group, 8, 16])),
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
    if not job.runs_ahead:
        return job
    launches = sum(op.what in ("kernel", "collective") for op in program(job))
    return replace(job, queue=int(launches * random.uniform(0.4, 2.0)), warm_up=8)


def synced(random: Random, layouts: Sequence[str] = ALL_LAYOUTS, **fixed: Any) -> Job:  # noqa: ANN401
    """The same, whose hosts wait for the device in every step."""
    return any_job(random, layouts, read_every=1, **fixed)


def many(random: Random) -> Job:
    """64 ranks on eight hosts, most without their names."""
    names = str(random.choice(["host and process", "host number", "rank", "rank"]))
    return synced(random, SHARDED, ranks=64, layers=2, steps=6, per_host=8, names=names)


# Sizes, places and times of a fault.


def _share(random: Random, least: float = 0.04, most: float = 0.55) -> float:
    return float(np.exp(random.uniform(np.log(least), np.log(most))))


def _excess_ns(job: Job, share: float) -> float:
    """What has to come on top so that it is this share of the longer step."""
    return run(replace(job, steps=3)).step_ms(job) * MS * share / (1 - share)


def _factor(job: Job, share: float, family: str = "") -> float:
    """The same, as a factor on all kernels or those of a family."""
    own = sum(op.ns * job.scale for op in program(job) if op.family and family in op.family)
    return 1 + _excess_ns(job, share) / own


def _rank(random: Random, job: Job, *, often_first: bool = False) -> int:
    return 0 if often_first and random.random() < 0.6 else int(random.integers(job.ranks))


def _recorded(job: Job) -> range:
    return range(job.first, job.first + job.steps)


def _enough(job: Job) -> int:
    """So often the same of so many ranks is no chance: at most once in a hundred."""
    return 1 + int(np.ceil(np.log(100) / np.log(job.ranks)))


def _middle(random: Random, job: Job) -> int:
    return job.first + int(random.integers(3, job.steps - 3))


@dataclass(frozen=True)
class Every:
    """Every n-th step."""

    period: int
    phase: int
    steps: tuple[int, ...]
    """Those that are recorded."""

    def hits(self, step: int) -> bool:
        """Whether a step is one of them."""
        return step % self.period == self.phase


def _every(random: Random, job: Job, least: int = 2, most: int = 8, hits: int = 2) -> Every:
    """At least so many are recorded, and not the last: what ends the recording costs no step of it."""
    period = int(random.integers(least, max(least, min(most, job.steps // hits)) + 1))
    last = job.first + job.steps - 1
    phase = (last + int(random.integers(1, max(2, period)))) % period
    return Every(period, phase, tuple(step for step in _recorded(job) if step % period == phase))


# Healthy jobs.


def _healthy(random: Random) -> Situation:
    """Also of two ranks, which have but one peer."""
    pair = {"ranks": 2} if random.random() < 0.15 else {}
    return Situation(any_job(random, SHARDED if pair else ALL_LAYOUTS, **pair), healthy())


def _noise(random: Random) -> Situation:
    """Hosts stand still now and then, anyone's at any time, as on machines that do other things too."""
    job = any_job(random)
    stops = random.random((job.first + job.steps, job.ranks)) < random.uniform(0.02, 0.08)
    ns = np.exp(random.normal(np.log(0.6 * MS), 0.7, stops.shape))
    fault = added(
        lambda rank, step: pause(float(ns[step, rank])) if stops[step, rank] else (), random.uniform(0.1, 1.0)
    )
    return Situation(job, healthy(f"{stops.mean():.0%} of steps with a stop"), (fault,), least=-1.0, most=0.04)


def _hosts_differ(random: Random) -> Situation:
    """Some hosts launch more slowly, which devices that have enough to do never see."""
    job = any_job(random, scale=1.5)
    hosts = tuple(random.uniform(0.8, 1.5, job.ranks).tolist())
    return Situation(job, healthy("hosts differ, devices do not wait"), hosts=hosts, least=-1.0, most=FREE_SHARE)


def _healthy_many(random: Random) -> Situation:
    return Situation(many(random), healthy())


def _side_work(random: Random) -> Situation:
    """Logging, saving, the host's part of evaluation on rank 0 in the time that its queue leaves."""
    job = any_job(random, read_every=0)
    every, ns = _every(random, job, 1, 4), _excess_ns(job, 0.5) * random.uniform(0.1, 0.6)
    mark = str(random.choice(["", "log_metrics", "save_checkpoint", "evaluate"]))
    fault = added(lambda rank, step: pause(ns, mark) if rank == 0 and every.hits(step) else ())
    about = f"rank 0 {mark or 'pauses'} {ns / MS:.1f} ms every {every.period}, absorbed"
    return Situation(job, healthy(about), (fault,), least=-1.0, most=FREE_SHARE)


def _warm_up(random: Random) -> Situation:
    job, factor = any_job(random), 1 + 0.3 * random.random()
    fault = in_step(job.first, slower(dict.fromkeys(range(job.ranks), factor)))
    return Situation(job, healthy(f"first step {factor:.2f} × on all"), (fault,), least=-1.0)


def _spread(random: Random) -> Situation:
    return Situation(any_job(random, spread=0.006), healthy("devices differ by 0.6 %"))


def _short_batch(random: Random) -> Situation:
    job = any_job(random)
    rank, step, factor = _rank(random, job), _recorded(job)[-1 - int(random.integers(3))], random.uniform(0.4, 0.8)
    fault = in_step(step, slower({rank: factor}))
    return Situation(job, healthy(f"rank {rank} has a short batch in step {step}"), (fault,), least=-1.0)


def _eval_on_all(random: Random) -> Situation:
    """All evaluate or save alike in one step: no fault at all."""
    job = any_job(random)
    step, ns = _middle(random, job), random.uniform(6, 24) * MS
    what, work = ("save", pause(ns, "save")) if random.random() < 0.4 else ("evaluate", batch(round(ns / 3e5), 3e5))
    fault = added(lambda _, at: work if at == step else ())
    truth = healthy(f"all {what} in step {step}", ("no_straggler", "job_wide", "inconclusive"))
    return Situation(job, truth, (fault,), least=-1.0)


def _healthy_missing(random: Random) -> Situation:
    """Nobody waits for who left no trace."""
    job = any_job(random)
    missing = _rank(random, job)
    truth = healthy(f"rank {missing} left no trace", ("no_straggler", "job_wide", "inconclusive"))
    return Situation(job, truth, left_out=(missing,))


# Devices of one rank or of several.


def _slow_device(random: Random, job: Job, least: float = 0.04) -> Situation:
    rank, factor = _rank(random, job), _factor(job, _share(random, least))
    return Situation(job, culprit(f"rank {rank}'s device {factor:.2f} ×", [rank]), (slower({rank: factor}),))


def _device(random: Random) -> Situation:
    """One of two ranks only where it is slow beyond what devices differ by."""
    if random.random() < 0.1:
        return _slow_device(random, any_job(random, SHARDED, ranks=2), 0.2)
    return _slow_device(random, any_job(random))


def _blocking(random: Random) -> Situation:
    """Of vendors whose calls that wait for the device do not say so by name."""
    return _slow_device(random, synced(random, SHARDED, vendor=str(random.choice(["xpu", "hpu", "hip"]))))


def _hot_gpu(random: Random) -> Situation:
    job = synced(random, SHARDED, ranks=8, per_host=8, names="host and process", scale=30.0)
    rank, factor = _rank(random, job), float(random.uniform(1.15, 1.5))
    truth = culprit(f"rank {rank}'s device {factor:.2f} ×, hot", [rank], told=("1,?395|thermal",))
    return Situation(job, truth, (slower({rank: factor}),), hot=rank)


def _missing_culprit(random: Random) -> Situation:
    drawn = _slow_device(random, any_job(random, SHARDED), 0.08)
    (rank,) = drawn.truth.ranks
    truth = Truth(f"{drawn.truth.about}, it left no trace", ("inconclusive",), told=(rf"\brank {rank}\b",))
    return replace(drawn, truth=truth, left_out=(rank,), least=SHARED_SHARE)


def _missing_healthy(random: Random) -> Situation:
    drawn = _slow_device(random, any_job(random))
    missing = (drawn.truth.ranks[0] + 1 + int(random.integers(drawn.job.ranks - 1))) % drawn.job.ranks
    truth = replace(drawn.truth, about=f"{drawn.truth.about}, healthy rank {missing} left no trace")
    return replace(drawn, truth=truth, left_out=(missing,))


def _onset(random: Random) -> Situation:
    job = any_job(random)
    rank, since, factor = _rank(random, job), _middle(random, job), _factor(job, _share(random, 0.08))
    truth = culprit(f"rank {rank}'s device {factor:.2f} × since step {since}", [rank], told=(rf"\b{since}\b",))
    return Situation(job, truth, (slower({rank: factor}, since=since),))


def _several(random: Random) -> Situation:
    job = any_job(random, ranks=int(random.choice([8, 16])))
    ranks = sorted(random.choice(job.ranks, int(random.integers(2, job.ranks // 4 + 1)), replace=False).tolist())
    factor = _factor(job, _share(random, 0.06))
    factors = {rank: float(factor * random.choice([1.0, random.uniform(0.97, 1.03)])) for rank in ranks}
    return Situation(job, culprit(f"ranks {ranks}' devices {factor:.2f} ×", ranks), (slower(factors),))


def _node(random: Random, *, of_64: bool = False) -> Situation:
    """All ranks of one host: a quarter of 16 ranks, an eighth of 64."""
    job = many(random) if of_64 else any_job(random, ranks=16, per_host=4)
    first = int(random.integers(job.ranks // job.per_host)) * job.per_host
    ranks = range(first, first + job.per_host)
    factor = 1.1 if of_64 else _factor(job, _share(random, 0.05))
    truth = culprit(f"node of ranks {ranks[0]}-{ranks[-1]} {factor:.2f} ×", ranks)
    return Situation(job, truth, (slower(dict.fromkeys(ranks, factor)),))


def _older(random: Random) -> Situation:
    """Half of the GPUs, or two or three of eight, are of an older model: that has to be said."""
    quick, old, factor = MODELS[int(random.integers(len(MODELS)))]
    job, count = any_job(random, SHARDED, ranks=8, per_host=4), int(random.choice([4, 4, 3, 2]))
    ranks = tuple(range(8 - count, 8)) if random.integers(2) else tuple(range(count))
    models = tuple(old if rank in ranks else quick for rank in range(8))
    factors = ((float(factor * random.uniform(0.95, 1.05)), ""), (1.1, "attention"), (0.8, "memory"))
    faults = tuple(slower(dict.fromkeys(ranks, of_family), family) for of_family, family in factors)
    truth = culprit(f"ranks {ranks} on {old}, {factor} ×", ranks, f"{DEVICE}|model", told=(re.escape(old),))
    return Situation(replace(job, models=models), truth, faults)


def _varlen(random: Random) -> Situation:
    job = any_job(random, SHARDED)
    rank, factor = _rank(random, job), _factor(job, _share(random, 0.05, 0.4), "attention")
    about, told = f"rank {rank}'s attention {factor:.2f} ×", ("pack|sequence|length|data",)
    truth = culprit(about, [rank], f"{DEVICE}|uneven|data", operator="attn|flash", told=told)
    return Situation(job, truth, (slower({rank: factor}, "attention"),))


# Hosts: launches, input, the step's end, compilation, the allocator.


def _two_ranks(random: Random) -> Situation:
    """A server of two ranks, bound by launches; one host is slow."""
    small = {"layers": 4, "steps": 12, "scale": 0.012, "links": 0.06, "inline": True, "host_ns": 9_000.0}
    job = synced(random, ("tp",), ranks=2, **small)
    job = replace(job, group=2)
    rank, factor = _rank(random, job), float(random.uniform(1.2, 1.7))
    hosts = tuple(factor if number == rank else 1.0 for number in range(2))
    return Situation(job, culprit(f"rank {rank}'s host {factor:.2f} ×", [rank], "launch|host"), hosts=hosts)


def _input_of_one(random: Random) -> Situation:
    job = any_job(random)
    rank, ns = _rank(random, job), _excess_ns(job, _share(random, 0.06))
    if job.runs_ahead:  # Its queue hides about a step of it.
        ns = 1.3 * ns + _excess_ns(job, 0.5)
    truth = culprit(f"rank {rank} fetches {ns / MS:.1f} ms", [rank], "input")
    return Situation(job, truth, (fetching(lambda number, _: ns if number == rank else 0.0),))


def _end_of_step(random: Random, most: int) -> Situation:
    """One rank logs or saves at the end of every step (`most` 1) or of every n-th."""
    job = synced(random) if most == 1 else synced(random, steps=int(random.integers(12, 21)), layers=2)
    rank, every = _rank(random, job, often_first=True), _every(random, job, min(most, 2), most, _enough(job))
    ns = _excess_ns(job, _share(random, 0.06)) * every.period
    mark, scalars = str(random.choice(["", "log_metrics", "save_checkpoint"])), int(random.integers(0, 24))
    work = [*(batch(scalars, 4e3) if scalars else ()), *pause(ns, mark)]
    fault = added(lambda number, step: work if number == rank and every.hits(step) else ())
    about = f"rank {rank} {mark or 'pauses'} {ns / MS:.1f} ms at the end of every {every.period}"
    more = {"steps": every.steps if most > 1 else (), "told": (mark,) if mark else ()}
    return Situation(job, culprit(about, [rank], "host|pause|log|sav|after|end", **more), (fault,))


def _evaluates_often(random: Random) -> Situation:
    """Rank 0 runs evaluation batches on its device at the end of every n-th step."""
    job = synced(random, steps=int(random.integers(12, 19)), layers=2)
    every = _every(random, job, 1, 5, _enough(job))
    count = max(1, round(_excess_ns(job, _share(random, 0.08)) * every.period / EVALUATION_BATCH_NS))
    work = batches(count, EVALUATION_BATCH_NS)
    fault = added(lambda rank, step: work if rank == 0 and every.hits(step) else ())
    about, steps = f"rank 0 runs {count} evaluation batches every {every.period}", every.steps
    cause = f"{DEVICE}|eval|host|uneven|work|pause"
    return Situation(job, culprit(about, [0], cause, steps=steps if every.period > 1 else ()), (fault,))


def _once(random: Random, what: Literal["saves", "evaluates", "compiles"]) -> Situation:
    """Once, in the middle: told with step and rank, and nobody is accused for good."""
    job = any_job(random) if what == "compiles" else synced(random)
    rank, step = _rank(random, job, often_first=what != "compiles"), _middle(random, job)
    ns = _excess_ns(job, _share(random, 0.12, 0.5)) * job.steps
    barrier: list[Op] = []
    if what == "saves":
        work = pause(ns, "save_checkpoint")
    elif what == "compiles":
        work = compiling(ns)
    else:
        work = batches(max(2, round(ns / EVALUATION_BATCH_NS)), EVALUATION_BATCH_NS)
        barrier = [Op("collective", "norm_all_reduce", 2e4, size=8, tag="barrier", stream=24), READ]
    at = 0.1 if what == "compiles" else 1.0
    fault = added(lambda number, now: [*(work if number == rank else ()), *barrier] if now == step else (), at)
    told = (rf"\brank {rank}\b", *(("compil",) if what == "compiles" else ()))
    about = f"rank {rank} {what} {ns / MS:.0f} ms once, in step {step}"
    return Situation(job, Truth(about, ("inconclusive",), steps=(step,), told=told), (fault,))


def _recompiles(random: Random) -> Situation:
    job = any_job(random)
    rank, count = _rank(random, job), _enough(job) + int(random.integers(0, 3))
    steps = tuple(sorted(random.choice(_recorded(job), count, replace=False).tolist()))
    ns = _excess_ns(job, _share(random, 0.1)) * job.steps / count
    if job.runs_ahead:  # Its queue hides about a step or two of it.
        ns += 1.5 * _excess_ns(job, 0.5)
    fault = added(lambda number, step: compiling(ns) if number == rank and step in steps else (), 0.1)
    about = f"rank {rank} compiles {ns / MS:.0f} ms in {steps}"
    return Situation(job, culprit(about, [rank], "host|pause|compil", told=("compil",)), (fault,))


def _frees(random: Random, *, on_all: bool) -> Situation:
    """The allocator asks the driver for memory, twice in each backward pass."""
    job = any_job(random, per_host=4)
    rank, ns, at = _rank(random, job), _excess_ns(job, _share(random, 0.06, 0.4)) / 2, random.uniform(0.55, 0.7)
    faults = tuple(
        added(lambda number, _: allocating(ns) if on_all or number == rank else (), place) for place in (at + 0.15, at)
    )
    told = ("cudaFree|alloc",)
    if on_all:
        truth = Truth("cudaFree on all", ("job_wide",), (), "alloc|memory", told=told)
        return Situation(job, truth, faults, least=SHARED_SHARE)
    return Situation(job, culprit(f"cudaFree on rank {rank}", [rank], "alloc|memory|host|pause", told=told), faults)


# What is nobody's fault.


def _input_of_all(random: Random) -> Situation:
    job = synced(random, steps=int(random.integers(12, 25)), layers=2)
    every = _every(random, job)
    ns = _excess_ns(job, _share(random, 0.08)) * every.period
    waits = dict(zip(every.steps, ns * random.uniform(0.9, 1.1, len(every.steps)), strict=True))
    fault = fetching(lambda _, step: waits.get(step, ns if every.hits(step) else 0.0))
    truth = Truth(f"all fetch {ns / MS:.0f} ms every {every.period}", ("job_wide",), (), "input", steps=every.steps)
    return Situation(job, truth, (fault,), least=SHARED_SHARE)


def _rollout(random: Random) -> Situation:
    """Ranks generate sequences of different lengths, drawn anew in each step; even if all were as long as the mean."""
    job = any_job(random, SHARDED, steps=int(random.integers(8, 13)))
    least, most = int(random.integers(8, 16)), int(random.integers(28, 44))
    count = random.integers(least, most, (job.warm_up + job.steps, job.ranks))
    each, mean = job.scale * random.uniform(0.05, 0.2) * MS, round(float(count.mean()))

    def generate(rounds: int) -> list[Op]:
        return around("generate_sequences", *batch(4 * rounds, each), category="user_annotation")

    even = added(lambda *_: generate(mean), 0.03)
    uneven = added(lambda rank, step: generate(int(count[step % len(count), rank])), 0.03)
    truth = Truth(f"{least} to {most} iterations", ("job_wide",), (), "uneven|imbalance|changing|compute|rollout")
    return Situation(replace(job, faults=(even,)), truth, (uneven,), least=SHARED_SHARE)


def _ladder(random: Random) -> Situation:
    """Causal attention cut in order: 1 : 3 : 5 : 7, or milder."""
    group = int(random.choice([2, 4, 4, 8]))
    job = any_job(random, ("cp",), group=group, ranks=int(random.choice([8, 16])), layers=3)
    rungs = 1 + float(random.choice([1.0, 1.0, 0.4])) * (2 * np.arange(group) + 1 - group) / group
    fault = slower({rank: float(rungs[rank % group]) for rank in range(job.ranks)}, "attention")
    about, told = f"ladder {np.round(rungs, 2).tolist()}", ("attn|flash|attention", "mesh_cp|place")
    truth = Truth(about, ("job_wide",), (), "uneven|imbalance|place", told=told)
    return Situation(job, truth, (fault,), least=SHARED_SHARE)


ROLES: Final = {"healthy_roles": False, "device_in_role": True}
"""Pipelines of four stages, by the simulator of run.py; whether a rank is slow."""


def _of_roles(random: Random, seed: int, folder: Path, *, slow: bool) -> Truth:
    layout = STANDARD[str(random.choice(["3d16", "3d16", "3d16 in 16 microbatches"]))]
    means = [0.0, 0.0]
    while not means[0] or (slow and means[0] - means[1] < ROLE_SHARE * means[0]):
        rank, factor = int(random.integers(layout.ranks)), float(random.choice([1.1, random.uniform(1.08, 1.4)]))
        spec = JobSpec(layout, 8, seed, (SlowGpu(rank, factor),) if slow else ())
        faulty, without = simulate([spec, spec.healthy()])
        means = [float(one.step_end[-1].max() - one.step_begin[0].min()) / 8 / MS for one in (faulty, without)]
    paths = write_kineto(faulty, folder, compress=False)
    if random.integers(2):
        for number, path in enumerate(paths):
            path.rename(path.with_name(f"rank{number}_trace.json"))
    about = f"pipeline of 16 ranks, {layout.microbatches} micro-batches"
    truth = culprit(f"{about}, rank {rank}'s device {factor:.2f} ×", [rank]) if slow else healthy(about)
    return replace(truth, ms=means[0] - means[1], step_ms=means[0])


KINDS: Final[dict[str, Callable[[Random], Situation]]] = {
    "healthy": _healthy,
    "healthy_many": _healthy_many,
    "healthy_roles": _healthy,
    "healthy_side_work": _side_work,
    "healthy_warm_up": _warm_up,
    "healthy_spread": _spread,
    "healthy_short_batch": _short_batch,
    "healthy_noise": _noise,
    "healthy_hosts_differ": _hosts_differ,
    "healthy_eval_on_all": _eval_on_all,
    "healthy_missing": _healthy_missing,
    "device": _device,
    "device_onset": _onset,
    "device_several": _several,
    "device_node": _node,
    "device_node_of_64": partial(_node, of_64=True),
    "device_in_role": _device,
    "device_older": _older,
    "device_hot": _hot_gpu,
    "device_blocking": _blocking,
    "device_missing_healthy": _missing_healthy,
    "varlen": _varlen,
    "two_ranks": _two_ranks,
    "input_of_one": _input_of_one,
    "end_every": partial(_end_of_step, most=1),
    "end_periodic": partial(_end_of_step, most=5),
    "end_once": partial(_once, what="saves"),
    "eval_periodic": _evaluates_often,
    "eval_once": partial(_once, what="evaluates"),
    "recompile_once": partial(_once, what="compiles"),
    "recompile_often": _recompiles,
    "free_one": partial(_frees, on_all=False),
    "free_all": partial(_frees, on_all=True),
    "input_all": _input_of_all,
    "rollout": _rollout,
    "ladder": _ladder,
    "missing_culprit": _missing_culprit,
}
"""By name: how one is drawn; ROLES' are drawn by `_of_roles`."""


def _write_clocks(job: Job, made: Run, hot: int, folder: Path) -> None:
    """nvidia-smi's CSV of every second, of the host that all ranks are on."""
    begin = datetime.fromtimestamp((BASE_NS + START_NS) / 1e9, UTC) - timedelta(seconds=3)
    columns = "clocks.current.sm [MHz], clocks.max.sm [MHz], temperature.gpu, clocks_event_reasons.active"
    lines = [f"timestamp, index, uuid, {columns}"]
    for second in range(int(made.marks[0][-1][1] / 1e9) + 6):
        at = (begin + timedelta(seconds=second)).strftime("%Y/%m/%d %H:%M:%S.000")
        for gpu in range(job.ranks):
            state = "1395 MHz, 1980 MHz, 86, 0x60" if gpu == hot else "1980 MHz, 1980 MHz, 61, 0x0"
            lines.append(f"{at}, {gpu}, GPU-{gpu:08}-1111-2222-3333-444444444444, {state}")
    path = folder / "evidence" / "host=gpu-n0" / "clock.csv"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")
