"""The verdict: findings, and every rank's place in the ranking."""

from typing import Literal

from kair_engine.causes import Cause
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.evidence import Evidence
from kair_engine.results.fix import Fix
from kair_engine.results.rank import PartOfStep
from kair_engine.results.runs.changes import AgainstBaseline
from kair_engine.results.whatif import FixPrice
from kair_engine.trace.model import KairWarning

Verdict = Literal["straggler", "job_wide", "no_straggler", "inconclusive"]


PricedBy = Literal["replay", "excess"]
"""The job replayed without the culprit; or the culprit's excess, no more than its punctuality would have spared."""


Pattern = Literal["persistent", "intermittent", "group", "job_wide"]


@dataclass(frozen=True)
class RankedRank:
    """One rank in the triage's ranking, the most suspicious first."""

    rank: Rank
    host: str | None
    role: str
    score: float
    flagged: bool
    self_time_excess_us: float
    """µs per step of its self time beyond its role's median, waiting excluded."""
    wait_imposed_us: float
    """µs per step that other ranks, summed, waited for it."""


@dataclass(frozen=True)
class Finding:
    """One culprit."""

    cause: Cause
    pattern: Pattern
    ranks: tuple[Rank, ...]
    """Who is to blame; empty where nobody is."""
    hosts: tuple[str, ...]
    """Of those ranks, or of those that it was seen on."""
    operator: str | None
    edge: str | None
    """`from → to` where the delay lies between two operations or two ranks."""
    steps: tuple[int, ...]
    p_value: float | None
    """Family-wise: corrected for everything tried in this triage."""
    time_lost_us_per_step: float
    """What a step would be shorter by without this culprit."""
    slowdown: float
    """Step time over the step time without this culprit (1.0 = no effect)."""
    evidence: tuple[Evidence, ...]
    throughput_gain: float = 0.0
    """Steps per time without this culprit, over those with it, less 1."""
    gpu_hours_per_day: float = 0.0
    """Of all devices of the job, what it costs."""
    cost_per_day: float | None = None
    """In the currency of what a GPU hour costs; null where that was not given."""
    priced_by: PricedBy = "excess"
    seen_on: tuple[Rank, ...] = ()
    """Where it shows though nobody is to blame; empty where somebody is."""
    since: int | None = None
    """The step in which it began, where that was within the recording."""
    fix: tuple[Fix, ...] = ()
    """What undoes it, all together; empty where no fix does."""


@dataclass(frozen=True)
class Absorbed:
    """A delay of ranks' hosts that costs nothing: they are ahead of their devices, which never wait for it."""

    ranks: tuple[Rank, ...]
    cause: Cause
    operator: str | None
    longer_us_per_step: float
    """Than on the ranks' peers."""
    costs_us_per_step: float
    """What the replay saves without it."""
    ahead_us: float | None
    """From a launch to the begin of what it launches, the shortest of all; null where that is no longer than a launch
    takes: then the device waits now and then, for nothing that costs."""
    slack_us_per_step: float
    """So much longer the hosts could take in every step."""


@dataclass(frozen=True)
class TriageResult:
    """The whole investigation."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    ranking: tuple[RankedRank, ...]
    step_time_us: float
    waiting_us_per_step: float
    unattributed_us_per_step: float
    steps: tuple[int, ...]
    warnings: tuple[KairWarning, ...]
    together: FixPrice | None = None
    """All findings that were replayed, fixed at once; null for fewer than two."""
    parts: tuple[PartOfStep, ...] = ()
    """Where the step goes, of a recording of one rank alone; else empty, as `kair rank` tells it."""
    absorbed: tuple[Absorbed, ...] = ()
    """Delays of hosts that are ahead of their devices and cost nothing: nobody is accused of them."""
    against_baseline: AgainstBaseline | None = None
    """What takes longer than in the chosen baseline, which no peer shows; null where none is chosen. No finding: a
    baseline tells that it is slower, not why."""
