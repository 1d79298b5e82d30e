"""Plays a policy against a job that runs step by step, synthetic or recorded: how much sooner it ends, at what price.

A simulation shows which rules work against which patterns; its figures are no truths about clusters.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_mitigate.guide import Guide
from kair_mitigate.policy.claims import claimed, shown_speeds
from kair_mitigate.policy.job_patterns import Conditions, Pattern, conditions_of, recorded_conditions
from kair_mitigate.policy.policies import Action, Policy, View
from kair_mitigate.policy.prices import MICRO_BATCHES, parts_done
from kair_mitigate.policy.rates import Rates

RESTART_S = 60.0
"""Seconds of a restart where nothing else is told."""
DELAY_STEPS = 8
"""Steps from a decision to its plan: one is sent every 8 steps, and begins beyond what has been fetched by then."""
HIGHEST = 4
"""A unit can hold this many times its first number of samples."""
LOWEST = 2
"""Graphs are compiled anew for sizes below this."""
CLAIM_S = 0.0003
"""Seconds of a claim: fifteen times the median that was measured on the loopback, for hosts that are farther away."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """What came of a policy; `speed_up` over the same job left alone, `step_s` the seconds per global batch trained."""

    speed_up: float
    step_s: float
    resizes: int
    restarts: int
    redone_share: float
    """The share of the samples given out that were not done in time, and came again."""
    actions: tuple[tuple[int, Action], ...]
    """All that was done, with the step after which it was decided."""


def simulate(
    policy: Policy,
    pattern: Pattern,
    ranks: int,
    steps: int,
    seed: int,
    *,
    restart_s: float | None = RESTART_S,
    delay_steps: int = DELAY_STEPS,
) -> Simulated:
    """Plays the policy, which must be a fresh one, against a pattern of faults drawn from the seed."""
    job = conditions_of(pattern, ranks, steps, seed)
    return _played(policy, job, restart_s, delay_steps, highest=HIGHEST * job.sizes)


def simulate_recorded(
    policy: Policy,
    compute_s: Floats,
    rest_s: Floats,
    sizes: Ints,
    *,
    highest: Ints,
    fixed_share: float = 0.0,
    delay_steps: int = DELAY_STEPS,
) -> Simulated:
    """Plays the policy against a recorded job: seconds of computing (steps × ranks), the rest of each step, its sizes.

    `fixed_share` of the computing is independent of the sizes, which are `highest` at most. What a restart would cure
    a recording does not show: none is made.
    """
    job = recorded_conditions(compute_s, rest_s, sizes, fixed_share)
    return _played(policy, job, None, delay_steps, highest=highest)


@dataclass(slots=True)
class _State:
    """What changes as the job runs."""

    sizes: Ints
    micro_batches: Ints
    cured: Bools
    deadline: float | None = None
    spare: int = 0
    speeds: list[float] | None = None
    """Where ranks claim: samples a second of each, as the last step has shown them."""


def _played(policy: Policy, job: Conditions, restart_s: float | None, delay_steps: int, *, highest: Ints) -> Simulated:
    steps, ranks = job.compute_s.shape
    state = _State(job.sizes.copy(), np.ones(ranks, dtype=np.int64), np.zeros(ranks, dtype=bool))
    rates, coming, actions = Rates(ranks), deque[tuple[int, Action]](), list[tuple[int, Action]]()
    lowest = np.minimum(LOWEST, job.sizes)
    elapsed_s, samples, given = 0.0, 0, 0
    for step in range(steps):
        while coming and coming[0][0] <= step:
            _come_into_force(state, coming.popleft()[1])
        full_s, rest_s = job.step(step, state.sizes, state.micro_batches, state.cured)
        compute_s, done = (
            _done(state, full_s, rates) if state.speeds is None else _claimed(state, job, step, state.speeds)
        )
        elapsed_s += float(compute_s.max()) + rest_s
        samples += int(done.sum())
        given += int(state.sizes.sum())
        # Units that are not waited for go on computing: what they would have taken is seen, but comes too late.
        seen_s, seen = (full_s, state.sizes) if state.spare else (compute_s, done)
        rates.add(step, seen_s, state.sizes, rest_s, seen)
        newest = next((one.sizes for _, one in reversed(coming) if one.sizes is not None), state.sizes)
        action = policy.decide(
            View(
                step=step,
                steps_left=steps - step - 1,
                sizes=newest,
                pending=bool(coming),
                claims=state.speeds is not None,
                can_claim=True,
                lowest=lowest,
                highest=highest,
                rates=rates,
                compute_s=seen_s,
                done=seen,
                restart_s=restart_s,
                has_deadline=state.deadline is not None,
                can_adjust_lr=True,
                slow_network=job.slow_network(step, state.cured),
            )
        )
        if action.kind == "none":
            continue
        actions.append((step, action))
        if action.kind == "kill_restart":
            # The job leaves by itself after a checkpoint, and comes back with the newest plan.
            elapsed_s += restart_s or 0.0
            state.cured[action.units] = True
            coming.clear()
            _come_into_force(state, action)
        else:
            # Ranks that claim, or resize by the speeds that come with each gradient, wait for no plan.
            late = 0 if action.kind == "claim" or action.by_ranks else delay_steps
            coming.append((step + 1 + late, action))
    batch, kinds = int(job.sizes.sum()), [one.kind for _, one in actions]
    step_s = elapsed_s * batch / samples
    return Simulated(
        speed_up=job.static_s() / steps / step_s,
        step_s=step_s,
        resizes=kinds.count("adjust_bs") + kinds.count("adjust_lr"),
        restarts=kinds.count("kill_restart"),
        redone_share=1 - samples / given,
        actions=tuple(actions),
    )


def _come_into_force(state: _State, action: Action) -> None:
    if action.sizes is not None:
        state.sizes = action.sizes
    if action.micro_batches is not None:
        state.micro_batches = action.micro_batches
    if action.kind == "backup_workers":
        state.deadline, state.spare = action.deadline, action.spare
    if action.kind == "claim":
        state.speeds = [1.0] * len(state.sizes)


def _claimed(state: _State, job: Conditions, step: int, speeds: list[float]) -> tuple[Floats, Ints]:
    """Return how long each rank is busy, and the samples it has done, in a step shared out by claims.

    A rank has four micro-batches at first; each claim costs a quarter of what does not depend on the batch.
    """
    sample_s, _ = job.sample_s(step, state.cured)
    guide = Guide(speeds, int(job.sizes.sum()), max(int(job.sizes.max()) // MICRO_BATCHES, 1))
    batch_s = sample_s * job.fixed_samples / MICRO_BATCHES
    busy_s, done = claimed(guide, sample_s.tolist(), batch_s.tolist(), CLAIM_S)
    state.speeds = shown_speeds(speeds, busy_s, done)
    return np.array(busy_s), np.array(done)


def _done(state: _State, full_s: Floats, rates: Rates) -> tuple[Floats, Ints]:
    """How long each unit is waited for, and the samples it has done by then."""
    if state.spare:
        waited_s = float(np.partition(full_s, len(full_s) - state.spare - 1)[len(full_s) - state.spare - 1])
        in_time = full_s <= waited_s
        return np.minimum(full_s, waited_s), np.where(in_time, state.sizes, 0)
    if state.deadline is None:
        return full_s, state.sizes
    # The deadline is made of the levels known before the step.
    part = parts_done(full_s, state.deadline * float(np.median(rates.fitted().times(state.sizes))))
    return full_s * part, np.maximum((state.sizes * part).astype(np.int64), np.minimum(state.sizes, 1))
