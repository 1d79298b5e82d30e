"""How much longer slow ranks take, step by step: what is subtracted from the rows to price them."""

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.stats import columns_sorted, median_of_others
from kair_engine.triage.history.rows import StepHistory
from kair_engine.triage.history.slow import Slow, beside

RARE = 0.02
"""Of the steps, the longest and the shortest: stalls that all ranks have are as rare, so they count as the next."""


def longer_us(history: StepHistory, slow: Slow) -> Floats:
    """(steps in which they are slow, slow ranks), µs: how much longer each took than if it were as usual.

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
