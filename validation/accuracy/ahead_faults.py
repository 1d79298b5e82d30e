"""Faults of jobs whose hosts run ahead: delays that the launch queue hides or does not, and stalls of some steps."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from costs import JobCosts, forward_slots
from fault_model import Effect, Pause, Scene, accuse, accuse_by_step
from host_faults import EARLY, pause
from launch_queue import launches_of, nominal_period

HIDDEN_LEAD: Final = 0.8
"""Of the time that a full queue holds, a single delay may take so much: the queue's kernels are not all as long."""
STALL_CYCLE: Final = 10
"""Stalls come back after so many steps: of any so many in a row, equally many have one."""


@dataclass(frozen=True)
class SlowInputHidden:
    """One rank's input fetches take longer, by a share of what its host has to spare: the device does not notice."""

    rank: int
    share: float

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        costs.fetch[:, self.rank] += self.share * min(spare_ns(costs, self.rank), _held_ns(costs, self.rank, scene))
        return accuse("slow_input", "input", costs.layout, self.rank)


@dataclass(frozen=True)
class SlowInputBeyond:
    """One rank's input fetches take so much longer that its host needs `excess` more than a period."""

    rank: int
    excess: float

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        costs.fetch[:, self.rank] += spare_ns(costs, self.rank) + self.excess * scene.step_ns
        return accuse("slow_input", "input", costs.layout, self.rank)


@dataclass(frozen=True)
class HostBoundHidden:
    """Every launch of one rank takes longer, in all by a share of what its host has to spare."""

    rank: int
    share: float

    def apply(self, costs: JobCosts, _: Scene) -> Effect:
        return _slow_host_program(costs, self.rank, self.share * spare_ns(costs, self.rank))


@dataclass(frozen=True)
class HostBoundBeyond:
    """Every launch of one rank takes so much longer that its host needs `excess` more than a period."""

    rank: int
    excess: float

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        return _slow_host_program(costs, self.rank, spare_ns(costs, self.rank) + self.excess * scene.step_ns)


@dataclass(frozen=True)
class DeviceStalls:
    """In so many of ten steps one forward kernel of one rank takes longer, by a share of the step."""

    rank: int
    per_ten: int
    share: float

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        stage, position = costs.layout.place(self.rank)
        slots = forward_slots(costs.program.stages[stage])
        hit = _equally_often(self.per_ten, costs.steps, scene.random)
        for step in np.flatnonzero(hit).tolist():
            costs.device[stage][step, int(scene.random.choice(slots)), position] += self.share * scene.step_ns
        by_step = [(self.rank,) if stalled else () for stalled in hit]
        return Effect((accuse_by_step("device_stall", "compute", costs.layout, by_step),))


@dataclass(frozen=True)
class HostStalls:
    """In so many of ten steps one rank's host stands still early in the forward pass, for a share of the step."""

    rank: int
    per_ten: int
    share: float

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        stage, _ = costs.layout.place(self.rank)
        slots = forward_slots(costs.program.stages[stage])
        slots = slots[: max(1, int(EARLY * len(slots)))]
        hit = _equally_often(self.per_ten, costs.steps, scene.random)
        pauses = tuple(
            Pause(step, self.rank, int(scene.random.choice(slots)), self.share * scene.step_ns)
            for step in np.flatnonzero(hit).tolist()
        )
        pause(costs, pauses)
        by_step = [(self.rank,) if stalled else () for stalled in hit]
        return Effect((accuse_by_step("stall", "host", costs.layout, by_step),), pauses)


def spare_ns(costs: JobCosts, rank: int) -> float:
    """How much longer a rank's host could take for a step without anybody's noticing."""
    nominal = nominal_period(costs.program)
    return max(0.0, nominal.period_ns - nominal.host_ns[rank])


def _held_ns(costs: JobCosts, rank: int, scene: Scene) -> float:
    """How long the device has something to do once its host stops, where the queue is full."""
    if scene.queue is None:
        return 0.0
    per_step = len(launches_of(costs.program)[costs.layout.place(rank)[0]])
    return HIDDEN_LEAD * scene.queue / per_step * nominal_period(costs.program).period_ns


def _slow_host_program(costs: JobCosts, rank: int, extra_ns: float) -> Effect:
    """Spreads what the host takes longer over everything that it launches."""
    stage, position = costs.layout.place(rank)
    before = costs.before_launch[stage]
    before[:, :, position] += extra_ns / before.shape[1]
    return accuse("host_bound", "host", costs.layout, rank)


def _equally_often(per_cycle: int, steps: int, random: np.random.Generator) -> list[bool]:
    """Whether each step is hit: whichever, but the same of every STALL_CYCLE."""
    hit: list[bool] = np.resize(random.permutation(np.arange(STALL_CYCLE) < per_cycle), steps).tolist()
    return hit
