"""The robust tests of who is slow in some steps: large delays are events, counted at several sizes."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, present, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, FEWEST_STEPS, RANK_SHARE, Anomaly
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.excess_table import Excesses
from kair_engine.localize.noise import KNOWN_VALUES, MOST_CORRELATED, episodes, episodes_of_larger, inflation
from kair_engine.ranks import Position
from kair_engine.results import SMALLEST_SHARE
from kair_engine.stats import MAD_TO_SIGMA, beta_binomial_tail, binomial_tail, log_beta, median, role_medians

STALL_SHARE = 0.10
"""An excess of this share of the step, in one step, is an event."""
STALL_SIZES = (0.1, 0.25, 0.5, 1.0)
"""Events are counted at these sizes, as shares of the step: the rarer the larger. Those of more than a step are counted
at twice that as well, and so on."""
OUT_OF_NOISE = 5.0
"""An event that is reported of no rank must also lie this many deviations outside the ranks' ordinary steps."""
COUNTED_OUT_OF_NOISE = 3.0
"""An event that counts against a rank must lie this many deviations out: what noise brings about, the others have as
often."""
PRIOR_RATE, PRIOR_STEPS = 0.02, 50
"""Healthy ranks have a benign delay of the smallest size in this share of the steps; the prior weighs as much as these
steps."""
ANY_RATE = 0.1
"""A prior that knows nothing has this weight: the other one gives way where the others' steps contradict it."""
BEST_STEPS = 0.1
"""What a rank is slower by even in this share of its steps, the best ones, is no pause."""


