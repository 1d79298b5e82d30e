"""The robust tests of stage 1: who is slow in every step, in some steps, or as a whole host."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.excess import CLASSES, JobExcess
from kair_engine.stats import TRIM, binomial_tail, degrees_of_freedom, peer_spread, student_t_tail, trimmed_mean

FALSE_ALARM_RATE = 0.02
"""Family-wise: over all ranks and classes of one triage."""
SMALLEST_SHARE = 0.01
"""Of the step: what is flagged must cost at least this much."""
STALL_SHARE = 0.10
"""Of the step: an excess this large in one step is an event."""
FEWEST_STEPS = 3
"""In fewer steps a slow rank cannot be told from a slow moment."""
FEWEST_PEERS = 3
"""Fewer peers than this in the role: the spread is taken over the whole job instead."""
_FLOOR_SHARE = 0.001
_GROUP_NULL = ((8, 7.4), (16, 3.2), (32, 3.0))
"""99.9 % null value of the largest gap over the pooled SD, by role size (docs/methods.md)."""


@dataclass(frozen=True)
class Anomaly:
    """One test's positive answer: these ranks (positions), in this class of operations."""

    kind: Literal["persistent", "intermittent", "group"]
    ranks: tuple[int, ...]
    class_index: int
    p_value: float | None
    excess_ns: float
    """Per step, of one rank (the mean over the ranks of a group)."""
    events: tuple[int, int]
    """Intermittent: how many of how many events; (0, 0) otherwise."""


@dataclass(frozen=True)
class Persistence:
    """Per (class, rank): mean excess over steps, its t against the peers, df, and family-wise p-value."""

    mean_ns: Floats
    t: Floats
    p_value: Floats
    """NaN where there are too few peers for a test."""


def persistence(job: JobExcess) -> Persistence:
    """Trimmed mean of the excess over steps, compared with the peers', one out."""
    per_step = np.nan_to_num(job.by_step_ns, nan=0.0)
    mean = trimmed_mean(per_step, TRIM, axis=0)
    t = np.zeros_like(mean)
    p = np.full_like(mean, np.nan)
    floor = max(_FLOOR_SHARE * job.step_time_ns, 1.0)  # 1 ns: a recording of one instant has steps of no length
    tests = mean.size
    for rank in range(len(job.ranks)):
        peers = _reference(job, rank)
        df = degrees_of_freedom(int(np.count_nonzero(peers)) + 1)
        for row in range(len(CLASSES)):
            others = mean[row, peers]
            if not len(others):
                continue
            scale = max(peer_spread(others), floor)
            t[row, rank] = (mean[row, rank] - np.median(others)) / scale
            if df > 0:
                p[row, rank] = min(1.0, tests * student_t_tail(float(t[row, rank]), df))
    return Persistence(mean, t, p)


def persistent(job: JobExcess, result: Persistence) -> list[Anomaly]:
    """Ranks whose mean excess is beyond chance and above 1 % of the step, in most steps and not in a few.

    Of fewer than FEWEST_STEPS steps that says no more than that the rank was slow then.
    """
    smallest = SMALLEST_SHARE * job.step_time_ns
    in_most = np.median(np.nan_to_num(job.by_step_ns, nan=0.0), axis=0) > smallest
    flagged = (result.p_value < FALSE_ALARM_RATE) & (result.mean_ns > smallest) & in_most
    return [
        Anomaly(
            "persistent",
            (int(rank),),
            int(row),
            float(result.p_value[row, rank]),
            float(result.mean_ns[row, rank]),
            (0, 0),
        )
        for row, rank in np.argwhere(flagged)
    ]


def intermittent(job: JobExcess) -> list[Anomaly]:
    """Ranks that collect more than their share of the job's large excesses.

    An event is a step in which a rank's own work, all classes together, takes 10 % of the step longer than
    its role's. In fewer than FEWEST_STEPS the synchronisations are the sample: events are late arrivals.
    """
    if len(job.steps) < FEWEST_STEPS:
        return _late_arrivals(job)
    found = []
    per_step = np.nan_to_num(job.by_step_ns, nan=0.0)
    events = stalls(job)
    for rank, k, m, p in _more_than_their_share(events.sum(axis=0), job.role, len(job.ranks)):
        hit = per_step[events[:, rank], :, rank].sum(axis=0)
        lost = float(hit.sum() / len(job.steps))
        if lost > SMALLEST_SHARE * job.step_time_ns:
            found.append(Anomaly("intermittent", (rank,), int(np.argmax(hit)), p, lost, (k, m)))
    return found


