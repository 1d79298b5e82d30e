"""Questions of the whole operations table, as streamed Polars queries; imported where one is asked.

Polars' import takes 0.1 s, and a query of 10⁷ operations a few tenths of a second and what its answer takes.
"""

from collections.abc import Sequence

import polars as pl

from kair_engine.trace.format import KINDS
from kair_engine.trace.model import Trace

IS_SCOPE = pl.col("kind") == KINDS[-1]
"""Rows of annotated scopes and of steps: everything else is an operation."""


def of_ranks(trace: Trace, ranks: Sequence[int]) -> pl.Expr:
    """Return the condition that rows are of these ranks."""
    every = len(ranks) == len(trace.job.ranks)
    return pl.lit(value=True) if every and trace.only is None else pl.col("rank").is_in(list(ranks))


def counted(trace: Trace, names: Sequence[str], where: pl.Expr) -> dict[tuple[str, ...], int]:
    """Count the rows of the chosen steps that have the same texts in the columns `names`; the most frequent first.

    Equally many are in the order of their texts, of which null's is empty.
    """
    rows = trace.scan().filter(where).group_by(*names).len("rows").collect(engine="streaming")
    rows = rows.with_columns(pl.col(*names).cast(pl.String).fill_null(""))
    rows = rows.sort("rows", *names, descending=[True, *(False for _ in names)])
    return {tuple(row[:-1]): row[-1] for row in rows.select(*names, "rows").iter_rows()}
