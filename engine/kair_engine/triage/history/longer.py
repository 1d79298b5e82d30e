"""How much longer slow ranks take, step by step, and what the job's steps grew by: what they are priced by."""

import math
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.stats import columns_sorted, median, median_of_others
from kair_engine.triage.history.rows import StepHistory
from kair_engine.triage.history.slow import Slow, beside

RARE = 0.02
"""Of the steps, the longest and the shortest: stalls that all ranks have are as rare, so they count as the next."""


_RARE_WAITS: Final = 0.05
"""The same of the waits by which growth is measured: there are few before an onset, and a stall is one of them."""
_NEAR: Final = 5
"""Steps next to the first and the last slow one that are neither: these are known within as many."""
_FEWEST_WAITS: Final = 10
_MOST_ALIKE: Final = 0.9
"""Of how like its neighbour a step may be: noise that lasts for longer is a change."""


@dataclass(frozen=True)
class Growth:
    """By how much longer other ranks wait in the steps in which a rank is slow than in the others, µs a step."""

    us: float
    error_us: float
    """Its standard error."""

    def joined_with(self, model_us: float) -> float:
        """Return the mean of it and of what a model says, each by how sure it is.

        The model has it that the step ends when the rank does that takes longest. It may be off by half: what ranks
        do at once, while nobody is late, takes them longer where they share cores or links.
        """
        of_model, of_growth = 1 / max(model_us / 2, 1.0) ** 2, 1 / max(self.error_us, 1.0) ** 2
        return (of_model * model_us + of_growth * self.us) / (of_model + of_growth)


def growth(history: StepHistory, slow: Slow) -> Growth | None:
    """Return what the steps grew by, without what other ranks take longer themselves; None without such steps.

    That is what the median one of the others waits.
    """
    others = ~np.isin(np.arange(len(history.ranks)), slow.positions)
    if not slow.is_change or history.resized or not others.any():
        return None
    waits = median((history.us["step"] - history.us["self"])[:, others], axis=1)
    numbers, ends = np.arange(len(waits)), np.flatnonzero(np.diff(slow.later)) + 1
    near = (np.abs(numbers[:, None] - ends) <= _NEAR).any(axis=1)
    within, outside = waits[slow.later & ~near], waits[~slow.later & ~near]
    if min(len(within), len(outside)) < _FEWEST_WAITS:
        return None
    (after, of_after), (before, of_before) = _mean(within), _mean(outside)
    return Growth(after - before, float(np.hypot(of_after, of_before)))


def _mean(values: Floats) -> tuple[float, float]:
    """Return the mean and its standard error; the rarest values count as the next."""
    rare, ordered = math.ceil(len(values) * _RARE_WAITS), np.sort(values)
    values = np.clip(values, ordered[rare], ordered[len(ordered) - rare - 1])
    off = values - values.mean()
    spread = float(off @ off)
    alike = min(max(float(off[1:] @ off[:-1]) / max(spread, 1e-9), 0.0), _MOST_ALIKE)
    error = np.sqrt(spread / max(len(values) - 1, 1) / len(values) * (1 + alike) / (1 - alike))
    return float(values.mean()), float(error)


def longer_us(history: StepHistory, slow: Slow) -> Floats:
    """Return (steps in which they are slow, slow ranks), µs: how much longer each took than if it were as usual.

    As usual is as itself before it became slow and after that was over, else as its peers. Steps are not compared one
    by one but in the order of their sizes, the longest with the longest: delays that come in bursts count where they
    are, and the spread that healthy ranks have too stays. What comes and goes is all beyond the peers, in the steps
    that have it.
    """
    places = list(slow.positions)
    accused = np.isin(np.arange(len(history.ranks)), places)
    over = np.stack([beside(history, history.own, (place,), accused) for place in places], axis=1)
    later = over[slow.later]
    if slow.is_intermittent:
        return np.maximum(later, 0.0)
    peers = np.flatnonzero(~accused & (history.role == history.role[places[0]]))
    if slow.is_change:
        return _beyond(later, over[~slow.later])
    if len(peers) < 3:
        return np.broadcast_to(np.median(later, axis=0), later.shape)  # they have no spread that is known
    of_peers = history.own[np.ix_(slow.later, peers)]
    spread = columns_sorted(of_peers - median_of_others(of_peers, axis=1))
    spread -= np.median(spread, axis=0)  # how far each spreads, and not where it lies
    return _beyond(later, spread.mean(axis=1, keepdims=True))


def _beyond(values: Floats, usual: Floats) -> Floats:
    """Each column's values, in the order of their size, over a column of usual ones, or the only one of these."""
    count = len(values)
    order: Ints = values.argsort(axis=0, kind="stable")
    expected = np.quantile(usual, (np.arange(count) + 0.5) / count, axis=0)
    by_size = np.take_along_axis(values, order, axis=0) - expected
    rare = int(count * RARE)
    by_size[:rare], by_size[count - rare :] = by_size[rare], by_size[count - rare - 1]
    beyond = np.empty_like(values)
    np.put_along_axis(beyond, order, by_size, axis=0)
    return beyond
