"""Detects slowness: the job's steps against earlier ones (when), and ranks' self times against their peers' (who).

Synchronous training makes all ranks' steps equally long, so step times identify no rank; self times, the steps without
waiting in collectives, do. The engine computes how far a rank stands out (localize/live.py); this module adds what a
running job needs: the last 20 steps are tested every 5 steps, and three tests in a row must agree, or two without a
common step must together show as much as one has to.

If all ranks report their numbers of samples, times are per sample: a rank with a larger batch takes longer but is not
slow, and one that was given a smaller batch because it is slow still is.
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
from kair_engine.stats import MAD_TO_SIGMA, known_median, known_role_medians, median, median_of_others
from kair_engine.timeline.batch_sizes import of_the_samples

STEPS: Final = 20
EVERY: Final = 5
HITS: Final = 3
Z: Final = 5.5
"""Threshold of t: a normal exceeds it once in 5 · 10⁷ tests, and a job of 10⁶ steps makes 2 · 10⁵."""
LEAST_EXCESS: Final = 0.08
"""A smaller excess is not worth a window: in a small job, whose peers say little about chance."""
LEAST_EXCESS_OF_MANY: Final = 0.05
MANY: Final = 32
LEAST_SHIFT: Final = 0.15
"""The same for the job's steps."""
_LEAST_Z: Final = 3.0
"""Threshold in each of the two halves of lasting slowness."""
_FRESH: Final = 6
"""Tests whose changes do not count yet: 30 steps, within which a rank that becomes slow should be noticed."""
_FEW_CHANGES: Final = 8
_SEEN: Final = 0.5
"""Share of the excess of a rank without peers that another rank must be seen waiting."""
_BLOCKS: Final = 100
_WARM_UP: Final = 2
"""Blocks at the begin that do not count: compilation, allocators, caches."""


@dataclass(frozen=True)
class Least:
    """Smallest excesses that are reported."""

    rank: float | None = None
    """For a rank against its peers; None: LEAST_EXCESS, and with MANY ranks LEAST_EXCESS_OF_MANY."""
    steps: float = LEAST_SHIFT
    """For the job's steps against earlier ones."""

    def of(self, peers: Ints) -> Floats:
        """Return the threshold of ranks with this many peers."""
        usual = np.where(peers + 1 >= MANY, LEAST_EXCESS_OF_MANY, LEAST_EXCESS)
        return usual if self.rank is None else np.full(peers.shape, self.rank)


USUAL: Final = Least()


@dataclass(frozen=True)
class Standing:
    """Each rank against its peers, or against its past if it has none: arrays of one length."""

    rank: Ints
    self_us: Floats
    """Median of the last 20 steps."""
    excess: Floats
    """Relative to the peers' median, or its own past (NaN if that is too short); 0.2 is 20 % slower."""
    z: Floats
    """The excess in units of chance."""
    chance: Floats
    """Probability that a healthy rank is so much slower permanently."""
    peers: Ints
    """Number of other ranks with its role; below FEWEST_PEERS − 1 it is compared with its own past."""

    @property
    def excess_us(self) -> Floats:
        """Return the excess in µs, per step or per sample like `self_us`."""
        return np.asarray(self.self_us * self.excess / np.maximum(1 + self.excess, 1e-9))

    @property
    def has_peers(self) -> Bools:
        """Return whether each rank is compared with others."""
        return np.asarray(self.peers + 1 >= FEWEST_PEERS)


def spread_of(recent: Recent) -> Spread:
    """Return how healthy ranks differ in their own time, as a share of it."""
    own = known_median(recent.self_us.T if recent.samples is None else (recent.self_us * recent.samples).T)
    return Spread.of_own_time(1.0, float(known_median(recent.step_us[:1].T)[0] / max(median(own), 1e-9)))


def standing(recent: Recent, drift: float, role: Ints, past: "Past", spread: Spread) -> Standing:
    """Compare every rank's self times with those of all others of its role (equal numbers in `role`).

    `drift` is how much an excess changes by itself. Ranks without peers are compared with their own `past`.
    """
    own_us = known_median(recent.self_us.T)
    peers = np.bincount(role)[role] - 1
    figures = above_peers(recent.self_us, role, spread, drift)
    if len(alone := np.flatnonzero(peers + 1 < FEWEST_PEERS)):
        figures[:, alone] = above_past(past.blocks(recent.ranks)[:, alone], own_us[alone], spread)
    excess, z, chance = figures
    return Standing(recent.ranks, own_us, excess, z, chance, peers)


