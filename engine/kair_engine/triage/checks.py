"""Checks findings, prices and who was waited for against one another, before anybody is accused."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.localize.anomalies import SMALLEST_SHARE
from kair_engine.localize.excess import JobExcess
from kair_engine.ranks import Rank
from kair_engine.results.blame import BlameResult, RankBlame
from kair_engine.results.triage import Finding
from kair_engine.trace.model import KairWarning

MOST_OF_WAITING, NOTABLE_WAITING = 2 / 3, 0.05
"""A rank to which so much of all waiting is laid, and so much of the step per peer, is a suspect without a test."""


@dataclass(frozen=True)
class Checked:
    """The findings that stand, and what speaks against the others or leaves the verdict open."""

    findings: tuple[Finding, ...]
    warnings: tuple[KairWarning, ...]
    contradicted: bool
    """Whether prices, tests and waiting disagree on who slows the job down."""


def check(job: JobExcess, blamed: BlameResult, findings: Sequence[Finding], estimated_us: Sequence[float]) -> Checked:
    """Keeps the findings that are worth something and that somebody waited for.

    `estimated_us` is what each finding was thought to cost before it was replayed. Those that cost less than the
    smallest share by replay and by estimate are dropped, as are ranks for whom nobody waits. A rank that nearly all
    wait for though no test accuses it, or that costs nothing by the replay though it is waited for, is told.
    """
    waiting = _Waiting(job, blamed)
    least = SMALLEST_SHARE * job.step_time_ns / 1e3
    kept, warnings, contradicted = [], [], False
    for finding, estimate in zip(findings, estimated_us, strict=True):
        if not finding.ranks or finding.pattern == "job_wide":
            if finding.time_lost_us_per_step >= least or finding.priced_by == "excess":
                kept.append(finding)
            continue
        share = waiting.share_for(finding.ranks)
        worth = max(finding.time_lost_us_per_step, estimate)
        if worth < least:
            continue
        if share is not None and share < SMALLEST_SHARE and finding.cause != "communication":
            figures = {"excess_share": worth * 1e3 / job.step_time_ns, "waited_share": share}
            warnings.append(KairWarning("nobody_waits", figures=figures, ranks=finding.ranks, about=finding.cause))
            continue
        if share is not None and share > NOTABLE_WAITING and finding.time_lost_us_per_step < least:
            figures = {"share_of_step": finding.time_lost_us_per_step * 1e3 / job.step_time_ns, "waited_share": share}
            warnings.append(KairWarning("price_and_waiting", figures=figures, ranks=finding.ranks))
            contradicted = True
        kept.append(finding)
    suspect = waiting.suspect()
    accused = {rank for finding in kept if finding.pattern != "job_wide" for rank in finding.ranks}
    if suspect is not None and suspect.rank not in accused and not accused:
        figures = {"share_of_waiting": suspect.share, "waited_share": waiting.share_for((suspect.rank,)) or 0.0}
        warnings.append(KairWarning("waited_for", figures=figures, ranks=(suspect.rank,)))
        contradicted = True
    return Checked(tuple(kept), tuple(warnings), contradicted)


class _Waiting:
    """Who was waited for, as a share of the step and per peer."""

    def __init__(self, job: JobExcess, blamed: BlameResult) -> None:
        self._job, self._blamed = job, blamed

    def share_for(self, ranks: Sequence[Rank]) -> float | None:
        """What the other ranks of the role waited for these, each; None where the recording shows no waiting."""
        job, blamed = self._job, self._blamed
        if not blamed.collectives or blamed.waiting_us <= 0:
            return None
        role = job.role[np.searchsorted(job.ranks, ranks[0])]
        peers = max(int(np.count_nonzero(job.role == role)) - len(ranks), 1)
        imposed = sum(row.blamed_us for row in blamed.by_rank if row.rank in ranks)
        return imposed * 1e3 / len(job.steps) / peers / job.step_time_ns

    def suspect(self) -> RankBlame | None:
        """The rank that nearly all waiting is laid to, where that is a good part of the step."""
        if len(self._job.ranks) < 2:
            return None
        first = next(iter(self._blamed.by_rank), None)
        if first is None or first.share <= MOST_OF_WAITING:
            return None
        share = self.share_for((first.rank,))
        return first if share is not None and share > NOTABLE_WAITING else None
