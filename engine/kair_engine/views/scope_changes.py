"""Scopes over the steps of a job: what each rank takes in them compared with the others, and when that changed.

A change is looked for in what a rank takes beyond the median of the others in the same step, so that what all do
longer, as where a step has more work, is nobody's; the median of all is a separate row. The series is cut in two
where the cumulative sum of its deviations is farthest from what chance explains (CUSUM), on medians of five steps,
none farther than three spreads from the middle, so that single steps do not matter. The p-value is that of the
farthest of as many normal deviations as there are places to cut, times the number of series that were looked at; the
spread is wider where neighbouring blocks are alike, so that what comes and goes slowly is no change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import erfc, sqrt
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import Floats, Ints
from kair_engine.ranks import Rank
from kair_engine.results.views import ScopeTime
from kair_engine.stats import known_median, median
from kair_engine.timeline.batch_sizes import STEPS_OF_A_CHANGE

_BLOCK: Final = 5
_FEWEST_BLOCKS: Final = 8
_FEWEST_ASIDE: Final = 2
"""Blocks before a change, and after it."""
_MOST_MOVES: Final = 8
"""So often the ends of a run are moved in turn."""
_MOST_P: Final = 0.01
_LEAST_SHARE: Final = 0.01
"""A change is reported from this share of the step on."""
_PAIR: Final = 2
_FEW: Final = 16
_FARTHEST: Final = 3.0
_OF_SELF: Final = 0.8
_MOST_ALIKE: Final = 0.95
_SIGMAS_OF_MAD: Final = 1.4826
_WAITING_SHARE: Final = 0.5
"""Of a scope's change: where waiting changed by as much, it explains it."""


@dataclass(frozen=True)
class ScopeSeries:
    """One scope: a matrix (rank, step) in µs, NaN in steps that lack it."""

    scope: str
    ranks: Ints
    steps: Ints
    time_us: Floats
    waiting: Literal["none", "some", "all"] = "none"
    """How much of it may be waiting for other ranks."""
    resized: Sequence[int] = ()
    """Steps from which on ranks take other numbers of samples: what changes there is no news."""


@dataclass(frozen=True)
class _Change:
    since_step: int
    before: npt.NDArray[np.bool_]
    """Which of the series' places are before it."""
    change_us: float
    p_value: float


def scope_times(series: Sequence[ScopeSeries], step_us: float) -> tuple[ScopeTime, ...]:
    """Return a row for each scope on each rank, and of several ranks one for their median (rank None).

    `step_us`: how long a step takes. Those come first that became longer, and not by waiting, the most.
    """
    tests = sum(len(one.ranks) + (len(one.ranks) > 1) for one in series)
    rows = [row for one in series for row in _rows_of(one, tests, step_us)]
    waiting = {one.scope: one.waiting for one in series}
    longer = {row.rank: row.change_us or 0.0 for row in rows if waiting[row.scope] == "all"}
    rows = [replace(row, waits=_waits(row, waiting[row.scope], longer.get(row.rank, 0.0))) for row in rows]
    return tuple(sorted(rows, key=_order))


def _order(row: ScopeTime) -> tuple[bool, bool, float]:
    longer = row.change_us or 0.0
    # A part that explains most of the step's own time comes before that.
    return row.change_us is None, row.waits, -longer * (_OF_SELF if row.scope == "self" else 1.0)


def _waits(row: ScopeTime, waiting: str, waiting_us: float) -> bool:
    """Whether waiting explains a change; who became slow waits less, and is done sooner with what others wait in."""
    explained = waiting == "some" and row.change_us is not None and waiting_us / row.change_us >= _WAITING_SHARE
    return waiting == "all" or explained


def _rows_of(series: ScopeSeries, tests: int, step_us: float) -> list[ScopeTime]:
    kept = ~np.isnan(series.time_us).all(axis=0)
    steps, time_us = series.steps[kept], series.time_us[:, kept]
    alone = len(series.ranks) == 1
    least_us = _LEAST_SHARE * step_us
    peers, changes = _beside_others(steps, time_us, tests, least_us)
    found = [] if alone else _row_of_all(series, steps, time_us, tests, least_us)
    for rank, own, others, change in zip(series.ranks.tolist(), time_us, peers, changes, strict=True):
        there = ~np.isnan(own) & ~np.isnan(others)
        if there.any():
            beside = None if alone else float(median(others[there]))
            notable = _notable(change, least_us, series.resized)
            found.append(_row(series.scope, Rank(rank), own[there], beside, notable))
    return found