def computing(recent: Recent) -> Recent | None:
    """Return the same steps with CPU times as self times; None if half of them are missing.

    With more busy processes than cores, waiting for a core varies from step to step and hides which rank computes more.
    """
    measured = np.count_nonzero(~np.isnan(recent.cpu_us), axis=1)
    if not len(recent.ranks) or (measured * 2 < recent.cpu_us.shape[1]).any():
        return None
    return replace(recent, self_us=recent.cpu_us)


def per_sample(recent: Recent) -> Recent:
    """Return the same steps with ranks' own times per sample; unchanged if sizes are not known."""
    of = recent.samples
    if of is None:
        return recent
    own = recent.self_us / of, recent.cpu_us / of, recent.ready_us / of
    return replace(recent, self_us=own[0], cpu_us=own[1], ready_us=own[2])


def has_uneven_sizes(recent: Recent) -> bool:
    """Return whether ranks are known to take different numbers of samples."""
    return recent.samples is not None and len(np.unique(known_median(recent.samples.T))) > 1


def despite_fixed_parts(found: Standing, recent: Recent, role: Ints) -> Floats:
    """Return each rank's excess if half of its peers' time did not depend on their samples."""
    if recent.samples is None:
        return found.excess
    own = known_median(recent.samples.T)
    usual = np.where(found.has_peers, known_role_medians(own[None], role)[0], own)
    return np.asarray((1 + found.excess) * of_the_samples(own, usual) - 1)


def matters(found: Standing, recent: Recent, least: Least = USUAL) -> Bools:
    """Return whether each rank's extra computing would also lengthen its own time if it had a core to itself."""
    ready = np.maximum(known_median(recent.ready_us.T), found.self_us)
    more = found.excess_us
    return np.asarray(more > least.of(found.peers) * (ready - more))


def waited_for(found: Standing, measured: Recent, recent: Recent, role: Ints) -> tuple[Floats, Bools]:
    """Return each rank's excess per step (µs), limited to what others wait for it; and which ranks that limits.

    `found` is the standing by the own times in `measured`; `recent` has the steps' usual own times. If the waiting of
    two ranks is not seen, their own times are as long as the step and do not show which waits; and a slow rank may have
    so few samples that it ends with its peers. The excess of other ranks is that of `found`.
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
    """Ranks' self times, block by block, with which ranks without peers are compared.

    Blocks in which one of them stands out are excluded. So a rank stands out for 2,000 steps at most: after that
    nothing else is remembered, and its behaviour is the usual one.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[Ints, Floats]] = deque(maxlen=_BLOCKS)

    def add(self, ranks: Ints, own_us: Floats) -> None:
        """Add a block of 20 steps."""
        self._blocks.append((ranks, own_us))

    def blocks(self, ranks: Ints) -> Floats:
        """Return (blocks × ranks), NaN where missing."""
        past = np.full((len(self._blocks), len(ranks)), np.nan)
        for row, (of_ranks, values) in enumerate(self._blocks):
            if np.array_equal(of_ranks, ranks):
                past[row] = values
                continue
            there = np.isin(of_ranks, ranks)
            past[row, np.searchsorted(ranks, of_ranks[there])] = values[there]
        return past


