"""Finds since when, and until when, steps take longer: change points of cleaned times, with how sure each place is."""

import math
from itertools import pairwise
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.cancelling import checkpoint
from kair_engine.frozen import dataclass
from kair_engine.stats import mad, student_t_tail
from kair_engine.steplog.cleaning import NORMAL, SHORT, Noise

CHANCE: Final = 1e-3
SMALLEST: Final = float(np.log(1.01))
"""Levels that are closer are one."""
_FEWEST: Final = 5
"""Steps of a level; a piece that is as short, between two others, is where one goes over into the other."""
_FACTOR: Final = 8.0
"""Times √n: places that a change is looked for at, as if each were independent."""
_LIKELY: Final = 7.7
"""A place whose fit is worse by less than that, in units of the noise, may be the true one (Hansen's 95 % bound)."""
_FEWEST_BESIDE: Final = 8
_SHARP: Final = 5.6
_JUMP_MADS: Final = 4.0
_FEW_WINDOWS: Final = 20.0
"""Where few windows fit into the log, what is usual is hardly known: over their number that is added."""
_HALF: Final = 0.5
_SHORT_FEWEST: Final = 3
_SHORT_CHANCE: Final = 0.01
_SHORT_SHARE: Final = float(np.log(1.05))
_PERMUTATIONS: Final = 2000
_ROUNDS: Final = 10
"""Cuts that still move then go back and forth."""
_LOCAL: Final = 400
"""Steps around a place that its likely places are looked for in, at most."""


@dataclass(frozen=True)
class Cut:
    """A place at which the level changes."""

    at: int
    """The first step of the new level."""
    least: int
    """It is no earlier than this, with 95 % confidence."""
    most: int
    """And no later."""
    p_value: float
    is_moment: bool
    """Whether it happens at one step; else the times drift there."""


@dataclass(frozen=True)
class Level:
    """A piece of the log of one level."""

    begin: int
    end: int
    """Behind its last step."""
    height: float
    """The mean of the logarithms."""


_FOUND: Final = 5.6
"""Times the noise of a mean: a change as large is found nearly always."""


def smallest_found(count: int, noise: Noise) -> float:
    """Return the smallest change since the middle of `count` steps that would have been found, as a logarithm."""
    least = _SHORT_SHARE if count < SHORT else SMALLEST
    return max(least, _FOUND * noise.of_mean * 2 / math.sqrt(max(count, 1)))


def levels(y: Floats, noise: Noise, replaced: Bools) -> tuple[list[Level], list[Cut]]:
    """Return the pieces of a log, and the cuts between them; `replaced` are steps whose own time is not in `y`."""
    if len(y) < SHORT:
        return _short(y)
    total = np.concatenate(([0.0], np.cumsum(y - y.mean())))
    cuts = _split(total, noise)
    cuts = _settled(y, total, cuts, noise)
    edges = [0, *cuts, len(y)]
    made = [Level(begin, end, float(y[begin:end].mean())) for begin, end in pairwise(edges)]
    return made, [_cut(y, edges, at, noise, replaced) for at in range(1, len(edges) - 1)]


def _split(total: Floats, noise: Noise) -> list[int]:
    """Cut where two means differ most, and each part again, as long as chance does not explain it."""
    count = len(total) - 1
    cuts: list[int] = []
    parts = [(0, count)]
    while parts:
        begin, end = parts.pop()
        checkpoint()
        at, t = _best(total, begin, end, noise.of_mean)
        if at and _chance(t, count, end - begin) <= CHANCE:
            cuts.append(at)
            parts += [(begin, at), (at, end)]
        elif found := _bout(total, begin, end, noise.of_mean, count):
            cuts += found
            parts += [(one, other) for one, other in pairwise((begin, *found, end))]
    return sorted(cuts)


def _best(total: Floats, begin: int, end: int, spread: float) -> tuple[int, float]:
    if end - begin < 2 * _FEWEST:
        return 0, 0.0
    at = np.arange(begin + _FEWEST, end - _FEWEST + 1)
    before, after = (at - begin).astype(float), (end - at).astype(float)
    apart = (total[end] - total[at]) / after - (total[at] - total[begin]) / before
    t = np.abs(apart) * np.sqrt(before * after / (before + after)) / spread
    top = int(t.argmax())
    return int(at[top]), float(t[top])


