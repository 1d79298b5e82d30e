"""What is slow: the job's steps against those before (when), and ranks' self times against their peers' (who).

Synchronous training makes all ranks' steps equally long, so step times name nobody; self times, the steps without what
was waited in collectives, do. How far a rank stands out is the engine's to say (localize/live.py); here is what a
running job needs: the last 20 steps are tested, every 5 steps, and three tests in a row must agree, or two without a
common step show together as much as one has to.

Where all ranks tell how many samples they take, times are those of a sample: a rank with a larger batch takes longer,
and is not slow; one that was given a smaller batch because it is slow still is.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kair_capture.coordinator.step_table import Recent
from kair_engine.arrays import Bools, Floats, Ints, present
from kair_engine.localize.anomalies import FALSE_ALARM_RATE
from kair_engine.localize.live import FEWEST_BLOCKS, above_past, above_peers
from kair_engine.localize.peers import OF_STEP, OF_WORK, Spread
from kair_engine.results.watch import FEWEST_PEERS
from kair_engine.stats import MAD_TO_SIGMA, known_median, known_role_medians, median_of_others
from kair_engine.timeline.batch_sizes import of_the_samples

STEPS: Final = 20
EVERY: Final = 5
HITS: Final = 3
Z: Final = 5.5
"""A t beyond this counts: a normal is so far above once in 5 · 10⁷ tests, and a job of 10⁶ steps makes 2 · 10⁵."""
LEAST_EXCESS: Final = 0.08
"""A rank that is slower by less is not worth a window: of a small job, whose peers say little about chance."""
LEAST_EXCESS_OF_MANY: Final = 0.05
MANY: Final = 32
LEAST_SHIFT: Final = 0.15
"""The same of the job's steps."""
_LEAST_Z: Final = 3.0
"""Of what lasts, in each of its two halves."""
_FRESH: Final = 6
"""Tests whose changes do not count yet: 30 steps, within which a rank that becomes slow is to be noticed."""
_FEW_CHANGES: Final = 8
_SEEN: Final = 0.5
"""Of what a rank without peers takes longer, another rank has to be seen waiting for so much."""
_BLOCKS: Final = 100
_WARM_UP: Final = 2
"""Blocks at the begin that count for nothing: compilation, allocators, caches."""


@dataclass(frozen=True)
class Least:
    """From which excesses on it is told."""

    rank: float | None = None
    """A rank's, of its peers; None: LEAST_EXCESS, and of MANY ranks LEAST_EXCESS_OF_MANY."""
    steps: float = LEAST_SHIFT
    """The job's steps', of those before."""

    def of(self, peers: Ints) -> Floats:
        """Return the threshold of ranks which have so many others of their role."""
        usual = np.where(peers + 1 >= MANY, LEAST_EXCESS_OF_MANY, LEAST_EXCESS)
        return usual if self.rank is None else np.full(peers.shape, self.rank)


USUAL: Final = Least()


@dataclass(frozen=True)
class Standing:
    """Each rank against its peers, or against itself where it has none: arrays of one length."""

    rank: Ints
    self_us: Floats
    """Median of the last 20 steps."""
    excess: Floats
    """Of the peers' median, or of its own before (NaN where that is too short); 0.2 is 20 % slower."""
    z: Floats
    """The excess in units of what is chance."""
    chance: Floats
    """That a healthy rank is so much slower for good."""
    peers: Ints
    """How many others there are of its role; below FEWEST_PEERS − 1 it is compared with its own past."""

    @property
    def excess_us(self) -> Floats:
        """The excess in µs, of a step or of a sample, as `self_us` is."""
        return np.asarray(self.self_us * self.excess / np.maximum(1 + self.excess, 1e-9))

    @property
    def has_peers(self) -> Bools:
        """Whether each rank is compared with others."""
        return np.asarray(self.peers + 1 >= FEWEST_PEERS)


