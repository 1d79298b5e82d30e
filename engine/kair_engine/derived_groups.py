"""Process groups for communication that names none, from the recordings of all ranks together.

gloo's recordings list a rank's groups, but not which of them an operation ran in. Each group has worker threads of its
own, so what runs on one thread is of one group; which of them, the times tell (leaving_together.py). Sends and receives
name a place in their group: in the right one every send has its receive.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from kair_engine.arrays import NONE, Ints
from kair_engine.collectives import ordinal
from kair_engine.group_families import Family, families
from kair_engine.leaving_together import Visits, choose
from kair_engine.model import DerivedGroups, FragmentInfo, Notice, ProcessGroup, Trace
from kair_engine.notices import notice

if TYPE_CHECKING:
    import polars as pl

# Of the others a root or a leaf may leave early.
_LEFT_TOGETHER: Final = r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier"
_MOST_COLLECTIVES: Final = 400
"""Of collectives that ran in one group, as many as are looked at."""
_AGREEING: Final = 0.9
"""Share of (step, sender, receiver) in which the sends and the receives must be the same."""

Key = tuple[int, int, int]
"""Name, bytes, and which of the step's calls with both."""


def derive(trace: Trace, infos: Sequence[FragmentInfo]) -> tuple[DerivedGroups | None, list[Notice]]:
    """The groups of what names none; None where there is nothing of that kind."""
    groups_of = {rank: info.process_groups for info in infos for rank in info.ranks if info.process_groups}
    if not groups_of:
        return None, []
    rows = _rows(trace, tuple(groups_of))
    known = families(groups_of)
    of_lane, undecided = _groups_of_lanes(rows, known, trace.job.hosts)
    transfers, unsettled = _groups_of_transfers(rows, known)
    found = []
    if undecided:
        text = (
            "all_reduce and other collectives name no process group, and their times fit several of the job's; they are"
        )
        found.append(notice("unknown_process_group", f"{undecided} {text} matched across ranks by their order alone"))
    if unsettled:
        text = "name no process group, and their peers fit none or several; whom they connect is not known"
        found.append(notice("unknown_peers", f"{unsettled} sends and receives {text}"))
    of_transfers = {rank: transfers.of_rank.get(rank) if transfers else None for rank in groups_of}
    return DerivedGroups(of_lane, of_transfers), found


def _rows(trace: Trace, ranks: tuple[int, ...]) -> "pl.DataFrame":
    """Communication on threads that names no group, in order of (rank, step, start)."""
    import polars as pl  # costs 110 ms of start-up, for few jobs

    text = {name: pl.col(name).cast(pl.String) for name in ("kind", "lane", "name")}
    return (
        trace.scan()
        .filter(
            pl.col("rank").is_in(list(ranks)),
            text["kind"].is_in(["collective", "send", "recv"]),
            pl.col("group").is_null(),
            text["lane"].str.starts_with("thread "),
        )
        .select("rank", "step", "start_ns", "duration_ns", *text.values(), pl.col("bytes", "peer").fill_null(NONE))
        .sort("rank", "step", "start_ns")
        .collect()
    )


def _groups_of_lanes(
    rows: "pl.DataFrame", known: Sequence[Family], hosts: Mapping[int, str]
) -> tuple[dict[int, dict[str, str]], int]:
    """rank → lane → group, and the number of collectives without one."""
    import polars as pl

    rows = rows.filter(pl.col("kind") == "collective")
    if not len(rows):
        return {}, 0
    keys = _keys(rows)
    rank, lane = rows["rank"].to_list(), rows["lane"].to_list()
    together = _one_group(list(zip(rank, lane, strict=True)), keys)
    telling = rows["name"].str.contains(_LEFT_TOGETHER).to_numpy()
    of_lane: dict[int, dict[str, str]] = {}
    undecided = 0
    for part in together:
        family = _family_of(rows, part[telling[part]], keys, known, hosts)
        if family is None:
            undecided += len(part) if len({rank[row] for row in part.tolist()}) > 1 else 0
            continue
        for row in part.tolist():
            of_lane.setdefault(rank[row], {})[lane[row]] = family.of_rank[rank[row]].name
    return of_lane, undecided


