"""Queries of the whole operations table, streamed by Polars; imported on demand.

Importing Polars takes 0.1 s, and a query of 10⁷ operations a few tenths of a second and the memory of its answer.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from kair_engine.arrays import Ints
from kair_engine.frozen import dataclass
from kair_engine.trace.format import KINDS, STEP_SCOPE
from kair_engine.trace.model import Trace


def gc_times(trace: Trace) -> tuple[int, int]:
    """Return the total time of all garbage collections of the chosen steps, and the longest one, ns."""
    duration = pl.col("duration_ns")
    rows = (
        trace.scan().filter(pl.col("kind") == "gc").select(duration.sum(), duration.max().fill_null(0).alias("longest"))
    )
    return rows.collect(engine="streaming").row(0)


def counted_in_windows(
    rows: pl.LazyFrame, time: pl.Expr, ranks: Ints, *, origin_ns: Ints, window_ns: float, windows: int
) -> Ints:
    """Count rows by rank and window of their time, (ranks × windows), inside the scan, so that no operation is kept.

    The first window begins at the rank's origin; times beyond the outermost windows count in these.
    """
    origins = pl.LazyFrame({"rank": ranks.astype(np.int32), "origin": origin_ns})
    window = ((time - pl.col("origin")) / window_ns).floor().clip(0, windows - 1).cast(pl.Int64)
    counts = rows.join(origins, on="rank").group_by("rank", window.alias("window")).len().collect(engine="streaming")
    result = np.zeros((len(ranks), windows), dtype=np.int64)
    result[np.searchsorted(ranks, counts["rank"].to_numpy()), counts["window"].to_numpy()] = counts["len"]
    return result


@dataclass(frozen=True)
class OperationsByKind:
    """The number of operations of each rank in each step, by kind."""

    counts: pl.DataFrame
    """rank, step, kind and operations."""

    def per(self, column: str, kinds: Sequence[str] = KINDS) -> dict[Any, int]:
        """Return the number of operations of these kinds by the values of a column, in their order."""
        rows = self.counts.filter(pl.col("kind").is_in(kinds)).group_by(column).agg(pl.col("operations").sum())
        return dict(rows.sort(column).iter_rows())

    @property
    def steps_of_ranks(self) -> dict[int, int]:
        """Return rank → the number of its steps with operations."""
        return dict(self.counts.group_by("rank").agg(pl.col("step").n_unique()).iter_rows())


def operations_by_kind(trace: Trace) -> OperationsByKind:
    """Count the operations of the chosen steps, without the rows that mark steps."""
    kind = pl.col("kind").cast(pl.String)
    if trace.job.communicates:
        unnamed = pl.col("name").is_in(list(trace.job.communicates)) & (kind == "compute")
        kind = pl.when(unnamed).then(pl.lit("collective")).otherwise(kind)
    rows = trace.scan().filter((pl.col("name") != STEP_SCOPE) & pl.col("rank").is_in(list(trace.job.ranks)))
    counts = rows.group_by("rank", "step", kind.alias("kind")).len("operations").collect(engine="streaming")
    return OperationsByKind(counts)
