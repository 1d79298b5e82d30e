"""The robust tests of who is slow in every step, alone or with others."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np

from kair_engine.arrays import Floats, Ints, present, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS, SHARES, SMALLEST_SHARE, Anomaly
from kair_engine.localize.excess import CLASSES, COMPARED_WITH_WORK, JobExcess
from kair_engine.localize.excess_table import Excesses
from kair_engine.localize.few_peers import slow_one_of_few, slow_operator_of_few
from kair_engine.localize.noise import (
    SETS_BY_CHANCE,
    TOP_BY_CHANCE,
    inflation,
    noise_of_mean,
    on_top_by_chance,
    steadily_above,
)
from kair_engine.localize.outlying import (
    ELSEWHERE_DF,
    FEWEST_DF,
    Peers,
    SlowSet,
    deviations,
    pooled_spread,
    single,
    slow_sets,
)
from kair_engine.ranks import Position, as_positions
from kair_engine.stats import TRIM, median, trimmed_mean

CLASS_SHARES: Mapping[str, float] = MappingProxyType({"compute": 0.7, "input": 0.1, "host": 0.1, "communication": 0.1})
"""Of the share of what is persistent: slow devices are what differs by little; the other faults stand out far."""
PRIOR_OF_WORK = 0.006
"""Healthy GPUs of one type differ by about this share of their compute time."""
PRIOR_OF_STEP = 0.003
"""Healthy ranks differ by this share of the step in other classes: idle time, fetches."""
WIDE_OF_WORK, WIDE_OF_STEP = 0.05, 0.02
"""Ranks that differ more than most do differ by these shares of compute time and of the step; they count as the ranks'
own spread tells."""
_FLOOR_SHARE = 0.001
STEADY_MEMBERS = 0.75
"""More than this share of a group's ranks must be slow in every step, each by itself."""
_SMALL_ROLE = 8
"""Roles of fewer ranks than this take the other roles' spread into account."""


@dataclass(frozen=True)
class Persistence:
    """Per (class, rank): mean excess over steps, its t against the peers, and family-wise p-value."""

    mean_ns: Floats
    t: Floats
    p_value: Floats
    """NaN where there are too few peers for a test."""
    anomalies: tuple[Anomaly, ...]
    """Ranks, and groups of ranks, beyond chance."""


def persistence(job: JobExcess) -> Persistence:
    """Trimmed mean of the excess over steps, compared within each role.

    Of fewer than FEWEST_STEPS steps an anomaly says no more than that the rank was slow then.
    """
    mean = trimmed_mean(zero_for_nan(job.by_step_ns), TRIM, axis=0)
    t, p = np.zeros_like(mean), np.full_like(mean, np.nan)
    found: list[Anomaly] = []
    roles = _roles(job)
    for row in range(len(CLASSES)):
        tests = _class_tests(row, roles)
        for members in roles:
            peers = _peers(job, mean[row], row, members, roles)
            steady = _steady_sets(job, peers, row, members, tests)
            t[row, members] = deviations(peers, ~np.isin(members, [rank for one in steady for rank in one.positions]))[
                0
            ]
            if peers.known_df >= FEWEST_DF:
                p[row, members] = np.minimum(1.0, tests * single(peers))
            for one in steady:
                p[row, list(one.positions)] = one.p_value
            found += steady
    return Persistence(mean, t, p, tuple(found))


def can_accuse(job: JobExcess) -> bool:
    """Whether any rank could be found slow: it needs peers, and enough steps to be above them by more than chance."""
    needed = steps_needed(job)
    return needed is not None and len(job.steps) >= needed


def steps_needed(job: JobExcess) -> int | None:
    """In how many steps a rank of the largest role could be on top of all others beyond chance; None without peers."""
    largest = max(map(len, _roles(job)), default=0)
    if largest < 2:
        return None
    # One of n is on top of all others in every one of s steps with the chance n · n^−s.
    return max(FEWEST_STEPS, math.floor(1 - math.log(TOP_BY_CHANCE) / math.log(largest)) + 1)


def slow_in_class(job: Excesses, row: int, role: int) -> list[Anomaly]:
    """The anomalies that `persistence` finds in one class of one role (its code)."""
    roles = _roles(job)
    members = next(of_role for of_role in roles if job.role[of_role[0]] == role)
    mean = trimmed_mean(zero_for_nan(job.by_step_ns[:, row]), TRIM, axis=0)
    return _steady_sets(job, _peers(job, mean, row, members, roles), row, members, _class_tests(row, roles))


def slow_operators(job: Excesses) -> list[Anomaly]:
    """Ranks that are slow in one operator in every step, which may be little of all they compute."""
    return [anomaly for name in job.operators for anomaly in slow_in_operator(job, name)]


