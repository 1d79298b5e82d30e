"""What a test of stage 1 says of a rank that is slow, and what all of them share.

One triage tries many things. Each family of tests has its share of the false-alarm rate, and every p-value is
family-wise: already multiplied by all that was tried.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from kair_engine.frozen import dataclass
from kair_engine.ranks import Position

FALSE_ALARM_RATE = 0.01
"""A triage of a healthy job accuses a rank this often, over everything that it tries."""
SHARES: Mapping[str, float] = MappingProxyType({"persistent": 0.5, "operator": 0.15, "intermittent": 0.2, "link": 0.15})
"""Each family of tests has this part of the false-alarm rate."""
SMALLEST_SHARE = 0.01
"""What is flagged must cost at least this share of the step."""
NO_TEST = 1.0
"""The p-value of what no test says."""
FEWEST_STEPS = 3
"""In fewer steps a slow rank cannot be told from a slow moment."""


@dataclass(frozen=True)
class Preemption:
    """A rank's stops beside its peers': events are steps of which a tenth and more went by in them."""

    steps: tuple[int, ...]
    """With an event."""
    of_steps: int
    longer: int
    """Steps in which it stood still for longer than its median peer."""
    peers_events: int
    own_ns: float
    """Per step, as that of the median peer."""
    peers_ns: float
    as_replayed: bool = True
    """Whether it is what a replay knows of stops, and not only what was measured."""


@dataclass(frozen=True)
class UnmatchedRoleIdle:
    """What its host keeps a rank without peers idle in a step, ns, and all others of the job."""

    own_ns: float
    least_ns: float
    most_ns: float


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
    preemption: Preemption | None = None
    """Where not its excess tells, but that its threads stood still."""
    unmatched_role_idle: UnmatchedRoleIdle | None = None
    """Where it is compared with all others of the job, as it has no peers."""
