"""The robust tests of stage 1: who is slow in every step, alone or with others, and who in some steps.

One triage tries many things. Each family of tests has its share of the false-alarm rate, and every p-value here is
family-wise: already multiplied by all that was tried.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, present, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import CLASSES, COMPARED_WITH_WORK, JobExcess, role_medians
from kair_engine.localize.excess_table import Excesses
from kair_engine.localize.noise import (
    KNOWN_VALUES,
    MOST_CORRELATED,
    SETS_BY_CHANCE,
    TOP_BY_CHANCE,
    episodes,
    episodes_of_larger,
    inflation,
    noise_of_mean,
    on_top_by_chance,
    surely_above,
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
from kair_engine.stats import MAD_TO_SIGMA, TRIM, beta_binomial_tail, binomial_tail, log_beta, median, trimmed_mean

FALSE_ALARM_RATE = 0.01
"""Over everything that one triage tries."""
SHARES: Mapping[str, float] = MappingProxyType({"persistent": 0.5, "operator": 0.15, "intermittent": 0.2, "link": 0.15})
"""Of the false-alarm rate, per family of tests."""
CLASS_SHARES: Mapping[str, float] = MappingProxyType({"compute": 0.7, "input": 0.1, "host": 0.1, "communication": 0.1})
"""Of the share of what is persistent: slow devices are what differs by little; the other faults stand out far."""
SMALLEST_SHARE = 0.01
"""Of the step: what is flagged must cost at least this much."""
STALL_SHARE = 0.10
"""Of the step: an excess this large in one step is an event."""
LONE_SHARE = 0.05
"""Of the recording: a single delay that costs this much leaves the verdict open."""
STALL_SIZES = (0.1, 0.25, 0.5, 1.0)
"""Of the step: events are counted at several sizes, the rarer the larger."""
OUT_OF_NOISE = 5.0
"""What is told of nobody in particular lies this many deviations of the ranks' ordinary steps out, too."""
COUNTED_OUT_OF_NOISE = 3.0
"""The same of events that a rank is tested by: what noise brings about, the others have as often."""
PRIOR_RATE, PRIOR_STEPS = 0.02, 50
"""Events on healthy ranks: a benign delay of the smallest size now and then, in this share of the steps."""
ANY_RATE = 0.1
"""Weight of a prior that knows nothing: the other one gives way where the others' steps contradict it."""
FEWEST_STEPS = 3
"""In fewer steps a slow rank cannot be told from a slow moment."""
PRIOR_OF_WORK = 0.006
"""Healthy GPUs of one type differ by about this share of their compute time."""
PRIOR_OF_STEP = 0.003
"""What other classes (idle time, fetches) differ by, of the step."""
WIDE_OF_WORK, WIDE_OF_STEP = 0.05, 0.02
"""The same of ranks that differ more than most do; counts as the ranks' own spread tells."""
_FLOOR_SHARE = 0.001
FEW_PEERS_SHARE = 0.06
"""Of the step: what a rank must surely take longer than its only peers, whose own spread two or three do not show."""
STEADY_MEMBERS = 0.75
"""Of a group's ranks: more are slow in every step, each by itself."""
STEADY_PART, STEADY_STEPS = 0.25, 0.75
"""What is slow in every step shows this part of its mean excess in more than this share of the steps."""
BEST_STEPS = 0.1
"""Of a rank's steps: what it is slower by even then is no pause."""
_SMALL_ROLE = 8
"""Roles of fewer ranks take the other roles' spread into account."""


@dataclass(frozen=True)
class StoodStill:
    """A rank's stops beside its peers': events are steps of which a tenth and more went by in them."""

    steps: tuple[int, ...]
    """With an event."""
    of_steps: int
    longer: int
    """Steps in which it stood still for longer than its median peer."""
    peers_events: int
    own_ns: float
    """Per step, as that of the median peer."""
    peers_ns: float


@dataclass(frozen=True)
class Anomaly:
    """One test's positive answer: the ranks at these positions, in this class of operations."""

    kind: Literal["persistent", "intermittent", "group"]
    positions: tuple[Position, ...]
    class_index: int
    p_value: float
    excess_ns: float
    """Per step, of one rank (the mean over the ranks of a group), over the ranks that are not slow."""
    events: tuple[int, int] = (0, 0)
    """Intermittent: how many of how many events."""
    operator: str | None = None
    """Where one operator was tested by itself."""
    since: int | None = None
    """The step in which it began, where that was within the recording."""
    stood_still: StoodStill | None = None
    """Where not its excess tells, but that its threads stood still."""


