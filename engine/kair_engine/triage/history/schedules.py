"""Who is late in every so-many-th step: one rank evaluates, writes a checkpoint or a log, and the others wait for it.

large delays of a rank        localize/large_delays.py: of every size, those longer than a step too
at equal distances            how likely as many of them lie on one grid of steps, were their order any (hypergeometric)
more than its peers           in the steps on that grid, and in all steps together

Where all ranks evaluate, each may be late on the same grid, by chance: so the first test alone accuses nobody. Rows
have no places: the rate of false alarms is the share that those have in localize.
"""

from collections.abc import Collection, Iterator
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, PLACE_SHARE
from kair_engine.localize.large_delays import STALL_SHARE, Events, chance_of, events_of
from kair_engine.localize.peers import Means, Spread, above_others
from kair_engine.localize.shapes import cauchy
from kair_engine.stats import fisher_tail, median, role_medians
from kair_engine.triage.history.rows import StepHistory
from kair_engine.triage.job_wide import RUNQUEUE_WAIT_RATIO

_FEWEST: Final = 3
"""Delays: two are always at equal distances."""
_SHORTEST: Final = 2
_MOST_PERIODS: Final = 8
"""That are tested of a rank's delays of one size: those at which most of them follow one another."""
_MOST_GRIDS: Final = 4
"""Of one rank: an evaluation, a checkpoint and a log may each have their own."""


@dataclass(frozen=True)
class Schedule:
    """A rank's large delays that come by a schedule."""

    position: int
    every: int
    """Steps: of several grids that of the one on which most is lost."""
    on: Bools
    """(steps): those on its grids."""
    p_value: float


@dataclass(frozen=True)
class _Grid:
    every: int
    on: Bools
    chance: float
    """Corrected for the periods, phases and sizes that were tried, and for nothing else."""


def schedules(history: StepHistory, accused: Collection[int] = ()) -> Iterator[Schedule]:
    """Yield each rank that is late by a schedule beyond its peers; nobody whose peers lose half as much in delays.

    `accused` ranks are late at times by other tests: of them only the schedule is asked, and none of the others'.
    """
    beyond = history.own - role_medians(history.own, history.role)
    events = events_of(history.bare_table(), beyond * 1e3)
    lost = np.where(events[0].hit, np.maximum(beyond, 0.0), 0.0)
    at_most = np.full(len(history.ranks), FALSE_ALARM_RATE * PLACE_SHARE / len(history.ranks))
    at_most[list(accused)] = FALSE_ALARM_RATE
    of_rank = {
        place: list(_grids(history.steps, [one.hit[:, place] for one in events], at_most[place]))
        for place in np.flatnonzero(events[0].hit.sum(axis=0) >= _FEWEST).tolist()
    }
    by_grids = np.zeros(len(history.ranks))
    for place, grids in of_rank.items():
        by_grids[place] = sum(float(lost[one.on, place].sum()) for one in grids)
    for place, grids in of_rank.items():
        peers = np.flatnonzero(history.role == history.role[place])
        others = peers[peers != place]
        if not grids or not len(others):
            continue
        kept: list[tuple[float, float, _Grid]] = []
        for grid in grids:
            lost_by_it = float(lost[grid.on, place].sum())
            of_others = np.maximum(_lost_beyond(history, grid.on, place, others), by_grids[others])
            chance = max(grid.chance, _above_peers(history, grid.on, place, peers))
            if chance <= at_most[place] and lost_by_it >= RUNQUEUE_WAIT_RATIO * np.median(of_others):
                kept.append((lost_by_it, chance, grid))
        if not kept:
            continue
        on = np.logical_or.reduce([grid.on for _, _, grid in kept])
        if _late_besides(events, on, place, history.role) >= at_most.min():
            every = max(kept, key=lambda one: one[0])[2].every
            yield Schedule(place, every, on, min(chance for _, chance, _ in kept) * len(history.ranks) / PLACE_SHARE)


