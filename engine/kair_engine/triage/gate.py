"""The one gate before anybody is accused: tests, prices and who was waited for are compared with one another.

Delays of a rank's host or input that its device never waits for are reported too, so that nobody hunts them.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, Literal, NamedTuple

import numpy as np

from kair_engine.arrays import present
from kair_engine.causes import CAUSES
from kair_engine.frozen import dataclass
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.ranks import Rank, as_positions, ranks_at
from kair_engine.results import SMALLEST_SHARE
from kair_engine.results.blame import BlameResult
from kair_engine.results.triage import Absorbed, Finding
from kair_engine.results.warning_kinds import NobodyWaits, ReplayInDoubt
from kair_engine.timeline.host_time import Leads
from kair_engine.trace.model import KairWarning
from kair_engine.triage.past_prices import is_by_past
from kair_engine.triage.ranks.cpu_limits import LIMIT_EVIDENCE
from kair_engine.triage.replays import excess_of_steps
from kair_engine.triage.undoing import LAUNCHED_MORE
from kair_engine.triage.waiting import Waiting

MIN_WAIT_FRACTION = 0.5
"""Others must be seen to wait longer for a rank that cannot be compared than for others, by this part of what it costs.
"""
LAST_FRACTION, PRICED_FRACTION = 0.8, 1 / 3
"""A replay is wrong, whatever its own error, if it prices the longer kernels of a rank at less than PRICED_FRACTION of
them, though the rank comes last at LAST_FRACTION of the collectives that were waited for."""


MEASURED: Final = LIMIT_EVIDENCE | {"slow_network"}
"""Evidence from the system, whatever peers recorded."""
Outcome = Literal["keep", "keep_by_estimate", "keep_if_alone", "worthless", "unwaited", "absorbed", "drop"]
"""What becomes of a finding. By estimate: at what its kernels take longer, whatever the replay says. If alone: at what
it costs once all others are fixed, if no other finding stands. Worthless: dropped, and if others wait for its ranks,
that is an open item. Unwaited: dropped, with a warning. Absorbed: listed as what a launch queue takes up."""


class Facts(NamedTuple):
    """What the gate knows of one finding that a test of stage 1 has raised."""

    is_baseless: bool = False
    """Its ranks cannot be compared, and nobody is seen to wait for them for that."""
    costs: bool = True
    """It costs the smallest share of the step at least, or once all others are fixed."""
    costs_by_itself: bool = True
    """It does while the others are there."""
    has_remedy: bool = False
    """What it costs is priced by a remedy, of which one can make another needless."""
    runs_ahead: bool = False
    """Its ranks' hosts run ahead of their devices, so that a replay knows what is absorbed."""
    is_priced_wrongly: bool = False
    """The rank is last at nearly all collectives, with kernels that are longer by far more than the replay admits."""
    is_of_host: bool = False
    """It is about what hosts do."""
    nobody_waits: bool = False
    """It is known that nobody does, nor would once others are fixed."""


GATE: Final[tuple[tuple[Mapping[str, bool], Outcome], ...]] = (
    ({"is_baseless": True}, "drop"),
    ({"costs": True, "costs_by_itself": False, "has_remedy": True}, "keep_if_alone"),
    ({"is_priced_wrongly": True}, "keep_by_estimate"),
    ({"costs": False, "runs_ahead": True, "is_of_host": True}, "absorbed"),
    ({"costs": False}, "worthless"),
    ({"nobody_waits": True}, "unwaited"),
    ({}, "keep"),
)
"""The decision table: the first row whose facts are all as it says decides."""


def decide(facts: Facts) -> Outcome:
    """Return what becomes of a finding, by the GATE."""
    known = facts._asdict()
    return next(outcome for row, outcome in GATE if all(known[name] is value for name, value in row.items()))


@dataclass(frozen=True)
class Gated:
    """The findings that stand, and what speaks against the others."""

    findings: tuple[Finding, ...] = ()
    warnings: tuple[KairWarning, ...] = ()
    worthless: tuple[Finding, ...] = ()
    """Those about ranks that a test sets apart, and that a replay prices at next to nothing."""
    absorbed: tuple[Finding, ...] = ()
    """Those about hosts that cost nothing, as their devices never wait for them."""


