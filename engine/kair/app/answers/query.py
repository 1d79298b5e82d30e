"""The answer to a query in SQL over the job's tables."""

from kair.app.question import Given
from kair_engine.errors import UsageError
from kair_engine.results.query import QueryResult


def query(given: Given, *, sql: str | None = None, tables: bool = False) -> QueryResult:
    """Return the rows of a query; without one, describe the tables.

    Triage runs only if the query names the findings. Raises UsageError for a query that does not only read.
    """
    from kair.app.investigate import triage
    from kair.app.querying import described, select

    if tables:
        return described()
    if sql is None:
        raise UsageError("no query")
    return select(sql, given.trace, lambda: triage(given)[0].findings)