def _beside_others(steps: Ints, time_us: Floats, tests: int, least_us: float) -> tuple[Floats, list[_Change | None]]:
    """Return (what each rank is compared with, per step, how it changed relative to that).

    That is the median of the others that did not become longer: with one that did among a few, their median would
    become longer too, and the others shorter in comparison.
    """

    def beside(peers: Floats) -> tuple[Floats, list[_Change | None]]:
        return peers, [_change_beside(steps, own, other, tests) for own, other in zip(time_us, peers, strict=True)]

    peers, changes = beside(_others(time_us, np.ones(len(time_us), np.bool_)))
    longer = np.array([one is not None and one.change_us >= least_us for one in changes])
    if len(time_us) <= _PAIR or not 0 < longer.sum() * 2 < len(longer):
        return peers, changes
    return beside(_others(time_us, ~longer))


def _others(time_us: Floats, chosen: npt.NDArray[np.bool_]) -> Floats:
    """Of each rank the median of the other `chosen` ones; zeros of one alone."""
    if len(time_us) == 1:
        return np.zeros_like(time_us)
    if len(time_us) > _FEW:  # one hardly moves the median of many
        return np.broadcast_to(known_median(time_us[chosen]), time_us.shape)
    return np.stack([known_median(time_us[chosen & (np.arange(len(time_us)) != at)]) for at in range(len(time_us))])


def _change_beside(steps: Ints, own: Floats, others: Floats, tests: int) -> _Change | None:
    there = ~np.isnan(own) & ~np.isnan(others)
    return _change(steps[there], own[there] - others[there], tests)


def _row_of_all(series: ScopeSeries, steps: Ints, time_us: Floats, tests: int, least_us: float) -> list[ScopeTime]:
    middle = known_median(time_us)
    if not len(steps):
        return []
    change = _change(steps, middle, tests)
    if change is not None:
        change = replace(change, change_us=_usual_change(time_us, change.before))
    return [_row(series.scope, None, middle, None, _notable(change, least_us, series.resized))]


def _notable(change: _Change | None, least_us: float, resized: Sequence[int]) -> _Change | None:
    if change is None or abs(change.change_us) < least_us:
        return None
    is_of_plan = any(-_BLOCK <= change.since_step - step <= STEPS_OF_A_CHANGE for step in resized)
    return None if is_of_plan else change


