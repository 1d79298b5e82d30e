"""Accuses whom most waiting is for, where its own time is the longest of its role's more steadily than by chance.

Tests of stage 1 ask whether a rank differs from its peers by more than they do from one another, class by class, and
are corrected for all that they try. Here one rank is asked about, for all its time together: who is waited for, and how
steadily it is on top, are evidence that has nothing to do with how much healthy ranks differ.
"""

from dataclasses import replace

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS, SMALLEST_SHARE, Anomaly
from kair_engine.localize.excess import JobExcess
from kair_engine.localize.few_peers import FEW_PEERS_SHARE
from kair_engine.localize.localization import Localization, also_slow
from kair_engine.localize.noise import (
    TOP_BY_CHANCE,
    above_peers,
    inflation,
    mostly_above,
    noise_of_mean,
    on_top_by_chance,
    steady_by_chance,
    surely_above,
    without_trend,
)
from kair_engine.localize.outlying import Peers, single
from kair_engine.localize.persistence import (
    PRIOR_OF_STEP,
    PRIOR_OF_WORK,
    WIDE_OF_STEP,
    WIDE_OF_WORK,
    can_accuse,
)
from kair_engine.ranks import Position
from kair_engine.results.blame import BlameResult
from kair_engine.stats import TRIM, trimmed_mean
from kair_engine.triage.waiting import MOST_OF_WAITING, NOTABLE_WAITING, Waiting

MIN_CAUSED_WAITING = 0.4
"""Co-located ranks all cause some waiting; one is examined only if it causes this share of all."""
STEADILY_LONGER = 0.05
"""A rank that is examined must surely take longer than its peers by this share of the step, in all classes together."""
LONGER_BY_CHANCE = 0.001
"""The chance that one of the ranks is on top of its peers as often as that must be lower than this."""
OUTLYING_BY_CHANCE = 0.003
"""The chance that healthy ranks differ so that one lies as far out must be lower: tests of stage 1 have a rate of their
own."""
GAP_RATIO = 1.5
"""A rank must lie above the next one by more than this many times what all others lie apart."""
SPREAD_RATIO = 3.0
"""A rank must lie beyond this many times the wide prior, what ranks differ by that differ more than most do: of few
others all can be alike by chance."""
MIN_ROLE_SIZE = 4
"""A role must have this many ranks: of three on two cores one has a core of its own, and the others take turns."""


def with_top_waited_rank(found: Localization, blamed: BlameResult) -> Localization:
    """`found`, with an anomaly more where most waiting is for a rank that no test has found slow.

    By all steps; or by those since some rank became slower than it had been. Or where much of it is, and the rank is
    on top of its peers so often that no noise brings it about, however little is known of how much they differ.
    """
    place, slow = top_waited_rank(found, blamed), None
    if place is not None:
        slow = _longest(found.job, place)
        if slow is None and found.begun is not None:
            later = found.job.steps[found.begun.at :]
            slow = _longest(replace(found.job, steps=later), place)
            slow = None if slow is None else replace(slow, since=later[0].step)
    if slow is None and (place := top_waited_rank(found, blamed, most_of_waiting=MIN_CAUSED_WAITING)) is not None:
        slow = _steadily_longest(found.job, place)
    return found if slow is None else also_slow(found, slow)


def top_waited_rank(
    found: Localization, blamed: BlameResult, *, most_of_waiting: float = MOST_OF_WAITING
) -> Position | None:
    """The rank that most waiting is for, where no test has found it; None where too little is known to accuse it."""
    job = found.job
    if len(job.steps) < FEWEST_STEPS or not can_accuse(job):
        return None
    first = Waiting(job, blamed).suspect((), most_of_waiting)
    if first is None:
        return None
    place = Position(int(np.searchsorted(job.ranks, first.rank)))
    return None if any(place in anomaly.positions for anomaly in found.anomalies) else place