def spread_of(recent: Recent) -> Spread:
    """Return what healthy ranks differ by in their own time, as a share of it."""
    own = known_median(recent.self_us.T if recent.samples is None else (recent.self_us * recent.samples).T)
    return Spread.of_own_time(1.0, np.nanmedian(recent.step_us[0]) / max(np.median(own), 1e-9))


def standing(recent: Recent, drift: float, role: Ints, past: "Past", spread: Spread) -> Standing:
    """Compare every rank's self times with those of all others of its role (equal numbers in `role`).

    `drift` is how much an excess changes by itself. Ranks without peers are compared with their own `past`.
    """
    median = known_median(recent.self_us.T)
    peers = np.bincount(role)[role] - 1
    figures = above_peers(recent.self_us, role, spread, drift)
    if len(alone := np.flatnonzero(peers + 1 < FEWEST_PEERS)):
        figures[:, alone] = above_past(past.blocks(recent.ranks)[:, alone], median[alone], spread)
    excess, z, chance = figures
    return Standing(recent.ranks, median, excess, z, chance, peers)


def computing(recent: Recent) -> Recent | None:
    """Return the same steps with CPU times for self times: where more processes compute than there are cores, who waits
    for one changes from step to step, and hides who computes more. None where half of them are not told.
    """
    told = np.count_nonzero(~np.isnan(recent.cpu_us), axis=1)
    if not len(recent.ranks) or (told * 2 < recent.cpu_us.shape[1]).any():
        return None
    return replace(recent, self_us=recent.cpu_us)


def per_sample(recent: Recent) -> Recent:
    """Return the same steps with the times of a sample for ranks' own times; themselves where sizes are not known."""
    of = recent.samples
    if of is None:
        return recent
    own = recent.self_us / of, recent.cpu_us / of, recent.ready_us / of
    return replace(recent, self_us=own[0], cpu_us=own[1], ready_us=own[2])


def has_uneven_sizes(recent: Recent) -> bool:
    """Whether ranks are known to take different numbers of samples."""
    return recent.samples is not None and len(np.unique(known_median(recent.samples.T))) > 1


def despite_fixed_parts(found: Standing, recent: Recent, role: Ints) -> Floats:
    """Return per rank the excess if half of what peers take did not depend on their samples."""
    if recent.samples is None:
        return found.excess
    own = known_median(recent.samples.T)
    usual = np.where(found.has_peers, known_role_medians(own[None], role)[0], own)
    return np.asarray((1 + found.excess) * of_the_samples(own, usual) - 1)


def matters(found: Standing, recent: Recent, least: Least = USUAL) -> Bools:
    """Return per rank whether what it computes more is more of its own time too, as with a core of its own."""
    ready = np.maximum(known_median(recent.ready_us.T), found.self_us)
    more = found.excess_us
    return np.asarray(more > least.of(found.peers) * (ready - more))


def waited_for(found: Standing, measured: Recent, recent: Recent, role: Ints) -> tuple[Floats, Bools]:
    """Return each rank's excess in a step, µs, no longer than others wait for it; and whose excess that limits.

    `found` is the standing by the own times in `measured`; `recent` has the steps' usual own times. Those of two ranks
    whose waiting is not seen are as long as the step, and say nothing of who waits for whom; and a rank that is slow
    may be given so few samples that it ends with its peers. Of other ranks the excess is as `found` has it.
    """
    samples = np.ones(1) if recent.samples is None else recent.samples
    own = known_median((measured.self_us * samples).T)
    excess = found.excess_us * known_median((samples + np.zeros_like(own)[:, None]).T)
    alone, limit = ~found.has_peers, np.full(len(own), np.inf)
    for code in present(role):
        members = np.flatnonzero(role == code)
        if len(members) > 1 and (alone[members[0]] or has_uneven_sizes(recent)):
            limit[members] = own[members] - median_of_others(own[members])
    if np.count_nonzero(alone) > 1:
        waits = np.nan_to_num(known_median((recent.step_us - recent.self_us * samples).T))
        *_, second, most = np.sort(waits)
        limit[alone] = np.minimum(limit, np.where(waits == most, second, most) / _SEEN)[alone]
    is_limited = np.isfinite(limit)
    limited = np.clip(excess, np.minimum(limit, 0), np.maximum(limit, 0))
    return np.where(is_limited, limited, excess), is_limited


