"""Stage 3's answer: blame paths and ranked root causes."""

from typing import Literal

from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results import Method
from kair_engine.trace.model import KairWarning

STEP_BEGIN = "step begin"
"""Stands for the operator where a rank was late already when the step began."""
STEP_END = "step end"
"""Stands for the operator where a rank was late because its host kept it idle at the end of the step before."""


RoleInPath = Literal["victim", "culprit", "edge"]


@dataclass(frozen=True)
class PathNode:
    """One stop of a blame path."""

    rank: Rank
    """Its number in the job."""
    operator: str
    """Its name in the recording; null where no single one can be named."""
    kind: str
    """What kind of operation it is."""
    start_us: float
    """From the step's begin."""
    duration_us: float
    """How long it took."""
    lateness_us: float
    """How much later than its peers' median it began (for a collective: arrived), on the job's clock."""
    role_in_path: RoleInPath
    """Who waited, who is to blame, or what lies between."""
    expected_us: float | None = None
    """Of the chain's end: the median of what it takes on all ranks of its role; null where no other runs it."""


@dataclass(frozen=True)
class PathPart:
    """What one root cause, as in `root_causes`, has to do with a path."""

    rank: Rank
    """Its number in the job."""
    operator: str | None
    """Its name in the recording; null where no single one can be named."""
    cause: Cause
    """Why the time is lost."""
    is_edge: bool
    """Whether the time went by before the operator began, idle."""
    share: float
    """Of the path's waiting, what it explains; those of a path add up to 1."""


@dataclass(frozen=True)
class BlamePath:
    """From a symptom (an operation that waited) back to its root cause."""

    symptom: PathNode
    """The operation that waited."""
    chain: tuple[PathNode, ...]
    """From the symptom back to what it comes from."""
    cause: Cause
    """Why the time is lost."""
    waited_us: float
    """Waiting of all ranks that this path explains."""
    step: int
    """The step in which they waited."""
    lost_us: float = 0.0
    """Of how late it made the last to arrive, what was lost at the end of the chain."""
    parts: tuple[PathPart, ...] = ()
    """Everything that made the last to arrive late, the largest part first; the largest single delay ends the chain."""


@dataclass(frozen=True)
class RootCause:
    """One rank's operator (or an edge between two) with the waiting it explains."""

    rank: Rank
    """Its number in the job."""
    operator: str | None
    """Its name in the recording; null where no single one can be named."""
    cause: Cause
    """Why the time is lost."""
    is_edge: bool
    """Whether the time went by before the operator began, idle."""
    blamed_us: float
    """Other ranks' waiting, summed over them, that this cause explains; of the paper's method, which prices none, how
    far it deviates from the mean over the ranks."""
    share: float
    """Of all waiting in the steps; of the paper's method, of all deviations."""
    steps: tuple[int, ...]
    """In which it made ranks wait."""
    synchronisations: int
    """How many collectives (or receives) waited for it."""


@dataclass(frozen=True)
class RankBlame:
    """Waiting that root causes on one rank explain, and how often that rank arrived last."""

    rank: Rank
    """Its number in the job."""
    blamed_us: float
    """What others, summed, waited for it."""
    share: float
    """Of all waiting."""
    arrived_last: int
    """Collectives that waited for this rank more than the clocks' residual."""


@dataclass(frozen=True)
class HostBlame:
    """Waiting that root causes on one host's ranks explain, and how often one of them arrived last."""

    host: str
    """Its name in the recording."""
    ranks: tuple[Rank, ...]
    """Those of its ranks that explain any."""
    blamed_us: float
    """What others, summed, waited for them."""
    share: float
    """Of all waiting."""
    arrived_last: int
    """Collectives that waited for one of these ranks more than the clocks' residual."""


GroupKind = Literal["data_parallel_rank", "pipeline_stage", "tensor_parallel_group"]
"""Ranks that share a place in the data-parallel dimension, a pipeline stage, or both."""


