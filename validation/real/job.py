"""What one rank of a take does: train without a fault, then with it, recorded by torch.profiler."""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from captured import begin_capture, marking_steps
from cpu_groups import throttled_ns
from drawing import CHUNKS, AnyTake, Take
from faults import Calibrated, Fed, InsideFaults, due, schedstat
from models import Examples, joined, on_device
from on_gpu.gpu_drawing import GpuTake
from on_gpu.gpu_faults import GpuFaults
from on_gpu.waits import Waits
from outside import enter_network
from parallel_layouts import Program, build
from profiling import Recorder, activities, export, recorder_of
from torch import nn
from torch.profiler import profile
from torch.utils.data import DataLoader
from written.script import Hooks, build_of
from written.script_drawing import WITHOUT_OPTIMIZER, WrittenTake
from written.script_faults import ScriptFaults, Spare

UNMEASURED_STEPS = 3
REFERENCE_STEPS = 6


@dataclass(frozen=True)
class Parent:
    """The recorder, as a rank talks with it: lines of JSON."""

    inbox: int
    outbox: int

    def tell(self, message: dict[str, Any]) -> None:
        os.write(self.outbox, (json.dumps(message) + "\n").encode())

    def hear(self) -> dict[str, Any]:
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self.inbox, 4096)
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass(frozen=True)
class Job:
    """What a rank trains with."""

    take: AnyTake
    rank: int
    faults: InsideFaults
    fed: Fed
    calibrated: Calibrated
    parameters: int
    train: Callable[[], None]
    waits: Waits | None
    """Watched on a GPU, where no thread's CPU time tells of them."""


def run_rank(take: AnyTake, rank: int, folder: Path, network: list[tuple[str, str]], parent: Parent) -> None:
    """Train as `rank`; leave a trace in `folder`/traces and measurements in `folder`/rank<n>.json."""
    meet(take, rank, folder, network)
    with ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        if take.captured:
            begin_capture(folder)
        job = job_of(take, rank, stack)
        reference = measure_reference(job, network[take.host_of_rank[rank]][1] if network else None)
        reference["own_ns"] = own_ns(reference)
        job.faults.prepare(job.calibrated, job.fed, reference["step_ns"], reference["own_ns"])
        dist.barrier()
        parent.tell({"reference": {name: value for name, value in reference.items() if name != "steps"}})
        go = parent.hear()
        dist.barrier()
        steps, profiler = record(job, parent, go["cpu_stat"], folder)
        parent.tell({"recorded": True})
        trace = export(profiler, take, rank, folder)
        measured = {"rank": rank, "host": take.host_of_rank[rank], "trace": trace, "reference": reference}
        measured |= {"steps": steps, "parameters": job.parameters}
        (folder / f"rank{rank}.json").write_text(json.dumps(measured), encoding="utf-8")
        parent.tell({"written": True})
        # The recorder ends all ranks at once: no rank misses another that has gone.
        parent.hear()


def own_ns(reference: dict[str, Any]) -> float:
    """The median of what the rank took of a step for itself."""
    return statistics.median(
        step["end_ns"] - step["begin_ns"] - sum(end - begin for begin, end in step["waits"])
        if "waits" in step
        else step["run_ns"]
        for step in reference["steps"]
    )


def job_of(take: AnyTake, rank: int, stack: ExitStack) -> Job:
    """What the take trains."""
    if isinstance(take, WrittenTake):
        return script_job(take, rank)
    if isinstance(take, GpuTake):
        return gpu_job(take, rank, stack)
    assert isinstance(take, Take)
    return cpu_job(take, rank)


def script_job(take: WrittenTake, rank: int) -> Job:
    """A job that is somebody's script."""
    faults = ScriptFaults(take.seed, rank, [fault for fault in take.faults if rank in fault.ranks])
    hooks = Hooks(faults.between, faults.within, take.profiler.ranges)
    script = build_of(take.script)(take.options | {"workers": take.workers}, rank, take.ranks, hooks)
    train = marking_steps(script.step) if take.captured and take.script in WITHOUT_OPTIMIZER else script.step
    spare = Spare(hooks, UNMEASURED_STEPS + REFERENCE_STEPS)
    return Job(take, rank, faults, hooks, spare, size(script.parameters), train, None)