_BOUTS: Final = (8, 16, 32, 64, 128, 256)
"""Lengths of a bout in the middle of a level: two cuts, neither of which stands out by itself."""
_MOST_BOUTS: Final = 2
"""Times the log's steps: bouts that are independent of each other."""


def _bout(total: Floats, begin: int, end: int, spread: float, count: int) -> list[int]:
    """Return a short bout far from the ends, found as a whole; none where chance explains it."""
    best = (0.0, 0, 0)
    mean = (total[end] - total[begin]) / max(end - begin, 1)
    for length in _BOUTS:
        if 3 * length > end - begin:
            break
        first = np.arange(begin, end - length + 1)
        gone = (total[first + length] - total[first]) / length - mean
        others = 1 - length / (end - begin)
        t = np.abs(gone) * math.sqrt(length / others) / spread
        top = int(t.argmax())
        best = max(best, (float(t[top]), int(first[top]), length))
    t_best, first_best, length_best = best
    if not length_best or _MOST_BOUTS * count * student_t_tail(t_best, max(length_best - 2, 6)) > CHANCE:
        return []
    return [one for one in (first_best, first_best + length_best) if begin + _FEWEST <= one <= end - _FEWEST]


def _chance(t: float, count: int, steps: int) -> float:
    """At most so likely does noise alone have a cut as clear anywhere in the log."""
    return min(_FACTOR * math.sqrt(count) * student_t_tail(t, max(min(steps, 1000) - 2, 1)), 1.0)


def _settled(y: Floats, total: Floats, cuts: list[int], noise: Noise) -> list[int]:
    """Cuts at their best places between their neighbours, without those that lie within a level or a transition."""
    for _ in range(_ROUNDS):
        before = cuts
        edges = [0, *cuts, len(y)]
        moved = [_refined(total, *edges[at - 1 : at + 2]) for at in range(1, len(edges) - 1)]
        cuts = _without_needless(total, sorted(set(moved)), len(y), noise)
        if cuts == before:
            break
    return cuts


def _refined(total: Floats, begin: int, at: int, end: int) -> int:
    """Return the place between two neighbours that least squares prefer."""
    places = np.arange(begin + 1, end)
    before, after = (places - begin).astype(float), (end - places).astype(float)
    gain = (total[places] - total[begin]) ** 2 / before + (total[end] - total[places]) ** 2 / after
    return int(places[gain.argmax()]) if len(places) else at


def _without_needless(total: Floats, cuts: list[int], count: int, noise: Noise) -> list[int]:
    """Drop the weakest cut that separates no two levels, one after another."""
    cuts = [*cuts]
    while cuts:
        edges = [0, *cuts, count]
        height = [(total[end] - total[begin]) / (end - begin) for begin, end in pairwise(edges)]
        size = np.diff(edges)
        apart = np.abs(np.diff(height))
        t = apart * np.sqrt(size[:-1] * size[1:] / (size[:-1] + size[1:])) / noise.of_mean
        chance = np.array([_chance(float(one), count, int(n)) for one, n in zip(t, size[:-1] + size[1:], strict=True)])
        weak = (apart < SMALLEST) | (chance > CHANCE)
        short = (size[:-1] <= _FEWEST) | (size[1:] <= _FEWEST)
        between = [
            at
            for at in range(len(cuts))
            if short[at] and not weak[at] and _is_transition(height, size, at) and len(cuts) > 1
        ]
        if np.any(weak):
            cuts.pop(int(np.where(weak, t, np.inf).argmin()))
        elif between:
            cuts.pop(min(between, key=lambda at: float(t[at])))
        else:
            break
    return cuts


def _is_transition(height: list[float], size: Ints, at: int) -> bool:
    """Whether a piece next to a cut is so short that it is where its neighbours go over into each other."""
    for piece in (at, at + 1):
        inner = 0 < piece < len(size) - 1
        if inner and size[piece] <= _FEWEST:
            low, high = sorted((height[piece - 1], height[piece + 1]))
            return bool(low <= height[piece] <= high)
    return False


