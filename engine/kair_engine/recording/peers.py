"""Decides whether recordings number the peers of sends and receives as ranks of the job or as places in a group.

One rank's numbers can fit both. All ranks of a job follow the same convention: what others show holds for it too. If
none shows it, sends have matching receives only under the right convention.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from kair_engine.ranks import Rank
from kair_engine.trace.group_names import listed_ranks
from kair_engine.trace.model import FragmentInfo

_Transfers = Mapping[tuple[int, str, int], tuple[int, int]]
"""(rank, group, the peer's place in it) → the numbers of sends and receives."""


def peers_are_ranks(infos: Sequence[FragmentInfo], fragments: Sequence[Path]) -> tuple[Rank, ...]:
    """Return the ranks whose peers were taken for places though they are ranks."""
    of_rank = {Rank(rank): counted for info in infos for rank, counted in info.peers.items()}
    open_ = tuple(sorted(rank for rank, counted in of_rank.items() if counted == "either"))
    shown = Counter(counted for counted in of_rank.values() if counted != "either")
    if not open_:
        return ()
    if shown:
        return open_ if shown["ranks"] > shown["places"] else ()
    if not all(path.exists() for path in fragments):
        return ()
    transfers = _transfers(fragments)
    return open_ if _unmatched(transfers, as_ranks=True) < _unmatched(transfers, as_ranks=False) else ()


def _transfers(fragments: Sequence[Path]) -> _Transfers:
    import polars as pl  # for few jobs

    kind = pl.col("kind").cast(pl.String)
    rows = pl.scan_parquet(list(fragments)).filter(kind.is_in(["send", "recv"]) & pl.col("peer").is_not_null())
    counted = rows.group_by("rank", pl.col("group").cast(pl.String), "peer").agg(
        (kind == "send").sum().alias("sends"), (kind == "recv").sum().alias("receives")
    )
    found: dict[tuple[int, str, int], tuple[int, int]] = {}
    for rank, group, peer, sends, receives in counted.collect().iter_rows():
        if peer in (ranks := listed_ranks(group)):
            found[rank, group, ranks.index(peer)] = (sends, receives)
    return found


def _unmatched(transfers: _Transfers, *, as_ranks: bool) -> int:
    """Return the number of sends and receives without a counterpart."""
    balance: Counter[tuple[str, int, int]] = Counter()
    for (rank, group, place), (sends, receives) in transfers.items():
        other = place if as_ranks else listed_ranks(group)[place]
        balance[group, rank, other] += sends
        balance[group, other, rank] -= receives
    return sum(map(abs, balance.values()))
