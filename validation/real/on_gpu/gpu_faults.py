"""Faults of a rank that trains on a GPU: as those of faults.py, but measured until the GPU is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from drawing import Fault
from faults import Fed, InsideFaults
from parallel_layouts import Program

from on_gpu.gpu_drawing import GpuTake

Times = Callable[[float], int]
"""How often work is repeated, given how often it takes to cost as much as it is to."""

COPIED_EXAMPLES = 64
TINY = 256


class GpuFaults(InsideFaults):
    """The faults of one rank, and the precision that it computes with."""

    def prepare_one(self, fault: Fault, program: Program, fed: Fed, step_ns: float, own_ns: float) -> None:
        if fault.kind in WORK_ON_GPU:
            lost_ns = fault.severity * step_ns * self.share(fault, program)
            times = agreed if len(fault.ranks) > 1 else round
            self.put(fault, WORK_ON_GPU[fault.kind](lost_ns, program, times))
        elif fault.kind != "slower_kernel":
            super().prepare_one(fault, program, fed, step_ns, own_ns)

    def slower(self) -> bool:
        """Whether kernels are to be the slower ones now."""
        return any(fault.kind == "slower_kernel" and self.active(fault) for fault in self.faults)

    def precision(self, take: GpuTake) -> AbstractContextManager[object]:
        """What the forward pass is to run in."""
        return torch.autocast(take.device, torch.bfloat16, enabled=take.precision == "bfloat16" and not self.slower())


def unit_wall_ns(work: Callable[[], object]) -> float:
    """The least time of a few runs, each until the GPU is done."""
    took = []
    for _ in range(5):
        begin = time.monotonic_ns()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        took.append(time.monotonic_ns() - begin)
    return max(min(took), 1000)


def agreed(times: float) -> int:
    """The mean of what all ranks ask for: of a fault of all of them each has as much, however each was calibrated."""
    asked = torch.tensor([times], dtype=torch.float64)
    dist.all_reduce(asked)
    return round(float(asked) / dist.get_world_size())


def repeated(work: Callable[[], object], times: int) -> Callable[[], object]:
    def run() -> None:
        for _ in range(times):
            work()

    return run


def extra_work(lost_ns: float, program: Program, times: Times) -> Callable[[], object]:
    """Another block of the model, run forward on as many examples as it takes."""
    whole = program.spare_input

    def forward() -> None:
        with torch.no_grad():
            program.spare(whole)

    return repeated(forward, max(1, times(lost_ns / unit_wall_ns(forward))))


def synchronising_copies(lost_ns: float, program: Program, times: Times) -> Callable[[], object]:
    """Numbers that the host looks at, one and some by turns; each waits for all that the GPU has to do."""
    one, some = program.spare_input.flatten()[0], program.spare_input[:COPIED_EXAMPLES]

    def copy() -> None:
        one.item()
        some.cpu()

    return repeated(copy, max(1, times(lost_ns / unit_wall_ns(copy))))


def tiny_kernels(lost_ns: float, program: Program, times: Times) -> Callable[[], object]:
    """Additions of a few numbers."""
    few = torch.zeros(TINY, device=program.spare_input.device)
    ten_ns = unit_wall_ns(repeated(lambda: few.add_(1), 10))
    return repeated(lambda: few.add_(1), max(1, times(10 * lost_ns / ten_ns)))


WORK_ON_GPU: dict[str, Callable[[float, Program, Times], Callable[[], object]]] = {
    "extra_work": extra_work,
    "synchronising_copies": synchronising_copies,
    "synchronising_copies_on_all": synchronising_copies,
    "launch_bound": tiny_kernels,
}