def gate(
    job: JobExcess,
    blamed: BlameResult,
    findings: Sequence[Finding],
    hidden_us: Sequence[float],
    *,
    uncompared: AbstractSet[Rank] = frozenset(),
    runs_ahead: bool = False,
) -> Gated:
    """Keep the findings that are worth something and that somebody waited for: GATE says which.

    `hidden_us` is what each costs once all others are fixed: of two that are equally late either alone costs
    nothing. Ranks that are `uncompared`, of whose recording a part is missing, are accused only where others are seen
    to wait for them, longer than for one another, for much of what they are accused of; so are those who have hardly
    other peers, unless their network was measured. `runs_ahead`: hosts run ahead of their devices.
    """
    seen = _Seen(job, Waiting(job, blamed), uncompared, runs_ahead)
    decided: list[tuple[Outcome, Finding]] = []
    warnings: list[KairWarning] = []
    for finding, hidden in zip(findings, hidden_us, strict=True):
        outcome = decide(seen.facts(finding, hidden))
        stands, more = seen.carried_out(outcome, finding, hidden)
        decided.append((outcome, stands))
        warnings += more

    def having(*outcomes: Outcome) -> tuple[Finding, ...]:
        return tuple(finding for outcome, finding in decided if outcome in outcomes)

    kept = having("keep", "keep_by_estimate") or having("keep_if_alone")
    worthless = tuple(one for one in having("worthless") if _makes_wait(one))
    return Gated(kept, tuple(warnings), worthless, having("absorbed"))


def _makes_wait(finding: Finding) -> bool:
    """Return whether others wait for a finding's ranks in every step: nobody is late for a link, or its past."""
    of_link = finding.cause == "communication" or is_by_past(finding)
    return bool(finding.ranks) and not of_link and finding.pattern != "intermittent"


class _Seen(NamedTuple):
    """What findings are compared with."""

    job: JobExcess
    waiting: Waiting
    uncompared: AbstractSet[Rank]
    runs_ahead: bool

    @property
    def least_us(self) -> float:
        """What is worth reporting."""
        return SMALLEST_SHARE * self.job.step_time_ns / 1e3

    def facts(self, finding: Finding, hidden_us: float) -> Facts:
        job, by_itself = self.job, finding.time_lost_us_per_step
        worth, share = max(by_itself, hidden_us), self.waiting.share_for(finding.ranks)
        # A link makes nobody late, and who waits for a whole stage waits in its pipeline's order.
        of_link = finding.cause == "communication" or is_by_past(finding)
        hides = hidden_us - by_itself >= self.least_us
        runs_ahead = self.runs_ahead and bool(finding.ranks)
        in_doubt = self.uncompared if finding.shows & MEASURED else self.uncompared | _beside(job, self.uncompared)
        doubted = bool(in_doubt & set(finding.ranks))
        return Facts(
            is_baseless=doubted and _is_baseless(finding, worth, self.waiting, job),
            costs=worth >= self.least_us,
            costs_by_itself=by_itself >= self.least_us,
            has_remedy=CAUSES[finding.cause].remedy is not None,
            runs_ahead=runs_ahead,
            is_priced_wrongly=job.on_device and _is_priced_wrongly(finding, worth, job),
            is_of_host=is_of_host(finding),
            nobody_waits=share is not None and share < SMALLEST_SHARE and not hides and not of_link,
        )

    def carried_out(self, outcome: Outcome, finding: Finding, hidden_us: float) -> tuple[Finding, list[KairWarning]]:
        """Return the finding as it stands if it does, and what is said of it."""
        job, worth = self.job, max(finding.time_lost_us_per_step, hidden_us)
        if outcome == "keep_by_estimate":
            longer = _last_with_longer_kernels(finding, job)
            doubted = _told(ReplayInDoubt, finding.ranks, worth, longer * 1e3 / job.step_time_ns, job)
            return _by_estimate(finding, longer, job), [doubted]
        if outcome == "keep_if_alone":
            return _by_estimate(finding, hidden_us, job), []
        if outcome == "unwaited":
            waited = self.waiting.share_for(finding.ranks) or 0.0
            return finding, [_told(NobodyWaits, finding.ranks, worth, waited, job)]
        return finding, []


def is_worth_telling(finding: Finding, hidden_us: float, job: JobExcess) -> bool:
    """Whether it costs the smallest share of the step at least, be it once all others are fixed."""
    return max(finding.time_lost_us_per_step, hidden_us) * 1e3 >= SMALLEST_SHARE * job.step_time_ns


