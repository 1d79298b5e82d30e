"""Write a job to files that other programs open."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kair.app.answers.whatif import asked_model
from kair.app.jobs import blaming_files
from kair.app.question import Given
from kair_engine.ranks import Rank
from kair_engine.trace.files import named_file
from kair_engine.trace.model import Trace

if TYPE_CHECKING:
    from kair_engine.export.writing import Exported
    from kair_engine.results.query import QueryResult


def export_job(trace: Trace, file: Path, *, plain: bool = False) -> "Exported":
    """Write the timeline or the table of operations, by the file's ending. Raises UsageError, UnwritableError."""
    from kair.app.step_history import require_sampled
    from kair_engine.export.writing import export

    require_sampled(trace, "kair export")
    with blaming_files(trace):
        return export(trace, file, plain=plain)


def write_rows(result: "QueryResult", file: Path) -> None:
    """Write all rows of a query, by the file's ending. Raises UsageError, UnwritableError."""
    from kair.app.querying import Selection, format_of

    form = format_of(file)
    with named_file(file) as opened:
        Selection.holding(result).write(opened, form)


def write_timelines(
    given: Given, file: Path, *, fix: Sequence[str] = (), scale: Sequence[str] = (), of_rank: Rank | None = None
) -> None:
    """Write both timelines of the what-if model, recorded and ideal, for Perfetto. Raises UnwritableError."""
    from kair_engine.export import writing

    writing.write_timelines(asked_model(given, fix, scale, of_rank), file)
