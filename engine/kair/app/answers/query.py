"""The answer to a query in SQL over the job's tables."""

from kair.app.question import Given
from kair_engine.errors import UsageError
from kair_engine.results.query import QueryResult


def query(given: Given, *, sql: str | None = None, tables: bool = False) -> QueryResult:
    """Return the rows of a query, or what the tables are.

    Triage runs only for a query that names its findings. Raises UsageError for a query that does anything but read.
    """
    from kair.app.investigate import triage
    from kair.app.querying import described, select

    if tables:
        return described()
    if sql is None:
        raise UsageError("no query")
    return select(sql, given.trace, lambda: triage(given)[0].findings)
