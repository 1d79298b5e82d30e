"""Write a job to files that other programs open."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kair.app.answers.whatif import asked_model
from kair.app.jobs import blaming_files
from kair.app.question import Given
from kair_engine.ranks import Rank
from kair_engine.trace.model import Trace

if TYPE_CHECKING:
    from kair_engine.export.writing import Exported


def export_job(trace: Trace, file: Path, *, plain: bool = False) -> "Exported":
    """Write the timeline or the table of operations, by the file's ending. Raises UsageError, UnwritableError."""
    from kair_engine.export.writing import export

    with blaming_files(trace):
        return export(trace, file, plain=plain)


def write_timelines(
    given: Given, file: Path, *, fix: Sequence[str] = (), scale: Sequence[str] = (), of_rank: Rank | None = None
) -> None:
    """Write both timelines of the what-if model, recorded and ideal, for Perfetto. Raises UnwritableError."""
    from kair_engine.whatif.analysis import write_timeline

    write_timeline(asked_model(given, fix, scale, of_rank), file)
