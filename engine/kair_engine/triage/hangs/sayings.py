"""The verdict on recordings of calls with what the job's log says in words: how ranks ended, and their last errors.

An end decides only where nothing else brought it about: a rank that timed out itself, lost its peers, or ended after
the first time-out follows from another one's, as does an error that most ranks have in common.
"""

import re
import signal
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from kair_engine.ranks import in_order
from kair_engine.results import evidence_kinds as kinds
from kair_engine.results.evidence_kinds import Evidence
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.results.watch import StandingRank
from kair_engine.trace.model import KairWarning, Trace, listed, short_warning
from kair_engine.trace.sayings import Saying
from kair_engine.triage.hangs.analysis import finding_of, hang
from kair_engine.triage.hangs.standing import standing_verdict

_FOLLOWS: Final = re.compile(
    r"(?i)watchdog caught|remote process|remoteerror|connection (was )?(reset|closed|refused|aborted)|broken pipe|"
    r"timed? ?out|timeout|deadline|socket|tcpstore|diststore|lost connection|sigterm|peer|monitoredbarrier|"
    r"unhealthy|coordination ?service|aborted"
)
"""What an error says that follows from another rank's end or delay."""
_OPEN: Final = frozenset(
    ("who_is_missing", "completion_untold", "dumps_missing", "members_untold", "group_untold", "transfers_open")
)
"""Codes of warnings about what the calls leave open, which the log answers."""
_FEWEST: Final = 2
_MOST_RANKS: Final = 1 << 14
"""Of whom it is asked how they ended, beyond those that the log says it of."""
_DIGITS: Final = re.compile(r"0x[0-9a-f]+|\d+")


def verdict_on_calls(trace: Trace) -> TriageResult:
    """Return who is to blame by the calls that were recorded, and by what the job's log says in words."""
    said = trace.job.said
    ends = list(_ends(trace))
    found = standing_verdict(trace, ends) if any(one.state == "died" for one in ends) else hang(trace)
    if not said:
        return found
    if not any(one.ranks for one in found.findings) and (apart := _apart(trace, ends)) is not None:
        found = replace(found, verdict="straggler", findings=(apart,))
    findings = tuple(_with_own_words(one, said) for one in found.findings)
    asked = () if findings else tuple(_open(trace, said))
    # Only calls show that all calls are over.
    is_open = bool(asked) or not any(trace.job.progress.values())
    verdict = "inconclusive" if is_open and not findings else found.verdict
    cancelled = [short_warning("ended_from_outside", one.text) for one in said if one.kind == "cancelled"][:1]
    warnings = (*asked, *found.warnings, *cancelled)
    if findings:
        warnings = tuple(one for one in warnings if one.code not in _OPEN)
    return replace(found, verdict=verdict, findings=findings, warnings=warnings)


def _ends(trace: Trace) -> Iterator[StandingRank]:
    """Every rank that is known, as it ended: those whose end follows from another's as a loss of connections."""
    job = trace.job
    held = {rank for rank, groups in job.progress.items() if any(one.open_calls or one.transfers for one in groups)}
    held |= {rank for one in job.said if one.kind == "missing" for rank in one.by}
    common = _common(job.said, job.world_size)
    follows = {*held, *_followers(job.said, common)}
    of_rank: dict[int, list[Saying]] = defaultdict(list)
    for one in job.said:
        if one.kind in ("ended", "error") and not one.is_late:
            for rank in one.ranks:
                of_rank[rank].append(one)
    for rank in sorted({*range(min(job.world_size, _MOST_RANKS)), *of_rank}):
        said = of_rank.get(rank, [])
        end = next((one for one in said if one.kind == "ended"), None)
        error = next((one.text for one in reversed(said) if one.text and one.text != "oom_kill"), "")
        host = job.hosts.get(rank)
        if not said or rank in held or (rank in follows and (end is None or not end.signal)):
            yield StandingRank(rank, host, "untold")
            continue
        at = end.at_ns if end is not None else said[-1].at_ns
        yield StandingRank(
            rank,
            host or None,
            "died",
            signal=0 if end is None else end.signal,
            exit_status=None if end is None else end.exit_status,
            known_by="out_of_memory" if end is not None and end.text == "oom_kill" else "",
            error=error,
            at_ns=at,
        )


def _followers(said: Collection[Saying], common: Collection[str]) -> frozenset[int]:
    """Ranks whose errors another rank's end or delay brings about, or that most ranks have."""
    errors = [one for one in said if one.kind == "error" or (one.kind == "ended" and one.text)]
    return frozenset(rank for one in errors if one.text in common or _FOLLOWS.search(one.text) for rank in one.ranks)


