"""The faults inside of a rank's script: those of all takes, and two that are only here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from drawing import Fault
from faults import Calibrated, Fed, InsideFaults, unit_cpu_ns
from torch import Tensor, nn

from written.script import Hooks

SPARE_WIDTH, SPARE_ROWS = 64, 256


class Spare:
    """A small network outside of the job; what a fault of `extra_work` runs more of."""

    def __init__(self, hooks: Hooks, steps: int) -> None:
        self.hooks, self.steps = hooks, steps
        wide = 4 * SPARE_WIDTH
        self.spare = nn.Sequential(nn.Linear(SPARE_WIDTH, wide), nn.GELU(), nn.Linear(wide, SPARE_WIDTH))
        self.spare_input = torch.randn(SPARE_ROWS, SPARE_WIDTH)

    @property
    def block_calls(self) -> int:
        """How often each of the first steps came between two layers."""
        return max(1, self.hooks.calls // self.steps)


class ScriptFaults(InsideFaults):
    """The faults of one rank of a script."""

    def __init__(self, seed: int, rank: int, faults: list[Fault]) -> None:
        super().__init__(seed, rank, faults)
        self.layers: list[tuple[Fault, nn.Module, int]] = []

    def prepare_one(self, fault: Fault, program: Calibrated, fed: Fed, step_ns: float, own_ns: float) -> None:
        """Calibrate one."""
        lost_ns = fault.severity * step_ns * self.share(fault, program)
        if fault.kind == "extra_layers":
            layers = program.spare.requires_grad_(False)
            self.layers.append((fault, layers, max(1, round(lost_ns / cpu_ns_of_row(layers)))))
        elif fault.kind == "small_operators":
            self.put(fault, small_operators(lost_ns))
        else:
            super().prepare_one(fault, program, fed, step_ns, own_ns)

    def within(self, x: Tensor) -> Tensor:
        """As it came, through layers that the others have not."""
        for fault, layers, rows in self.layers:
            if self.active(fault):
                x = x + 0.0 * further(layers, x, rows)
        return x


def further(layers: nn.Module, x: Tensor, rows: int) -> Tensor:
    """What the layers make of so many rows of it, which go backward, too."""
    flat = x.reshape(-1)
    whole = nn.functional.pad(flat, (0, -len(flat) % SPARE_WIDTH)).view(-1, SPARE_WIDTH)[:SPARE_ROWS]
    total = x.new_zeros(())
    for begin in range(0, rows, len(whole)):
        total = total + layers(whole[: rows - begin]).sum()
    return total


def cpu_ns_of_row(layers: nn.Module) -> float:
    """Forward and backward."""
    rows = torch.randn(SPARE_ROWS, SPARE_WIDTH, requires_grad=True)

    def both_ways() -> None:
        (0.0 * layers(rows).sum()).backward()

    return unit_cpu_ns(both_ways) / SPARE_ROWS


def small_operators(lost_ns: float) -> Callable[[], object]:
    """Many small operators where one would do."""
    rows, weight = torch.randn(256, 96), torch.randn(96, 256)

    def one() -> None:
        torch.softmax(rows[3] @ weight, -1) @ rows

    times = max(1, round(20 * lost_ns / unit_cpu_ns(lambda: [one() for _ in range(20)])))

    def work() -> None:
        with torch.no_grad():
            for _ in range(times):
                one()

    return work
