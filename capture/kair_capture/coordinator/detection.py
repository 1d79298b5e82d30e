"""What is slow: the job's steps against those before (when), and ranks' self times against their peers' (who).

Synchronous training makes all ranks' steps equally long, so step times name nobody; self times, the steps without what
was waited in collectives, do. Medians over 20 steps are tested, every 5 steps, and three tests in a row must agree, or
two without a common step show together as much as one has to. Peers are the ranks of one role; a rank that has none is
compared with its own past.

Where all ranks tell how many samples they take, times are those of a sample: a rank with a larger batch takes longer,
and is not slow; one that was given a smaller batch because it is slow still is.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kair_capture.coordinator.step_table import Bools, Floats, Ints, Recent

STEPS: Final = 20
EVERY: Final = 5
HITS: Final = 3
Z: Final = 6.0
FEWEST_RANKS: Final = 3
"""Of two ranks nobody can tell which one is as usual."""
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
_FLOOR: Final = 0.01
_FEW: Final = 8
_PAIR: Final = 2
_MANY_ALIKE: Final = 64
"""From so many on one of them moves no median."""
_NORMAL: Final = 1.4826
_BLOCKS: Final = 100
_LEAST_BLOCKS: Final = 5
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
        """That of ranks which have so many others of their role."""
        usual = np.where(peers + 1 >= MANY, LEAST_EXCESS_OF_MANY, LEAST_EXCESS)
        return usual if self.rank is None else np.full(peers.shape, self.rank)


USUAL: Final = Least()


@dataclass(frozen=True)
class Standing:
    """Each rank against its peers, or against itself where it has none: arrays of one length."""

    rank: Floats
    self_us: Floats
    """Median of the last 20 steps."""
    excess: Floats
    """Of the peers' median, or of its own before; 0.2 is 20 % slower."""
    z: Floats
    """The excess in units of what is chance."""
    peers: Ints
    """How many others there are of its role; below FEWEST_RANKS − 1 it is compared with its own past."""

    @property
    def excess_us(self) -> Floats:
        """The excess in µs, of a step or of a sample, as `self_us` is."""
        return np.asarray(self.self_us * self.excess / np.maximum(1 + self.excess, 1e-9))


def standing(recent: Recent, noise: float, role: Ints, past: "Past") -> Standing:
    """Every rank's self times against those of all others of its role (equal numbers in `role`) in the same steps.

    `noise` is how much an excess changes by itself. Where a role has fewer than FEWEST_RANKS, each of them is compared
    with its own `past`.
    """
    median = np.nanmedian(recent.self_us, axis=1) if len(recent.ranks) else np.zeros(0)
    sizes = np.bincount(role) if len(role) else np.zeros(0, np.int64)
    peers = sizes[role] - 1
    alone = peers + 1 < FEWEST_RANKS
    excess, spread = np.zeros(len(median)), np.zeros(len(median))
    if alone.any():
        excess, spread = past.excess(recent.ranks, median)
    within = np.nanmedian(np.abs(recent.self_us - median[:, None]), axis=1) / np.maximum(median, 1e-9)
    for code in np.flatnonzero(sizes >= FEWEST_RANKS).tolist():
        at = np.flatnonzero(role == code)
        excess[at], spread[at], within[at] = _against_peers(recent.self_us[at])
    # How far a median of 20 steps is from the true one, by the steps' own spread.
    error = 1.2533 * _NORMAL * within / np.sqrt(recent.self_us.shape[1])
    scale = np.maximum.reduce([spread, error, np.full(len(median), max(noise, _FLOOR))])
    return Standing(recent.ranks.astype(float), median, excess, excess / scale, peers)


def _against_peers(self_us: Floats) -> tuple[Floats, Floats, Floats]:
    """Of the ranks of one role (rank, step): excess, the peers' spread, and how much the excess of a step differs.

    Step by step: what holds up the whole machine for a moment holds up the peers as well.
    """
    if not np.nanmedian(self_us) > 0:
        return (np.zeros(len(self_us)),) * 3
    return _without_each(self_us) if len(self_us) <= _MANY_ALIKE else _of_all(self_us)


def _without_each(self_us: Floats) -> tuple[Floats, Floats, Floats]:
    """Each rank against the median of all others, and these among themselves."""
    middle = np.maximum(_of_others(self_us), 1e-9)
    ratios = self_us / middle
    excess = medians(ratios) - 1
    within = medians(np.abs(ratios - 1 - excess[:, None]))
    if len(self_us) > _FEW:
        return excess, _of_others(np.abs(excess)[:, None])[:, 0] * _NORMAL, within
    # A median of few distances can be small by chance; the largest of them is not.
    away = np.abs(medians(self_us / middle[:, None, :]) - 1)
    np.fill_diagonal(away, 0.0)
    return excess, away.max(axis=1) / 1.2, within