class Who:
    """Ranks that stand out in three tests in a row, or over twice as many steps with equal evidence."""

    def __init__(self) -> None:
        self._hits: dict[int, int] = {}
        self._fresh: deque[Floats] = deque(maxlen=_FRESH)
        """Changes of ranks' excesses from 20 steps to the next 20, in the last tests."""
        self._changes: deque[float] = deque(maxlen=4096)
        """The same in earlier tests."""
        self._tests: deque[tuple[Ints, Standing, Bools]] = deque(maxlen=STEPS // EVERY)
        """The last tests: ranks, and which of them stood out; the first shares no step with the present one."""
        self._past = Past()
        self._roles: list[tuple[int, int]] = []
        self._blocks = 0

    @property
    def drift(self) -> float:
        """Return how much an excess changes by itself.

        A rank that becomes slow changes its own excess and, as a peer, the others': so the last tests do not count if
        earlier ones suffice.
        """
        changes = self._changes if len(self._changes) >= _FEW_CHANGES else [one for of in self._fresh for one in of]
        return float(median(np.abs(changes))) * MAD_TO_SIGMA / 2**0.5 if len(changes) else 0.0

    def look(
        self, recent: Recent, role: Ints, *, whole_block: bool, least: Least = USUAL, spread: Spread = OF_WORK
    ) -> tuple[Standing, list[int]]:
        """Return the standing, and the ranks that are slow now; `role` has a number per rank, equal for peers.

        `whole_block`: the last such block had none of these steps; `spread` is how healthy ranks differ.
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
                # Ranks without peers are compared with each other's past too, so over the same blocks.
                left_out = stands_out | (~has_peers & stands_out[~has_peers].any())
                self._past.add(recent.ranks, np.where(left_out, np.nan, now.self_us))
        if self._blocks > _WARM_UP:
            self._note_changes(recent.ranks, now, stands_out | ~has_peers)
        hit = set(recent.ranks[stands_out].tolist())
        self._hits = {rank: self._hits.get(rank, 0) + 1 for rank in hit}
        slow = {rank for rank, hits in self._hits.items() if hits >= HITS}
        return now, sorted(slow | set(recent.ranks[lasts].tolist()))

    def forget_past(self) -> None:
        """Forget ranks' own past and earlier tests, which no longer apply."""
        self._past = Past()
        self._tests.clear()

    def _lasts(self, ranks: Ints, now: Standing) -> Bools:
        """Return which ranks stood out moderately, now and in the 20 steps before: both form one test."""
        if len(self._tests) < STEPS // EVERY:
            return np.zeros(len(ranks), np.bool_)
        before, then, _ = self._tests[0]
        _, now_at, then_at = np.intersect1d(ranks, before, assume_unique=True, return_indices=True)
        earlier = np.zeros(len(ranks))
        earlier[now_at] = then.z[then_at]
        least = np.minimum(earlier, now.z)
        return np.asarray((least > _LEAST_Z) & (earlier + now.z > Z * 2**0.5))

    def _compare_anew(self, ranks: Ints, role: Ints) -> None:
        """Drop tests among other peers, which no longer apply."""
        first = {code: rank for rank, code in zip(ranks[::-1].tolist(), role[::-1].tolist(), strict=True)}
        roles = [(rank, first[code]) for rank, code in zip(ranks.tolist(), role.tolist(), strict=True)]
        if roles != self._roles:
            known = dict(self._roles)
            if any(known.get(rank, peer) != peer for rank, peer in roles):
                self._hits = {}
                self._tests.clear()
            self._roles = roles

    def _note_changes(self, ranks: Ints, now: Standing, left_out: Bools) -> None:
        """Store changes of ranks that do not stand out, now or 20 steps ago."""
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
    """The job's steps over time: whether they became longer, in three tests in a row."""

    def __init__(self) -> None:
        self._blocks: deque[float] = deque(maxlen=_BLOCKS)
        self._hits = 0
        self._skipped = 0

    @property
    def usual_us(self) -> float | None:
        """Return the median of earlier steps; None while too little is known."""
        return float(np.median(self._blocks)) if len(self._blocks) >= FEWEST_BLOCKS else None

    def look(self, recent: Recent, *, whole_block: bool, least: Least = USUAL) -> tuple[float, float, bool]:
        """Return the shift (0.2 is 20 % longer), its z, and whether to report it."""
        of_steps = known_median(recent.step_us) if len(recent.ranks) else np.zeros(0)
        of_steps = of_steps[~np.isnan(of_steps)]
        if not len(of_steps):
            return 0.0, 0.0, False
        now = float(median(of_steps))
        # Deviations of blocks from their median include slow swings of the machine.
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
        """Forget earlier step times, which no longer apply."""
        self._blocks.clear()
        self._hits = 0

    def accept(self) -> None:
        """Treat the reported level as usual from now on, so that it is reported once."""
        last = self._blocks[-1] if self._blocks else None
        self.forget_past()
        if last is not None:
            self._blocks.append(last)
