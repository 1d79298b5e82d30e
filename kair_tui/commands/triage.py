"""`kair triage`: runs the whole investigation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kair.app.question import Answer, Question
from kair_engine.errors import UsageError
from kair_engine.results.money import GpuCost
from kair_engine.results.triage import TriageResult
from kair_engine.trace.files import named_file
from kair_tui.cli.options import EVIDENCE, GPU_COST, Option
from kair_tui.commands.report_file import REPORT, require_form, write_report
from kair_tui.render.triage import triage_in_words

if TYPE_CHECKING:
    from kair_tui.cli.asking import Asker

RENDERER = "kair_tui.render.triage"


def run(
    *,
    gpu_cost: Annotated[GpuCost | None, GPU_COST] = None,
    evidence: Annotated[Sequence[str], EVIDENCE] = (),
    report: Annotated[Path | None, REPORT] = None,
    certificate: Annotated[
        Path | None,
        Option(
            "--certificate",
            "Also write the figures from which the verdict follows; kair verify checks them without the traces.",
            metavar="FILE",
        ),
    ] = None,
    only_rank: Annotated[
        int | None,
        Option("-r, --rank", "Show only findings about this rank, and its row first.", metavar="R", minimum=0),
    ] = None,
) -> Question:
    """Return the question. Raises UsageError for a report without form or folder, or a certificate of one rank."""
    require_form(report)
    if certificate is not None and only_rank is not None:
        raise UsageError("a certificate is of the whole verdict, not of one rank: leave out --rank")
    return Question.of("triage", gpu_cost=gpu_cost, evidence=evidence, only_rank=only_rank)


def finish(asker: "Asker", answer: Answer, own: Mapping[str, Any]) -> None:
    """Write the requested files. Raises UsageError or UnwritableError if that is impossible."""
    if own["certificate"] is not None:
        from kair_tui.commands.verify import certificate_of

        with named_file(own["certificate"]) as file:
            file.write(certificate_of(asker.session, answer))
    if own["report"] is not None:
        from kair_tui.commands.triage_report import report_of

        write_report(own["report"], report_of(asker, answer.result, own["gpu_cost"]))


def markdown(asker: "Asker", answer: Answer, own: Mapping[str, Any]) -> str:
    """Return the report on the answer, as `-o md` writes it."""
    from kair_tui.commands.triage_report import report_of
    from kair_tui.render.report.templates import markdown as in_markdown

    return in_markdown(report_of(asker, answer.result, own["gpu_cost"]))


def in_words(answer: Answer) -> TriageResult:
    """Return the result as text for people, of one rank if that was requested."""
    from kair.app.investigate import about

    result, only = triage_in_words(answer.result), answer.question.argument("only_rank")
    return result if only is None else about(result, only)
