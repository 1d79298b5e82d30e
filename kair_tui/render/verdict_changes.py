"""Differences between a triage and an earlier one of the same job, in words."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kair_engine.results.triage import Finding, TriageResult
from kair_tui.render.units import duration, plural, ranks_in_words, spans
from kair_tui.render.verdict import cause_in_words, verdict_in_words

_WORTH_TELLING: Final = 0.05
"""Relative change of a cost that is worth a line: a few more steps change any figure by less."""

_Key = tuple[str, tuple[int, ...], str | None, str | None]


def difference(before: TriageResult, after: TriageResult) -> tuple[str, ...]:
    """Return a line for each change, the most important first; empty if nothing changed."""
    lines = []
    if before.verdict != after.verdict:
        lines.append(f"{verdict_in_words(after.verdict)}, was {verdict_in_words(before.verdict)}")
    lines += _findings(before.findings, after.findings)
    lines += _more_and_fewer("rank", (row.rank for row in before.ranking), (row.rank for row in after.ranking))
    lines += _more_and_fewer("step", before.steps, after.steps)
    return tuple(lines)


def _findings(before: Sequence[Finding], after: Sequence[Finding]) -> Iterator[str]:
    known = {_key(finding): finding for finding in before}
    for finding in after:
        old = known.pop(_key(finding), None)
        now = finding.time_lost_us_per_step
        if old is None:
            yield f"new: {_name(finding)}, {duration(now)} a step"
        elif abs(now - old.time_lost_us_per_step) > _WORTH_TELLING * max(now, old.time_lost_us_per_step):
            yield f"{_name(finding)}: {duration(now)} a step, was {duration(old.time_lost_us_per_step)}"
    yield from (f"no more: {_name(finding)}" for finding in known.values())


def _key(finding: Finding) -> _Key:
    return finding.cause, finding.ranks, finding.operator, finding.edge


def _name(finding: Finding) -> str:
    who = f"{ranks_in_words(finding.ranks)} " if finding.ranks else ""
    return f"{who}({cause_in_words(finding.cause)})" if who else cause_in_words(finding.cause)


def _more_and_fewer(what: str, before: Iterable[int], after: Iterable[int]) -> Iterator[str]:
    old, new = {*before}, {*after}
    if more := sorted(new - old):
        yield f"{plural(len(more), f'more {what}')} ({spans(tuple(more), 3)})"
    if fewer := sorted(old - new):
        yield f"{plural(len(fewer), f'{what}')} gone ({spans(tuple(fewer), 3)})"
