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
from kair_engine.localize.localization import Localization, also_slow
from kair_engine.localize.noise import (
    TOP_BY_CHANCE,
    above_peers,
    inflation,
    mostly_above,
    noise_of_mean,
    on_top_by_chance,
    surely_above,
    without_trend,
)
from kair_engine.localize.outlying import Peers, single
from kair_engine.localize.persistence import (
    FEW_PEERS_SHARE,
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


def with_most_awaited(found: Localization, blamed: BlameResult) -> Localization:
    """`found`, with an anomaly more where most waiting is for a rank that no test has found slow.

    By all steps; or by those since some rank became slower than it had been.
    """
    place = most_awaited(found, blamed)
    if place is None:
        return found
    slow = _longest(found.job, place)
    if slow is None and found.begun is not None:
        later = found.job.steps[found.begun.at :]
        slow = _longest(replace(found.job, steps=later), place)
        slow = None if slow is None else replace(slow, since=later[0].step)
    return found if slow is None else also_slow(found, slow)


def most_awaited(
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
        slow = notable and sure and chance < FALSE_ALARM_RATE and outlying < FALSE_ALARM_RATE
    if not slow:
        return None
    lost = [float(trimmed_mean(above_peers(of_class[:, row], at), TRIM)) for row in range(of_class.shape[1])]
    row = int(np.argmax(lost))
    return Anomaly("persistent", (place,), row, chance, lost[row])


def _outlying(job: JobExcess, members: Ints, total: Floats) -> Floats:
    """Per member, the p-value of its mean over all classes lying above the others', as healthy ranks differ."""
    step, work = job.step_time_ns, float(np.median(job.work_ns[:, members].sum(axis=0)))
    usual = float(np.hypot(PRIOR_OF_STEP * step, PRIOR_OF_WORK * work))
    wide = float(np.hypot(WIDE_OF_STEP * step, WIDE_OF_WORK * work))
    return single(Peers(trimmed_mean(total, TRIM), usual, noise_of_mean(total), wide_ns=wide))
