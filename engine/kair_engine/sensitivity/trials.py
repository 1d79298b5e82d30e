"""The smallest fault that is found in enough of many drawn recordings."""

import math
from collections.abc import Callable, Sequence

_FIRST_LEAP = 4
"""Of candidates: the search leaps ahead by this many, then by twice as many, until enough recordings show the fault."""


def smallest_found(
    candidates: Sequence[float], found: Callable[[int, float], bool], draws: int, probability: float
) -> float | None:
    """The smallest candidate (in ascending order) that is found in that share of the draws; None where none is.

    Whoever is found is found at all larger sizes. So a draw is only looked at as long as it is open on which side of
    the answer it lies: about three times instead of once for every halving.
    """
    needed = math.ceil(probability * draws)
    open_draws, before, low, leap = list(range(draws)), 0, -1, _FIRST_LEAP
    high = len(candidates)
    while high - low > 1:
        leaping = high == len(candidates)
        middle = min(low + leap, high - 1) if leaping else (low + high) // 2
        hit = [draw for draw in open_draws if found(draw, candidates[middle])]
        if before + len(hit) >= needed:
            high, open_draws = middle, hit
        else:
            missed = set(open_draws) - set(hit)
            before, low, open_draws, leap = before + len(hit), middle, sorted(missed), 2 * leap
    return candidates[high] if high < len(candidates) else None


def sizes(least: float, most: float, apart: float = 1.03) -> list[float]:
    """Candidates from `least` to `most`, each 3 % above the last."""
    count = math.ceil(math.log(most / least) / math.log(apart)) + 1
    return [least * apart**at for at in range(count)]
