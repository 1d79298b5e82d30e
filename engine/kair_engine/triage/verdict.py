"""The last arrow: from the findings that stand and what they leave open to one verdict, and to who comes first."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.localize.analysis import rank_scores
from kair_engine.localize.localization import Localization, can_accuse
from kair_engine.results.blame import BlameResult
from kair_engine.results.step_bar import StepBar
from kair_engine.results.triage import Finding, OpenItem, RankedRank, Verdict
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.triage.open_items import LEAVES_OPEN

_CLEAR: Final = frozenset({"few_steps", "larger_share", "nobody_waits"})
"""Codes of the warnings that say of ranks why they are not accused."""


def verdict(findings: Sequence[Finding], items: Sequence[OpenItem], shared_us: float) -> Verdict:
    """Return what a budget comes to: who is accused, else what all share, else whether anything large is open.

    That no rank is to blame is not said where what is open on some ranks is more than what all ranks lose, `shared_us`.
    """
    if any(one.pattern != "job_wide" for one in findings):
        return "straggler"
    large = [one for one in items if one.share_of_step >= LEAVES_OPEN]
    if findings and all(not one.ranks or one.is_whole or one.us_per_step <= shared_us for one in large):
        return "job_wide"
    return "inconclusive" if large else "no_straggler"


def with_verdict(bar: StepBar | None, decided: Verdict) -> StepBar | None:
    """Return the bar of a job with that verdict, which says what ranks wait for."""
    return None if bar is None else replace(bar, names_straggler=decided == "straggler")


def not_contradicting(warnings: Iterable[KairWarning], findings: Sequence[Finding]) -> tuple[KairWarning, ...]:
    """Return the warnings without those that clear ranks which a finding accuses, by another test or in other steps."""
    accused = {rank for finding in findings for rank in finding.ranks}
    return tuple(
        one for one in warnings if one.code not in _CLEAR or not one.ranks or not accused.issuperset(one.ranks)
    )


def ranking(
    trace: Trace, found: Localization, blamed: BlameResult, findings: Sequence[Finding]
) -> tuple[RankedRank, ...]:
    """In the order of stage 1; flagged is who is accused after all checks.

    In too few steps for any test whoever is waited for longest comes first, of ranks that run one program: how much
    longer a rank takes by itself says less of one step than who came last.
    """
    steps, accused = len(trace.steps), {rank for finding in findings for rank in finding.ranks}
    imposed = {rank.rank: rank.blamed_us / steps for rank in blamed.by_rank}
    scores = rank_scores(trace.job, found)
    if not can_accuse(found.job) and len(np.unique(found.job.role)) == 1:
        scores = tuple(sorted(scores, key=lambda score: -imposed.get(score.rank, 0.0)))
    return tuple(
        RankedRank(
            rank=score.rank,
            host=score.host,
            role=score.role,
            score=score.score,
            flagged=score.rank in accused,
            self_time_excess_us=sum(score.excess_us.values()),
            wait_imposed_us=imposed.get(score.rank, 0.0),
        )
        for score in scores
    )
