"""Write a job to files that other programs, or other people, open."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kair.app.answers.whatif import asked_model
from kair.app.jobs import blaming_files
from kair.app.question import Given
from kair_engine.errors import InputError, UsageError
from kair_engine.ranks import Rank
from kair_engine.recording.opening import open_trace
from kair_engine.trace.files import named_file
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage

if TYPE_CHECKING:
    from kair_engine.export.donation import Donated
    from kair_engine.export.writing import Exported
    from kair_engine.results.query import QueryResult
    from kair_engine.results.triage import Finding, TriageResult

_ALIKE: Final = 1e-6
"""Prices of a job and of its gift differ by no more than this share."""


def export_job(trace: Trace, file: Path, *, plain: bool = False) -> "Exported":
    """Write the timeline or the table of operations, by the file's ending. Raises UsageError, UnwritableError."""
    from kair.app.step_history import require_sampled
    from kair_engine.export.writing import export

    require_sampled(trace, "kair export")
    with blaming_files(trace):
        return export(trace, file, plain=plain)


def export_timeline(trace: Trace, file: Path, *, plain: bool = False) -> "Exported":
    """Write the timeline for Perfetto. Raises UsageError for another file ending, UnwritableError."""
    from kair_engine.export.writing import SUFFIXES

    endings = [suffix for suffix, kind in SUFFIXES.items() if kind == "timeline"]
    if not file.name.lower().endswith(tuple(endings)):
        raise UsageError(f"{file.name} is no name of a file for Perfetto", f"end it with {', '.join(endings)}")
    return export_job(trace, file, plain=plain)


def donate_job(trace: Trace, file: Path | None) -> "tuple[Donated, TriageResult]":
    """Write an anonymous copy of the job, if it has the same verdict and price; without `file`, only check that.

    Raises UsageError if the file exists or has another ending, InputError if the copy's verdict differs,
    UnwritableError.
    """
    from kair.app.step_history import require_sampled
    from kair_engine.export.donation import SUFFIX, donate

    require_sampled(trace, "kair donate")
    if file is not None and not file.name.endswith(SUFFIX):
        raise UsageError(f"{file.name}: a gift's name ends in {SUFFIX}")
    if file is not None and file.exists():
        raise UsageError(f"{file} exists", "name another file, or remove it")
    with blaming_files(trace), tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / f"gift{SUFFIX}"
        with made.open("wb") as opened:
            donated = donate(trace, opened)
        found = _same_verdict(trace, open_trace(made, cache=Path(folder) / "cache"), donated.operators)
        if file is not None:
            with named_file(file, replace=False) as opened, made.open("rb") as whole:
                shutil.copyfileobj(whole, opened)
    return donated, found


def _same_verdict(trace: Trace, gift: Trace, operators: Mapping[str, str]) -> "TriageResult":
    """Return the job's triage. Raises InputError where the gift's differs."""
    mine, of_gift = triage(trace), triage(gift)
    pairs = list(zip(mine.findings, of_gift.findings, strict=False))
    is_same = (
        (mine.verdict, len(mine.findings)) == (of_gift.verdict, len(of_gift.findings))
        and all(_said_of(one, operators) == _said_of(other, {}) for one, other in pairs)
        and all(isclose(one.time_lost_us_per_step, other.time_lost_us_per_step, rel_tol=_ALIKE) for one, other in pairs)
        and all(isclose(one.throughput_gain, other.throughput_gain, rel_tol=_ALIKE) for one, other in pairs)
        and [(one.rank, one.flagged) for one in mine.ranking] == [(one.rank, one.flagged) for one in of_gift.ranking]
    )
    if not is_same:
        raise InputError(
            "the verdict goes by names that a gift leaves out: nothing is written",
            "the names that stay are in kair_engine/export/donation_names.json",
        )
    return mine


def _said_of(finding: "Finding", operators: Mapping[str, str]) -> tuple[object, ...]:
    operator = finding.operator
    named = operator if operator is None else operators.get(operator, operator)
    return finding.cause, finding.pattern, finding.ranks, finding.steps, named


def write_rows(result: "QueryResult", file: Path) -> None:
    """Write all rows of a query, by the file's ending. Raises UsageError, UnwritableError."""
    from kair.app.querying import Selection, format_of

    form = format_of(file)
    with named_file(file) as opened:
        Selection.holding(result).write(opened, form)


def write_timelines(
    given: Given, file: Path, *, fix: Sequence[str] = (), scale: Sequence[str] = (), of_rank: Rank | None = None
) -> None:
    """Write the recorded and the ideal timeline of the what-if model for Perfetto. Raises UnwritableError."""
    from kair_engine.export import writing

    writing.write_timelines(asked_model(given, fix, scale, of_rank), file)
