"""A triage in words: the engine's figures with the sentences, commands and suggestions that people read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kair_engine.causes import CAUSES
from kair_engine.results.evidence import Evidence, ShownBy
from kair_engine.results.fix import Fix
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.whatif.fixes import fix_text
from kair_tui.render.units import duration, plural, ranks_in_words
from kair_tui.render.words.sentences import sentence_of
from kair_tui.render.words.warnings import warnings_in_words


@dataclass(frozen=True, kw_only=True)
class EvidenceInWords(Evidence):
    """One thing that speaks for a finding."""

    sentence: str
    command: str | None
    """Shows the same figures; null where there is none to look up."""


@dataclass(frozen=True, kw_only=True)
class FindingInWords(Finding):
    """One culprit, or what slows the job though nobody is to blame."""

    evidence: tuple[EvidenceInWords, ...]
    suggestion: str
    """What to do about it."""
    fix_options: tuple[str, ...]
    """`fix` as options of `kair whatif`: `--fix rank=3+kind=compute`."""


@dataclass(frozen=True, kw_only=True)
class TriageInWords(TriageResult):
    """The whole investigation."""

    findings: tuple[FindingInWords, ...]
    summary: str
    """The answer in one sentence."""


def triage_in_words(result: TriageResult) -> TriageInWords:
    """The same answer, told."""
    findings = tuple(_finding(finding) for finding in result.findings)
    return TriageInWords(**_fields(result, findings=findings), summary=summary(result))


def summary(result: TriageResult) -> str:
    """The answer in one sentence."""
    scope = f"{plural(len(result.ranking), 'rank')}, {plural(len(result.steps), 'step')}"
    if result.verdict == "straggler":
        parts = [f"{_culprit(one)} ({cause_in_words(one.cause)}, {_a_step(one)})" for one in result.findings]
        together = result.together
        both = "" if together is None or together.saved_us <= 0 else f"; together {duration(together.saved_us)} a step"
        return f"straggler: {' and '.join(parts)}{both}"
    if result.verdict == "no_straggler":
        return f"no straggler: {scope}, no rank differs from its peers beyond chance"
    reasons = {warning.code: warning.message for warning in warnings_in_words(result.warnings)}
    why = reasons.get("one_rank") or reasons.get("few_steps") or reasons.get("few_peers") or "too few peers for a test"
    return f"inconclusive: {scope}; {why}"


def cause_in_words(cause: str) -> str:
    """As it is called in a sentence."""
    return CAUSES[cause].words


def suggestion_of(finding: Finding) -> str:
    """What to do about it."""
    row = CAUSES[finding.cause]
    text = row.suggestion
    if finding.pattern == "job_wide" and row.job_wide_suggestion is not None:
        text = row.job_wide_suggestion
    elif finding.pattern == "group":
        text = row.group_suggestion
    who = ranks_in_words(finding.ranks)
    named = f" ({finding.operator[:80]})" if finding.operator else ""
    return text.format(who=who, Who=who.capitalize(), operator=named)


def fix_option(fix: Fix) -> str:
    """The option of `kair whatif` that asks for a fix: `--fix rank=3+kind=compute`."""
    return f"--{'fix' if fix.scale is None else 'scale'} {fix_text(fix)}"


def command_of(shown_by: ShownBy) -> str:
    """As one types it."""
    asked = "" if shown_by.rank is None else f" --rank {shown_by.rank}"
    return f"kair {shown_by.analysis}{asked}" + "".join(f" {fix_option(fix)}" for fix in shown_by.fixes)


def _finding(finding: Finding) -> FindingInWords:
    return FindingInWords(
        **_fields(finding, evidence=tuple(_evidence(one) for one in finding.evidence)),
        suggestion=suggestion_of(finding),
        fix_options=tuple(map(fix_option, finding.fix)),
    )


def _evidence(one: Evidence) -> EvidenceInWords:
    command = None if one.shown_by is None else command_of(one.shown_by)
    return EvidenceInWords(**_fields(one), sentence=sentence_of(one), command=command)


def _fields(record: Any, **changed: Any) -> dict[str, Any]:  # noqa: ANN401 - any of the records above
    return {**vars(record), **changed}


def _culprit(finding: Finding) -> str:
    return "no rank's fault" if finding.pattern == "job_wide" else ranks_in_words(finding.ranks)


def _a_step(finding: Finding) -> str:
    return f"{duration(finding.time_lost_us_per_step)} a step"