def _lost_beyond(history: StepHistory, on: Bools, place: int, others: Ints) -> Floats:
    """Return what each other rank loses to delays that this one has not, beyond what this one loses off its grid.

    Pair by pair: where several ranks pause in the same steps, the median of all would hide that they do.
    """
    longer = history.own[:, others] - history.own[:, [place]]
    longer -= np.median(longer, axis=0)
    least = STALL_SHARE * history.step_us
    theirs = np.where(longer > least, longer, 0.0).sum(axis=0)
    mine = np.where((longer < -least) & ~on[:, None], -longer, 0.0).sum(axis=0)
    return np.asarray(theirs - mine)


def _grids(steps: Ints, hits: list[Bools], at_most: float) -> Iterator[_Grid]:
    """Yield the grids that a rank's delays of some size lie on, the least likely by chance first."""
    left = np.ones(len(steps), np.bool_)
    for _ in range(_MOST_GRIDS):
        # The delays' lengths show which sizes have some, in whatever order: that may be known.
        different = {hit.tobytes(): hit for one in hits if (hit := one & left).any()}
        found = [grid for hit in different.values() if (grid := _grid(steps, hit, len(different))) is not None]
        best = min(found, key=lambda one: one.chance, default=None)
        if best is None or best.chance > at_most:
            return
        yield best
        left &= ~best.on


def _grid(steps: Ints, hit: Bools, sizes: int) -> _Grid | None:
    """Return the grid that as many of some steps lie on by the lowest chance; None of few steps."""
    at = steps - steps[0]
    length, count = int(at[-1]) + 1, int(np.count_nonzero(hit))
    longest = length // _SHORTEST
    if count < _FEWEST or longest < _SHORTEST:
        return None
    tests = sizes * (longest * (longest + 1) / 2 - 1)  # a period of n steps has n phases
    best: tuple[float, int, int] | None = None
    for every in _periods(at[hit], length, longest):
        phases = np.bincount(at[hit] % every, minlength=every)
        phase = int(np.argmax(phases))
        drawn = int(np.count_nonzero(at % every == phase))
        chance = min(fisher_tail(int(phases[phase]), drawn, count, len(at)) * tests, 1.0)
        if phases[phase] >= _FEWEST and (best is None or chance < best[0]):
            best = chance, every, phase
    if best is None:
        return None
    chance, every, phase = best
    on = at % every == phase
    ends = np.flatnonzero(on & hit)[[0, -1]]
    on[: ends[0]] = on[ends[1] + 1 :] = False
    return _Grid(every, on, chance)


def _periods(at: Ints, length: int, longest: int) -> list[int]:
    """Return the distances that most of some steps have to a later one, beyond what chance has, the shortest first."""
    there = np.zeros(length)
    there[at] = 1.0
    power = np.abs(np.fft.rfft(there, 2 * length)) ** 2
    pairs = np.fft.irfft(power)[_SHORTEST : longest + 1]
    expected = (len(at) / length) ** 2 * (length - np.arange(_SHORTEST, longest + 1))
    order = np.argsort(-(pairs - expected) / np.sqrt(expected), kind="stable")[:_MOST_PERIODS]
    return sorted((order + _SHORTEST).tolist())


def _above_peers(history: StepHistory, on: Bools, place: int, peers: Ints) -> float:
    """Return the chance that a healthy rank is as far above its peers in these steps."""
    own, step = history.own[np.ix_(on, peers)], history.us["step"][on]
    beyond = own - median(own, axis=1)[:, None]
    spread = Spread.of_own_time(float(median(own, axis=None)), float(median(step, axis=None)))
    return float(above_others(Means.of(beyond), spread)[1][np.flatnonzero(peers == place)[0]])


def _late_besides(events: list[Events], on: Bools, place: int, role: Ints) -> float:
    """Return the chance of its delays in the other steps: who has too many of these, too, is late now and then."""
    left = np.ones(len(role), np.bool_)
    of_sizes = []
    for one in events:
        hit = one.hit & ~on[:, None]
        count = np.minimum(one.count, hit.sum(axis=0))
        of_sizes.append(chance_of(Events(hit, count, one.size), role, None, left))
    return float(cauchy(np.stack(of_sizes), np.ones(len(of_sizes)))[place])
