"""Whether ranks that seem to number their steps otherwise do: they meet the others in the collectives of a step.

A rank that works on after the last collective of a step begins the next one late. By more than half a step, and it runs
most of it while the others run the one after.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

_TIMES_AS_EVEN: Final = 2.0
"""Ends must lie so many times as evenly apart with other numbers before a rank's own give way: chance does less."""
_Ends = Mapping[int, int]
"""Step, as the rank numbers it → when its last collective ended."""


def borne_out(more: Mapping[int, int], hosts: Mapping[int, str], fragments: Sequence[Path]) -> dict[int, int]:
    """Of `more` (rank → by how much it seems to number its steps higher) those whose collectives end as it says.

    Beside those of a rank of its host that numbers its steps as most do. A rank that communicates nothing is believed.
    """
    usual = {hosts[rank]: rank for rank in sorted(hosts, reverse=True) if rank not in more}
    beside = {rank: usual[hosts[rank]] for rank in more if hosts.get(rank) in usual}
    ends = _ends({*beside, *beside.values()}, fragments)
    return {
        rank: off
        for rank, off in more.items()
        if rank not in beside or _is_so(ends.get(rank, {}), ends.get(beside[rank], {}), off)
    }


def _is_so(ends: _Ends, others: _Ends, more: int) -> bool:
    """Whether the ends lie more evenly apart with the steps' common numbers than with the rank's own.

    Not nearer to one another: equal host names are no proof of one clock.
    """
    renumbered, own = (
        [end - others[step - off] for step, end in sorted(ends.items()) if step - off in others] for off in (more, 0)
    )
    return not own or not renumbered or _TIMES_AS_EVEN * _scatter(renumbered) < _scatter(own)


def _scatter(apart: Sequence[int]) -> float:
    """Median change from one step to the next: clocks drift, and are set."""
    return median(abs(then - one) for one, then in pairwise(apart)) if len(apart) > 1 else float("inf")


def _ends(ranks: set[int], fragments: Sequence[Path]) -> dict[int, dict[int, int]]:
    if not ranks:
        return {}
    import polars as pl  # for few jobs

    wanted = pl.col("rank").is_in(sorted(ranks)) & (pl.col("kind").cast(pl.String) == "collective")
    last = (pl.col("start_ns") + pl.col("duration_ns")).max()
    rows = pl.scan_parquet(list(fragments)).filter(wanted).group_by("rank", "step").agg(last.alias("end")).collect()
    found: dict[int, dict[int, int]] = {}
    for rank, step, end in rows.iter_rows():
        found.setdefault(rank, {})[step] = end
    return found
