"""Two rules that other tools use, re-implemented from their descriptions, and one remedy for the first."""

import math

import numpy as np
import numpy.typing as npt
import polars as pl
from recording import Columns
from scoring import Answer, Claim

Floats = npt.NDArray[np.float64]

SLOW_BELOW = 0.75
"""A rank whose kernels run at less than this share of the fastest rank's speed is a straggler."""
FALSE_ALARM_RATE = 0.01


def least_waiting(columns: Columns) -> Answer:
    """The straggler is the rank that spends least time in collectives: the others wait there for it.

    There always is one, so this rule accuses somebody of every job. It tells no cause.
    """
    first = int(np.argmin(_collective_time_ns(columns)))
    return Answer("straggler", first, (Claim(None, frozenset({first})),))


def least_waiting_beyond_chance(columns: Columns) -> Answer:
    """The same rank, but accused only where Grubbs' test for one outlier rejects that all ranks are alike at 1 %.

    The rule has no threshold of its own. This one is exact where healthy ranks' times are normally distributed.
    """
    time = _collective_time_ns(columns)
    first = int(np.argmin(time))
    if _lowest_is_outlier(time):
        return Answer("straggler", first, (Claim(None, frozenset({first})),))
    return Answer("no_straggler", first, ())


def slow_kernels(columns: Columns) -> Answer:
    """Stragglers are the ranks whose kernels, by their medians, run below 75 % of the fastest rank's speed."""
    speed = _relative_speed(columns)
    claims = tuple(Claim("compute", frozenset({int(rank)})) for rank in np.flatnonzero(speed < SLOW_BELOW))
    return Answer("straggler" if claims else "no_straggler", int(np.argmin(speed)), claims)


def _collective_time_ns(columns: Columns) -> Floats:
    """Per rank, over the whole recording."""
    chosen = columns.arrays["kind"] == columns.texts["kind"].index("collective")
    return np.bincount(columns.arrays["rank"][chosen], weights=columns.duration_ns[chosen].astype(float))


def _lowest_is_outlier(values: Floats) -> bool:
    """Grubbs' test, one-sided."""
    count, spread = len(values), float(values.std(ddof=1))
    if count < 3 or spread == 0:
        return False
    # Loads for a third of a second, which those that only read this module do without.
    from scipy.special import stdtrit

    critical = float(stdtrit(count - 2, FALSE_ALARM_RATE / count)) ** 2
    bound = (count - 1) / math.sqrt(count) * math.sqrt(critical / (count - 2 + critical))
    return bool((values.mean() - values.min()) / spread > bound)


def _relative_speed(columns: Columns) -> Floats:
    """Per rank, of the kernels of a simulated job."""
    kinds = columns.texts["kind"]
    compute = [kinds.index(kind) for kind in ("compute", "memory") if kind in kinds]
    chosen = np.isin(columns.arrays["kind"], compute)
    frame = pl.DataFrame(
        {"rank": columns.arrays["rank"][chosen], "name": columns.arrays["name"][chosen]}
        | {"duration": columns.duration_ns[chosen]}
    )
    return relative_speed(frame).drop("rank").to_series().to_numpy()


def relative_speed(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return (rank, speed): the fastest rank's median duration / its own, over the kernels that all ranks run.

    `kernels` has rank, name and duration, a row each. The mean over kernels is weighted by the rank's total time in
    each. Communication is to be left out, as those who use the rule do: there the fast ranks wait.
    """
    ranks = kernels["rank"].n_unique()
    of_kernel = (
        kernels.group_by("name", "rank")
        .agg(pl.col("duration").median().alias("median"), pl.col("duration").sum().alias("total"))
        .with_columns(fastest=pl.col("median").min().over("name"), run_by=pl.len().over("name"))
        .filter(pl.col("run_by") == ranks)
    )
    ratio = pl.col("fastest") / pl.col("median")
    mean = (ratio * pl.col("total")).sum() / pl.col("total").sum()
    return of_kernel.group_by("rank").agg(speed=mean).sort("rank")