def slow_in_operator(job: Excesses, name: str) -> list[Anomaly]:
    """The anomalies that `slow_operators` finds in one of them."""
    roles = _roles(job)
    tests = max(len(job.operators), 1) * len(roles) / SHARES["operator"]
    found = []
    per_step, typical = job.operator_ns(name)
    mean = trimmed_mean(per_step, TRIM, axis=0)
    enough = SMALLEST_SHARE * job.step_time_ns
    for members in roles:
        if mean[members].max() <= enough:
            continue
        of_operator = float(median(typical[members]))
        prior = np.hypot(PRIOR_OF_WORK * of_operator, _FLOOR_SHARE * job.step_time_ns)
        wide = np.hypot(WIDE_OF_WORK * of_operator, _FLOOR_SHARE * job.step_time_ns)
        inflated = inflation(per_step[:, members])
        peers = Peers(mean[members], float(prior), noise_of_mean(per_step[:, members]), wide_ns=float(wide))
        if peers.known_df < FEWEST_DF:
            found += slow_operator_of_few(job, name, members, _class_of(job, name))
            continue
        p_values = np.minimum(1.0, tests * single(peers))
        for place in np.flatnonzero((p_values < FALSE_ALARM_RATE) & (peers.values > enough)):
            excess = float(peers.values[place])
            apart = per_step[:, members[place]] - median(np.delete(per_step[:, members], place, axis=1), axis=1)
            if (
                steadily_above(apart, excess, enough, inflated)
                and on_top_by_chance(per_step[:, members], (int(place),), inflated) < TOP_BY_CHANCE
            ):
                rank, row = Position(int(members[place])), _class_of(job, name)
                found.append(Anomaly("persistent", (rank,), row, float(p_values[place]), excess, operator=name))
    return found


def _class_of(job: Excesses, operator: str) -> int:
    return CLASSES.index("input" if job.operators[operator] else "compute")


def _roles(job: Excesses) -> list[Ints]:
    return [np.flatnonzero(job.role == code) for code in present(job.role)]


def _class_tests(row: int, roles: Sequence[Ints]) -> float:
    return len(roles) / (SHARES["persistent"] * CLASS_SHARES[CLASSES[row]])


def _steady_sets(job: Excesses, peers: Peers, row: int, members: Ints, tests: float) -> list[Anomaly]:
    return [
        _anomaly(one, members, row, tests)
        for one in _beyond_chance(job, peers, tests)
        if _in_most_steps(job, row, members, one)
    ] or (slow_one_of_few(job, members, row) if peers.known_df < FEWEST_DF else [])


def _beyond_chance(job: Excesses, peers: Peers, tests: float) -> list[SlowSet]:
    return slow_sets(peers, p_below=FALSE_ALARM_RATE / tests, excess_above_ns=SMALLEST_SHARE * job.step_time_ns)


def _peers(job: Excesses, mean: Floats, row: int, members: Ints, roles: list[Ints]) -> Peers:
    """What the ranks of a role are compared in, with the spread that healthy ones are expected to have.

    `mean` has every rank's in this class.
    """
    of_step = _FLOOR_SHARE if COMPARED_WITH_WORK[row] else PRIOR_OF_STEP
    of_work = PRIOR_OF_WORK if COMPARED_WITH_WORK[row] else 0.0
    work_ns = float(median(job.work_ns[row, members]))
    prior = np.hypot(of_step * job.step_time_ns, of_work * work_ns)
    others = [mean[other] for other in roles if other is not members]
    near = others if len(members) < _SMALL_ROLE else []
    unit = None if job.unit is None else job.unit[members]
    wide = np.hypot(
        WIDE_OF_STEP * job.step_time_ns * (not COMPARED_WITH_WORK[row]),
        WIDE_OF_WORK * work_ns * COMPARED_WITH_WORK[row],
    )
    noise = noise_of_mean(zero_for_nan(job.by_step_ns[:, row, members]))
    return Peers(
        mean[members], float(prior), noise, pooled_spread(near), unit, float(wide), pooled_spread(others, ELSEWHERE_DF)
    )


def _in_most_steps(job: Excesses, row: int, members: Ints, found: SlowSet) -> bool:
    """Slow by more than the smallest share surely, and in nearly all steps by a good part of the excess.

    Each rank of a group is, or nearly all are: of two that pause in different steps, one is slow in most. A single
    rank is above its peers more steadily than spells of slowness make one of them.
    """
    if len(job.by_step_ns) < FEWEST_STEPS:
        return True  # There is no telling; whoever is slow then is left undecided.
    per_step = zero_for_nan(job.by_step_ns[:, row, members])
    slow = np.isin(np.arange(len(members)), found.members)
    apart = per_step[:, slow] - median(per_step[:, ~slow], axis=1)[:, None]
    smallest, inflated = SMALLEST_SHARE * job.step_time_ns, inflation(per_step)
    steady = [steadily_above(of_rank, float(of_rank.mean()), smallest, inflated) for of_rank in apart.T]
    if float(np.mean(steady)) <= STEADY_MEMBERS:
        return False
    by_chance = SETS_BY_CHANCE if len(found.members) > 1 else TOP_BY_CHANCE
    return on_top_by_chance(per_step, found.members, inflated) < by_chance


def _anomaly(found: SlowSet, members: Ints, row: int, tests: float) -> Anomaly:
    positions = as_positions(members[list(found.members)])
    kind: Literal["persistent", "group"] = "persistent" if len(positions) == 1 else "group"
    return Anomaly(kind, positions, row, min(1.0, tests * found.p_value), found.excess_ns)
