"""Measures how far ranks lie above their peers, or above their own past, in the last steps of a running job.

The watch of a job asks this every few steps, so it is one sort of those steps and no search. The t, and the chance that
a healthy rank lies so far above for good, are those of the other tests of ranks (localize/peers.py) and of changes
(localize/change_points.py).

Both functions return three rows, a column per rank: the excess (0.2 is 20 % slower), its t, and the chance.
"""

import numpy as np

from kair_engine.arrays import Floats, Ints, present
from kair_engine.localize.change_points import NO_CHANGE, against_prior, variance_of_median
from kair_engine.localize.peers import Means, Spread, above_most, above_others
from kair_engine.results.watch import FEWEST_PEERS
from kair_engine.stats import MAD_TO_SIGMA, columns_sorted, known_median, mad_of_sorted, median, median_of_others

FEWEST_BLOCKS = 5
"""A past of fewer blocks of steps says nothing."""
FEW_PEERS = 8
"""Of roles up to this size each rank is compared with all others, as in `detect`; of larger ones with most."""
_TINY = 1e-9


def above_peers(own: Floats, role: Ints, spread: Spread, drift: float) -> Floats:
    """Compare each rank's own times (ranks × steps, NaN where unknown) with those of its role in the same steps.

    `spread` is what healthy ranks differ by, as a share; `drift` is how much an excess changes by itself. Roles of
    fewer than FEWEST_PEERS are compared with nothing.
    """
    result = _of_nothing(len(own))
    for code in present(role):
        members = np.flatnonzero(role == code)
        usual = known_median(own[members])
        if len(members) < FEWEST_PEERS or not np.nanmax(usual) > 0:
            continue
        # Step by step: what holds up the whole machine for a moment holds up the peers as well.
        ratios = _filled((own[members] / np.maximum(usual, _TINY)).T)
        levels = median(ratios, axis=0)
        means = Means(levels, np.maximum(variance_of_median(ratios - levels), drift**2))
        result[0, members] = levels / np.maximum(median_of_others(levels), _TINY) - 1
        result[1:, members] = (above_others if len(members) <= FEW_PEERS else above_most)(means, spread)
    return result


def above_past(past: Floats, now: Floats, spread: Spread, *, relative: bool = True) -> Floats:
    """Compare each thing's time now with those of earlier blocks of steps (blocks × things, NaN where unknown).

    `relative`: what all things do together is no change of any, and one thing alone is compared with nothing. All are
    compared over the same blocks, and none lies farther off the others than off its own past. The excess of a thing
    whose past is too short is NaN.
    """
    result = _of_nothing(len(now), np.nan)
    known = np.flatnonzero((~np.isnan(past)).sum(axis=0) >= FEWEST_BLOCKS)
    if relative:
        past = past[~np.isnan(past[:, known]).any(axis=1)]
    if len(known) <= relative or len(past) < FEWEST_BLOCKS:
        return result
    logs = np.log(np.maximum(np.vstack((_filled(past[:, known]), now[known])), _TINY))
    logs -= median(logs[:-1], axis=0)
    rise = logs[-1].copy()
    if relative:
        logs -= median_of_others(logs, axis=1)
    scatter = MAD_TO_SIGMA * mad_of_sorted(columns_sorted(logs[:-1]))
    result[0, known] = np.expm1(np.clip(logs[-1], np.minimum(rise, 0), np.maximum(rise, 0)))
    result[1:, known] = against_prior(rise, scatter**2, spread, relative=relative)
    return result


def _of_nothing(ranks: int, excess: float = 0.0) -> Floats:
    return np.array([[excess], [0.0], [NO_CHANGE]]).repeat(ranks, axis=1)


def _filled(values: Floats) -> Floats:
    """Return (steps × ranks) with the median of the rank where a step is not known."""
    unknown = np.isnan(values)
    return np.where(unknown, known_median(values), values) if unknown.any() else values