def _usual_change(time_us: Floats, before: npt.NDArray[np.bool_]) -> float:
    """Return what half of the ranks changed by: the median of them in each step is moved by one rank that is always
    last.
    """
    told = ~np.isnan(time_us)
    time_us = time_us[told[:, before].any(axis=1) & told[:, ~before].any(axis=1)]
    if not len(time_us):
        return 0.0
    changes = known_median(time_us[:, ~before].T) - known_median(time_us[:, before].T)
    return float(sorted(changes, key=abs)[(len(changes) - 1) // 2])


def _row(scope: str, rank: Rank | None, own: Floats, peers: float | None, change: _Change | None) -> ScopeTime:
    row = ScopeTime(scope, rank, len(own), float(median(own)), peers)
    if change is None:
        return row
    return replace(
        row,
        since_step=change.since_step,
        before_us=float(median(own[change.before])),
        after_us=float(median(own[~change.before])),
        change_us=change.change_us,
        p_value=change.p_value,
    )


def _change(steps: Ints, values: Floats, tests: int) -> _Change | None:
    """Return the largest lasting change of a series without NaN; None if chance explains them all."""
    count = len(values) // _BLOCK
    if count < _FEWEST_BLOCKS:
        return None
    blocks, far, spread = _blocks(values)
    cut = _cut(far)
    after = np.arange(count) >= cut
    p_value, apart = _chance(blocks, after, spread, count * tests)
    if p_value > _MOST_P or not apart:
        return None
    at = _exactly(values, cut * _BLOCK)
    before = np.arange(len(values)) < at
    change_us = float(median(values[~before]) - median(values[before]))
    return _Change(int(steps[at]), before, change_us, p_value)


class Passage(NamedTuple):
    """A run of steps in which a series is longer than before and after it."""

    begin: int
    """The place of its first step; 0 where it was there from the start."""
    end: int
    """The place after its last step, which is before the series' end."""
    p_value: float


def passage(values: Floats, tests: int) -> Passage | None:
    """Return the run of a series without NaN that is longest beyond the rest and is over; None where chance has one.

    The same test as for a change, with two places to cut: the p-value is times the number of pairs of them. The values
    after it must by themselves be less than those within, and nearer to those before, where there are any.
    """
    count = len(values) // _BLOCK
    if count < _FEWEST_BLOCKS:
        return None
    blocks, far, spread = _blocks(values)
    begin, end = _run(far)
    if end - begin < _FEWEST_BLOCKS or count - end < _FEWEST_ASIDE:
        return None  # what is shorter may be a spell of a busy host
    within, known = (np.arange(count) >= begin) & (np.arange(count) < end), np.arange(count) >= begin
    p_value, apart = _chance(blocks, within, spread, count * (count - 1) / 2 * tests)
    of_end, drop = _chance(blocks[known], within[known], spread, tests)
    if max(p_value, of_end) > _MOST_P or min(apart, drop) <= 0:
        return None
    inside, after = float(median(blocks[begin:end])), float(median(blocks[end:]))
    if begin and abs(after - float(median(blocks[:begin]))) > abs(after - inside):
        return None
    first = _exactly(values[: end * _BLOCK], begin * _BLOCK) if begin else 0
    last = begin * _BLOCK + _exactly(values[begin * _BLOCK :], (end - begin) * _BLOCK)
    return Passage(first, last, p_value) if first < last else None


def _blocks(values: Floats) -> tuple[Floats, Floats, float]:
    """Return the medians of blocks, how many spreads each is off their middle, few at most, and that spread."""
    count = len(values) // _BLOCK
    blocks = median(values[: count * _BLOCK].reshape(count, _BLOCK))
    spread = _spread(np.diff(blocks)) / sqrt(2)
    far = (blocks - median(blocks)) / spread if spread else np.sign(blocks - median(blocks))
    return blocks, np.clip(far, -_FARTHEST, _FARTHEST), spread


def _chance(blocks: Floats, after: npt.NDArray[np.bool_], spread: float, tests: float) -> tuple[float, float]:
    """Return the p-value of some blocks against the others, and by how much their median is above.

    What goes up and down slowly is no change: the spread is that of both sides, and more where blocks resemble the
    one before.
    """
    low, high = float(median(blocks[~after])), float(median(blocks[after]))
    beside = np.where(after, blocks - high, blocks - low)
    spread = max(spread, _spread(beside)) * _of_alike(beside)
    count, of = len(blocks), np.count_nonzero(after)
    z = abs(high - low) / spread * sqrt(of * (count - of) / count) if spread else np.inf
    return min(erfc(z / sqrt(2)) * tests, 1.0), high - low


def _cut(deviations: Floats) -> int:
    """After how many blocks to cut."""
    count = len(deviations)
    before = np.arange(1, count)
    sums = np.cumsum(deviations)
    far = np.abs(sums[:-1] - before / count * sums[-1]) / np.sqrt(before * (count - before) / count)
    return int(np.argmax(far[_FEWEST_ASIDE - 1 : count - _FEWEST_ASIDE])) + _FEWEST_ASIDE


def _run(deviations: Floats) -> tuple[int, int]:
    """Return the blocks [begin, end) that lie farthest above the others: first by their sum, then for their number."""
    count = len(deviations)
    sums = np.concatenate(([0.0], np.cumsum(deviations - deviations.mean())))
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    begin = int(np.argmin(sums[: end + 1]))

    def best(ends: Ints, other: int) -> int:
        size = np.abs(ends - other)
        return int(ends[np.argmax(np.abs(sums[ends] - sums[other]) / np.sqrt(size * (count - size) / count + 1e-9))])

    for _ in range(_MOST_MOVES):
        if end - begin < _FEWEST_ASIDE:
            break
        moved = best(np.arange(begin + _FEWEST_ASIDE, count + 1), begin)
        begins = np.arange(max(moved - _FEWEST_ASIDE, 0) + 1)
        begins = begins[(begins == 0) | (begins >= _FEWEST_ASIDE)]
        again = best(begins, moved)
        if (again, moved) == (begin, end):
            break
        begin, end = again, moved
    return begin, end


def _exactly(values: Floats, about: int) -> int:
    """Return the place within a block of `about` from which on the values are nearer to those after than to those
    before.
    """
    before, after = median(values[: about - _BLOCK]), median(values[about + _BLOCK :])
    near = values[about - _BLOCK : about + _BLOCK]
    gain = np.abs(near - after) - np.abs(near - before)
    # From each place to the end, how much better those after fit.
    return about - _BLOCK + int(np.argmin(np.concatenate([np.cumsum(gain[::-1])[::-1], [0.0]])))


def _of_alike(deviations: Floats) -> float:
    """How much farther means of a series stray whose neighbours are alike (a first-order autoregression)."""
    power = float(deviations @ deviations)
    alike = min(max(float(deviations[1:] @ deviations[:-1]) / power, 0.0), _MOST_ALIKE) if power else 0.0
    return sqrt((1 + alike) / (1 - alike))


def _spread(values: Floats) -> float:
    """Return the standard deviation of most of them."""
    return float(median(np.abs(values - median(values)))) * _SIGMAS_OF_MAD