def _apart(trace: Trace, ends: Collection[StandingRank]) -> Finding | None:
    """Return the one rank that all others lost, if their errors show that and it has none of that kind itself."""
    job = trace.job
    followers = _followers(job.said, ())
    aborted = [one for one in ends if one.state == "died" and one.signal == signal.SIGABRT]
    if len(aborted) == 1 and followers and aborted[0].rank not in followers:
        facts = (kinds.Died(None, float(signal.SIGABRT), ranks=in_order((aborted[0].rank,)), about=None),)
        return finding_of(job, in_order((aborted[0].rank,)), None, facts)
    silent = {*range(job.world_size)} - followers if len(followers) < _MOST_RANKS else frozenset()
    if len(silent) != 1 or len(followers) < _FEWEST or any(one.kind == "folded" for one in job.said):
        return None
    last = next(one for one in job.said if one.kind in ("error", "ended") and set(one.ranks) & followers and one.text)
    others = kinds.OthersLost(float(len(followers)), ranks=in_order(silent), about=last.text)
    return finding_of(job, in_order(silent), None, (others,))


def _common(said: Collection[Saying], world: int) -> frozenset[str]:
    """Errors that more than half of the ranks end with: none of these caused the others."""
    alike: dict[str, list[Saying]] = defaultdict(list)
    for one in said:
        if one.kind == "error" or (one.kind == "ended" and one.text and one.text != "oom_kill"):
            alike[_DIGITS.sub("#", one.text)].append(one)
    found = set()
    for some in alike.values():
        ranks = len({rank for one in some for rank in one.ranks}) + max(one.count - 1 for one in some)
        if ranks > 1 and 2 * ranks > world:
            found |= {one.text for one in some}
    return frozenset(found)


def _with_own_words(finding: Finding, said: Collection[Saying]) -> Finding:
    """Return the finding with what the log says of its ranks: their last errors, their processes, who names them."""
    facts = list(finding.evidence)
    told = {one.about for one in facts}
    for one in _own_words(finding, said):
        if one.about not in told:
            facts.append(one)
            told.add(one.about)
    return replace(finding, evidence=tuple(facts))


def _own_words(finding: Finding, said: Collection[Saying]) -> Iterator[Evidence]:
    last = {rank: one.text for one in said if one.kind == "error" for rank in one.ranks if rank in finding.ranks}
    for text in dict.fromkeys(last.values()):
        ranks = in_order(rank for rank, own in last.items() if own == text)
        yield kinds.LastError(ranks=ranks, about=text)
    for one in said:
        ranks = in_order(rank for rank in one.ranks if rank in finding.ranks)
        if not ranks:
            continue
        if one.kind == "ended" and not any(fact.kind == "died" for fact in finding.evidence):
            step, sent = None, float(one.signal) if one.signal else None
            status = None if one.exit_status is None else float(one.exit_status)
            yield kinds.Died(step, sent, status, ranks=ranks, about=one.text or None)
        elif one.kind == "missing":
            yield kinds.LogNames(float(len(one.by)) or None, ranks=ranks, about=one.text)
        elif one.kind == "stuck":
            yield kinds.StuckWatchdog(ranks=ranks, about=one.text)
        elif one.kind == "process":
            yield kinds.IsProcess(ranks=ranks, about=one.text)


def _open(trace: Trace, said: Collection[Saying]) -> Iterator[KairWarning]:
    """Yield what the log says, where nobody is named by it."""
    folded = sum(one.count for one in said if one.kind == "folded")
    if folded:
        known, world = sum(map(bool, trace.job.progress.values())), trace.job.world_size
        all_of_them = f"all {world} then, so look at the network; " if known + folded >= world else ""
        text = (
            f"{known} ranks report a time-out, and Ray folded like lines of {folded} more, of any rank: {all_of_them}"
            "record with RAY_DEDUP_LOGS=0, or give the workers' own logs (worker-*.err)"
        )
        yield short_warning("folded_lines", text)
    common = _common(said, trace.job.world_size)
    for text in list(common)[:1]:
        ranks = {rank for one in said if one.text in common for rank in one.ranks}
        yield short_warning("same_error", f"rank {listed(sorted(ranks))} ended alike: {text}", ranks)
    for one in said:
        if one.kind in ("unclear", "link"):
            where = f"{one.host}: " if one.host else ""
            yield short_warning("log_says", f"the log says: {where}{one.text}; which rank that is it does not say")
            return
    last = next((one for one in said if one.kind in ("ended", "error") and one.ranks and one.text not in common), None)
    if last is not None and not any(trace.job.progress.values()):
        how = last.text or (f"signal {last.signal}" if last.signal else f"exit status {last.exit_status}")
        text = (
            f"rank {last.ranks[0]} ended with “{how}”, as others' ends or delays cause it: the log does not say whose"
        )
        yield short_warning("log_says", text, last.ranks)
