"""The verdict on a job that stands still, from where its ranks stand and how those ended that did.

In this order: whose end the others' follow from (ending.py); then what recorded calls show (analysis.py); and, where
none are recorded, who is in no call while others wait in one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kair_engine.ranks import Rank, in_order
from kair_engine.results.evidence_kinds import Died, EndedEarly, Evidence, OtherStep, StandsAt, Unheard
from kair_engine.results.stuck import stuck_at
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.watch import StandingRank
from kair_engine.trace.model import Trace, short_warning
from kair_engine.triage.hangs.analysis import finding_of, hang, nothing_known
from kair_engine.triage.hangs.ending import Ending, ending_of

_MOST_TOLD: Final = 16


def standing_verdict(trace: Trace, ranks: Sequence[StandingRank]) -> TriageResult:
    """Return `straggler` where somebody is named. `trace.job.progress`: recorded calls of those that answered.

    A finding's evidence shows where its ranks stand, or how they ended, and where the others do. A job that was
    ended from outside has none, and a warning says so.
    """
    ending = ending_of(ranks)
    if ending.is_from_outside:
        return nothing_known(trace.job, (short_warning("ended_from_outside", ending.in_words),))
    found = hang(trace) if trace.job.progress else nothing_known(trace.job)
    named, operator = _named(ranks, found, ending)
    facts = tuple(fact for finding in found.findings for fact in finding.evidence)
    if named and not any(set(named) == set(finding.ranks) for finding in found.findings):
        mine = (*_ends(ranks, named, ending), *_places(ranks, named))
        return _with(found, (finding_of(trace.job, named, operator, (*mine, *facts)),))
    if ending.first is not None and not found.findings:
        died = ending.first
        places = _places(ranks, (died.rank,))
        return _with(found, (finding_of(trace.job, (), None, (_ended(died), *places), seen_on=(died.rank,)),))
    shown = (*_places(ranks, named or tuple(one.rank for one in ranks)),)
    ends = tuple(_ended(one) for one in ranks if one.rank in named and one.state in ("died", "ended", "unheard"))
    findings = tuple(replace(one, evidence=(*ends, *one.evidence, *shown)) for one in found.findings)
    return _with(found, findings)


def beside(stands: TriageResult, judged: TriageResult) -> TriageResult:
    """Return what was proved of the steps before, with the verdict on the job that stands still or ended."""
    findings = (*stands.findings, *judged.findings)
    accused = {rank for finding in findings for rank in finding.ranks}
    is_named = "straggler" in (stands.verdict, judged.verdict)
    ranking = tuple(replace(one, flagged=one.rank in accused) for one in judged.ranking or stands.ranking)
    return replace(
        judged,
        verdict="straggler" if is_named else "job_wide" if stands.findings else judged.verdict,
        findings=findings,
        ranking=tuple(sorted(ranking, key=lambda one: not one.flagged)),
        warnings=(*stands.warnings, *judged.warnings),
    )


def _named(ranks: Sequence[StandingRank], found: TriageResult, ending: Ending) -> tuple[tuple[int, ...], str | None]:
    """Who is to blame, and what others wait in for them."""
    accusing = tuple(dict.fromkeys(int(rank) for one in found.findings for rank in one.ranks))
    operator = next((one.operator for one in found.findings), None)
    # Recorded calls show more than steps do.
    of_ends = () if ending.is_by_step and found.findings else tuple(one.rank for one in ending.ranks)
    if of_ends or accusing or found.findings or ending.first is not None:
        return of_ends or accusing, operator
    waiting = [one for one in ranks if one.phase == "collective"]
    others = [one for one in ranks if one.state in ("lives", "untold") and one not in waiting]
    are_few = waiting and 2 * len(others) <= len(ranks)
    return tuple(one.rank for one in others) if are_few else (), operator


def _ends(ranks: Sequence[StandingRank], named: Sequence[int], ending: Ending) -> list[Evidence]:
    """How those that are named stand apart, or ended; and who aborted because of them."""
    ends = [_ended(one) for one in ranks if one.rank in named and one.state != "lives"]
    if not ending.is_by_step or ending.first is None:
        return ends
    usual = float(ending.usual_step)
    apart = [OtherStep(float(one.step), usual, ranks=(Rank(one.rank),)) for one in ending.ranks if one.rank in named]
    return [*apart, *ends, *([] if ending.first.rank in named else [_ended(ending.first)])]


def _ended(one: StandingRank) -> Evidence:
    step, ranks = _known(one.step), (Rank(one.rank),)
    if one.state == "died":
        return Died(
            step,
            float(one.signal) if one.signal else None,
            float(one.exit_status) if one.exit_status is not None else None,
            1.0 if one.known_by == "out_of_memory" else None,
            ranks=ranks,
            about=one.error or None,
        )
    if one.state == "unheard":
        return Unheard(step, ranks=ranks, about=one.host)
    return EndedEarly(step, ranks=ranks) if one.state == "ended" else _place(one)


def _known(step: int) -> float | None:
    return float(step) if step >= 0 else None


def _places(ranks: Sequence[StandingRank], first: Sequence[int]) -> list[Evidence]:
    """Where ranks stand, those that are named first; of the others the ranks at one place together."""
    named = [_place(one) for one in ranks if one.rank in first and stuck_at(one)]
    rest: dict[tuple[str, int], list[int]] = {}
    for one in ranks:
        if one.rank not in first and one.state == "lives" and (one.where or one.phase):
            rest.setdefault((stuck_at(one), one.step), []).append(one.rank)
    others = [_at(at, step, some) for (at, step), some in rest.items()]
    return [*named, *others][:_MOST_TOLD]


def _place(one: StandingRank) -> Evidence:
    return _at(stuck_at(one), one.step, (one.rank,), was=one.state == "died")


def _at(where: str, step: int, ranks: Sequence[int], *, was: bool = False) -> Evidence:
    return StandsAt(_known(step), 1.0 if was else None, ranks=in_order(ranks), about=where)


def _with(found: TriageResult, findings: tuple[Finding, ...]) -> TriageResult:
    accused = {rank for finding in findings for rank in finding.ranks}
    ranking = tuple(replace(one, flagged=one.rank in accused) for one in found.ranking)
    return replace(
        found,
        verdict="straggler" if accused else "job_wide" if findings else found.verdict,
        findings=findings,
        ranking=tuple(sorted(ranking, key=lambda one: not one.flagged)),
    )
