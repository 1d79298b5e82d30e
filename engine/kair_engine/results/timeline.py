"""The timeline's answer: what every rank did in each window of time, around a delay."""

from dataclasses import dataclass
from typing import Final, Literal

from kair_engine.causes import Cause
from kair_engine.ranks import Rank
from kair_engine.results import TimedOn
from kair_engine.results.blame import RoleInPath
from kair_engine.trace.model import KairWarning

TimelineKind = Literal[
    "compute", "communication", "waiting", "input", "host", "rest", "unknown", "operation", "synchronisation", "nothing"
]

LETTERS: Final[dict[TimelineKind, str]] = {
    "compute": "c",
    "communication": "t",
    "waiting": "w",
    "input": "i",
    "host": "h",
    "rest": "r",
    "unknown": "u",
    "operation": "o",
    "synchronisation": "s",
    "nothing": ".",
}
"""What a window is drawn with in `TimelineRow.windows`: the parts of `kair rank`, and what else threads do."""

ARRIVED, ARRIVED_LAST, NO_ARRIVAL = "a", "l", "."


@dataclass(frozen=True)
class TimelineRow:
    """A rank, or the worst of several; under one that is unfolded, a row for each of its threads and streams."""

    rank: Rank
    """The rank that is drawn: of several the one that others waited for most."""
    first_rank: Rank
    """The first of those that the row stands for."""
    last_rank: Rank
    """The last of them."""
    ranks: int
    """How many it stands for."""
    host: str | None
    """Where it runs; null where that is not recorded."""
    lane: str | None
    """The thread or stream; null for the rank as a whole."""
    begin_us: float
    """Where the rank's own step begins, on the job's clock."""
    windows: str
    """A letter for each window, for what takes most of it: c compute, t communication (the transfer), w waiting,
    i input, h a gap that the host leaves, r launched but not begun, u communication whose other members are not
    recorded, . nothing; on threads also o a host operation and s a synchronisation with the device."""
    arrivals: str
    """A letter for each window: a where the rank arrives at one of `collectives`, l where it is the last, or a dot."""
    imposed_us: float
    """What others, summed, waited in view for the rank that is drawn."""


@dataclass(frozen=True)
class TimelineCollective:
    """A collective, or a send with its receive, in view."""

    operator: str
    """Its name in the recording; null where no single one can be named."""
    first_arrival_us: float
    """When the first of its members arrived."""
    last_arrival_us: float
    """When the last of them did."""
    last_rank: Rank
    """Who arrived last."""
    end_us: float
    """When it was over."""
    members: int
    """How many it has."""
    waited_us: float
    """Summed over the members."""


@dataclass(frozen=True)
class TimelineStop:
    """A stretch of the blame path on one rank."""

    rank: Rank
    """Its number in the job."""
    operator: str
    """Its name in the recording; null where no single one can be named."""
    begin_us: float
    """Where on the rank the stretch begins."""
    end_us: float
    """Where the path leaves the rank."""
    role_in_path: RoleInPath
    """Who waited, who is to blame, or what lies between."""


@dataclass(frozen=True)
class TimelineOperation:
    """An operation under the cursor, and the same operation of its peers."""

    rank: Rank
    """Its number in the job."""
    lane: str
    """Its thread or stream."""
    operator: str
    """Its name in the recording; null where no single one can be named."""
    kind: str
    """What kind of operation it is."""
    phase: str | None
    """Forward, backward, optimizer or input; null if the recording does not show it."""
    start_us: float
    """From the step's begin on its rank, as `kair pinpoint` and `kair blame` print it."""
    begin_us: float
    """The same moment on the job's clock, as everything else here."""
    duration_us: float
    """How long it took."""
    own_us: float
    """Its self time: without operations nested in it, and without waiting."""
    expected_us: float | None
    """The median self time of the same operation on its peers; null where it has none."""
    excess_us: float | None
    """How much longer than theirs its self time is."""
    held_up_us: float
    """How long its host alone kept the rank idle before it."""
    expected_held_up_us: float | None
    """The same on its peers, the median."""
    waited_us: float | None
    """What it waited for other members; null of what is no matched communication."""
    late_us: float | None
    """How much later than the median member it arrived; null of what is no matched communication."""


@dataclass(frozen=True)
class TimelineDelay:
    """What the timeline is around: an operation, and the collective that waited for it."""

    operation: TimelineOperation
    """What was slow, or waited for."""
    cause: Cause | None
    """Why it was late; null where nobody waited."""
    is_edge: bool
    """Whether the time went by before the operation began, idle."""
    waited_in: str | None
    """The collective that waited next; null if none did."""
    late_rank: Rank | None
    """Who arrived last at it."""
    waited_us: float
    """What its members, summed, waited."""


@dataclass(frozen=True)
class FixedTimeline:
    """The same step as a replay has it with fixes made: the same rows in the same windows, on the same clock."""

    fixes: tuple[str, ...]
    """All that are made together, as they were asked for."""
    recorded_step_time_us: float
    """The step replayed as recorded, as `kair whatif` of this step has it: what is saved is the difference to it."""
    step_time_us: float
    """With the fixes made."""
    saved_us: float
    """By how much the step is then shorter; negative where it is longer."""
    step_us: float
    """Where the step then ends on the clock."""
    delayed: TimelineOperation
    """The operation that the timeline is around, as it is then."""
    rows: tuple[TimelineRow, ...]
    """Those of the timeline, in its order."""
    collectives: tuple[TimelineCollective, ...]
    """As in the timeline."""
    collectives_in_view: int
    """How many there are then, listed or not."""
    under: tuple[TimelineOperation, ...]
    """What then runs under the cursor."""


@dataclass(frozen=True)
class TimelineResult:
    """One step's ranks over time. Times are on the job's clock, from the step's earliest begin."""

    step: int
    """The step that is shown."""
    around: TimelineDelay
    """The delay in the middle."""
    begin_us: float
    """Where the first window begins; before 0 where that is asked for, or what is looked at begins there."""
    end_us: float
    """Where the last window ends."""
    step_us: float
    """Where the step ends: the whole of it is from 0 to here."""
    window_us: float
    """How long a window lasts."""
    windows: int
    """How many there are."""
    rows: tuple[TimelineRow, ...]
    """In the order of their ranks."""
    collectives: tuple[TimelineCollective, ...]
    """Those in view, the earliest end first; of many those that made ranks wait longest."""
    collectives_in_view: int
    """How many there are, listed or not."""
    path: tuple[TimelineStop, ...]
    """The blame path that ends in the delay: from who waited back to what it comes from."""
    under: tuple[TimelineOperation, ...]
    """What runs under the cursor, which is on the delay unless a moment is asked for: what is drawn there first."""
    clock_residual_us: float | None
    """How far members of one collective end apart on this clock, the median; null without a collective."""
    warnings: tuple[KairWarning, ...]
    timed_on: TimedOn = "host"
    """Whose step it is: the devices' where hosts run ahead of them. What threads do for it then lies before its begin,
    most of it."""
    earliest_us: float = 0.0
    """Where the first operation of the step begins: before 0 where hosts run ahead."""
    fixed: FixedTimeline | None = None
    """The same step with fixes made; null where none were asked for."""
