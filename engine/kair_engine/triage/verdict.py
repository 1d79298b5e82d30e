"""The last arrow: from the findings that stand to one verdict, and to who comes first."""

from collections.abc import Sequence
from functools import reduce

from kair_engine.localize.analysis import rank_scores
from kair_engine.localize.link_changes import GROUPS_DIFFER
from kair_engine.localize.localization import Localization, can_accuse
from kair_engine.results.blame import BlameResult
from kair_engine.results.triage import Finding, OpenItem, RankedRank, Verdict
from kair_engine.timeline.coverage import NOT_COMPARED
from kair_engine.trace.model import OF_RUNS, KairWarning, Trace
from kair_engine.triage.gate import Gated, makes_late_us
from kair_engine.triage.job_wide import LONGER_STEPS
from kair_engine.triage.look import verdict_beside_dominant_step
from kair_engine.triage.open_items import leaves_open
from kair_engine.triage.unrecorded_graphs import GRAPHS_NOT_RECORDED
from kair_engine.triage.waiting import leads_by_waiting

_OPEN = (GRAPHS_NOT_RECORDED, GROUPS_DIFFER, LONGER_STEPS)


def verdict(
    found: Localization,
    gated: Gated,
    limits: Sequence[KairWarning],
    left: Sequence[OpenItem],
    set_aside: Sequence[KairWarning],
) -> Verdict:
    """One verdict about all steps.

    `limits` are the recording's, `left` is what no finding explains, `set_aside` tells of steps that are not judged.
    """
    of_others = _of_judged_steps(found, gated, limits, is_open=leaves_open(left))
    return reduce(verdict_beside_dominant_step, reversed(set_aside), of_others)


def _of_judged_steps(found: Localization, gated: Gated, limits: Sequence[KairWarning], *, is_open: bool) -> Verdict:
    """`is_open`: whether so much is left that nothing explains."""
    # What all ranks share makes each of them late now and then.
    shared_ns = 1e3 * makes_late_us(gated.findings, found.job)
    undecided = any(one.excess_ns > shared_ns for one in found.undecided) or any(map(_leaves_open, limits))
    if gated.contradicted:
        return "inconclusive"
    if any(finding.pattern != "job_wide" for finding in gated.findings):
        return "straggler"
    if undecided:
        return "inconclusive"
    if gated.findings:
        return "job_wide"
    return "no_straggler" if can_accuse(found.job) and not is_open else "inconclusive"


def _leaves_open(warning: KairWarning) -> bool:
    return warning.code in _OPEN or bool(warning.ranks and warning.code in NOT_COMPARED | OF_RUNS)


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
    if leads_by_waiting(found.job):
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
