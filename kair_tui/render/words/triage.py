"""A triage in words: the engine's figures with the sentences, commands and suggestions that people read."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from kair_engine.causes import CAUSES
from kair_engine.frozen import dataclass
from kair_engine.results.evidence import Evidence, ShownBy
from kair_engine.results.fix import Fix
from kair_engine.results.triage import Finding, TriageResult
from kair_engine.whatif.fixes import fix_text
from kair_tui.render.text import short_name
from kair_tui.render.units import ranks_in_words
from kair_tui.render.words.absorbed import AbsorbedInWords, absorbed_in_words
from kair_tui.render.words.hangs import what_to_do
from kair_tui.render.words.sentences import sentence_of
from kair_tui.render.words.verdict import summary

_NOBODY = "No rank is to blame: "


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
    absorbed: tuple[AbsorbedInWords, ...]
    summary: str
    """The answer in one sentence."""


def triage_in_words(result: TriageResult) -> TriageInWords:
    """The same answer, told."""
    findings = tuple(_finding(finding) for finding in result.findings)
    if len(result.ranking) == 1:
        # Without peers nobody can say that.
        findings = tuple(replace(one, suggestion=_upper(one.suggestion.removeprefix(_NOBODY))) for one in findings)
    absorbed = tuple(
        AbsorbedInWords(**vars(one), sentence=absorbed_in_words(one, result.step_time_us)) for one in result.absorbed
    )
    return TriageInWords(**_fields(result, findings=findings, absorbed=absorbed), summary=summary(result))


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def suggestion_of(finding: Finding) -> str:
    """What to do about it."""
    row = CAUSES[finding.cause]
    text = row.suggestion
    if finding.pattern == "job_wide" and row.job_wide_suggestion is not None:
        text = row.job_wide_suggestion
    elif finding.pattern == "group":
        text = row.group_suggestion
    text = what_to_do(finding) or text
    ranks = finding.ranks or finding.seen_on
    who = ranks_in_words(ranks)
    named = f" ({short_name(finding.operator)})" if finding.operator else ""
    return text.format(who=who, Who=who.capitalize(), rank=next(iter(ranks), None), operator=named)


def fix_option(fix: Fix) -> str:
    """The option of `kair whatif` that asks for a fix: `--fix rank=3+kind=compute`."""
    return shlex.join(fix_words(fix))


def options_of(shown_by: ShownBy) -> list[str]:
    """The words behind the analysis' name, not quoted for a shell."""
    asked = [] if shown_by.rank is None else ["--rank", str(shown_by.rank)]
    return asked + [word for fix in shown_by.fixes for word in fix_words(fix)]


def fix_words(fix: Fix) -> tuple[str, str]:
    """The option and its value."""
    return "--scale" if fix.is_scale else "--fix", fix_text(fix)


def command_of(shown_by: ShownBy) -> str:
    """As one types it: names from a trace are quoted for a shell."""
    return shlex.join(["kair", shown_by.analysis, *options_of(shown_by)])


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
