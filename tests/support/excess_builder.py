"""Excesses written down directly: what stage 1 would make of a trace."""

import numpy as np

from kair_engine.localize.excess import CLASSES, PASSES, JobExcess, LateArrivals, OperatorExcess, StepExcess
from kair_engine.timeline.host_activity import HOST_KINDS, HostKind
from kair_engine.timeline.kernel_families import FAMILIES, family_of
from kair_engine.timeline.roles import Role

STEP_NS = 100_000_000.0
COMPUTE, INPUT, HOST, COMMUNICATION = range(len(CLASSES))
Percents = np.ndarray
NOBODY = LateArrivals(*(np.zeros(0, dtype=np.int64) for _ in range(4)))
WORK = (80.0, 1.0, 1.0, 0.0)
"""What ranks spend on each class, in percent of the step."""
OPERATOR = 5.0
"""What an operator takes, in percent of the step."""


def job(
    percents: Percents,
    *,
    role: list[int] | None = None,
    unit: list[int] | None = None,
    operators: dict[str, Percents] | None = None,
    work: Percents | None = None,
    passes: Percents | None = None,
    idle: Percents | None = None,
    optimizer: Percents | None = None,
    calls: dict[str, Percents] | None = None,
    given: dict[str, Percents] | None = None,
    fetching: Percents | None = None,
    garbage: Percents | None = None,
    profiling: Percents | None = None,
    activity: dict[HostKind, Percents] | None = None,
    transfers: float = 0,
    on_device: bool = True,
) -> JobExcess:
    """A job from (steps × classes × ranks) excesses in percent of the step.

    In percent, too: `transfers` is what each rank's take, `operators` are (steps × ranks) excesses of operators that
    take 5 % of the step, `work` is (classes × ranks), or of each step, `passes` and `idle` are (steps × PASSES ×
    ranks), `optimizer`, `fetching`, `garbage`, `profiling` and `activity` of each kind are (steps × ranks).
    `calls` says how often each rank calls an operator in every step (once, where it says nothing), `given` how many
    rows each gives it in a call (not told, where it says nothing).
    """
    count, _, width = percents.shape
    ranks = np.arange(width)
    spent = np.repeat(np.array(WORK)[:, None], width, axis=1) if work is None else work
    by_pass = np.zeros((count, len(PASSES), width))
    collected = np.zeros((count, width)) if garbage is None else garbage
    profiled = np.zeros((count, width)) if profiling is None else profiling
    updated = np.zeros((count, width)) if optimizer is None else optimizer
    active = np.zeros((count, len(HOST_KINDS), width))
    for kind, percent in (activity or {}).items():
        active[:, HOST_KINDS.index(kind)] = percent
    fetched = np.zeros((count, width)) if fetching is None else fetching
    typical = np.full(width, OPERATOR / 100 * STEP_NS)

    def of_told(given: Percents) -> Percents:
        return np.where(given > 0, given, np.nan)

    in_all = sum((given or {}).values(), np.zeros(width))

    def growth(told: Percents) -> Percents:
        return told / np.median(told[told > 0]) - 1 if (told > 0).any() else np.full(width, np.nan)

    def operator(name: str, excess_ns: Percents) -> OperatorExcess:
        called = (calls or {}).get(name, np.ones(width))
        told = of_told((given or {}).get(name, np.zeros(width)))
        usual_calls = np.full(width, np.median(called))
        return OperatorExcess(False, excess_ns, typical, called, usual_calls, growth(told), growth(of_told(in_all)))

    spent = np.broadcast_to(spent, (count, *spent.shape[-2:]))

    def families(step: int) -> Percents:
        found = np.zeros((len(FAMILIES), width))
        found[FAMILIES.index("others")] = spent[step, COMPUTE] + (percents[step, COMPUTE] if work is None else 0)
        for name, excess in (operators or {}).items():
            found[FAMILIES.index(family_of(name))] += OPERATOR + excess[step]
            found[FAMILIES.index("others")] -= OPERATOR + excess[step]
        return found * STEP_NS / 100

    steps = tuple(
        StepExcess(
            step,
            of_step * STEP_NS / 100,
            STEP_NS,
            NOBODY,
            0,
            0,
            work_ns=spent[step] * STEP_NS / 100,
            exposed_waiting_ns=None,
            passes_ns=(by_pass if passes is None else passes)[step] * STEP_NS / 100,
            optimizer_ns=updated[step] * STEP_NS / 100,
            idle_ns=(by_pass if idle is None else idle)[step] * STEP_NS / 100,
            fetching_ns=fetched[step] * STEP_NS / 100,
            garbage_ns=collected[step] * STEP_NS / 100,
            profiling_ns=profiled[step] * STEP_NS / 100,
            activity_ns=active[step] * STEP_NS / 100,
            families_ns=families(step),
            pauses=np.zeros(width, dtype=np.int64),
            paused_ns=np.zeros(width),
            tells_inputs=(in_all > 0).astype(float),
            transfers_ns=np.full(width, transfers * STEP_NS / 100),
            operators={
                name: operator(name, excess[step] * STEP_NS / 100) for name, excess in (operators or {}).items()
            },
        )
        for step, of_step in enumerate(percents)
    )
    roles = np.zeros(width, dtype=np.int64) if role is None else np.array(role)
    names = {int(rank): Role(f"role {code}", int(code)) for rank, code in enumerate(roles)}
    return JobExcess(ranks, roles, names, steps, None if unit is None else np.array(unit), on_device)


def nothing(steps: int, ranks: int) -> Percents:
    """Excesses of a job in which all ranks are alike."""
    return np.zeros((steps, len(CLASSES), ranks))


def quiet(steps: int, ranks: int, seed: int = 0, percent: float = 0.1) -> Percents:
    """Excesses of a healthy job: a little noise in every class."""
    return np.random.default_rng(seed).normal(0, percent, (steps, len(CLASSES), ranks))
