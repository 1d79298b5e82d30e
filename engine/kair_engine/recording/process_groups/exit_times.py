"""Process groups told from exit times: when the ranks of each collective came and left.

Members of a collective leave it together, and nobody before the last one came. Clocks of two ranks
can be off, and drift: of their differences only what does not go on steadily counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.recording.process_groups.families import Family, as_columns
from kair_engine.stats import known_median

FEWEST: Final = 8
"""Collectives that two ranks must have in common before their times tell anything."""
MARGIN: Final = 3.0
"""How many times as far apart as the members of its groups those of another must leave, for a family to be chosen."""
_OVERLAPPING: Final = 0.9
_OF_EACH_PAIR: Final = 0.7
"""Shares of collectives that members must be in at one time. (Events are closed up to milliseconds late or early.)"""
FEWEST_APART: Final = 4
"""Collectives in which ranks must never meet: that is no chance of how they come and leave."""
_BY_CHANCE: Final = 0.25
"""Share of collectives that ranks of two groups may be in at one time all the same."""
_TOLERANCE_NS: Final = 50_000.0


@dataclass(frozen=True)
class Visits:
    """When ranks came to collectives, in order, and left: (collectives × ranks), NaN where a rank took no part."""

    ranks: tuple[int, ...]
    clock: Ints
    """Per rank a number, equal for those that share a clock."""
    start_ns: Floats
    end_ns: Floats
    resolution_ns: float = 20_000.0
    """What is closer than this counts as at once."""


def choose(visits: Visits, candidates: Sequence[Family], rivals: Sequence[Family]) -> Family | None:
    """The one of `candidates` that the times show against all other `rivals`, or None."""
    for candidate in candidates:
        others = [rival for rival in rivals if rival is not candidate]
        if not others or (
            _is_possible(visits, candidate) and all(_beats(visits, candidate, other) for other in others)
        ):
            return candidate
    return None


def _beats(visits: Visits, family: Family, rival: Family) -> bool:
    """Whether `family` explains the times and `rival` does not.

    Where `rival` puts ranks together that `family` does not, these leave at times of their own, and not since the
    groups of `family` wait for one another. Where it only divides the groups of `family` further, the parts come apart
    and leave together.
    """
    mine, theirs = family.pairs(visits.ranks), rival.pairs(visits.ranks)
    if theirs - mine:
        between = as_columns(theirs - mine)
        if _never_meet(visits, between):
            return True
        apart, together = _leave_apart(visits, between), _leave_apart(visits, as_columns(mine))
        return apart >= MARGIN * max(together, visits.resolution_ns) and not _wait_for_one_another(
            visits, family, between
        )
    return _wait_for_one_another(visits, rival, as_columns(mine - theirs))


def _leave_apart(visits: Visits, pairs: Ints) -> float:
    return _spread(visits.end_ns, visits.clock, pairs)


def _is_possible(visits: Visits, family: Family) -> bool:
    """Whether members of the family's groups overlap in nearly all collectives, on clocks by which they end alike."""
    overlapping = _overlapping(visits, as_columns(family.pairs(visits.ranks)))
    return len(overlapping) > 0 and bool(overlapping.mean() >= _OVERLAPPING and overlapping.min() >= _OF_EACH_PAIR)


def _never_meet(visits: Visits, pairs: Ints) -> bool:
    """Whether the two ranks of each pair are hardly ever in a collective at one time: it is not one that they share."""
    overlapping = _overlapping(visits, pairs)
    return len(visits.end_ns) >= FEWEST_APART and len(overlapping) > 0 and bool(overlapping.max() <= _BY_CHANCE)


def _overlapping(visits: Visits, pairs: Ints) -> Floats:
    """Per pair of ranks that were in the same collectives, in what share of these they were at one time."""
    first, second = pairs
    ends = visits.end_ns[:, first] - visits.end_ns[:, second]
    offset = ends - _apart(ends, visits.clock[pairs])
    early = visits.end_ns[:, first] - visits.start_ns[:, second] - offset
    late = visits.end_ns[:, second] - visits.start_ns[:, first] + offset
    slack = np.minimum(early, late)
    taken = ~np.isnan(slack)
    overlapping = np.count_nonzero(slack > -_TOLERANCE_NS, axis=0) / np.maximum(np.count_nonzero(taken, axis=0), 1)
    return np.asarray(overlapping[taken.any(axis=0)])


def _wait_for_one_another(visits: Visits, family: Family, pairs: Ints) -> bool:
    """Whether the groups of `family` that `pairs` (of ranks) connect leave together although they come apart."""
    part = family.parts(visits.ranks)
    members = [part == group for group in range(int(part.max()) + 1)]
    ahead = [_ahead_of_first(visits.end_ns[:, group], visits.clock[group]) for group in members]
    parts = list(zip(members, ahead, strict=True))
    came = np.stack([np.fmax.reduce(visits.start_ns[:, group] - of, axis=1) for group, of in parts], axis=1)
    left = np.stack([np.fmin.reduce(visits.end_ns[:, group] - of, axis=1) for group, of in parts], axis=1)
    # A group on several clocks has one that no other shares.
    clocks = [np.unique(visits.clock[group]) for group in members]
    clock = np.array([one[0] if len(one) == 1 else -1 - at for at, one in enumerate(clocks)])
    connected = as_columns({(min(a, b), max(a, b)) for a, b in part[pairs].T.tolist() if a != b})
    # Who always comes at one moment, by clocks that are put on one, does not come apart.
    return MARGIN * max(_spread(left, clock, connected), visits.resolution_ns) <= _spread(came, clock, connected)


def _ahead_of_first(end_ns: Floats, clock: Ints) -> Floats:
    """By how much the clocks of a group's members are ahead of its first one's: they leave together."""
    ahead = known_median(end_ns - end_ns[:, :1])
    return np.where(np.isnan(ahead) | (clock == clock[0]), 0.0, ahead)


def _spread(times: Floats, clock: Ints, pairs: Ints) -> float:
    """How far apart two columns' times typically are: the median over collectives and pairs; NaN: unknown."""
    difference = times[:, pairs[0]] - times[:, pairs[1]]
    enough = np.count_nonzero(~np.isnan(difference), axis=0) >= FEWEST
    apart = _apart(difference[:, enough], clock[pairs[:, enough]])
    return float(known_median(np.abs(apart).reshape(-1, 1))[0]) if apart.size else float("nan")


def _apart(difference: Floats, clock: Ints) -> Floats:
    """Differences of times (collectives × pairs) as on one clock: less what is steady between different clocks.

    Steady is a straight line through the medians of the recording's two halves. `clock` is (2 × pairs).
    """
    result = difference.copy()
    foreign = clock[0] != clock[1]
    if not foreign.any() or len(difference) < 2:
        return result
    half = len(difference) // 2
    first, second = known_median(difference[:half, foreign]), known_median(difference[half:, foreign])
    # From the middle of one half to that of the other.
    along = (np.arange(len(difference)) - (half - 1) / 2) / (len(difference) / 2)
    result[:, foreign] -= first + along[:, None] * (second - first)
    return result
