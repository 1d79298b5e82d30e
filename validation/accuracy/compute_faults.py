"""Faults of the devices, and work that is unevenly distributed among them."""

from dataclasses import dataclass

import numpy as np
from costs import JobCosts, compute_slots
from fault_model import Effect, Scene, Truth, accuse, accuse_by_step, on_device
from layouts import Ints

QUADRATIC_SHARE = 0.3
"""Attention's share of a microbatch: it grows with the square of the sequence's length."""


@dataclass(frozen=True)
class SlowGpu:
    """One GPU takes `factor` times as long for everything but communication."""

    rank: int
    factor: float

    def apply(self, costs: JobCosts, _: Scene) -> Effect:
        stage, position = costs.layout.place(self.rank)
        costs.device[stage][:, on_device(costs.program.stages[stage]), position] *= self.factor
        return accuse("slow_gpu", "compute", costs.layout, self.rank)


@dataclass(frozen=True)
class SlowBesideSpinning:
    """A slow GPU, for whom the others wait in collectives that spin and slow their own backward pass meanwhile."""

    rank: int
    factor: float
    spinning: float
    """The share by which the others' backward pass is longer."""

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        for times, operations in zip(costs.device, costs.program.stages, strict=True):
            backward = [slot for slot in compute_slots(operations) if operations[slot].phase == "backward"]
            for rank in set(range(times.shape[2])) - {self.rank}:
                times[:, backward, rank] *= 1 + self.spinning
        return SlowGpu(self.rank, self.factor).apply(costs, scene)


@dataclass(frozen=True)
class SlowKernel:
    """One type of kernel (a short or the full name) takes `factor` times as long on one rank."""

    rank: int
    name: str
    factor: float

    def apply(self, costs: JobCosts, _: Scene) -> Effect:
        stage, position = costs.layout.place(self.rank)
        operations = costs.program.stages[stage]
        slots = [slot for slot in on_device(operations) if self.name in (operations[slot].label, operations[slot].name)]
        if not slots:
            raise ValueError(f"rank {self.rank} runs no kernel {self.name}")
        costs.device[stage][:, slots, position] *= self.factor
        return accuse("slow_kernel", "compute", costs.layout, self.rank, operator=operations[slots[0]].name)


@dataclass(frozen=True)
class UpgradedKernel:
    """One type of kernel (a short or the full name) takes `factor` times as long on all ranks: nobody's fault."""

    name: str
    factor: float

    def apply(self, costs: JobCosts, _: Scene) -> Effect:
        for stage, operations in enumerate(costs.program.stages):
            slots = [slot for slot, one in enumerate(operations) if self.name in (one.label, one.name)]
            costs.device[stage][:, slots] *= self.factor
        return Effect()


@dataclass(frozen=True)
class SlowHost:
    """All GPUs of one host take `factor` times as long."""

    host: str
    factor: float

    def apply(self, costs: JobCosts, _: Scene) -> Effect:
        ranks = costs.layout.host_ranks(self.host)
        for stage, position in map(costs.layout.place, ranks):
            costs.device[stage][:, on_device(costs.program.stages[stage]), position] *= self.factor
        return accuse("slow_host", "compute", costs.layout, *ranks)


@dataclass(frozen=True)
class ChangingCulprit:
    """In each step another random rank's GPU takes `factor` times as long."""

    factor: float

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        layout = costs.layout
        culprits = _never_twice_running(layout.ranks, costs.steps, scene.random)
        for step, rank in enumerate(culprits.tolist()):
            stage, position = layout.place(rank)
            costs.device[stage][step, on_device(costs.program.stages[stage]), position] *= self.factor
        by_step = [(rank,) for rank in culprits.tolist()]
        return Effect((accuse_by_step("changing_culprit", "compute", layout, by_step),))


@dataclass(frozen=True)
class StageImbalance:
    """One pipeline stage computes `factor` times as long: it has more layers, or the loss."""

    stage: int
    factor: float

    def apply(self, costs: JobCosts, _: Scene) -> Effect:
        ranks = costs.layout.stage_ranks(self.stage)
        costs.device[self.stage][:, compute_slots(costs.program.stages[self.stage])] *= self.factor
        return accuse("stage_imbalance", "stage_imbalance", costs.layout, *ranks)


@dataclass(frozen=True)
class SequenceImbalance:
    """Lengths with this coefficient of variation, per microbatch, dp rank and step; the same in all stages."""

    cv: float

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        layout = costs.layout
        sigma = np.sqrt(np.log1p(self.cv**2))
        normal = scene.random.standard_normal((costs.steps, layout.microbatches, layout.dp))
        length = np.exp(sigma * normal - sigma**2 / 2)
        factor = (1 - QUADRATIC_SHARE) * length + QUADRATIC_SHARE * length**2
        of_rank = np.repeat(factor, layout.tp, axis=2)
        for stage, operations in enumerate(costs.program.stages):
            for slot in compute_slots(operations):
                if (microbatch := operations[slot].microbatch) is not None:
                    costs.device[stage][:, slot] *= of_rank[:, microbatch]
        return Effect((Truth("sequence_imbalance", "sequence_imbalance"),))


def _never_twice_running(ranks: int, steps: int, random: np.random.Generator) -> Ints:
    """A random rank per step, another one than in the step before."""
    leaps = random.integers(1, max(ranks, 2), steps)
    result: Ints = (random.integers(ranks) + np.cumsum(leaps)) % ranks
    return result