def _longest(job: JobExcess, place: Position) -> Anomaly | None:
    """What all classes together say of the rank at `place`, in the class that it loses most in."""
    members = np.flatnonzero(job.role == job.role[place])
    if len(members) < 2:
        return None
    of_class = np.nan_to_num(job.by_step_ns[:, :, members], nan=0.0)
    at = int(np.searchsorted(members, place))
    total = of_class.sum(axis=1)
    total = total - np.median(total, axis=1)[:, None]
    # Of two, a slowness that grows is one rank's: there is no third that could have spells of its own.
    inflated = inflation(without_trend(total) if len(members) == 2 else total)
    chance = on_top_by_chance(total, (at,), inflated)
    apart = above_peers(total, at)
    if len(members) == 2:
        # The other one alone does not show how much healthy ranks differ, and whoever is slow is waited for.
        least = FEW_PEERS_SHARE * job.step_time_ns
        sure = surely_above(apart, least, inflated) or mostly_above(apart, least, inflated)
        slow = sure and chance < TOP_BY_CHANCE
    else:
        notable = float(trimmed_mean(total[:, at], TRIM)) > NOTABLE_WAITING * job.step_time_ns
        sure = surely_above(apart, SMALLEST_SHARE * job.step_time_ns, inflated)
        outlying = _outlying(job, members, total)[at]
        slow = notable and sure and chance < FALSE_ALARM_RATE and outlying < OUTLYING_BY_CHANCE
    return _in_its_class(of_class, at, place, chance) if slow else None


def _steadily_longest(job: JobExcess, place: Position) -> Anomaly | None:
    """Whether the rank at `place` takes longer than its peers in step after step, in all classes together.

    It lies far above the next one beside what all others lie apart: some share a core for good, and others do not.
    """
    members = np.flatnonzero(job.role == job.role[place])
    if len(members) < MIN_ROLE_SIZE:
        return None
    of_class, at = np.nan_to_num(job.by_step_ns[:, :, members], nan=0.0), int(np.searchsorted(members, place))
    total = of_class.sum(axis=1)
    total -= np.median(total, axis=1)[:, None]
    mean = trimmed_mean(total, TRIM)
    others, wide = np.delete(mean, at), _differ_by(job, members)[1]
    if mean[at] - others.max() <= GAP_RATIO * np.ptp(others) or mean[at] - np.median(others) <= SPREAD_RATIO * wide:
        return None
    chance = steady_by_chance(total, at, STEADILY_LONGER * job.step_time_ns)
    return _in_its_class(of_class, at, place, chance) if chance < LONGER_BY_CHANCE else None


def _in_its_class(of_class: Floats, at: int, place: Position, chance: float) -> Anomaly:
    """As a slowness in what the rank loses most in; `of_class` is (steps × classes × members)."""
    lost = [float(trimmed_mean(above_peers(of_class[:, row], at), TRIM)) for row in range(of_class.shape[1])]
    row = int(np.argmax(lost))
    return Anomaly("persistent", (place,), row, chance, lost[row])


def _outlying(job: JobExcess, members: Ints, total: Floats) -> Floats:
    """Per member, the p-value of its mean over all classes lying above the others', as healthy ranks differ."""
    usual, wide = _differ_by(job, members)
    return single(Peers(trimmed_mean(total, TRIM), usual, noise_of_mean(total), wide_ns=wide))


def _differ_by(job: JobExcess, members: Ints) -> tuple[float, float]:
    """What healthy ranks differ by in all classes together, and those that differ more than most do."""
    step, work = job.step_time_ns, float(np.median(job.work_ns[:, members].sum(axis=0)))
    usual, wide = (PRIOR_OF_STEP, PRIOR_OF_WORK), (WIDE_OF_STEP, WIDE_OF_WORK)
    of_usual, of_wide = (float(np.hypot(of_step * step, of_work * work)) for of_step, of_work in (usual, wide))
    return of_usual, of_wide
