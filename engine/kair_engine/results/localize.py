"""Stage 1's answer: a score for every rank, slow links, and what no rank is to blame for.

It also has what takes longer than in a baseline, as triage has. What is needed only with a baseline is in compare.py:
`kair localize` and `kair triage` load that when a baseline is asked for.
"""

from typing import TYPE_CHECKING, Literal

from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results import Method
from kair_engine.trace.model import KairWarning

if TYPE_CHECKING:
    from kair_engine.results.compare import RunProfile


OwnKind = Literal["compute", "input", "host", "communication"]
"""What a rank's own time in a step consists of."""
ChangeKind = Literal[OwnKind, "compilation"]
ChangeSort = Literal["slower", "faster", "added", "gone"]
Scope = Literal["all_ranks", "host", "ranks"]


@dataclass(frozen=True)
class OperatorChange:
    """An operator (or the time that hosts keep devices idle) that takes longer or shorter, beyond chance.

    Times are the self time of a rank in a step, waiting excluded: means over the ranks concerned of their 20 %-trimmed
    means over steps.
    """

    operator: str | None
    """Null: the time in which the host alone kept its device (or thread) idle, and garbage collection; of the kind
    `compilation` that in which it compiled."""
    was: str | None
    """Its name in the base run, where that is another."""
    kind: ChangeKind
    """What the time is."""
    change: ChangeSort
    """Which way it changed."""
    scope: Scope
    """On whom: everybody, all ranks of one host, or some ranks."""
    ranks: tuple[Rank, ...]
    """Whom it concerns; empty where that is everybody."""
    host: str | None
    """Of whose ranks all are concerned, and nobody else."""
    base_us: float
    """In the base run. Where some ranks changed on top of what changed on all, either is as if it had been made where
    the operator takes less: first that of all, then what is on top."""
    new_us: float
    """In the new run; the same."""
    ratio: float | None
    """New over base; null of an operator that the base run lacks."""
    base_calls: float
    """Per step and rank."""
    new_calls: float
    """The same in the new run."""
    p_value: float
    """Family-wise, over all that was compared."""
    step_us: float | None = None
    """What the change adds to the step, by replay: taken out, call by call, of the run where it takes longer; of what
    changes hide for each other all have their part. Null: not replayed."""
    share_of_step: float | None = None
    """The same over the base run's step time."""


@dataclass(frozen=True)
class AgainstBaseline:
    """What takes longer than in a baseline: what peers that are slow alike cannot show."""

    baseline: str
    """Its name."""
    step_change_us: float
    """This run's step time less the baseline's."""
    step_change_share: float
    """The same over the baseline's step time."""
    step_p_value: float
    """That the step times do not differ."""
    slower: tuple[OperatorChange, ...]
    """Beyond chance, what takes most longer first; of communication the transfer itself, waiting excluded. Not
    replayed."""


@dataclass(frozen=True)
class ChosenBaseline:
    """The baseline that a run is to be compared with."""

    name: str
    profile: "RunProfile"
    named: bool
    """Whether somebody asked for it, and did not just leave it in use."""


GroupBy = Literal["rank", "host", "role"]


@dataclass(frozen=True)
class RankScore:
    """How far one rank stands out from the peers of its role; larger is more suspicious."""

    rank: Rank
    """Its number in the job."""
    host: str | None
    """Where it runs; null where that is not recorded."""
    role: str
    """The ranks that run the same program; only those are compared."""
    score: float
    """How far it stands out; larger is more suspicious."""
    p_value: float | None
    """Corrected for ranks × classes (family-wise); None where the method has no null distribution."""
    flagged: bool
    """Whether a test sets it apart from its peers."""
    excess_us: dict[str, float]
    """Class of operations → µs per step beyond the role's median (trimmed mean over steps)."""
    large_delays: int | None = None
    """Steps in which it took 10 % of the step longer than its role; of one or two steps the host's pauses between
    collectives. None where the method does not count them."""
    compared: bool = True
    """Whether its recording could be compared with its peers': false where it has none, or a part of it is missing."""


@dataclass(frozen=True)
class GroupScore:
    """The scores of a host or a role together."""

    group: str
    """The name of the host, role, process group or pipeline edge."""
    ranks: tuple[Rank, ...]
    """Their numbers, sorted."""
    mean_score: float
    """The mean of its ranks."""
    max_score: float
    """The highest of its ranks."""
    flagged: int
    """How many of its ranks are flagged."""


@dataclass(frozen=True)
class LinkScore:
    """A process group whose collectives are slower than its siblings'; it names no rank."""

    group: str
    """The name of the host, role, process group or pipeline edge."""
    ranks: tuple[Rank, ...]
    """Their numbers, sorted."""
    operator: str
    """The collective that lost most."""
    own_us: float
    """Per step, waiting for members excluded."""
    expected_us: float
    """The siblings' median."""
    siblings: int
    """Process groups or edges with the same transfers, which it is compared with."""
    p_value: float
    """How often chance alone shows as much, corrected for all that was tried; null where that is not known."""


@dataclass(frozen=True)
class OperatorScore:
    """A rank that is slow in one operator in every step."""

    rank: Rank
    """Its number in the job."""
    operator: str
    """Its name in the recording; null where no single one can be named."""
    excess_us: float
    """Per step beyond the medians of the role's calls (trimmed mean over steps)."""
    p_value: float
    """How often chance alone shows as much, corrected for all that was tried; null where that is not known."""


@dataclass(frozen=True)
class JobPattern:
    """What slows the job though no rank is at fault."""

    cause: Cause
    """Why the time is lost."""
    ranks: tuple[Rank, ...]
    """Where it shows."""
    steps: tuple[int, ...]
    """In which it shows."""
    lost_us: float
    """Per step, by how much the longest stage, batch or delays exceed the mean; a replay prices what fixing it saves
    (triage)."""
    figures: dict[str, int | float]
    """What speaks for it. Stage imbalance: each stage's compute in µs per step. Sequence imbalance: `correlation` (of
    forward and backward within a rank) and `variation` (of the forward pass). Delays on changing ranks: `delays` and
    their `rate` (of all ranks' steps). Uneven positions: what ranks of each spend on the operator and the
    others of its family, in µs per step. Work that another rank has most of each time: `ranks` that did, `steps`.
    Pauses of all ranks: `delays`, `every` so many steps (0: at irregular intervals)."""
    operator: str | None = None
    """The operator that makes up most of it; null where no single one does, or that is not known."""
    group: str | None = None
    """The process group whose positions differ."""


@dataclass(frozen=True)
class LocalizeResult:
    """Stage 1: a score for every rank, the highest first."""

    method: Method
    """Robust statistics, or the published method."""
    scores: tuple[RankScore, ...]
    """Every rank, the most suspicious first."""
    groups: tuple[GroupScore, ...]
    """Filled when asked for by host or role."""
    slow_links: tuple[LinkScore, ...]
    """Process groups and pipeline edges that are slower than their siblings."""
    patterns: tuple[JobPattern, ...]
    """What slows the job though no rank is at fault."""
    matrix: tuple[tuple[float, ...], ...] | None
    """Pairwise K–S distances in rank order, only when asked for (paper method)."""
    steps: tuple[int, ...]
    """Those that were analysed."""
    warnings: tuple[KairWarning, ...]
    slow_operators: tuple[OperatorScore, ...] = ()
    """Ranks that are slow in one operator."""
    step_time_us: float | None = None
    """What shares of the step refer to; None with the paper's method."""
    against_baseline: AgainstBaseline | None = None
    """What takes longer than in the chosen baseline, which no peer shows; null where none is chosen."""
