"""`kair triage`: the whole investigation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kair_engine.results.confirm import ConfirmRun
from kair_engine.results.localize import ChosenBaseline
from kair_engine.results.triage import TriageResult
from kair_engine.trace.model import Trace, require_rank
from kair_tui.cli.evidence import EVIDENCE, has_evidence
from kair_tui.cli.explaining import with_evidence
from kair_tui.cli.options import Option
from kair_tui.commands.report_file import REPORT, require_form, write_report
from kair_tui.render.triage import TriageInWords, triage_in_words

if TYPE_CHECKING:
    from kair_engine.triage.history.rows import StepHistory

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
    evidence: Annotated[Sequence[str], EVIDENCE] = (),
    report: Annotated[Path | None, REPORT] = None,
    only_rank: Annotated[
        int | None, Option("-r, --rank", "Only findings about this rank, and its row first.", metavar="R", minimum=0)
    ] = None,
) -> TriageInWords:
    """Asks the engine, and keeps the verdict on a stored job for the list of jobs and for the full screen.

    Raises UsageError where the report's file cannot be written, InputError where named evidence cannot be read.
    """
    from kair_tui.cli.step_history import UNSAMPLED

    require_form(report)
    if only_rank is not None:
        require_rank(trace, only_rank)
    found, history = _with_history(trace, gpu_cost)
    if baseline is not None and trace.steps:
        from kair_engine.comparison.analysis import with_baseline

        found = with_baseline(found, trace, baseline)
    found = with_evidence(trace, _with_devices(found, trace), evidence)
    found = _with_differences(found, trace, baseline)
    result = triage_in_words(_with_ledger(trace, replace(found, confirmed=_confirmed(trace, found)), history))
    if trace.job.stored_in is not None and trace.steps == trace.job.steps and trace.job.format != UNSAMPLED:
        from kair_engine.store.kept_answers import keep_triage, keep_verdict

        keep_verdict(Path(trace.job.stored_in), result.verdict, result.summary)
        # A job that stands still may go on, and the history of steps grows, while the recording is the same.
        # So does evidence, which is joined anew each time.
        is_whole = bool(found.steps or trace.job.progress) and not found.history_steps
        if gpu_cost is None and is_whole and not has_evidence(trace.job, evidence):
            keep_triage(Path(trace.job.stored_in), found)
    if report is not None:
        from kair_tui.commands.triage_report import report_of

        write_report(report, report_of(trace, result, gpu_cost))
    return result if only_rank is None else _about(result, only_rank)


def markdown(trace: Trace, result: TriageInWords, own: Mapping[str, Any]) -> str:
    """The report of the answer, as `-o md` writes it."""
    from kair_tui.commands.triage_report import report_of
    from kair_tui.render.report.markdown import markdown as in_markdown

    return in_markdown(report_of(trace, result, own["gpu_cost"]))


def _about(result: TriageInWords, rank: int) -> TriageInWords:
    """The answer with what is found about one rank; the verdict, and what all costs together, stay the job's."""
    findings = tuple(one for one in result.findings if rank in (*one.ranks, *one.seen_on))
    ranking = sorted(result.ranking, key=lambda row: row.rank != rank)
    return replace(result, findings=findings, ranking=tuple(ranking))


def _with_devices(found: TriageResult, trace: Trace) -> TriageResult:
    """With what to look up the devices of what was found by."""
    if not found.findings:
        return found
    from kair_engine.evidence.devices import with_devices
    from kair_tui.cli.identities import identities_of

    return with_devices(found, identities_of(trace.job))


def _with_differences(found: TriageResult, trace: Trace, baseline: ChosenBaseline | None) -> TriageResult:
    """With what differs between ranks, and what changed since the attempt before and since the baseline was saved."""
    from kair_tui.cli.identities import all_identities_of, identities_of

    identities = identities_of(trace.job)
    if not identities:
        return found
    from kair_engine.evidence.changes import changes, last_attempts
    from kair_engine.evidence.differences import differences

    accused = {rank for one in found.findings for rank in one.ranks}
    told = [*differences(identities, accused, {row.rank: row.role for row in found.ranking})]
    attempts = last_attempts(all_identities_of(trace.job))
    told += changes(attempts.before, attempts.now, str(attempts.number), "attempt", accused)
    if baseline is not None:
        told += changes(baseline.profile.identity, identities, baseline.name, "job", accused)
    return replace(found, differences=tuple(told))


def _with_ledger(trace: Trace, found: TriageResult, history: "StepHistory | None") -> TriageResult:
    """With how earlier prices came out, and the records of the job's devices; what it predicts is put down."""
    is_whole = trace.steps == trace.job.steps and bool(found.steps or found.history_steps)
    if trace.job.stored_in is None or not is_whole:
        return found
    from kair_tui.cli.ledger import put_down

    return put_down(trace.job, found, history)


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


def _with_history(trace: Trace, gpu_cost: float | None) -> "tuple[TriageResult, StepHistory | None]":
    """What the sampled steps say together with all others, and these; of chosen steps alone, what these say."""
    from kair_engine.triage.analysis import triage
    from kair_engine.triage.history.analysis import joined, triage_of_rows
    from kair_engine.whatif.prices import require_cost
    from kair_tui.cli.step_history import UNSAMPLED, hang_of, history_of

    if trace.steps == trace.job.steps and (stands := hang_of(trace.job)) is not None:
        return stands, None
    history = history_of(trace.job) if trace.steps == trace.job.steps else None
    if trace.job.format == UNSAMPLED and history is not None:
        require_cost(gpu_cost)
        return triage_of_rows(history, trace.job, gpu_cost), history
    found = triage(trace, gpu_cost=gpu_cost)
    if history is not None and not trace.job.progress:
        found = joined(found, history, trace.job, gpu_cost)
    return found, history
