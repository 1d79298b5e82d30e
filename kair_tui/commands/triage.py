"""`kair triage`: the whole investigation."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from kair_engine.results.confirm import ConfirmRun
from kair_engine.results.localize import ChosenBaseline
from kair_engine.results.triage import TriageResult
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
    from kair_tui.cli.step_history import UNSAMPLED

    require_form(report)

    found = _with_history(trace, gpu_cost)
    if baseline is not None and trace.steps:
        from kair_engine.comparison.analysis import with_baseline

        found = with_baseline(found, trace, baseline)
    result = triage_in_words(replace(found, confirmed=_confirmed(trace, found)))
    if trace.job.stored_in is not None and trace.steps == trace.job.steps and trace.job.format != UNSAMPLED:
        from kair_engine.store.kept_answers import keep_triage, keep_verdict

        keep_verdict(Path(trace.job.stored_in), result.verdict, result.summary)
        # A job that stands still may go on, and the history of steps grows, while the recording is the same.
        if gpu_cost is None and (found.steps or trace.job.progress) and not found.history_steps:
            keep_triage(Path(trace.job.stored_in), found)
    if report is not None:
        from kair_tui.commands.triage_report import report_of

        write_report(report, report_of(trace, result, gpu_cost))
    return result


def _confirmed(trace: Trace, found: TriageResult) -> ConfirmRun | None:
    """What delays proved of the first rank that is accused, else of any; None where nobody asked."""
    from kair_engine.store.confirmed import latest_confirmed
    from kair_engine.store.remote import fetch_confirmed

    if trace.job.stored_in is None:
        return None
    folder = Path(trace.job.stored_in).parent / "confirm"
    fetch_confirmed(folder.parent.parent, folder.parent.name)
    accused = next((one.ranks[0] for one in found.findings if len(one.ranks) == 1), None)
    return latest_confirmed(folder, accused) or latest_confirmed(folder)


def _with_history(trace: Trace, gpu_cost: float | None) -> TriageResult:
    """What the sampled steps say together with all others; of chosen steps alone, what these say."""
    from kair_engine.triage.analysis import triage
    from kair_engine.triage.history.analysis import joined, triage_of_rows
    from kair_engine.whatif.prices import require_cost
    from kair_tui.cli.step_history import UNSAMPLED, hang_of, history_of

    if trace.steps == trace.job.steps and (stands := hang_of(trace.job)) is not None:
        return stands
    history = history_of(trace.job) if trace.steps == trace.job.steps else None
    if trace.job.format == UNSAMPLED and history is not None:
        require_cost(gpu_cost)
        return triage_of_rows(history, trace.job, gpu_cost)
    found = triage(trace, gpu_cost=gpu_cost)
    return found if history is None or trace.job.progress else joined(found, history, trace.job, gpu_cost)
