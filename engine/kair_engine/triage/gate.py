"""Checks findings, prices and who was waited for against one another, before anybody is accused."""

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np

from kair_engine.arrays import present
from kair_engine.causes import CAUSES
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import SMALLEST_SHARE
from kair_engine.localize.excess import CLASSES, JobExcess
from kair_engine.localize.localization import can_accuse, steps_needed
from kair_engine.ranks import Rank, as_positions, ranks_at
from kair_engine.results.blame import BlameResult, RankBlame
from kair_engine.results.triage import Finding
from kair_engine.trace.model import KairWarning
from kair_engine.triage.absorbed import is_of_host
from kair_engine.triage.pricing import LAUNCHED_MORE
from kair_engine.triage.ranks.cpu_limits import LIMIT_EVIDENCE
from kair_engine.triage.waiting import NOTABLE_WAITING, Waiting

MIN_WAIT_FRACTION = 0.5
"""Others must be seen to wait longer for a rank that cannot be compared than for others, by this part of what it costs.
"""
STAGE_EXPLAINS = 0.25
"""A longer stage explains the waiting for a rank if it costs this part of it. A stage is priced by its excess over the
mean stage: with two stages that is half the waiting, less pipeline bubbles."""

LAST_FRACTION, PRICED_FRACTION = 0.8, 1 / 3
"""A replay is wrong, whatever its own error, if it prices the longer kernels of a rank at less than PRICED_FRACTION of
them, though the rank comes last at LAST_FRACTION of the collectives that were waited for."""


@dataclass(frozen=True)
class Vetted:
    """The findings that stand, and what speaks against the others or leaves the verdict open."""

    findings: tuple[Finding, ...]
    warnings: tuple[KairWarning, ...]
    contradicted: bool
    """Whether prices, tests and waiting disagree on who slows the job down."""
    absorbed: tuple[Finding, ...] = ()
    """Those about hosts that cost nothing, as their devices never wait for them."""


def vet(
    job: JobExcess,
    blamed: BlameResult,
    findings: Sequence[Finding],
    hidden_us: Sequence[float],
    *,
    undecided: Collection[Rank] = (),
    uncompared: AbstractSet[Rank] = frozenset(),
    saving_us: Callable[[Rank], float] | None = None,
) -> Vetted:
    """Keeps the findings that are worth something and that somebody waited for.

    `hidden_us` is what each costs once all others are fixed: of two that are equally late either alone costs
    nothing. Findings below the smallest share for which nobody waits that long are dropped, as are ranks for whom
    nobody waits at all, unless others hide them, and ranks without peers whose idle time costs nobody as much by a
    replay. A rank that nearly all wait for though no test accuses it, or that costs nothing by the replay though it
    is waited for, is told; not again where it is `undecided` anyway, nor where it is of a stage that is longer than
    the others. Ranks that are `uncompared`, of whose recording a part is missing, are accused only where others are
    seen to wait for them, longer than for one another, for much of what they are accused of; so are those who have
    hardly other peers, unless their network was measured.

    Where hosts run ahead of their devices, `saving_us` tells what a step saves if a rank were like its peers in all
    that it does. There a replay knows what is absorbed, and what it prices at less than the smallest share is no
    finding, be it waited for: unless the rank is last at nearly all its collectives, with kernels that are longer by
    more than the replay admits (`_last_with_longer_kernels`). Then it is the replay that is in doubt.
    """
    waiting = Waiting(job, blamed)
    in_doubt = uncompared | _beside(job, uncompared)
    least = SMALLEST_SHARE * job.step_time_ns / 1e3
    shared = makes_late_us(findings, job)
    kept: list[Finding] = []
    uneven: list[Finding] = []
    hidden_by_queue: list[Finding] = []
    told: list[KairWarning] = []
    contradicted = False
    for finding, hidden in zip(findings, hidden_us, strict=True):
        worth, share = max(finding.time_lost_us_per_step, hidden), waiting.share_for(finding.ranks)
        waited = share or 0.0
        doubted = uncompared if _is_measured(finding) else in_doubt
        if _is_baseless(finding, worth, waiting, job, in_doubt=bool(doubted & set(finding.ranks))):
            continue
        # What all ranks share makes each of them late now and then.
        alone = waited * job.step_time_ns / 1e3 > shared
        if finding.time_lost_us_per_step < least <= hidden and CAUSES[finding.cause].remedy is not None:
            uneven.append(_by_estimate(finding, hidden, job))
            continue
        if saving_us is not None and finding.ranks:
            if (doubted_price := _doubted_price(finding, worth, job)) is not None:
                estimate, warning = doubted_price
                kept.append(estimate)
                told.append(warning)
                continue
            if worth < least:
                hidden_by_queue += [finding] if is_of_host(finding) else []
                continue
        if worth < least:
            # Others who wait in every step wait for more than now and then's delays, and a link makes nobody late.
            steady = finding.pattern != "intermittent" and finding.cause != "communication"
            if waited > NOTABLE_WAITING and alone and steady:
                told.append(_told("price_and_waiting", finding.ranks, worth, waited, job))
                contradicted = True
            continue
        hides = hidden - finding.time_lost_us_per_step >= least
        if share is not None and waited < SMALLEST_SHARE and not hides and finding.cause != "communication":
            told.append(_told("nobody_waits", finding.ranks, worth, waited, job))
            continue
        kept.append(finding)
    kept += () if kept else uneven
    # Beside a culprit that costs something, who costs nothing leaves nothing open.
    contradicted &= not any(finding.ranks for finding in kept)
    if not any(finding.ranks for finding in kept) and (suspect := waiting.suspect(undecided)) is not None:
        waited_us = (waiting.share_for((suspect.rank,)) or 0.0) * job.step_time_ns / 1e3
        gains = saving_us is None or saving_us(suspect.rank) >= least
        if gains and waited_us > shared and STAGE_EXPLAINS * waited_us > _of_stage_us(suspect.rank, kept):
            told.append(_waited_for(suspect, waited_us, job, compared=suspect.rank not in uncompared))
            contradicted = True
    return Vetted(tuple(kept), tuple(told), contradicted, tuple(hidden_by_queue))


