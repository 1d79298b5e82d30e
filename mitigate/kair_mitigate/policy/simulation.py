"""Plays a policy against a job that runs step by step, synthetic or recorded: speed-up and its price.

A simulation shows which rules work against which patterns; its figures do not predict real clusters.
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
"""Default seconds of a restart."""
DELAY_STEPS = 8
"""Steps from a decision to its plan: plans are sent every 8 steps and begin after what is already fetched."""
HIGHEST = 4
"""A unit can hold this many times its initial samples."""
LOWEST = 2
"""Smaller sizes compile graphs again."""
CLAIM_S = 0.0003
"""Seconds of a claim: fifteen times the median measured on loopback, for more distant hosts."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Result of a policy: `speed_up` over the untouched job, `step_s` seconds per global batch trained."""

    speed_up: float
    step_s: float
    resizes: int
    restarts: int
    redone_share: float
    """Share of the assigned samples that were not done in time and had to be repeated."""
    actions: tuple[tuple[int, Action], ...]
    """All actions, with the step after which each was decided."""


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
    """Play the policy, which must be fresh, against a pattern of faults drawn from the seed."""
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
    """Play the policy against a recorded job: seconds of computing (steps × ranks), remaining seconds, its sizes.

    `fixed_share` of the computing is independent of the sizes, which are `highest` at most. Restarts are not simulated,
    because a recording does not show what they would cure.
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
    """Samples per second of each rank in the last step, if ranks claim."""


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
        # Units that are not waited for still compute: their full time is seen, but too late.
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
            # The job ends after a checkpoint, and returns with the newest plan.
            elapsed_s += restart_s or 0.0
            state.cured[action.units] = True
            coming.clear()
            _come_into_force(state, action)
        else:
            # Ranks that claim, or resize by the speeds sent with gradients, need no plan.
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
    """Return each rank's busy seconds and its samples in a step shared out by claims.

    A rank starts with four micro-batches; each claim costs a quarter of the time that does not depend on the batch.
    """
    sample_s, _ = job.sample_s(step, state.cured)
    guide = Guide(speeds, int(job.sizes.sum()), max(int(job.sizes.max()) // MICRO_BATCHES, 1))
    batch_s = sample_s * job.fixed_samples / MICRO_BATCHES
    busy_s, done = claimed(guide, sample_s.tolist(), batch_s.tolist(), CLAIM_S)
    state.speeds = shown_speeds(speeds, busy_s, done)
    return np.array(busy_s), np.array(done)


def _done(state: _State, full_s: Floats, rates: Rates) -> tuple[Floats, Ints]:
    """Return how long each unit is waited for, and its samples done by then."""
    if state.spare:
        waited_s = float(np.partition(full_s, len(full_s) - state.spare - 1)[len(full_s) - state.spare - 1])
        in_time = full_s <= waited_s
        return np.minimum(full_s, waited_s), np.where(in_time, state.sizes, 0)
    if state.deadline is None:
        return full_s, state.sizes
    # The deadline follows the levels known before the step.
    part = parts_done(full_s, state.deadline * float(np.median(rates.fitted().times(state.sizes))))
    return full_s * part, np.maximum((state.sizes * part).astype(np.int64), np.minimum(state.sizes, 1))
