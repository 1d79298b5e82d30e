"""Faults inside a rank's own process: real work, calibrated against the rank's own steps.

Each costs `severity` of the rank's reference step in the steps that it affects. What is repeated is measured in
CPU time first, so that a fault is as much work on a busy machine as on an idle one.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from chores import chore
from drawing import CHORES, Fault
from torch import nn

NS_PER_S = 1e9
LARGEST_ENLARGEMENT = 6.0


class Calibrated(Protocol):
    """What faults are sized by: a block outside of the job, its input, and how often a step comes between blocks."""

    spare: nn.Module
    spare_input: torch.Tensor

    @property
    def block_calls(self) -> int:
        """In each step."""


class Fed(Protocol):
    """A job's input, and what a fault does to it."""

    slowness: Callable[[], object]
    enlargement: Callable[[], float]


class Meter:
    """What faults took in one step: wall, CPU and run-queue nanoseconds of the main thread."""

    def __init__(self) -> None:
        self.wall = self.cpu = self.delay = 0

    def run(self, work: Callable[[], object]) -> None:
        """Do `work` and add what it took."""
        wall, (cpu, delay) = time.monotonic_ns(), schedstat()
        work()
        now_cpu, now_delay = schedstat()
        self.wall += time.monotonic_ns() - wall
        self.cpu += now_cpu - cpu
        self.delay += now_delay - delay

    def read(self) -> tuple[int, int, int]:
        """The totals so far."""
        return self.wall, self.cpu, self.delay


def schedstat() -> tuple[int, int]:
    """Nanoseconds that the calling thread ran, and that it was ready but waited for a core."""
    ran, waited, _slices = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    return int(ran), int(waited)


class InsideFaults:
    """The faults of one rank, each begun by `prepare` and active from its onset on.

    `step` is the recorded step, below 0 while warming up.
    """

    def __init__(self, seed: int, rank: int, faults: list[Fault]) -> None:
        self.faults, self.meter = faults, Meter()
        self.random = random.Random(f"{seed} {rank}")
        self.work: dict[str, list[tuple[Fault, Callable[[], object]]]] = {}
        self.prepared = False
        self.step = -1
        self.affected: list[bool] = [True] * len(faults)

    def prepare(self, program: Calibrated, fed: Fed, step_ns: float, own_ns: float) -> None:
        """Calibrate every fault to a reference step of `step_ns`, of which `own_ns` is the rank's CPU time."""
        for fault in self.faults:
            self.prepare_one(fault, program, fed, step_ns, own_ns)
        self.prepared = True

    def prepare_one(self, fault: Fault, program: Calibrated, fed: Fed, step_ns: float, own_ns: float) -> None:
        lost_ns = fault.severity * step_ns
        if fault.kind == "larger_batch":
            factor = min(1 + lost_ns / own_ns, LARGEST_ENLARGEMENT)
            fed.enlargement = self.enlarged(fault, factor)
        elif fault.kind in ("slow_input", "slow_input_on_all"):
            fed.slowness = self.fetching(fault, sorting(lost_ns))
        elif fault.kind in CHORES:
            self.put(fault, chore(fault, lost_ns, program.spare, program.spare_input))
        elif fault.kind == "slower_kernel":
            slow_kernel(self, fault, lost_ns, program)
        elif fault.place != "outside":
            self.put(fault, WORK[fault.kind](lost_ns * self.share(fault, program), program))

    def share(self, fault: Fault, program: Calibrated) -> float:
        """The share of a step's loss that falls to each time that the place is come to."""
        return 1 / program.block_calls if fault.place == "blocks" else 1.0

    def put(self, fault: Fault, work: Callable[[], object]) -> None:
        self.work.setdefault(fault.place, []).append((fault, work))

    def enlarged(self, fault: Fault, factor: float) -> Callable[[], float]:
        return lambda: factor if self.active(fault) else 1.0

    def fetching(self, fault: Fault, work: Callable[[], object]) -> Callable[[], object]:
        return lambda: self.meter.run(work) if self.active(fault) else None

    def begin_step(self, step: int) -> None:
        """From here on it is recorded step `step`, and what is drawn by step is drawn."""
        self.step = step
        self.affected = [
            due(fault, step) if fault.kind in CHORES else self.random.random() < fault.share_of_steps
            for fault in self.faults
        ]

    def active(self, fault: Fault) -> bool:
        """Whether the fault is at work in this step."""
        begun = self.prepared and (fault.onset == 0 or self.step >= fault.onset)
        return begun and self.affected[self.faults.index(fault)]

    def between(self, place: str) -> None:
        """Do what the faults at this place do."""
        for fault, work in self.work.get(place, ()):
            if self.active(fault):
                self.meter.run(work)