def makes_late_us(findings: Sequence[Finding], job: JobExcess) -> float:
    """How late ranks come in the mean step for what all share, at least."""
    return sum(_surely_us(finding, job) for finding in findings if _makes_late(finding))


def _makes_late(finding: Finding) -> bool:
    """Whether it makes now this rank late and now that one, as transfers, which ranks end together, do not."""
    return finding.pattern == "job_wide" and finding.cause != "exposed_communication"


def is_worth_telling(finding: Finding, hidden_us: float, job: JobExcess) -> bool:
    """Whether it costs the smallest share of the step at least, be it once all others are fixed."""
    return max(finding.time_lost_us_per_step, hidden_us) * 1e3 >= SMALLEST_SHARE * job.step_time_ns


def _is_baseless(finding: Finding, worth_us: float, waiting: Waiting, job: JobExcess, *, in_doubt: bool) -> bool:
    """Whether a finding is about ranks that cannot be compared, and nobody is seen to wait for them for that."""
    if not in_doubt or not (waiting.is_known or not job.on_device):
        return False
    seen = max(SMALLEST_SHARE, MIN_WAIT_FRACTION * worth_us * 1e3 / job.step_time_ns)
    # On threads who did less is told from who lost a part (coverage.py): beside those one seems to do more.
    baseless = _does_more(finding) and not job.on_device
    return baseless or waiting.beyond_peers(finding.ranks) < seen


def _waited_for(suspect: RankBlame, waited_us: float, job: JobExcess, *, compared: bool) -> KairWarning:
    warning = _told("waited_for", (suspect.rank,), 0.0, waited_us * 1e3 / job.step_time_ns, job)
    more = {"compared": float(compared), "share_of_waiting": suspect.share}
    if not can_accuse(job) and (needed := steps_needed(job)) is not None:
        more |= {"steps": len(job.steps), "fewest_steps": needed}
    return replace(warning, figures={**warning.figures, **more})


def _doubted_price(finding: Finding, worth_us: float, job: JobExcess) -> tuple[Finding, KairWarning] | None:
    """A finding by what its kernels take longer, and that the replay is in doubt; None where it prices them well."""
    longer_us = _last_with_longer_kernels(finding, job)
    if max(worth_us, SMALLEST_SHARE * job.step_time_ns / 1e3) >= PRICED_FRACTION * longer_us:
        return None
    warning = _told("replay_in_doubt", finding.ranks, worth_us, longer_us * 1e3 / job.step_time_ns, job)
    return _by_estimate(finding, longer_us, job), warning


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


def _of_stage_us(rank: Rank, findings: Sequence[Finding]) -> float:
    """What it costs that the rank is of a longer stage than the others; 0 of another."""
    of_stage = (one for one in findings if one.cause == "stage_imbalance" and rank in one.seen_on)
    return max((one.time_lost_us_per_step for one in of_stage), default=0.0)


def _is_measured(finding: Finding) -> bool:
    """Whether the system tells it, whatever peers recorded."""
    return any(one.kind == "slow_network" or one.kind in LIMIT_EVIDENCE for one in finding.evidence)


def _does_more(finding: Finding) -> bool:
    return any(one.kind in LAUNCHED_MORE for one in finding.evidence)


def _surely_us(finding: Finding, job: JobExcess) -> float:
    """What it costs at least, where a device hides which it is. All that is as long as ticks is late by up to one."""
    of_kind = {one.kind: one.figures for one in finding.evidence}
    if not job.on_device or "price_range" not in of_kind or "ticks" in of_kind:
        return finding.time_lost_us_per_step
    return min(finding.time_lost_us_per_step, of_kind["price_range"]["least_us"])


def _by_estimate(finding: Finding, lost_us: float, job: JobExcess) -> Finding:
    """A finding that a replay cannot tell, at what it was thought to cost."""
    step_us = job.step_time_ns / 1e3
    slowdown = step_us / max(step_us - lost_us, 1e-3)
    gain = slowdown - 1
    return replace(
        finding, time_lost_us_per_step=lost_us, slowdown=slowdown, throughput_gain=gain, priced_by="excess", fix=()
    )


def _told(code: str, ranks: tuple[Rank, ...], worth_us: float, waited: float, job: JobExcess) -> KairWarning:
    figures = {"share_of_step": worth_us * 1e3 / job.step_time_ns, "waited_share": waited}
    return KairWarning(code, figures=figures, ranks=ranks)
