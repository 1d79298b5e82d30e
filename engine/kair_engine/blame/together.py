"""Blame of ranks that belong together: of a host, and of a group of the job's layout that is late as one."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kair_engine.causes import Cause
from kair_engine.ranks import Rank
from kair_engine.results.blame import GroupBlame, GroupKind, HostBlame, RankBlame
from kair_engine.trace.model import Layout

_EVENLY: Final = 0.5
"""Of what the mean rank of a group explains: a rank that explains less is not late together with the others."""
Key = tuple[Rank, str | None, Cause, bool]
"""What identifies a root cause: rank, operator, cause, whether it is an edge."""


def by_host(by_rank: Sequence[RankBlame], hosts: Mapping[int, str]) -> tuple[HostBlame, ...]:
    """Return the ranks' blame summed by host, the most first; empty where no two hosts are known."""
    if len({*hosts.values()}) < 2:
        return ()
    of_host: dict[str, list[RankBlame]] = defaultdict(list)
    for row in by_rank:
        if row.rank in hosts:
            of_host[hosts[row.rank]].append(row)
    summed = (HostBlame(host, tuple(sorted(row.rank for row in rows)), *_sums(rows)) for host, rows in of_host.items())
    return tuple(sorted(summed, key=lambda one: (-one.blamed_us, one.host)))


def by_group(
    by_rank: Sequence[RankBlame], blamed: Mapping[Key, float], layout: Layout | None, ranks: Sequence[int]
) -> tuple[GroupBlame, ...]:
    """Return the groups of the layout whose ranks are late as one, the most first; no two share a rank.

    All ranks of such a group explain more waiting than the mean of the job's `ranks`, about as much each, and of each
    the largest root cause is in the same operator, for the same cause.
    """
    if layout is None:
        return ()
    of_rank = {row.rank: row for row in by_rank}
    largest, usual_us = _largest(blamed), sum(row.blamed_us for row in by_rank) / max(len(ranks), 1)
    found = []
    for kind, name, members in _groups(layout, ranks):
        rows = [of_rank[rank] for rank in members if rank in of_rank]
        if 1 < len(rows) == len(members) and _as_one(rows, largest, usual_us):
            found.append(GroupBlame(kind, name, members, *_sums(rows)))
    chosen: list[GroupBlame] = []
    for one in sorted(found, key=lambda one: -one.blamed_us):
        if not any({*one.ranks} & {*other.ranks} for other in chosen):
            chosen.append(one)
    return tuple(chosen)


def _sums(rows: Sequence[RankBlame]) -> tuple[float, float, int]:
    """Return (blamed time in µs, share of all waiting, how often one of them arrived last)."""
    return sum(row.blamed_us for row in rows), sum(row.share for row in rows), sum(row.arrived_last for row in rows)


def _largest(blamed: Mapping[Key, float]) -> dict[int, Key]:
    largest: dict[int, Key] = {}
    for key, time in blamed.items():
        if key[0] not in largest or time > blamed[largest[key[0]]]:
            largest[key[0]] = key
    return largest


def _as_one(rows: Sequence[RankBlame], largest: Mapping[int, Key], usual_us: float) -> bool:
    mean = sum(row.blamed_us for row in rows) / len(rows)
    least = min(row.blamed_us for row in rows)
    reasons = {largest[row.rank][1:] if row.rank in largest else None for row in rows}
    operator = next(iter(reasons))
    names_one = len(reasons) == 1 and operator is not None and operator[0] is not None
    return names_one and least > usual_us and least >= _EVENLY * mean


def _groups(layout: Layout, ranks: Sequence[int]) -> Iterator[tuple[GroupKind, str, tuple[Rank, ...]]]:
    """Yield (kind, name, ranks) of the groups that the layout has, as far as ranks' places are known."""
    stages, replicas, places = (defaultdict[object, list[Rank]](list) for _ in range(3))
    for rank in map(Rank, sorted(ranks)):
        stage, replica = layout.pipeline_stage.get(rank), layout.dp_rank.get(rank)
        if stage is not None:
            stages[f"pp {stage}"].append(rank)
        if replica is not None:
            replicas[f"dp {replica}"].append(rank)
        if (layout.tp or 1) > 1 and (stage, replica) != (None, None):
            known = (("pp", stage), ("dp", replica))
            places[" ".join(f"{name} {place}" for name, place in known if place is not None)].append(rank)
    kinds: tuple[tuple[GroupKind, Mapping[object, list[Rank]]], ...] = (
        ("data_parallel_rank", replicas),
        ("pipeline_stage", stages),
        ("tensor_parallel_group", places),
    )
    for kind, groups in kinds:
        yield from ((kind, str(name), tuple(members)) for name, members in groups.items())