@dataclass(frozen=True)
class GroupBlame:
    """Waiting that a group of ranks explains that are late as one: about as much each, in one operator."""

    kind: GroupKind
    """What the ranks share."""
    name: str
    """Their place in the job's layout: `dp 1`, `pp 2`, `pp 2 dp 1`."""
    ranks: tuple[Rank, ...]
    """All of the group."""
    blamed_us: float
    """What others, summed, waited for them."""
    share: float
    """Of all waiting."""
    arrived_last: int
    """Collectives that waited for one of these ranks more than the clocks' residual."""


@dataclass(frozen=True)
class RankWaiting:
    """What one rank waited for another in collectives, to which that one came last."""

    rank: Rank | None
    """The rank that waited; null for the shortest waits of several, put together where ranks are many."""
    for_rank: Rank
    """The rank that arrived last."""
    waited_us: float
    """Summed over collectives."""
    collectives: int
    """In how many; put together, their sum."""


@dataclass(frozen=True)
class MadeLate:
    """Why one rank was waited for: a root cause, on that rank or another, with its part of the waiting."""

    rank: Rank
    """The rank that was late."""
    by_rank: Rank
    """The root cause's own, with its operator, cause and edge as in `root_causes`."""
    operator: str | None
    """Its name in the recording; null where no single one can be named."""
    cause: Cause
    """Why the time is lost."""
    is_edge: bool
    """Whether the time went by before the operator began, idle."""
    blamed_us: float
    """Of the waiting for `rank`, what this root cause explains."""
    synchronisations: int
    """In how many collectives, sends or receives."""


@dataclass(frozen=True)
class BlameResult:
    """Stage 3: blame paths, and root causes ranked by the waiting they explain. The shares add up.

    `waiting` and `made_late` are the same waiting as a graph: ranks wait for ranks, which root causes made late. Both
    add up to what root causes add up to, those with the cause `unknown` among them, and for each rank that was waited
    for to the same.
    """

    step: int | None
    """The step asked for; None where several were."""
    steps: tuple[int, ...]
    """Those that were analysed."""
    method: Method
    """Robust statistics, or the published method."""
    paths: tuple[BlamePath, ...]
    """The longest waiting first."""
    root_causes: tuple[RootCause, ...]
    """The one that explains most waiting first."""
    by_rank: tuple[RankBlame, ...]
    """How much of the waiting is blamed on each rank, the most first."""
    waiting: tuple[RankWaiting, ...]
    """All; of a question about a rank or an operator, for the ranks in `made_late`, and what the rank itself waited."""
    made_late: tuple[MadeLate, ...]
    """All; of a question about a rank or an operator, by the root causes listed, and what made the rank itself late."""
    waiting_us: float
    """0 of the paper's method, which looks at no waiting."""
    attributed_us: float
    """What has a known cause."""
    unattributed_us: float
    """What has none: root causes with the cause `unknown`, and collectives that hardly anybody waited in."""
    collectives: int
    """Collective operations that were looked at."""
    warnings: tuple[KairWarning, ...]
    ranks_time_us: float = 0.0
    """The steps' times, summed over steps and ranks: what all waiting is a part of."""
    only_rank: Rank | None = None
    """The rank that was asked about; null for all. `by_rank` and the sums are of all in any case."""
    only_operator: str | None = None
    """What the names of operators that were asked about contain; null for all."""
    bubble_us: float = 0.0
    """Of the waiting, what no rank's lateness made: ranks that run different programs, as the stages of a pipeline,
    wait for one another though all of them are on time. It has no root cause."""
    by_host: tuple[HostBlame, ...] = ()
    """The same by host, the most first; empty where all ranks are on one host, or their hosts are not known."""
    by_group: tuple[GroupBlame, ...] = ()
    """Groups of the job's layout whose ranks are late as one, the most first; empty where none is."""