def stalls(job: JobExcess) -> Bools:
    """(steps × ranks): True where a rank's excess, all classes together, is an event."""
    step_time = np.array([step.step_time_ns for step in job.steps])
    total = np.nan_to_num(job.by_step_ns, nan=0.0).sum(axis=1)
    return np.asarray(total > STALL_SHARE * step_time[:, None])


def slow_groups(job: JobExcess, result: Persistence) -> list[Anomaly]:
    """Several ranks of one role that are slow together: a whole host, say."""
    found = []
    per_step = np.nan_to_num(job.by_step_ns, nan=0.0)
    for row in range(len(CLASSES)):
        for code in np.unique(job.role):
            members = np.flatnonzero(job.role == code)
            slow = _largest_gap(result.mean_ns[row, members], job.step_time_ns)
            if slow is None:
                continue
            excess = per_step[:, row, members]
            apart = np.median(excess[:, slow], axis=1) > np.median(excess[:, ~slow], axis=1)
            if apart.mean() > 0.8:
                ranks = tuple(int(rank) for rank in members[slow])
                found.append(
                    Anomaly("group", ranks, row, 0.001, float(result.mean_ns[row, members[slow]].mean()), (0, 0))
                )
    return found


def _largest_gap(mean: Floats, step_time_ns: float) -> Bools | None:
    """Which members lie above the largest gap, where that gap is beyond chance; None otherwise."""
    limit = next((value for size, value in reversed(_GROUP_NULL) if len(mean) >= size), None)
    if limit is None:
        return None
    ordered = np.sort(mean)
    gaps = np.diff(ordered)
    upper = len(mean) - 1 - np.arange(len(gaps))
    candidates = np.where((upper >= 2) & (upper <= len(mean) // 2), gaps, 0)
    cut = int(np.argmax(candidates))
    low, high = ordered[: cut + 1], ordered[cut + 1 :]
    pooled = np.sqrt((low.var() * len(low) + high.var() * len(high)) / max(len(mean) - 2, 1))
    if candidates[cut] <= max(limit * pooled, SMALLEST_SHARE * step_time_ns):
        return None
    return np.asarray(mean > ordered[cut])


def _late_arrivals(job: JobExcess) -> list[Anomaly]:
    """Late arrivals counted among those who can be late together: in a pair each is last half of the time."""
    counts: dict[tuple[int, ...], Ints] = {}
    lost = np.zeros(len(job.ranks))
    everyone = tuple(range(len(job.ranks)))
    for step in job.steps:
        late = step.late
        event = late.lateness_ns > SMALLEST_SHARE * step.step_time_ns
        np.add.at(lost, late.rank[event], late.lead_ns[event] / len(job.steps))
        community = np.zeros(len(late.rank), dtype=np.int64) if late.community is None else late.community
        for number, members in enumerate(late.communities or (everyone,)):
            of_step = np.bincount(late.rank[event & (community == number)], minlength=len(everyone))
            counts[members] = counts.get(members, 0) + of_step
    excess = np.nan_to_num(job.by_step_ns, nan=0.0).sum(axis=0)
    found: dict[int, Anomaly] = {}
    for members, of_members in counts.items():
        among = np.full(len(everyone), NONE)
        among[list(members)] = 0
        for rank, k, m, p in _more_than_their_share(of_members, among, len(everyone)):
            if lost[rank] > SMALLEST_SHARE * job.step_time_ns and (rank not in found or p < (found[rank].p_value or 1)):
                row = int(np.argmax(excess[:, rank]))
                found[rank] = Anomaly("intermittent", (rank,), row, p, float(lost[rank]), (k, m))
    return list(found.values())


def _more_than_their_share(counts: Ints, role: Ints, tests: int) -> list[tuple[int, int, int, float]]:
    """(rank, k, m, p) by the binomial test, the worst first; each found rank's events leave the sample.

    Ranks of role NONE take no part.
    """
    found = []
    for code in np.unique(role[role != NONE]):
        left = np.where(role == code, counts, NONE)
        while (peers := int(np.count_nonzero(left >= 0))) > 1:
            rank = int(np.argmax(left))
            k, m = int(left[rank]), int(left[left > 0].sum())
            p = min(1.0, tests * binomial_tail(k, m, 1 / peers))
            if k < 2 or p >= FALSE_ALARM_RATE:
                break
            found.append((rank, k, m, p))
            left[rank] = NONE
    return found


def _reference(job: JobExcess, rank: int) -> Bools:
    """Whom a rank's mean excess is compared with: its role's other ranks; of a tiny role, the other roles'."""
    peers: Bools = job.role == job.role[rank]
    if np.count_nonzero(peers) <= FEWEST_PEERS:
        return ~peers
    peers[rank] = False
    return peers
