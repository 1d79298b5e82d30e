"""What a test of stage 1 says of a rank that is slow, and what all of them share.

Every p-value is family-wise: corrected for all ranks, signals and shapes that were tried.
"""

from typing import Literal

from kair_engine.frozen import dataclass
from kair_engine.ranks import Position

FALSE_ALARM_RATE = 0.01
"""A triage of a healthy job accuses a rank this often, over everything that it tries."""
RANK_SHARE, LINK_SHARE, PAST_SHARE, PLACE_SHARE = 0.75, 0.10, 0.10, 0.05
"""The tests of ranks and sets of ranks against their peers have this part of the false-alarm rate, those of links
against their siblings this, those of links, roles and whole steps against their own past this, and those of places
against one another this."""
NO_TEST = 1.0
"""The p-value of what no test says."""
FEWEST_STEPS = 3
"""With fewer steps a slow rank and a slow moment look the same."""


@dataclass(frozen=True)
class Anomaly:
    """One test's positive answer: the ranks at these positions, in this class of operations."""

    kind: Literal["persistent", "intermittent", "group"]
    positions: tuple[Position, ...]
    class_index: int
    p_value: float
    excess_ns: float
    """Per step, of one rank (the mean over the ranks of a group), over the ranks that are not slow."""
    events: tuple[int, int] = (0, 0)
    """Intermittent: how many of how many events."""
    hit: tuple[int, ...] = ()
    """Their steps, as places among the job's; empty where events are no steps."""
    operator: str | None = None
    """Where one operator was tested by itself."""
    since: int | None = None
    """The step in which it began, where that was within the recording."""