def cpu_job(take: Take, rank: int) -> Job:
    """A job that computes on cores."""
    faults = InsideFaults(take.seed, rank, [fault for fault in take.faults if rank in fault.ranks])
    examples = Examples(take, take.seed * 100 + rank)
    program = build(take, rank, faults.between, nullcontext)
    optimizer = make_optimizer(take, program)
    batches = iter(DataLoader(examples, CHUNKS, collate_fn=joined, num_workers=take.workers))
    met = [fault for fault in take.faults if fault.place == "end_met"]

    def train() -> None:
        program.step(next(batches))
        faults.between("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        faults.between("end")
        faults.between("end_met")
        if any(faults.prepared and due(fault, faults.step) for fault in met):
            dist.barrier()

    return Job(take, rank, faults, examples, program, size(program.parameters), train, None)


def gpu_job(take: GpuTake, rank: int, stack: ExitStack) -> Job:
    """A job that computes on the GPU; its waits are watched until the stack is closed."""
    faults = GpuFaults(take.seed, rank, [fault for fault in take.faults if rank in fault.ranks])
    examples = Examples(take, take.seed * 100 + rank)
    waits = Waits(take.device)

    def between(place: str) -> None:
        if place == "reduced":
            waits.backward_is_over()
        faults.between(place)

    program = build(take, rank, between, lambda: faults.precision(take))
    if take.parallel == "ddp":
        waits.watch_gradients(program.parameters)
    optimizer = make_optimizer(take, program)
    pin = take.pinned_memory and take.device == "cuda"
    batches = iter(DataLoader(examples, CHUNKS, collate_fn=joined, num_workers=take.workers, pin_memory=pin))
    stack.enter_context(waits)

    def train() -> None:
        program.step(on_device(take, next(batches)))
        faults.between("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        if take.awaited and take.device == "cuda":
            torch.cuda.synchronize()

    return Job(take, rank, faults, examples, program, size(program.parameters), train, waits)


def size(parameters: Sequence[nn.Parameter]) -> int:
    """How many numbers are trained."""
    return sum(weight.numel() for weight in parameters)


def make_optimizer(take: Take, program: Program) -> torch.optim.Optimizer:
    # fused: one operator in the trace, where others write some for each parameter; sharded weights know none.
    kind = {"foreach": True} if take.parallel == "fsdp2" else {"fused": True}
    return torch.optim.SGD(program.parameters, lr=1e-4, momentum=0.9, **kind)


def meet(take: AnyTake, rank: int, folder: Path, network: list[tuple[str, str]]) -> None:
    """Set this process up as `rank` and join the others."""
    os.sched_setaffinity(0, take.cores_of(rank) or range(os.cpu_count() or 1))
    torch.set_num_threads(take.threads)
    torch.manual_seed(take.seed)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if network:
        name, device = network[take.host_of_rank[rank]]
        enter_network(name)
        os.environ["GLOO_SOCKET_IFNAME"] = device
    # A file to meet at, which ranks on all hosts can reach before any connection exists.
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=take.ranks)


def measure_reference(job: Job, device: str | None) -> dict[str, Any]:
    """A few steps without fault or load, under a profiler like the one that records."""
    for _ in range(UNMEASURED_STEPS):
        job.train()
    steps, sent = [], sent_bytes(device)
    with profile(activities=activities(job.take), record_shapes=job.take.record_shapes) as profiler:
        for _ in range(REFERENCE_STEPS):
            begin = Reading.take()
            job.train()
            steps.append(begin.until(Reading.take()))
            profiler.step()
    add_waits(job, steps)
    return {
        "step_ns": statistics.median(step["end_ns"] - step["begin_ns"] for step in steps),
        "process_ns": statistics.median(step["process_ns"] for step in steps),
        "sent_bytes": (sent_bytes(device) - sent) / REFERENCE_STEPS,
        "steps": steps,
    }


def record(
    job: Job, parent: Parent, cpu_stat: str | None, folder: Path
) -> tuple[list[dict[str, Any]], Recorder | None]:
    """Run the recorded steps; their measurements, and what has recorded them, if anything has of this rank."""
    take, rank, faults = job.take, job.rank, job.faults
    steps = []
    first = UNMEASURED_STEPS + REFERENCE_STEPS + take.lead_steps
    with recorder_of(take, rank, folder, first) as profiler:
        for step in range(-take.lead_steps, take.steps):
            begin_onsets(take, rank, step, parent)
            faults.begin_step(step)
            begin, injected = Reading.take(cpu_stat, machine=rank == 0), faults.meter.read()
            job.train()
            measured = begin.until(Reading.take(cpu_stat, machine=rank == 0))
            lost = [now - before for now, before in zip(faults.meter.read(), injected, strict=True)]
            names = ("injected_wall_ns", "injected_run_ns", "injected_delay_ns")
            measured |= dict(zip(names, lost, strict=True))
            if step >= 0:
                steps.append(measured)
            if profiler is not None:
                profiler.step()
        if take.captured:
            job.train()
    add_waits(job, steps)
    return steps, profiler


def add_waits(job: Job, steps: list[dict[str, Any]]) -> None:
    """Put into each step the waits that were watched."""
    for step, waits in zip(steps, job.waits.over(steps) if job.waits else (), strict=False):
        step["waits"] = waits


def begin_onsets(take: AnyTake, rank: int, step: int, parent: Parent) -> None:
    """Begin what begins with this step and is not the rank's own doing in `train`."""
    for index, fault in enumerate(take.faults):
        due = step == fault.onset or (fault.onset == 0 and step == -take.lead_steps)
        if due and fault.kind.startswith("threads") and step <= fault.onset:
            torch.set_num_threads(int(fault.kind[-1]))
        elif step == fault.onset > 0 and rank == fault.ranks[0]:
            parent.tell({"onset": index})


@dataclass(frozen=True)
class Reading:
    """The clocks and counters of this process at one moment."""

    wall_ns: int
    run_ns: int
    delay_ns: int
    process_ns: int
    voluntary: int
    involuntary: int
    throttled_ns: int | None
    machine_busy_ns: int | None

    @classmethod
    def take(cls, cpu_stat: str | None = None, *, machine: bool = False) -> Reading:
        run, delay = schedstat()
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        return cls(
            time.time_ns(),
            run,
            delay,
            time.process_time_ns(),
            usage.ru_nvcsw,
            usage.ru_nivcsw,
            throttled_ns(cpu_stat) if cpu_stat else None,
            machine_busy_ns() if machine else None,
        )

    def until(self, later: Reading) -> dict[str, Any]:
        """What passed from this moment to the later one."""
        passed: dict[str, Any] = {"begin_ns": self.wall_ns, "end_ns": later.wall_ns}
        for name in ("run_ns", "delay_ns", "process_ns", "voluntary", "involuntary", "throttled_ns", "machine_busy_ns"):
            if getattr(self, name) is not None:
                passed[name] = getattr(later, name) - getattr(self, name)
        return passed


def machine_busy_ns() -> int:
    """What all processes of the machine ran, in whole ticks of ten milliseconds."""
    with Path("/proc/stat").open(encoding="ascii") as stat:
        user, nice, system, _idle, _io, interrupts, soft, steal = map(int, stat.readline().split()[1:9])
    return (user + nice + system + interrupts + soft + steal) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def sent_bytes(device: str | None) -> int:
    """What this host's device has sent."""
    if device is None:
        return 0
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.strip().startswith(device)).split(":")[1].split()[8])


__all__ = ["Parent", "Program", "run_rank"]