class Past:
    """Ranks' self times, block by block: what those that have no peers are compared with.

    Blocks in which one of them stands out are no part of it. So a rank stands out for 2,000 steps at most: then nothing
    else is remembered, and what it does is the usual.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[Ints, Floats]] = deque(maxlen=_BLOCKS)

    def add(self, ranks: Ints, median: Floats) -> None:
        """Another block of 20 steps."""
        self._blocks.append((ranks, median))

    def blocks(self, ranks: Ints) -> Floats:
        """Blocks by ranks, NaN where one was not told."""
        past = np.full((len(self._blocks), len(ranks)), np.nan)
        for row, (of_ranks, values) in enumerate(self._blocks):
            there = np.isin(of_ranks, ranks)
            past[row, np.searchsorted(ranks, of_ranks[there])] = values[there]
        return past


class Who:
    """Ranks that stand out for three tests in a row, or for twice as many steps by as much evidence."""

    def __init__(self) -> None:
        self._hits: dict[int, int] = {}
        self._fresh: deque[Floats] = deque(maxlen=_FRESH)
        """How much ranks' excesses changed from 20 steps to the next 20, by the last tests."""
        self._changes: deque[float] = deque(maxlen=4096)
        """The same by the tests before."""
        self._tests: deque[tuple[Ints, Standing, Bools]] = deque(maxlen=STEPS // EVERY)
        """The last ones: ranks, and which of them stood out; the first shares no step with the present one."""
        self._past = Past()
        self._roles: list[tuple[int, int]] = []
        self._blocks = 0

    @property
    def drift(self) -> float:
        """How much an excess changes by itself.

        What becomes slow changes its own excess, and by being their peer the others' too: so the last tests do not
        count, where enough is known from before.
        """
        changes = self._changes if len(self._changes) >= _FEW_CHANGES else [one for of in self._fresh for one in of]
        return float(np.median(np.abs(changes))) * MAD_TO_SIGMA / 2**0.5 if len(changes) else 0.0

    def look(
        self, recent: Recent, role: Ints, *, whole_block: bool, least: Least = USUAL, spread: Spread = OF_WORK
    ) -> tuple[Standing, list[int]]:
        """Return the standing, and the ranks that are slow now; `role` has a number per rank, equal for peers.

        `whole_block`: the last such block had none of these steps; `spread` is what healthy ranks differ by.
        """
        self._compare_anew(recent.ranks, role)
        now = standing(recent, self.drift, role, self._past, spread)
        has_peers = now.has_peers
        ready = ~has_peers | (self._blocks > _WARM_UP and len(self._fresh) > 0)
        is_more = (despite_fixed_parts(now, recent, role) > least.of(now.peers)) & ready
        is_more &= now.chance < FALSE_ALARM_RATE
        stands_out = (now.z > Z) & is_more
        lasts = is_more & has_peers & self._lasts(recent.ranks, now)
        if whole_block:
            self._blocks += 1
            if self._blocks > _WARM_UP:
                # Ranks without peers are compared with each other's past as well, so over the same blocks.
                left_out = stands_out | (~has_peers & stands_out[~has_peers].any())
                self._past.add(recent.ranks, np.where(left_out, np.nan, now.self_us))
        if self._blocks > _WARM_UP:
            self._note_changes(recent.ranks, now, stands_out | ~has_peers)
        hit = set(recent.ranks[stands_out].tolist())
        self._hits = {rank: self._hits.get(rank, 0) + 1 for rank in hit}
        slow = {rank for rank, hits in self._hits.items() if hits >= HITS}
        return now, sorted(slow | set(recent.ranks[lasts].tolist()))

    def forget_past(self) -> None:
        """Forget what ranks were compared with in their own past and in earlier tests: it says nothing any more."""
        self._past = Past()
        self._tests.clear()

    def _lasts(self, ranks: Ints, now: Standing) -> Bools:
        """Who stood out little enough to be chance, and did so in the 20 steps before as well: both are one test."""
        if len(self._tests) < STEPS // EVERY:
            return np.zeros(len(ranks), np.bool_)
        before, then, _ = self._tests[0]
        _, now_at, then_at = np.intersect1d(ranks, before, assume_unique=True, return_indices=True)
        earlier = np.zeros(len(ranks))
        earlier[now_at] = then.z[then_at]
        least = np.minimum(earlier, now.z)
        return np.asarray((least > _LEAST_Z) & (earlier + now.z > Z * 2**0.5))

    def _compare_anew(self, ranks: Ints, role: Ints) -> None:
        """Excesses that were found among other peers say nothing any more."""
        first = {code: rank for rank, code in zip(ranks[::-1].tolist(), role[::-1].tolist(), strict=True)}
        roles = [(rank, first[code]) for rank, code in zip(ranks.tolist(), role.tolist(), strict=True)]
        if roles != self._roles:
            known = dict(self._roles)
            if any(known.get(rank, peer) != peer for rank, peer in roles):
                self._hits = {}
                self._tests.clear()
            self._roles = roles

    def _note_changes(self, ranks: Ints, now: Standing, left_out: Bools) -> None:
        """Of ranks that do not stand out, and did not 20 steps ago."""
        if len(self._tests) == STEPS // EVERY:
            before, then, left_out_then = self._tests[0]
            _, now_at, then_at = np.intersect1d(ranks, before, assume_unique=True, return_indices=True)
            counts = ~left_out[now_at] & ~left_out_then[then_at]
            if counts.any():
                if len(self._fresh) == _FRESH:
                    self._changes.extend(self._fresh[0].tolist())
                self._fresh.append((now.excess[now_at] - then.excess[then_at])[counts])
        self._tests.append((ranks, now, left_out))


class When:
    """The job's steps over time: whether they became longer, for three tests in a row."""

    def __init__(self) -> None:
        self._blocks: deque[float] = deque(maxlen=_BLOCKS)
        self._hits = 0
        self._skipped = 0

    @property
    def usual_us(self) -> float | None:
        """The median step before; None while too little is known."""
        return float(np.median(self._blocks)) if len(self._blocks) >= FEWEST_BLOCKS else None

    def look(self, recent: Recent, *, whole_block: bool, least: Least = USUAL) -> tuple[float, float, bool]:
        """Shift (0.2 is 20 % longer), its z, and whether it is to be told."""
        of_steps = known_median(recent.step_us) if len(recent.ranks) else np.zeros(0)
        of_steps = of_steps[~np.isnan(of_steps)]
        if not len(of_steps):
            return 0.0, 0.0, False
        now = float(np.median(of_steps))
        # Of the blocks about their median, slow swings of the machine's included.
        figures = above_past(np.array(self._blocks)[:, None], np.array([now]), OF_STEP, relative=False)
        shift, z, chance = figures[:, 0].tolist()
        is_longer = z > Z and shift > least.steps and chance < FALSE_ALARM_RATE
        self._hits = self._hits + 1 if is_longer else 0
        if whole_block:
            self._skipped += 1
            if self._skipped > _WARM_UP:
                self._blocks.append(now)
        return shift, z, self._hits >= HITS

    def forget_past(self) -> None:
        """Forget what steps took before: it says nothing about the next ones."""
        self._blocks.clear()
        self._hits = 0

    def accept(self) -> None:
        """Take what was reported as usual from now on: it is reported once."""
        last = self._blocks[-1] if self._blocks else None
        self.forget_past()
        if last is not None:
            self._blocks.append(last)
