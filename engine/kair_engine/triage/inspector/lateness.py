"""How much later ranks became from one collective to the next, which is what they lose.

Where computing goes on while ranks communicate, whoever is late is late to all later collectives of the step as well:
waits in these hold the earlier ones once more. Where all go on together, each wait is new. Which of them it is shows in
how waits vary: of one collective they vary with those of the one before by a slope of 1, or of 0.
"""

from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, dense, order_by
from kair_engine.stats import median_by
from kair_engine.triage.inspector.meetings import Meetings

_FEWEST: Final = 100
"""Pairs of collectives from which a slope is taken."""
_SMALL_US: Final = 1.0
"""The Inspector counts whole microseconds."""


def gained_us(found: Meetings, window: Ints) -> Floats:
    """Return what each call was waited in beyond what was waited in the one before, as far as that one explains it.

    `window` has the step of each collective. Calls follow one another in a communicator within a step, in the order of
    the log's lines.
    """
    communicator, size = _communicators(found)
    chain = order_by(found.rank, communicator, found.row)
    of_step = window[found.collective][chain]
    whose = dense(np.stack((found.rank[chain], communicator[chain])))
    first = (np.diff(whose, prepend=-1) != 0) | (np.diff(of_step, prepend=-1) != 0)
    waited = found.waited_us[chain]
    before = np.where(first, 0.0, np.concatenate(([0.0], waited[:-1])))
    change = _changes(whose, first, of_step, waited)
    change_before = np.where(first, np.nan, np.concatenate(([np.nan], change[:-1])))
    kind = found.kind[found.collective][chain]
    pair = dense(np.stack((size[chain], kind, np.concatenate(([-1], kind[:-1])))))
    gained = np.empty(len(waited))
    gained[chain] = np.maximum(waited - _slopes(pair, change_before, change)[pair] * before, 0.0)
    return gained


def _communicators(found: Meetings) -> tuple[Ints, Ints]:
    """Return per call the number of its communicator, and how many ranks that has."""
    codes: dict[str, int] = {}
    of_stream = [(codes.setdefault(one.communicator, len(codes)), one.size) for one in found.streams]
    count = [one.end - one.begin for one in found.streams]
    by_collective = np.repeat(np.array(of_stream, np.int64).reshape(-1, 2), count, axis=0)
    return by_collective[found.collective, 0], by_collective[found.collective, 1]


def _changes(whose: Ints, first: Bools, of_step: Ints, waited: Floats) -> Floats:
    """Return how each wait differs from the one at the same place of the step before; NaN without one."""
    starts = np.flatnonzero(first)
    place = np.arange(len(waited)) - np.repeat(starts, np.diff(np.append(starts, len(waited))))
    order = order_by(whose, place, of_step)
    follows = (np.diff(whose[order], prepend=-1) == 0) & (np.diff(place[order], prepend=-1) == 0)
    follows &= np.diff(of_step[order], prepend=-1) == 1
    change = np.full(len(waited), np.nan)
    change[order[follows]] = np.diff(waited[order], prepend=0.0)[follows]
    return change


def _slopes(pair: Ints, before: Floats, after: Floats) -> Floats:
    """Return per kind of pairs by how much waits vary with those before, from 0 to 1; 0 of few pairs.

    Each pair has one vote, as all waits of a step change at once where a rank becomes slow; small changes have none.
    """
    slopes = np.zeros(int(pair.max(initial=-1)) + 1)
    known = np.flatnonzero(~(np.isnan(before) | np.isnan(after)) & (np.abs(before) > _SMALL_US))
    large = known[np.abs(before[known]) >= median_by(pair[known], np.abs(before[known]))]
    enough = large[np.bincount(pair[large], minlength=len(slopes))[pair[large]] >= _FEWEST]
    slopes[pair[enough]] = median_by(pair[enough], after[enough] / before[enough])
    return np.clip(slopes, 0.0, 1.0)