def due(chore: Fault, step: int) -> bool:
    """Whether the chore's turn is in this recorded step: as in a loop, of every n steps in the last."""
    every = round(1 / chore.share_of_steps)
    return step % every == every - 1


def unit_cpu_ns(work: Callable[[], object]) -> float:
    """The least CPU time of a few runs."""
    took = []
    for _ in range(4):
        begin = time.thread_time_ns()
        work()
        took.append(time.thread_time_ns() - begin)
    return max(min(took), 1000)


def extra_work(lost_ns: float, program: Calibrated) -> Callable[[], object]:
    """Another block of the model, run forward on as many examples as it takes."""
    whole = program.spare_input
    few = whole[: max(1, len(whole) // 16)]

    def run(batch: torch.Tensor) -> None:
        with torch.no_grad():
            program.spare(batch)

    times, rest = divmod(lost_ns, unit_cpu_ns(lambda: run(whole)))
    # A part of a batch costs at least some operators' overhead, so it is counted in small batches.
    small = round(rest / unit_cpu_ns(lambda: run(few)))

    def work() -> None:
        for _ in range(int(times)):
            run(whole)
        for _ in range(small):
            run(few)

    return work


def busy_python(lost_ns: float, _program: Calibrated) -> Callable[[], object]:
    """A loop of the interpreter."""

    def loop(count: int) -> int:
        total = 0
        for number in range(count):
            total += number & 7
        return total

    count = int(20_000 * lost_ns / unit_cpu_ns(lambda: loop(20_000)))
    return lambda: loop(count)


def sleep(lost_ns: float, _program: Calibrated) -> Callable[[], object]:
    """A call that waits."""
    return lambda: time.sleep(lost_ns / NS_PER_S)


def garbage_collection(lost_ns: float, _program: Calibrated) -> Callable[[], object]:
    """Collections: full ones, and for what is less than a full one takes, young ones."""
    full_ns = unit_cpu_ns(gc.collect)
    young_ns = unit_cpu_ns(collect_young)
    full, rest = divmod(lost_ns, full_ns)

    def work() -> None:
        for _ in range(int(full)):
            gc.collect()
        for _ in range(round(rest / young_ns)):
            collect_young()

    return work


def collect_young() -> None:
    """Allocate containers that refer to themselves, and collect them while they are young.

    None survives: survivors would make the interpreter look through all that lives, every now and then.
    """
    for _ in range(500):
        cycle: list[object] = []
        cycle.append(cycle)
    gc.collect(0)


def sorting(lost_ns: float) -> Callable[[], object]:
    """Sort numbers, as an input that needs more preparation."""
    numbers = np.random.default_rng(0).standard_normal(5000)
    times = max(1, round(lost_ns / unit_cpu_ns(lambda: np.sort(numbers))))

    def work() -> None:
        for _ in range(times):
            np.sort(numbers)

    return work


WORK = {
    "extra_work": extra_work,
    "busy_python": busy_python,
    "sleep": sleep,
    "garbage_collection": garbage_collection,
}


def slow_kernel(faults: InsideFaults, fault: Fault, lost_ns: float, program: Calibrated) -> None:
    """Make the rectifier's kernel slower: the same operator in the trace, whose kernel works longer."""
    values = np.zeros(20_000, dtype=np.float32)
    unit_ns = unit_cpu_ns(lambda: np.tanh(values))
    times = max(1, round(lost_ns / program.block_calls / unit_ns))

    def again() -> None:
        for _ in range(times):
            np.tanh(values)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        if faults.active(fault):
            faults.meter.run(again)
        return torch.from_numpy(np.maximum(x.detach().numpy(), 0))

    KERNELS.impl("relu", kernel, "CPU")  # type: ignore[no-untyped-call]  # torch has no types for it


# Kernels stay registered as long as this lives.
KERNELS = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # torch has no types for it
