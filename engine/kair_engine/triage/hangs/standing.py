"""The verdict on a job that stands still, from where its ranks stand and how those ended that did.

In this order: who died first; of whom nothing is heard, as their host is not; who ended while others wait; then what
calls tell (analysis.py); and, where no calls are recorded, who is in none while others wait in one.
"""

import re
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kair_engine.ranks import Rank, in_order
from kair_engine.results.evidence_kinds import Died, EndedEarly, Evidence, StandsAt, Unheard
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.watch import StandingRank
from kair_engine.trace.model import Trace
from kair_engine.triage.hangs.analysis import finding_of, hang, ranked

_TOGETHER_NS: Final = 2 * 10**9
"""A process that dies ends its peers' connections at once: they end by an exception in less."""
_SENT: Final = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
"""Launchers end the other ranks by these."""
_OF_OTHERS: Final = re.compile(
    r"connection (was )?(reset|closed|refused)|broken pipe|remote process (has )?(exited|terminated)|"
    r"econnreset|socket (timeout|error)|timed out waiting|ncclremoteerror|peer",
    re.IGNORECASE,
)
"""What an exception says that others' ends brought about."""
_MOST_TOLD: Final = 16


def standing_verdict(trace: Trace, ranks: Sequence[StandingRank]) -> TriageResult:
    """`straggler` where somebody is named. `trace.job.progress`: recorded calls of those that answered; may be empty.

    A finding's evidence tells where its ranks stand, or how they ended, and where the others do.
    """
    found = hang(trace) if trace.job.progress else _nothing(trace)
    named, operator = _named(ranks, found)
    facts = tuple(fact for finding in found.findings for fact in finding.evidence)
    if named and not any(set(named) == set(finding.ranks) for finding in found.findings):
        mine = (*(_ended(one) for one in ranks if one.rank in named and one.state != "lives"), *_places(ranks, named))
        finding = finding_of(trace.job, named, operator, (*mine, *facts))
        return _with(found, (finding,))
    told = (*_places(ranks, named or tuple(one.rank for one in ranks)),)
    ends = tuple(_ended(one) for one in ranks if one.rank in named and one.state in ("died", "ended", "unheard"))
    findings = tuple(replace(one, evidence=(*ends, *one.evidence, *told)) for one in found.findings)
    return _with(found, findings)


def first_died(ranks: Sequence[StandingRank]) -> tuple[StandingRank, ...]:
    """Whose death brought about the others'; empty where nobody died, or only of what others' ends bring about.

    Of those that ended within 2 s of the first: by a signal that no launcher sends; else the first one that ended by an
    exception or exit status of its own.
    """
    died = sorted((one for one in ranks if one.state == "died"), key=lambda one: one.at_ns)
    first = [one for one in died if one.at_ns - died[0].at_ns <= _TOGETHER_NS]
    violent = [one for one in first if one.signal not in (*_SENT, 0, signal.SIGABRT) or _left_no_trace(one)]
    # A C++ exception of a lost connection aborts, too.
    own = [one for one in first if one.signal not in _SENT and not _OF_OTHERS.search(one.error)]
    aborted = [one for one in own if one.signal == signal.SIGABRT]
    return tuple(violent) or tuple(one for one in own if one not in aborted)[:1] or tuple(own)[:1]


def _left_no_trace(one: StandingRank) -> bool:
    """As a process that SIGKILL ends, where the system does not tell it."""
    return not one.signal and one.exit_status is None


def _named(ranks: Sequence[StandingRank], found: TriageResult) -> tuple[tuple[int, ...], str | None]:
    """Who is to blame, and what others wait in for them."""
    accusing = [one for one in found.findings if one.ranks]
    operator = next((one.operator for one in found.findings), None)
    for some in (
        [one.rank for one in first_died(ranks)],
        [one.rank for one in ranks if one.state == "unheard"],
        [one.rank for one in ranks if one.state == "ended" and any(other.state == "lives" for other in ranks)],
        [] if accusing else [one.rank for one in sorted(ranks, key=lambda one: one.at_ns) if one.state == "died"][:1],
    ):
        if some:
            return tuple(some), operator
    if accusing:
        return tuple(dict.fromkeys(rank for one in accusing for rank in one.ranks)), operator
    if found.findings:
        return (), operator
    waiting = [one for one in ranks if one.phase == "collective"]
    others = [one for one in ranks if one.state in ("lives", "untold") and one not in waiting]
    are_few = waiting and 2 * len(others) <= len(ranks)
    return tuple(one.rank for one in others) if are_few else (), operator


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
    named = [_place(one) for one in ranks if one.rank in first and (one.where or one.phase)]
    rest: dict[tuple[str, str, int], list[int]] = {}
    for one in ranks:
        if one.rank not in first and one.state == "lives" and (one.where or one.phase):
            rest.setdefault((one.phase, one.where, one.step), []).append(one.rank)
    others = [_at(phase, where, step, some) for (phase, where, step), some in rest.items()]
    return [*named, *others][:_MOST_TOLD]


def _place(one: StandingRank) -> Evidence:
    return _at(one.phase, one.where, one.step, (one.rank,), was=one.state == "died")


def _at(phase: str, where: str, step: int, ranks: Sequence[int], *, was: bool = False) -> Evidence:
    parts = (f"in {phase}" if phase else "", f"at {where}" if where else "")
    return StandsAt(_known(step), 1.0 if was else None, ranks=in_order(ranks), about=", ".join(filter(None, parts)))


def _nothing(trace: Trace) -> TriageResult:
    return TriageResult("inconclusive", (), ranked(trace.job, (), Counter()), 0.0, 0.0, 0.0, (), ())


def _with(found: TriageResult, findings: tuple[Finding, ...]) -> TriageResult:
    accused = {rank for finding in findings for rank in finding.ranks}
    ranking = tuple(replace(one, flagged=one.rank in accused) for one in found.ranking)
    return replace(
        found,
        verdict="straggler" if accused else "job_wide" if findings else found.verdict,
        findings=findings,
        ranking=tuple(sorted(ranking, key=lambda one: not one.flagged)),
    )