def _is_baseless(finding: Finding, worth_us: float, waiting: Waiting, job: JobExcess) -> bool:
    """Whether nobody is seen to wait for what ranks that cannot be compared seem to take longer."""
    if not waiting.is_known and job.on_device:
        return False
    seen = max(SMALLEST_SHARE, MIN_WAIT_FRACTION * worth_us * 1e3 / job.step_time_ns)
    # On threads, ranks that did less differ from ranks that lost a part (coverage.py), next to which one does more.
    baseless = not finding.shows.isdisjoint(LAUNCHED_MORE) and not job.on_device
    return baseless or waiting.beyond_peers(finding.ranks) < seen


def _is_priced_wrongly(finding: Finding, worth_us: float, job: JobExcess) -> bool:
    longer_us = _last_with_longer_kernels(finding, job)
    return max(worth_us, SMALLEST_SHARE * job.step_time_ns / 1e3) < PRICED_FRACTION * longer_us


def _last_with_longer_kernels(finding: Finding, job: JobExcess) -> float:
    """How much longer a rank's own kernels take than its peers', µs a step, where it is last at nearly all collectives.

    Of one that is slow now and then, at nearly all that peers waited for. 0 of ranks that are not, or whose kernels are
    not longer: arrivals and durations say the same without any replay.
    """
    if len(finding.ranks) != 1 or CAUSES[finding.cause].time_class != "compute":
        return 0.0
    (rank,), row = finding.ranks, CLASSES.index("compute")
    place = int(np.searchsorted(job.ranks, rank))
    longer = np.nan_to_num(job.by_step_ns[:, row, place], nan=0.0)
    slow = np.isin([step.step for step in job.steps], finding.steps)
    last = [step.late for step, is_slow in zip(job.steps, slow.tolist(), strict=True) if is_slow]
    waited = sum(int(np.count_nonzero(late.lead_ns > 0)) for late in last)
    mine = sum(int(np.count_nonzero((late.rank == rank) & (late.lead_ns > 0))) for late in last)
    if not waited or mine < LAST_FRACTION * waited:
        return 0.0
    return float(longer[slow].sum()) / len(job.steps) / 1e3


def _beside(job: JobExcess, uncompared: AbstractSet[Rank]) -> set[Rank]:
    """Ranks of whose peers at least every second is uncompared."""
    lacks = np.isin(job.ranks, sorted(uncompared))
    found: set[Rank] = set()
    for code in present(job.role):
        members = np.flatnonzero(job.role == code)
        lacking = np.count_nonzero(lacks[members]) - lacks[members]
        found.update(ranks_at(job.ranks, as_positions(members[(lacking > 0) & (2 * lacking >= len(members) - 1)])))
    return found


def _by_estimate(finding: Finding, lost_us: float, job: JobExcess) -> Finding:
    """Return a finding that a replay cannot price, at what it was estimated to cost."""
    step_us = job.step_time_ns / 1e3
    slowdown = step_us / max(step_us - lost_us, 1e-3)
    gain = slowdown - 1
    return replace(
        finding, time_lost_us_per_step=lost_us, slowdown=slowdown, throughput_gain=gain, priced_by="excess", fix=()
    )


def _told(
    kind: type[NobodyWaits | ReplayInDoubt], ranks: tuple[Rank, ...], worth_us: float, waited: float, job: JobExcess
) -> KairWarning:
    mean_ns = max(float(job.step_times_ns.mean()), 1.0)  # what is printed is a share of the mean step
    waited_share = waited * job.step_time_ns / mean_ns
    return kind(share_of_step=worth_us * 1e3 / mean_ns, waited_share=waited_share, ranks=ranks)


OF_HOSTS = ("host", "input")
"""The classes of time that a launch queue can absorb."""


def is_of_host(finding: Finding) -> bool:
    """Whether a finding is about what a rank's host does, which a launch queue can absorb."""
    return bool(finding.ranks) and CAUSES[finding.cause].time_class in OF_HOSTS


def absorbed(job: JobExcess, leads: Leads | None, findings: Sequence[Finding]) -> Iterator[Absorbed]:
    """Yield what to report of findings that cost nothing, since hosts are ahead of their devices (`leads`)."""
    if leads is None:
        return
    for finding in findings:
        of_class = CAUSES[finding.cause].time_class
        assert of_class is not None
        places = np.searchsorted(job.ranks, finding.ranks)
        longer = float(excess_of_steps(job, places.tolist(), CLASSES.index(of_class)).mean())
        yield Absorbed(
            ranks=finding.ranks,
            cause=finding.cause,
            operator=finding.operator,
            longer_us_per_step=longer / 1e3,
            costs_us_per_step=finding.time_lost_us_per_step,
            ahead_us=leads.ahead_us(finding.ranks),
            slack_us_per_step=leads.slack_us(finding.ranks),
        )