@dataclass(frozen=True)
class Persistence:
    """Per (class, rank): mean excess over steps, its t against the peers, and family-wise p-value."""

    mean_ns: Floats
    t: Floats
    p_value: Floats
    """NaN where there are too few peers for a test."""
    anomalies: tuple[Anomaly, ...]
    """Ranks, and groups of ranks, beyond chance."""


@dataclass(frozen=True)
class Events:
    """Large delays of one size (a share of the step): where they are, and how many per rank are independent."""

    hit: Bools
    count: Ints
    size: float

    @classmethod
    def of_sizes(cls, delays_ns: Floats, least_ns: Callable[[float], Floats]) -> "list[Events]":
        """Those among delays (steps × ranks) that are above what a size asks for, per step, of all STALL_SIZES."""
        hits = [np.asarray(delays_ns > least_ns(size)[:, None]) for size in STALL_SIZES]
        smallest = episodes(hits[0])
        return [
            cls(hit, episodes_of_larger(hit, hits[0], smallest), size)
            for hit, size in zip(hits, STALL_SIZES, strict=True)
        ]


@dataclass(frozen=True)
class Delays:
    """What may be an event, of whatever size: each rank's excess in each step, all classes together."""

    total_ns: Floats
    """(steps × ranks). A rank that is slower than its peers for good is measured from there: from what it is in its
    best steps, since pauses can hit most."""
    undelayed_ns: Floats
    """Per step: its time without its own largest delay."""
    usual_ns: float
    """Their deviation within ranks."""

    @classmethod
    def of(cls, job: Excesses) -> "Delays":
        """Those of a job."""
        total = zero_for_nan(job.by_step_ns).sum(axis=1)
        total = total - role_medians(total, job.role)
        total = total - np.maximum(np.quantile(total, BEST_STEPS, axis=0), 0.0)
        usual = MAD_TO_SIGMA * float(median(np.abs(total - median(total, axis=0)), axis=None))
        undelayed = np.maximum(job.step_times_ns - np.maximum(total.max(axis=1), 0.0), 0.5 * job.step_times_ns)
        return cls(total, undelayed, usual)

    def beyond(self, size: float, deviations: float) -> Bools:
        """(steps × ranks): True where one is larger than that share of the step, and out of what is usual."""
        return np.asarray(self.total_ns > self.least_ns(size, deviations)[:, None])

    def least_ns(self, size: float, deviations: float) -> Floats:
        """Per step what an event is above."""
        return np.maximum(size * self.undelayed_ns, deviations * self.usual_ns)


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
            continue
        p_values = np.minimum(1.0, tests * single(peers))
        for place in np.flatnonzero((p_values < FALSE_ALARM_RATE) & (peers.values > enough)):
            excess = float(peers.values[place])
            apart = per_step[:, members[place]] - median(np.delete(per_step[:, members], place, axis=1), axis=1)
            if (
                _steady(apart, excess, enough, inflated)
                and on_top_by_chance(per_step[:, members], (int(place),), inflated) < TOP_BY_CHANCE
            ):
                rank, row = Position(int(members[place])), CLASSES.index("input" if job.operators[name] else "compute")
                found.append(Anomaly("persistent", (rank,), row, float(p_values[place]), excess, operator=name))
    return found


def intermittent(job: JobExcess) -> list[Anomaly]:
    """Ranks that collect more than their share of the job's large excesses.

    An event is a step in which a rank's own work, all classes together, takes 10 % of the step longer than
    its role's. In fewer than FEWEST_STEPS the stretches between collectives are the sample: events are host pauses.
    """
    return _pauses(job) if len(job.steps) < FEWEST_STEPS else stalling(job)


def stalling(job: Excesses) -> list[Anomaly]:
    """The ranks that `intermittent` finds in the events of enough steps."""
    found = []
    per_step = zero_for_nan(job.by_step_ns)
    tests = len(job.role) * len(STALL_SIZES) / SHARES["intermittent"]
    delays = Delays.of(job)
    out_of_noise = counted_from(delays.total_ns)
    of_size = Events.of_sizes(delays.total_ns, lambda size: delays.least_ns(size, out_of_noise))
    left = list(range(len(job.role)))
    while len(left) > 1:
        chances = {rank: min(chance_of(rank, events, job, left) for events in of_size) for rank in left}
        rank = min(left, key=lambda one: chances[one])
        left.remove(rank)
        p = min(1.0, tests * chances[rank])
        if p >= FALSE_ALARM_RATE:
            break
        events = of_size[0].hit
        hit = per_step[events[:, rank], :, rank].sum(axis=0)
        lost = float(hit.sum() / len(per_step))
        if lost > SMALLEST_SHARE * job.step_time_ns:
            k, m = int(events[:, rank].sum()), int(events.sum())
            found.append(Anomaly("intermittent", (Position(rank),), int(np.argmax(hit)), p, lost, (k, m)))
    return found


