"""`kair query`: runs SQL over the tables of the job."""

from pathlib import Path
from typing import Annotated, Any

from kair.app.question import Answer, Question
from kair_engine.errors import UsageError
from kair_tui.cli.asking import Asker
from kair_tui.cli.options import Argument, Option

RENDERER = "kair_tui.render.query"


def run(
    *,
    sql: Annotated[str | None, Argument("The query: SELECT, WITH, EXPLAIN or SHOW.", after_job=True)] = None,
    tables: Annotated[bool, Option("--tables", "Describe the tables and their columns, with units.")] = False,
    out: Annotated[
        Path | None,
        Option("--out", "Also write all rows to this file: .parquet, .csv, .arrow or .ndjson.", metavar="FILE"),
    ] = None,
) -> Question:
    """Return the question. Raises UsageError if the SQL does anything but read the tables."""
    from kair.app.querying import format_of, require_read_only

    if tables and (sql is not None or out is not None):
        raise UsageError(f"--tables takes no {'query' if out is None else '--out'}")
    if not tables and sql is None:
        raise UsageError("no query", 'kair query JOB "SELECT * FROM ranks"; kair query --tables lists the tables')
    if sql is not None:
        require_read_only(sql)
    if out is not None:
        format_of(out)
    return Question.of("query", sql=sql, tables=tables)


def finish(asker: Asker, answer: Answer, own: dict[str, Any]) -> None:  # noqa: ARG001
    """Write all rows to the named file. Raises UsageError or UnwritableError if that is impossible."""
    if own["out"] is not None:
        from kair.app.acts.files import write_rows

        write_rows(answer.result, own["out"])