def _of_all(self_us: Floats) -> tuple[Floats, Floats, Floats]:
    """The same where one among many moves neither."""
    told = ~np.isnan(self_us).all(axis=0)
    ratios = self_us[:, told] / np.maximum(medians(self_us[:, told].T), 1e-9)
    excess = medians(ratios) - 1
    spread = float(np.median(np.abs(excess - np.median(excess)))) * _NORMAL
    return excess, np.full(len(excess), spread), medians(np.abs(ratios - 1 - excess[:, None]))


def _of_others(values: Floats) -> Floats:
    """For each value the median of the others in its column; NaN where none of them is told."""
    order = np.argsort(values, axis=0)  # what is not told comes last
    place, in_order = np.argsort(order, axis=0), np.take_along_axis(values, order, axis=0)
    told = ~np.isnan(values)
    others = told.sum(axis=0) - told
    low, high = (
        np.take_along_axis(in_order, np.minimum(at + (at >= place), len(values) - 1), axis=0)
        for at in (np.maximum(others - 1, 0) // 2, others // 2)
    )
    return np.where(others > 0, (low + high) / 2, np.nan)


def medians(values: Floats) -> Floats:
    """Along the last axis, of what is told; 1 where nothing is."""
    told = ~np.isnan(values)
    if told.all():  # a tenth of the time
        return np.asarray(np.median(values, axis=-1))
    return np.asarray(np.nanmedian(np.where(told.any(axis=-1, keepdims=True), values, 1.0), axis=-1))


def computing(recent: Recent) -> Recent | None:
    """The same steps with CPU times for self times: where more processes compute than there are cores, who waits for
    one changes from step to step, and hides who computes more. None where half of them are not told.
    """
    told = np.count_nonzero(~np.isnan(recent.cpu_us), axis=1)
    if not len(recent.ranks) or (told * 2 < recent.cpu_us.shape[1]).any():
        return None
    return replace(recent, self_us=recent.cpu_us)


def per_sample(recent: Recent) -> Recent:
    """The same steps with the times of a sample for ranks' own times; themselves where sizes are not known."""
    of = recent.samples
    if of is None:
        return recent
    own = recent.self_us / of, recent.cpu_us / of, recent.ready_us / of
    return replace(recent, self_us=own[0], cpu_us=own[1], ready_us=own[2])


def has_uneven_sizes(recent: Recent) -> bool:
    """Whether ranks are known to take different numbers of samples."""
    return recent.samples is not None and len(np.unique(medians(recent.samples))) > 1


def despite_fixed_parts(found: Standing, recent: Recent, role: Ints) -> Floats:
    """Per rank, the excess if half of what peers take did not depend on their samples.

    What a step takes whatever its samples makes each of a smaller batch longer, and nobody told how much that is. Of
    more than half, there is little that sizes could change. Of larger batches it would only explain less.
    """
    if recent.samples is None:
        return found.excess
    own, usual = medians(recent.samples), np.ones(len(role))
    for code in np.unique(role).tolist():
        at = np.flatnonzero(role == code)
        usual[at] = _of_others(own[at][:, None])[:, 0] if len(at) >= FEWEST_RANKS else own[at]
    return np.asarray((1 + found.excess) * np.minimum(2 * own / (own + usual), 1.0) - 1)


def matters(found: Standing, recent: Recent, least: Least = USUAL) -> Bools:
    """Per rank, whether what it computes more is more of its own time too, as it would be with a core of its own."""
    ready = np.maximum(np.nanmedian(recent.ready_us, axis=1), found.self_us)
    more = found.excess_us
    return np.asarray(more > least.of(found.peers) * (ready - more))


class Past:
    """Ranks' self times, block by block: what those that have no peers are compared with.

    Blocks in which a rank stands out are no part of it. So it stands out for 2,000 steps at most: then nothing else is
    remembered of it, and what it does is the usual.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[Ints, Floats]] = deque(maxlen=_BLOCKS)

    def add(self, ranks: Ints, median: Floats) -> None:
        """Another block of 20 steps."""
        self._blocks.append((ranks, median))

    def excess(self, ranks: Ints, median: Floats) -> tuple[Floats, Floats]:
        """How much slower each rank is than it was, and how much that changes by itself.

        What became slower on the others as well is left out of it: longer batches are nobody's fault. 0 for ranks of
        which too little is known, and without others.
        """
        excess, spread = np.zeros(len(ranks)), np.zeros(len(ranks))
        past = self._matrix(ranks)
        known = np.count_nonzero(~np.isnan(past), axis=0) >= _LEAST_BLOCKS
        if np.count_nonzero(known) < _PAIR:
            return excess, spread
        changes = np.vstack([past, median])[:, known] / np.maximum(np.nanmedian(past[:, known], axis=0), 1e-9)
        alone = changes / _median_of_others(changes) - 1
        excess[known] = alone[-1]
        spread[known] = np.nanmedian(np.abs(alone[:-1] - np.nanmedian(alone[:-1], axis=0)), axis=0) * _NORMAL
        return excess, spread

    def _matrix(self, ranks: Ints) -> Floats:
        """Blocks by ranks, NaN where one was not told; blocks of none of them are left out."""
        past = np.full((len(self._blocks), len(ranks)), np.nan)
        for row, (of_ranks, values) in enumerate(self._blocks):
            there = np.isin(of_ranks, ranks)
            past[row, np.searchsorted(ranks, of_ranks[there])] = values[there]
        told: Floats = past[~np.isnan(past).all(axis=1)]
        return told


def _median_of_others(changes: Floats) -> Floats:
    """Per block and rank, the median of all others; of many that of all. A block that only one rank told is 1."""
    if changes.shape[1] > _MANY_ALIKE:
        middle = np.repeat(np.nanmedian(changes, axis=1)[:, None], changes.shape[1], axis=1)
    else:
        with_others = [np.delete(changes, at, axis=1) for at in range(changes.shape[1])]
        told = [~np.isnan(others).all(axis=1) for others in with_others]
        middle = np.ones(changes.shape)
        for at, (others, rows) in enumerate(zip(with_others, told, strict=True)):
            middle[rows, at] = np.nanmedian(others[rows], axis=1)
    bounded: Floats = np.maximum(middle, 1e-9)
    return bounded


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
    def noise(self) -> float:
        """How much an excess changes by itself.

        What becomes slow changes its own excess, and by being their peer the others' too: so the last tests do not
        count, where enough is known from before.
        """
        changes = self._changes if len(self._changes) >= _FEW_CHANGES else [one for of in self._fresh for one in of]
        return float(np.median(np.abs(changes))) * _NORMAL / 2**0.5 if len(changes) else 0.0

    def look(
        self, recent: Recent, role: Ints, *, whole_block: bool, least: Least = USUAL
    ) -> tuple[Standing, list[int]]:
        """The standing, and the ranks that are slow now; `role` has a number per rank, equal for peers.

        `whole_block`: the last such block had none of these steps.
        """
        self._compare_anew(recent.ranks, role)
        now = standing(recent, self.noise, role, self._past)
        has_peers = now.peers + 1 >= FEWEST_RANKS
        ready = ~has_peers | (self._blocks > _WARM_UP and len(self._fresh) > 0)
        is_more = (despite_fixed_parts(now, recent, role) > least.of(now.peers)) & ready
        stands_out = (now.z > Z) & is_more
        lasts = is_more & has_peers & self._lasts(recent.ranks, now)
        if whole_block:
            self._blocks += 1
            if self._blocks > _WARM_UP:
                self._past.add(recent.ranks, np.where(stands_out, np.nan, now.self_us))
        if self._blocks > _WARM_UP:
            self._note_changes(recent.ranks, now, stands_out | ~has_peers)
        hit = set(recent.ranks[stands_out].tolist())
        self._hits = {rank: self._hits.get(rank, 0) + 1 for rank in hit}
        slow = {rank for rank, hits in self._hits.items() if hits >= HITS}
        return now, sorted(slow | set(recent.ranks[lasts].tolist()))

    def forget_past(self) -> None:
        """What ranks were compared with in their own past, and in earlier tests, says nothing any more."""
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
        return float(np.median(self._blocks)) if len(self._blocks) >= _LEAST_BLOCKS else None

    def look(self, recent: Recent, *, whole_block: bool, least: Least = USUAL) -> tuple[float, float, bool]:
        """Shift (0.2 is 20 % longer), its z, and whether it is to be told."""
        told = ~np.isnan(recent.step_us).all(axis=0)
        of_steps = np.nanmedian(recent.step_us[:, told], axis=0) if len(recent.ranks) else np.zeros(0)
        if not len(of_steps):
            return 0.0, 0.0, False
        now, usual = float(np.median(of_steps)), self.usual_us
        shift = z = 0.0
        if usual is not None and usual > 0:
            # Of the blocks about their median, slow swings of the machine's included.
            spread = float(np.median(np.abs(np.array(self._blocks) - usual))) * _NORMAL / usual
            shift = now / usual - 1
            z = shift / max(spread, _FLOOR)
        self._hits = self._hits + 1 if z > Z and shift > least.steps else 0
        if whole_block:
            self._skipped += 1
            if self._skipped > _WARM_UP:
                self._blocks.append(now)
        return shift, z, self._hits >= HITS

    def forget_past(self) -> None:
        """What steps took before says nothing of the next ones."""
        self._blocks.clear()
        self._hits = 0

    def accept(self) -> None:
        """What was told is the usual from now on: it is told once."""
        last = self._blocks[-1] if self._blocks else None
        self.forget_past()
        if last is not None:
            self._blocks.append(last)