def _cut(y: Floats, edges: list[int], number: int, noise: Noise, replaced: Bools) -> Cut:
    begin, at, end = edges[number - 1 : number + 2]
    left, right = y[begin:at].mean(), y[at:end].mean()
    t = abs(right - left) * math.sqrt((at - begin) * (end - at) / (end - begin)) / noise.of_mean
    first = max(begin, at - _LOCAL)
    least, most = _likely(y[first : min(end, at + _LOCAL)], at - first, left, right, noise)
    least, most = least + first, most + first
    while least > begin + 1 and replaced[least - 1]:
        least -= 1
    while most < end - 1 and replaced[most]:
        most += 1
    return Cut(at, least, most, _chance(t, len(y), end - begin), _is_moment(y, at, float(right - left), noise))


def _likely(y: Floats, at: int, left: float, right: float, noise: Noise) -> tuple[int, int]:
    """Return the first and last place of a cut, given both levels, that are nearly as likely as `at`."""
    cost = np.concatenate(([0.0], np.cumsum((y - left) ** 2 - (y - right) ** 2)))
    worse = (cost - cost[1:-1].min(initial=cost[at])) / max(noise.of_mean, noise.of_step) ** 2
    fit = np.flatnonzero(worse <= _LIKELY)
    return min(int(fit[0]), at), max(int(fit[-1]), at)


def _is_moment(y: Floats, at: int, change: float, noise: Noise) -> bool:
    """Whether times jump at one place, and not as much elsewhere: else they drift."""
    width = int(max(_FEWEST_BESIDE, 2 * (_SHARP * noise.of_mean / max(abs(change), 1e-9)) ** 2))
    width = min(width, at, len(y) - at)
    if width < _FEWEST:
        return abs(change) > _JUMP_MADS * noise.of_mean
    total = np.concatenate(([0.0], np.cumsum(y)))
    places = np.arange(width, len(y) - width + 1)
    jump = (total[places + width] - 2 * total[places] + total[places - width]) / width
    here = jump[at - width]
    elsewhere: Bools = np.abs(places - at) > width
    others = jump[elsewhere]
    usual = mad(others) / NORMAL if len(others) else 0.0
    windows = max(len(others) / width, _HALF)
    return bool(abs(here) > (_JUMP_MADS + _FEW_WINDOWS / windows) * usual and abs(here) > _HALF * abs(change))


def _short(y: Floats) -> tuple[list[Level], list[Cut]]:
    """Of a short log one change, by the order of its times; chances hold where steps are independent."""
    whole = [Level(0, len(y), float(y.mean()))] if len(y) else []
    if len(y) < 2 * _SHORT_FEWEST + 2:
        return whole, []
    places = np.arange(_SHORT_FEWEST, len(y) - _SHORT_FEWEST + 1)
    rank = np.argsort(np.argsort(y, kind="stable"), kind="stable").astype(float) + 1
    clearest = _clearest(rank[None, :], places)[0]
    chance = np.random.default_rng(0)
    shuffled = chance.permuted(np.tile(rank, (_PERMUTATIONS, 1)), axis=1)
    p_value = (1 + int((_clearest(shuffled, places).max(axis=1) >= clearest.max()).sum())) / (1 + _PERMUTATIONS)
    at = int(places[clearest.argmax()])
    left, right = float(np.median(y[:at])), float(np.median(y[at:]))
    if p_value > _SHORT_CHANCE or abs(right - left) < _SHORT_SHARE:
        return whole, []
    best = float(clearest.max())
    near = places[clearest >= best * 0.9]
    cut = Cut(at, int(near[0]), int(near[-1]), p_value, is_moment=True)
    return [Level(0, at, left), Level(at, len(y), right)], [cut]


def _clearest(rank: Floats, places: Ints) -> Floats:
    """How far apart the ranks before and after each place are, as a normal number."""
    count = rank.shape[1]
    sums = np.cumsum(rank, axis=1)[:, places - 1]
    mean = places * (count + 1) / 2
    spread = np.sqrt(places * (count - places) * (count + 1) / 12)
    return np.asarray(np.abs(sums - mean) / spread)
