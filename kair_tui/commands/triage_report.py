"""Asks the analyses that a triage's report shows in addition to the triage."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kair.app.evidence import without_password
from kair.app.jobs import sources_of
from kair.app.places import store_root
from kair.app.question import Question
from kair.app.step_choice import step_text
from kair_engine.errors import KairError
from kair_engine.ranks import Rank
from kair_engine.results.fixes import fix_text
from kair_engine.results.money import GpuCost
from kair_engine.results.timeline import TimelineResult
from kair_engine.results.triage import TriageResult
from kair_tui.cli.asking import Asker
from kair_tui.commands.report_file import made_now
from kair_tui.render.answer import JobInfo
from kair_tui.render.joint_prices import fixed_first
from kair_tui.render.report.content import Report
from kair_tui.render.report.triage import Ask, Found, around, triage_report
from kair_tui.render.warnings import warnings_in_words

_PROFILES: Final = 3
"""The most ranks with a profile: those of one culprit's ranks look alike."""


def report_of(asker: Asker, triaged: TriageResult, gpu_cost: float | None) -> Report:
    """Return the report on a triage. Where this job has no answer to a question, the report has the reason."""
    trace = asker.trace
    job = trace.job
    ranks = [Question.of("rank", rank=rank) for rank in _shown_ranks(triaged)]
    answers = [_tried(asker, question) for question in ranks]
    blamed = _tried(asker, Question.of("blame"))
    priced = _tried(asker, Question.of("whatif", gpu_cost=gpu_cost))
    profiles = tuple(answer for answer in answers if not isinstance(answer, str))
    warnings = [getattr(answer, "warnings", ()) for answer in (triaged, *profiles, blamed, priced)]
    found = Found(
        job=JobInfo(job.name, job.source, job.world_size, job.ranks, trace.steps),
        triage=triaged,
        profiles=profiles,
        blame=blamed,
        whatif=priced,
        warnings=warnings_in_words(job.warnings, *warnings),
        timeline=_timeline_of(asker, triaged),
        fixed=_fixed_timeline(asker, triaged),
    )
    return triage_report(found, lines_of(asker, gpu_cost), made_now())


def _timeline_of(asker: Asker, triaged: TriageResult) -> TimelineResult | None:
    """Return the timeline around the first delay; None if nothing is found or the recording has no times."""
    if not triaged.findings or not asker.trace.steps:
        return None
    drawn = _tried(asker, Question.of("timeline", around=around(triaged)))
    return None if isinstance(drawn, str) else drawn


def _fixed_timeline(asker: Asker, triaged: TriageResult) -> TimelineResult | None:
    """Return the slowest step with the accused ranks, or the first finding, fixed; None if it cannot be replayed."""
    fixes = fixed_first(triaged)[1] if asker.trace.steps else ()
    if not fixes:
        return None
    plain, scales = ([fix_text(fix) for fix in fixes if fix.is_scale is scaled] for scaled in (False, True))
    drawn = _tried(asker, Question.of("timeline", fix=plain, scale=scales))
    return None if isinstance(drawn, str) else drawn


def _shown_ranks(triaged: TriageResult) -> list[Rank]:
    """Return the first rank of each finding that accuses ranks; if none does, the most suspicious rank."""
    accused = [finding.ranks[0] for finding in triaged.findings if finding.ranks]
    first = [row.rank for row in triaged.ranking[:1]]
    return [*dict.fromkeys(accused)][:_PROFILES] or first


def _tried(asker: Asker, question: Question) -> Any:  # noqa: ANN401
    """Return the result, or the reason why it is missing, as a sentence."""
    try:
        return asker.ask(question).result
    except KairError as error:
        return f"Not available for this recording: {error}."


def lines_of(asker: Asker, gpu_cost: float | None, evidence: Sequence[str] = ()) -> Ask:
    """Return a function that writes the command line of an analysis of these steps, with the evidence for a triage."""
    trace = asker.trace
    job, kept = trace.job, trace.job.stored_in
    of = sources_of(job) if kept is None else [job.name]
    more = [] if trace.steps == job.steps else ["--step", step_text(trace.steps)]
    if kept is not None and (store := Path(kept).parent.parent) != store_root(None):
        more += ["--store", str(store)]

    def ask(analysis: str, *options: str) -> str:
        price = [] if gpu_cost is None else ["--gpu-cost", str(GpuCost.of(gpu_cost))]
        price = price if analysis in ("triage", "whatif") else []
        named = [word for one in evidence for word in ("--evidence", without_password(one))]
        # Operators' and hosts' names can hold anything; a pasted line must run nothing but kair.
        return shlex.join(["kair", analysis, *of, *options, *more, *price, *(named if analysis == "triage" else [])])

    return ask