@dataclass(frozen=True)
class Events:
    """Large delays of one size (a share of the step): where they are, and how many per rank are independent."""

    hit: Bools
    count: Ints
    size: float

    @classmethod
    def of_sizes(cls, delays_ns: Floats, least_ns: Callable[[float], Floats]) -> "list[Events]":
        """Those among delays (steps × ranks) that are above what a size asks for, per step, of all sizes that occur."""
        sizes = list(STALL_SIZES)
        hits = [np.asarray(delays_ns > least_ns(size)[:, None]) for size in sizes]
        while hits[-1].any() and (larger := np.asarray(delays_ns > least_ns(2 * sizes[-1])[:, None])).any():
            sizes.append(2 * sizes[-1])
            hits.append(larger)
        smallest = episodes(hits[0])
        return [
            cls(hit, episodes_of_larger(hit, hits[0], smallest), size) for hit, size in zip(hits, sizes, strict=True)
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
    def of(cls, job: Excesses, values_ns: Floats | None = None) -> "Delays":
        """Return the large delays of a job, or those among its values (steps × ranks)."""
        total = zero_for_nan(job.by_step_ns).sum(axis=1) if values_ns is None else values_ns
        total = total - role_medians(total, job.role)
        total = total - np.maximum(np.quantile(total, BEST_STEPS, axis=0), 0.0)
        usual = MAD_TO_SIGMA * float(median(np.abs(total - median(total, axis=0)), axis=None))
        undelayed = np.maximum(job.step_times_ns - np.maximum(total.max(axis=1), 0.0), 0.5 * job.step_times_ns)
        return cls(total, undelayed, usual)

    def beyond(self, size: float, deviations: float) -> Bools:
        """Return (steps × ranks): True where one is larger than that share of the step, and out of what is usual."""
        return np.asarray(self.total_ns > self.least_ns(size, deviations)[:, None])

    def least_ns(self, size: float, deviations: float) -> Floats:
        """Per step what an event is above."""
        return np.maximum(size * self.undelayed_ns, deviations * self.usual_ns)


def events_of(job: Excesses, values_ns: Floats) -> list[Events]:
    """Return the large delays among values (steps × ranks) beyond the role's median, of all sizes that occur."""
    delays = Delays.of(job, values_ns)
    out_of_noise = counted_from(delays.total_ns)
    return Events.of_sizes(delays.total_ns, lambda size: delays.least_ns(size, out_of_noise))


def stalls(job: Excesses, deviations: float = OUT_OF_NOISE) -> Bools:
    """Return (steps × ranks): True where a rank's excess, all classes together, is an event.

    It is a good part of the step, counted without its own largest delay, and lies out of what is usual within ranks.
    """
    return Delays.of(job).beyond(STALL_SHARE, deviations)


def counted(job: Excesses) -> Bools:
    """Return (steps × ranks): True for the events that `intermittent` counts."""
    delays = Delays.of(job)
    return delays.beyond(STALL_SHARE, counted_from(delays.total_ns))


def counted_from(total_ns: Floats) -> float:
    """Return the deviations that counted events lie out: farther where steps resemble one another, as spells make them
    do.

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


def host_pauses(job: JobExcess) -> list[Anomaly]:
    """Ranks whose host pauses more often than chance has it; slow throughout can as well be a longer batch."""
    counts = large_delays(job)
    lost = np.sum([step.paused_ns for step in job.steps], axis=0) / len(job.steps)
    return [
        Anomaly("intermittent", (rank,), CLASSES.index("host"), p, float(lost[rank]), (k, m))
        for rank, k, m, p in _more_than_their_share(counts, job.role)
        if lost[rank] > SMALLEST_SHARE * job.step_time_ns
    ]


def chance_of(events: Events, role: Ints, unit: Ints | None, left: Bools) -> Floats:
    """Return, per rank, the probability that a healthy one has as many events; at most one half.

    The rate comes from the other ranks and a prior. Roles show the same pauses unequally (a pipeline's bubbles hide
    some): if the others of a rank's role are known well enough, their rate must not explain the events either. Only the
    ranks that are `left` are tested and contribute to a rate.
    """
    steps, chances = len(events.hit), np.full(len(role), 0.5)
    several = np.flatnonzero(left & (events.count >= 2))
    if not len(several):
        return chances
    everybody = _Others.of(events, unit, left)
    of_role = {code: _Others.of(events, unit, left & (role == code)) for code in present(role[several]).tolist()}
    for rank in several.tolist():
        k, own = int(events.count[rank]), of_role[int(role[rank])]
        known = PRIOR_STEPS <= (own.ranks - 1) * steps < (everybody.ranks - 1) * steps
        independent = steps - int(events.hit[:, rank].sum()) + k
        samples = [everybody, own] if known else [everybody]
        at_rates = [_at_rate_of(k, independent, of.without(k, steps), events.size) for of in samples]
        chances[rank] = min(0.5, max(at_rates))
    return chances


@dataclass(frozen=True)
class _Others:
    """Ranks whose events contribute to a rate."""

    ranks: int
    events: int
    at_once: float
    """Return how many of them have an event together, on average: what one cause brings about counts once."""

    @classmethod
    def of(cls, events: Events, unit: Ints | None, members: Bools) -> "_Others":
        at_once = 1.0 if unit is None else _at_once(events.hit[:, members], unit[members])
        return cls(int(np.count_nonzero(members)), int(events.count[members].sum()), at_once)

    def without(self, events: int, steps: int) -> tuple[float, float]:
        """(events, steps that were looked at) of all but a rank that has so many."""
        return (self.events - events) / self.at_once, (self.ranks - 1) * steps / self.at_once


@lru_cache(maxsize=4096)
def _at_rate_of(k: int, steps: int, of_others: tuple[float, float], size: float) -> float:
    """Of k events or more in so many steps: the tail of a beta-binomial, the mean over two priors.

    One has rare events, the rarer the larger they are, the other any rate; the others' events, in so many steps, decide
    how much each counts (robust mixture, Schmidli 2014).
    """
    hit, looked_at = of_others
    rate = PRIOR_RATE * STALL_SIZES[0] / size
    priors = ((1 - ANY_RATE, rate * PRIOR_STEPS, (1 - rate) * PRIOR_STEPS), (ANY_RATE, 1.0, 1.0))
    log_weights = [
        math.log(weight) + log_beta(a + hit, b + looked_at - hit) - log_beta(a, b) for weight, a, b in priors
    ]
    relative = [math.exp(one - max(log_weights)) for one in log_weights]
    tails = [beta_binomial_tail(k, steps, a + hit, b + looked_at - hit) for _, a, b in priors]
    return sum(weight * tail for weight, tail in zip(relative, tails, strict=True)) / sum(relative)


def _at_once(events: Bools, unit: Ints) -> float:
    """Return how many ranks of a unit have an event together, on average."""
    if not events.any():
        return 1.0
    step, rank = np.nonzero(events)
    return len(step) / len(np.unique(np.stack((step, unit[rank])), axis=1).T)


def _more_than_their_share(counts: Ints, role: Ints) -> list[tuple[Position, int, int, float]]:
    """(rank, k, m, p) by the binomial test, k of its role's m events; each found rank's leave the sample."""
    found = []
    tests = len(counts) / RANK_SHARE
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