def _keys(rows: "pl.DataFrame") -> list[Key]:
    name = np.unique(rows["name"].to_numpy(), return_inverse=True)[1].reshape(-1).astype(np.int64)
    size = rows["bytes"].to_numpy().astype(np.int64)
    rank, step = (rows[column].to_numpy().astype(np.int64) for column in ("rank", "step"))
    turn = ordinal(np.stack((rank, step, name, size)))
    return list(zip(name.tolist(), size.tolist(), turn.tolist(), strict=True))


def _one_group(lanes: Sequence[tuple[int, str]], keys: Sequence[Key]) -> list[Ints]:
    """The rows in sets that ran in one group each: on one lane of a rank, or the same call of a step."""
    leader: dict[Key, Key] = {key: key for key in keys}

    def first(key: Key) -> Key:
        while leader[key] != key:
            leader[key] = key = leader[leader[key]]
        return key

    of_lane: dict[tuple[int, str], Key] = {}
    for lane, key in zip(lanes, keys, strict=True):
        leader[first(key)] = first(of_lane.setdefault(lane, key))
    sets: dict[Key, list[int]] = {}
    for row, key in enumerate(keys):
        sets.setdefault(first(key), []).append(row)
    return [np.array(rows, dtype=np.int64) for rows in sets.values()]


def _family_of(
    rows: "pl.DataFrame", part: Ints, keys: Sequence[Key], known: Sequence[Family], hosts: Mapping[int, str]
) -> Family | None:
    """The family in whose groups the rows `part` ran."""
    if not len(part):
        return None
    columns = {name: rows[name].to_numpy()[part] for name in ("rank", "step", "start_ns", "duration_ns")}
    ranks, place = np.unique(columns["rank"], return_inverse=True)
    steps = columns["step"].tolist()
    number: dict[tuple[int, Key], int] = {}
    for at in np.argsort(steps, kind="stable").tolist():
        number.setdefault((steps[at], keys[part[at]]), len(number))
    call = [number[step, keys[row]] for step, row in zip(steps, part.tolist(), strict=True)]
    start = np.full((len(number), len(ranks)), np.nan)
    end = np.full_like(start, np.nan)
    start[call, place.reshape(-1)] = columns["start_ns"] - columns["start_ns"].min()
    end[call, place.reshape(-1)] = columns["start_ns"] - columns["start_ns"].min() + columns["duration_ns"]
    among = tuple(ranks.tolist())
    host_code = {host: code for code, host in enumerate(sorted(set(hosts.values())))}
    clock = np.array([host_code[hosts[rank]] if rank in hosts else NONE for rank in among], dtype=np.int64)
    visits = Visits(among, clock, start[:_MOST_COLLECTIVES], end[:_MOST_COLLECTIVES])
    recorded = frozenset(rows["rank"].to_list())
    rivals = [family for family in known if family.pairs(among)]
    candidates = [family for family in rivals if family.divides(among, recorded)]
    return choose(visits, candidates, rivals)


def _groups_of_transfers(rows: "pl.DataFrame", known: Sequence[Family]) -> tuple[Family | None, int]:
    """The family in whose groups the sends and receives count their peers, and how many of them have none."""
    import polars as pl

    rows = rows.filter(pl.col("kind") != "collective")
    if not len(rows):
        return None, 0
    fitting = [family for family in known if _agree(rows, family)]
    return (fitting[0], 0) if len(fitting) == 1 else (None, len(rows))


def _agree(rows: "pl.DataFrame", family: Family) -> bool:
    """Whether every send has its receive, counted in the family's groups: the same sizes in the same order."""
    recorded = set(rows["rank"].to_list())
    sent: dict[tuple[int, int, int], list[int]] = {}
    received: dict[tuple[int, int, int], list[int]] = {}
    for rank, step, kind, size, peer in rows.select("rank", "step", "kind", "bytes", "peer").iter_rows():
        group = family.of_rank.get(rank)
        other = member(group, peer) if group is not None else None
        if other is None or other == rank:
            return False
        if other in recorded:
            ends = (rank, other) if kind == "send" else (other, rank)
            (sent if kind == "send" else received).setdefault((step, *ends), []).append(size)
    links = sent.keys() | received.keys()
    return bool(links) and sum(sent.get(link) == received.get(link) for link in links) >= _AGREEING * len(links)


def member(group: ProcessGroup, place: int) -> int | None:
    """The rank at `place` in the group; None where there is no such place."""
    return group.ranks[place] if 0 <= place < len(group.ranks) else None
