"""Faults of the hosts: their processors, their input, their clocks, their garbage collection."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from costs import JobCosts, forward_slots, quiet_costs
from fault_model import Effect, Pause, Scene, accuse, accuse_by_step
from programs import Program
from timeline import nominal_step_ns, run

EARLY = 0.25
"""Share of the forward launches before which a rank can stall: later ones find work queued up on the device."""
TRIALS = 33


@dataclass(frozen=True)
class HostBound:
    """Every launch of one rank takes longer on its host: its device starves, and the step loses about `severity`."""

    rank: int
    severity: float

    def apply(self, costs: JobCosts, _: Scene) -> Effect:
        stage, position = costs.layout.place(self.rank)
        costs.before_launch[stage][:, :, position] += _starving_ns(costs.program, self.rank, self.severity)
        return accuse("host_bound", "host", costs.layout, self.rank)


@dataclass(frozen=True)
class ProfilerOnOneRank:
    """One rank's profiler lengthens every launch, which the work that is queued up on its device hides: no fault."""

    rank: int
    overhead: float
    """Of what the host needs for an operation."""

    def apply(self, costs: JobCosts, _: Scene) -> Effect:
        stage, position = costs.layout.place(self.rank)
        costs.before_launch[stage][:, :, position] *= 1 + self.overhead
        costs.launch[stage][:, :, position] *= 1 + self.overhead
        return Effect()


@dataclass(frozen=True)
class SlowInput:
    """One rank's input fetches take longer by a share of the step."""

    rank: int
    share: float

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        costs.fetch[:, self.rank] += self.share * scene.step_ns
        return accuse("slow_input", "input", costs.layout, self.rank)


@dataclass(frozen=True)
class Stall:
    """In some steps one rank's host stands still early in the forward pass, for a share of the step."""

    rank: int
    probability: float
    share: float

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        stage, _ = costs.layout.place(self.rank)
        slots = forward_slots(costs.program.stages[stage])
        slots = slots[: max(1, int(EARLY * len(slots)))]
        hit = scene.random.random(costs.steps) < self.probability
        at = scene.random.integers(0, len(slots), costs.steps)
        pauses = tuple(
            Pause(step, self.rank, slots[at[step]], self.share * scene.step_ns) for step in np.flatnonzero(hit).tolist()
        )
        pause(costs, pauses)
        by_step = [(self.rank,) if stalled else () for stalled in hit]
        return Effect((accuse_by_step("stall", "host", costs.layout, by_step),), pauses)


@dataclass(frozen=True)
class Stalls:
    """In so many steps, whichever, one rank's host stands still before its first launch, for a share of the step."""

    rank: int
    count: int
    share: float

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        stage, _ = costs.layout.place(self.rank)
        slot = forward_slots(costs.program.stages[stage])[0]
        hit = np.sort(scene.random.choice(costs.steps, self.count, replace=False)).tolist()
        pauses = tuple(Pause(step, self.rank, slot, self.share * scene.step_ns) for step in hit)
        pause(costs, pauses)
        by_step = [(self.rank,) if step in hit else () for step in range(costs.steps)]
        return Effect((accuse_by_step("stall", "host", costs.layout, by_step),), pauses)


@dataclass(frozen=True)
class GarbageCollection:
    """Python collects garbage before a random forward launch of random ranks."""

    probability: float
    """Per rank and step."""
    pause_ms: float
    visible: bool = False

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        layout, random = costs.layout, scene.random
        shape = (costs.steps, layout.ranks)
        hit = random.random(shape) < self.probability
        at = random.random(shape)
        length = self.pause_ms * 1e6 * random.uniform(0.8, 1.2, shape)
        pauses = []
        for step, rank in np.argwhere(hit).tolist():
            slots = forward_slots(costs.program.stages[layout.place(rank)[0]])
            slot = slots[int(at[step, rank] * len(slots))]
            pauses.append(Pause(step, rank, slot, float(length[step, rank]), self.visible))
        pause(costs, tuple(pauses))
        by_step = [np.flatnonzero(of_step).tolist() for of_step in hit]
        truth = accuse_by_step("garbage_collection", "garbage_collection", layout, by_step)
        return Effect((truth,), tuple(pauses))


@dataclass(frozen=True)
class ClockSkew:
    """Hosts' clocks differ by up to `max_ns` from the true time. No fault of anybody's: it has no truth."""

    max_ns: float

    def apply(self, costs: JobCosts, scene: Scene) -> Effect:
        offsets = scene.random.uniform(-self.max_ns, self.max_ns, len(costs.layout.hosts))
        return Effect(host_offset_ns=tuple(offsets.tolist()))


def pause(costs: JobCosts, pauses: tuple[Pause, ...]) -> None:
    """Has the hosts stand still."""
    for pause in pauses:
        stage, position = costs.layout.place(pause.rank)
        costs.before_launch[stage][pause.step, pause.slot, position] += pause.duration_ns


@lru_cache(maxsize=256)
def _starving_ns(program: Program, rank: int, severity: float) -> float:
    """How much longer every launch must take for a noise-free step to lose `severity` of itself.

    Found by trying: most of it hides behind the work queued up on the device and the waiting for other ranks.
    """
    stage, position = program.layout.place(rank)
    step = nominal_step_ns(program)
    # With the last one the host alone takes all the time that the step may.
    tried = np.linspace(0.0, step * (1 + severity) / len(program.stages[stage]), TRIALS)
    jobs = []
    for extra in tried.tolist():
        costs = quiet_costs(program)
        costs.before_launch[stage][:, :, position] += extra
        jobs.append(costs)
    timeline = run(program, jobs)
    lengths = (timeline.step_end - timeline.step_begin)[0].max(axis=1)
    return float(np.interp(lengths[0] + severity * step, lengths, tried))
