"""A finding as plain text for a chat or a ticket: its cost, two proofs, the part, and what to do."""

from dataclasses import replace
from typing import Final

from kair_engine.results.triage import Finding, TriageResult
from kair_tui.render.joint_prices import together_lines
from kair_tui.render.report.triage import Ask
from kair_tui.render.text import clean
from kair_tui.render.ticket import strongest_proofs
from kair_tui.render.triage import facts, part_lines, title

_PROOFS: Final = 2


def finding_as_text(triage: TriageResult, finding: Finding, ask: Ask) -> str:
    """Return one fact per line; `ask` makes the command line of an analysis of this job, with options."""
    proofs = strongest_proofs(triage, finding, ask)[:_PROOFS]
    explained = replace(finding, explanations=tuple(one for one in finding.explanations if one.word == "explains"))
    lines = [
        title(finding, wide=True, alone=len(triage.ranking) == 1),
        *(f"cost: {one}" for one in (*together_lines(triage, finding), *facts(finding, wide=True)[:1])),
        *(f"proof: {one.sentence}" for one in proofs),
        *part_lines(explained, wide=True),
        *([f"what to do: {finding.suggestion}"] if finding.suggestion else []),
        ask("triage"),
    ]
    return "\n".join(map(clean, lines))