def unproven(job: JobExcess, accused: Collection[Position]) -> Anomaly | None:
    """The rank with most of the job's large delays, where those are too few to be beyond chance; None without one."""
    if len(job.steps) < FEWEST_STEPS:
        return None
    events = stalls(job)
    counts, total = events.sum(axis=0), int(events.sum())
    rank = Position(int(np.argmax(counts)))
    hit = zero_for_nan(job.by_step_ns)[events[:, rank], :, rank].sum(axis=0)
    lost = float(hit.sum() / len(job.steps))
    enough = LONE_SHARE if counts[rank] == 1 else SMALLEST_SHARE
    if rank in accused or 2 * counts[rank] <= total or lost <= enough * job.step_time_ns:
        return None
    return Anomaly("intermittent", (rank,), int(np.argmax(hit)), 1.0, lost, (int(counts[rank]), total))


def stalls(job: Excesses, deviations: float = OUT_OF_NOISE) -> Bools:
    """(steps × ranks): True where a rank's excess, all classes together, is an event.

    It is a good part of the step, counted without its own largest delay, and lies out of what is usual within ranks.
    """
    return Delays.of(job).beyond(STALL_SHARE, deviations)


def counted(job: Excesses) -> Bools:
    """(steps × ranks): True for the events that `intermittent` counts."""
    delays = Delays.of(job)
    return delays.beyond(STALL_SHARE, counted_from(delays.total_ns))


def counted_from(total_ns: Floats) -> float:
    """The deviations that counted events lie out: farther where steps resemble one another, as spells make them do.

    `total_ns` is (steps × ranks). What few steps and ranks do not show of that is taken for as much as there can be.
    """
    unknown = MOST_CORRELATED * KNOWN_VALUES / (total_ns.size + KNOWN_VALUES)
    spells = max(inflation(total_ns), (1 + unknown) / (1 - unknown))
    return min(COUNTED_OUT_OF_NOISE * math.sqrt(spells), OUT_OF_NOISE)


def large_delays(job: JobExcess) -> Ints:
    """Per rank, steps with a delay far out of what is usual; of fewer than FEWEST_STEPS steps host pauses."""
    if len(job.steps) < FEWEST_STEPS:
        return np.asarray(np.sum([step.pauses for step in job.steps], axis=0))
    return np.asarray(stalls(job).sum(axis=0))


def _roles(job: Excesses) -> list[Ints]:
    return [np.flatnonzero(job.role == code) for code in present(job.role)]


def _class_tests(row: int, roles: Sequence[Ints]) -> float:
    return len(roles) / (SHARES["persistent"] * CLASS_SHARES[CLASSES[row]])


def _steady_sets(job: Excesses, peers: Peers, row: int, members: Ints, tests: float) -> list[Anomaly]:
    return [
        _anomaly(one, members, row, tests)
        for one in _beyond_chance(job, peers, tests)
        if _in_most_steps(job, row, members, one)
    ] or _of_few(job, peers, row, members)


def _beyond_chance(job: Excesses, peers: Peers, tests: float) -> list[SlowSet]:
    return slow_sets(peers, p_below=FALSE_ALARM_RATE / tests, excess_above_ns=SMALLEST_SHARE * job.step_time_ns)


def _of_few(job: Excesses, peers: Peers, row: int, members: Ints) -> list[Anomaly]:
    """A rank that is slower than its only peers by more than healthy ranks differ, and more steadily than by chance.

    Of two or three ranks nobody knows how much healthy ones differ. The p-value is that of the steps alone.
    """
    if peers.known_df >= FEWEST_DF or len(members) < 2:
        return []
    per_step = zero_for_nan(job.by_step_ns[:, row, members])
    place, inflated = int(np.argmax(peers.values)), inflation(per_step)
    # Of two peers one can be fast: the slower one counts.
    others = np.delete(per_step, place, axis=1)
    apart = per_step[:, place] - others[:, int(np.argmax(trimmed_mean(others, TRIM)))]
    excess, least = float(trimmed_mean(apart, TRIM)), FEW_PEERS_SHARE * job.step_time_ns
    p = on_top_by_chance(per_step, (place,), inflated)
    if p >= TOP_BY_CHANCE or not _steady(apart, excess, least, inflated):
        return []
    total = zero_for_nan(job.by_step_ns[:, :, members]).sum(axis=1)
    late = total[:, place] - np.max(np.delete(trimmed_mean(total, TRIM), place))
    if not surely_above(late, least, inflation(total)):
        return []  # It is as early with the rest of its work.
    return [Anomaly("persistent", (Position(int(members[place])),), row, p, excess)]


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
    steady = [_steady(of_rank, float(of_rank.mean()), smallest, inflated) for of_rank in apart.T]
    if float(np.mean(steady)) <= STEADY_MEMBERS:
        return False
    by_chance = SETS_BY_CHANCE if len(found.members) > 1 else TOP_BY_CHANCE
    return on_top_by_chance(per_step, found.members, inflated) < by_chance


