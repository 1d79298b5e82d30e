"""`kair triage`: the whole investigation."""

from pathlib import Path
from typing import Annotated

from kair_engine.results.localize import ChosenBaseline
from kair_engine.trace.model import Trace
from kair_tui.cli.options import Option
from kair_tui.commands.report_file import REPORT, require_form, write_report
from kair_tui.render.triage import TriageInWords, triage_in_words

RENDERER = "kair_tui.render.triage"


def run(
    trace: Trace,
    *,
    gpu_cost: Annotated[
        float | None,
        Option(
            "--gpu-cost", "The price of a GPU hour; findings are then priced in money too.", metavar="PRICE", minimum=0
        ),
    ] = None,
    baseline: ChosenBaseline | None = None,
    report: Annotated[Path | None, REPORT] = None,
) -> TriageInWords:
    """Asks the engine, and keeps the verdict on a stored job for the list of jobs and for the full screen.

    Raises UsageError where the report's file cannot be written.
    """
    from kair_engine.triage.analysis import triage

    require_form(report)

    found = triage(trace, gpu_cost=gpu_cost)
    if baseline is not None:
        from kair_engine.comparison.analysis import with_baseline

        found = with_baseline(found, trace, baseline)
    result = triage_in_words(found)
    if trace.job.stored_in is not None and trace.steps == trace.job.steps:
        from kair_engine.store.kept_answers import keep_triage, keep_verdict

        keep_verdict(Path(trace.job.stored_in), result.verdict, result.summary)
        if gpu_cost is None:
            keep_triage(Path(trace.job.stored_in), found)
    if report is not None:
        from kair_tui.commands.triage_report import report_of

        write_report(report, report_of(trace, result, gpu_cost))
    return result
