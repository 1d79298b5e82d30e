"""Excesses written down directly: what stage 1 would make of a trace."""

import numpy as np

from kair_engine.excess import CLASSES, PASSES, JobExcess, LateArrivals, OperatorExcess, StepExcess

STEP_NS = 100_000_000.0
COMPUTE, INPUT, HOST, COMMUNICATION = range(len(CLASSES))
Percents = np.ndarray
NOBODY = LateArrivals(*(np.zeros(0, dtype=np.int64) for _ in range(4)))
WORK = (80.0, 1.0, 1.0, 0.0)
"""What ranks spend on each class, in percent of the step."""


def job(
    percents: Percents,
    *,
    role: list[int] | None = None,
    unit: list[int] | None = None,
    operators: dict[str, Percents] | None = None,
) -> JobExcess:
    """A job from (steps × classes × ranks) excesses in percent of the step.

    `operators` are (steps × ranks) excesses of operators that take 5 % of the step.
    """
    ranks = np.arange(percents.shape[2])
    work = np.repeat(np.array(WORK)[:, None], len(ranks), axis=1) * STEP_NS / 100
    nothing = np.zeros((len(PASSES), len(ranks)))
    typical = np.full(len(ranks), 0.05 * STEP_NS)
    steps = tuple(
        StepExcess(
            step,
            of_step * STEP_NS / 100,
            STEP_NS,
            NOBODY,
            0,
            0,
            work_ns=work,
            passes_ns=nothing,
            idle_ns=nothing,
            garbage_ns=nothing[0],
            pauses=nothing[0].astype(np.int64),
            paused_ns=nothing[0],
            operators={
                name: OperatorExcess(False, excess[step] * STEP_NS / 100, typical)
                for name, excess in (operators or {}).items()
            },
        )
        for step, of_step in enumerate(percents)
    )
    roles = np.zeros(len(ranks), dtype=np.int64) if role is None else np.array(role)
    names = {int(rank): f"role {code}" for rank, code in enumerate(roles)}
    return JobExcess(ranks, roles, names, steps, None if unit is None else np.array(unit))


def quiet(steps: int, ranks: int, seed: int = 0, percent: float = 0.1) -> Percents:
    """Excesses of a healthy job: a little noise in every class."""
    return np.random.default_rng(seed).normal(0, percent, (steps, len(CLASSES), ranks))
