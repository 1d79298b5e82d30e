"""Simulates training jobs whose faults are known: `simulate`, and `simulate_ahead` where hosts run ahead."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from costs import JobCosts, Noise, noisy_costs
from fault_model import Effect, Fault, Scene
from launch_queue import nominal_period, run_queued
from layouts import JobLayout
from programs import Program, program_of
from recording import Recording, StageTimes
from run_ahead import Ahead, AheadRecording
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
    ahead: Ahead | None = None
    """Where the layout's hosts run ahead: how far."""

    def healthy(self) -> "JobSpec":
        """The same job without its faults: what they cost is the difference in time."""
        return replace(self, faults=())


def simulate(specs: Sequence[JobSpec]) -> list[Recording]:
    """The recordings of jobs that share a layout and a number of steps; each is what it would be alone.

    A batch of 8 takes a quarter (8 ranks) to two thirds (64) of the time per job that single ones take.
    """
    if len({(spec.layout, spec.steps) for spec in specs}) != 1:
        raise ValueError("the jobs of a batch share one layout and one number of steps")
    if specs[0].layout.runs_ahead:
        raise ValueError(f"hosts of this layout run ahead, which simulate_ahead knows: {specs[0].layout}")
    program = program_of(specs[0].layout)
    made = [_costs(spec, program, spec.steps, nominal_step_ns(program)) for spec in specs]
    timeline = run(program, [costs for costs, _ in made])
    return [_recording(program, timeline, job, effects) for job, (_, effects) in enumerate(made)]


def simulate_ahead(specs: Sequence[JobSpec]) -> list[AheadRecording]:
    """The same of jobs whose hosts run ahead of their devices; they also share how far (`ahead`).

    Raises graphlib.CycleError where a pipeline's queue is so short that its stages wait for each other for ever.
    """
    if len({(spec.layout, spec.steps, spec.ahead) for spec in specs}) != 1:
        raise ValueError("the jobs of a batch share one layout, one number of steps and one queue")
    layout, ahead, steps = specs[0].layout, specs[0].ahead, specs[0].steps
    if ahead is None or not layout.runs_ahead:
        raise ValueError(f"nothing says how far hosts run ahead: {specs[0]}")
    program = program_of(layout)
    simulated, step_ns = ahead.warm_up + max(ahead.measured, steps), nominal_period(program).period_ns
    made = [_costs(spec, program, simulated, step_ns) for spec in specs]
    timeline = run_queued(program, [costs for costs, _ in made], ahead.queue)
    return [
        AheadRecording(_recording(program, timeline, job, effects), ahead, steps)
        for job, (_, effects) in enumerate(made)
    ]


def _costs(spec: JobSpec, program: Program, steps: int, step_ns: float) -> tuple[JobCosts, list[Effect]]:
    """What a job's operations cost with its faults, and what else these leave behind."""
    devices = None if spec.devices is None else np.random.default_rng((spec.devices, 0, 0))
    costs = noisy_costs(program, steps, spec.noise, np.random.default_rng((spec.seed, 0)), devices)
    queue = None if spec.ahead is None else spec.ahead.queue
    effects = []
    for index, fault in enumerate(spec.faults):
        scene = Scene(step_ns, np.random.default_rng((spec.seed, 1 + index)), queue)
        effects.append(fault.apply(costs, scene))
    return costs, effects


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