def _steady(apart: Floats, excess_ns: float, smallest_ns: float, inflated: float) -> bool:
    often = (apart > STEADY_PART * excess_ns).mean() > STEADY_STEPS
    return bool(often) and surely_above(apart, smallest_ns, inflated)


def _anomaly(found: SlowSet, members: Ints, row: int, tests: float) -> Anomaly:
    positions = as_positions(members[list(found.members)])
    kind: Literal["persistent", "group"] = "persistent" if len(positions) == 1 else "group"
    return Anomaly(kind, positions, row, min(1.0, tests * found.p_value), found.excess_ns)


def _pauses(job: JobExcess) -> list[Anomaly]:
    """Ranks whose host pauses more often than chance has it; slow throughout can as well be a longer batch."""
    counts = large_delays(job)
    lost = np.sum([step.paused_ns for step in job.steps], axis=0) / len(job.steps)
    return [
        Anomaly("intermittent", (rank,), CLASSES.index("host"), p, float(lost[rank]), (k, m))
        for rank, k, m, p in _more_than_their_share(counts, job.role)
        if lost[rank] > SMALLEST_SHARE * job.step_time_ns
    ]


def chance_of(rank: int, events: Events, job: Excesses, left: Sequence[int]) -> float:
    """P that a healthy rank has as many events as this one, at the rate that the others and a prior tell.

    Roles show the same pauses unequally (a pipeline's bubbles hide some): where the others of a rank's role are known
    well enough, their rate must not explain it either. A found rank's events leave the sample (`left` are the rest).
    """
    k, steps = int(events.count[rank]), len(events.hit)
    if k < 2:
        return 1.0
    others = [one for one in left if one != rank]
    of_role = [one for one in others if job.role[one] == job.role[rank]]
    samples = [others, of_role] if PRIOR_STEPS <= len(of_role) * steps < len(others) * steps else [others]
    independent = steps - int(events.hit[:, rank].sum()) + k
    return max(_at_rate_of(k, independent, events, some, _units(job, some)) for some in samples)


def _at_rate_of(k: int, steps: int, events: Events, others: Sequence[int], unit: Ints | None) -> float:
    """Of k events or more in so many steps: the tail of a beta-binomial, the mean over two priors.

    One has rare events, the rarer the larger they are, the other any rate; the others' events decide how much each
    counts (robust mixture, Schmidli 2014).
    """
    shared = _at_once(events.hit[:, others], unit)
    hit, looked_at = float(events.count[others].sum()) / shared, len(events.hit) * len(others) / shared
    rate = PRIOR_RATE * STALL_SIZES[0] / events.size
    priors = ((1 - ANY_RATE, rate * PRIOR_STEPS, (1 - rate) * PRIOR_STEPS), (ANY_RATE, 1.0, 1.0))
    log_weights = [
        math.log(weight) + log_beta(a + hit, b + looked_at - hit) - log_beta(a, b) for weight, a, b in priors
    ]
    relative = [math.exp(one - max(log_weights)) for one in log_weights]
    tails = [beta_binomial_tail(k, steps, a + hit, b + looked_at - hit) for _, a, b in priors]
    return sum(weight * tail for weight, tail in zip(relative, tails, strict=True)) / sum(relative)


def _units(job: Excesses, places: Sequence[int]) -> Ints | None:
    return None if job.unit is None else job.unit[list(places)]


def _at_once(events: Bools, unit: Ints | None) -> float:
    """How many ranks of a unit have an event together, in the mean: what one cause brings about counts once."""
    if unit is None or not events.any():
        return 1.0
    step, rank = np.nonzero(events)
    return len(step) / len(np.unique(np.stack((step, unit[rank])), axis=1).T)


def _more_than_their_share(counts: Ints, role: Ints) -> list[tuple[Position, int, int, float]]:
    """(rank, k, m, p) by the binomial test, k of its role's m events; each found rank's leave the sample."""
    found = []
    tests = len(counts) / SHARES["intermittent"]
    for code in np.unique(role):
        left = np.where(role == code, counts, NONE)
        while (peers := int(np.count_nonzero(left >= 0))) > 1:
            rank = Position(int(np.argmax(left)))
            k, remaining = int(left[rank]), int(left[left > 0].sum())
            p = min(1.0, tests * binomial_tail(k, remaining, 1 / peers))
            if k < 2 or p >= FALSE_ALARM_RATE:
                break
            found.append((rank, k, int(counts[role == code].sum()), p))
            left[rank] = NONE
    return found
