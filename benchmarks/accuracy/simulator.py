"""Simulates training jobs whose faults are known: `simulate` is the way in."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from costs import Noise, noisy_costs
from fault_model import Effect, Fault, Scene
from layouts import JobLayout
from programs import Program, program_of
from recording import Recording, StageTimes
from timeline import Floats, Ints, Timeline, nominal_step_ns, run


@dataclass(frozen=True)
class JobSpec:
    """A job to simulate. The same seed draws the same noise whatever the faults are."""

    layout: JobLayout
    steps: int = 20
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    noise: Noise = field(default_factory=Noise)
    devices: int | None = None
    """Seed of the GPUs' persistent speeds, where one job is to be recorded several times; else they follow the seed."""

    def healthy(self) -> "JobSpec":
        """The same job without its faults: what they cost is the difference in time."""
        return replace(self, faults=())


def simulate(specs: Sequence[JobSpec]) -> list[Recording]:
    """The recordings of jobs that share a layout and a number of steps; each is what it would be alone.

    A batch of 8 takes a quarter (8 ranks) to two thirds (64) of the time per job that single ones take.
    """
    if len({(spec.layout, spec.steps) for spec in specs}) != 1:
        raise ValueError("the jobs of a batch share one layout and one number of steps")
    program = program_of(specs[0].layout)
    costs, effects = [], []
    for spec in specs:
        devices = None if spec.devices is None else np.random.default_rng((spec.devices, 0, 0))
        of_job = noisy_costs(program, spec.steps, spec.noise, np.random.default_rng((spec.seed, 0)), devices)
        effects.append([fault.apply(of_job, _scene(spec, program, index)) for index, fault in enumerate(spec.faults)])
        costs.append(of_job)
    timeline = run(program, costs)
    return [_recording(program, timeline, job, effects[job]) for job in range(len(specs))]


def _scene(spec: JobSpec, program: Program, fault: int) -> Scene:
    return Scene(nominal_step_ns(program), np.random.default_rng((spec.seed, 1 + fault)))


def _recording(program: Program, timeline: Timeline, job: int, effects: Sequence[Effect]) -> Recording:
    layout = program.layout
    of_host = np.zeros(len(layout.hosts))
    for effect in effects:
        of_host += np.array(effect.host_offset_ns or 0.0)
    number = {host: index for index, host in enumerate(layout.hosts)}
    on_host = [number[layout.host(rank)] for rank in range(layout.ranks)]
    parts = zip(timeline.begin, timeline.end, timeline.launch_begin, timeline.launch_end, strict=True)
    return Recording(
        program=program,
        stages=tuple(StageTimes(*(_integers(times[:, :, job]) for times in part)) for part in parts),
        step_begin=_integers(timeline.step_begin[:, job]),
        step_end=_integers(timeline.step_end[:, job]),
        fetch_begin=_integers(timeline.fetch_begin[:, job]),
        fetch_end=_integers(timeline.fetch_end[:, job]),
        wait_begin=_integers(timeline.wait_begin[:, job]),
        wait_end=_integers(timeline.wait_end[:, job]),
        clock_offset_ns=_integers(np.rint(of_host[on_host])),
        pauses=tuple(pause for effect in effects for pause in effect.pauses),
        truths=tuple(truth for effect in effects for truth in effect.truths),
    )


def _integers(times: Floats) -> Ints:
    return times.astype(np.int64)
