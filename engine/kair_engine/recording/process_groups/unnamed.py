"""The process groups of collectives that name none, from the threads they ran on and the times they took.

Each of gloo's process groups has worker threads of its own, so what runs on one thread is of one group, and so is the
same call of every step. Collectives thus fall into sets, and of each set the ranks that leave together show the groups.
"""

import re
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Ints
from kair_engine.recording.process_groups.exit_times import Visits, choose
from kair_engine.recording.process_groups.families import Family
from kair_engine.recording.process_groups.rank_clocks import aligned
from kair_engine.timeline.collectives import ordinal
from kair_engine.trace.columns import Columns
from kair_engine.trace.model import Job

# Of the others a root or a leaf may leave early.
_LEFT_TOGETHER: Final = re.compile(r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier")
_OF_ONE_SIZE: Final = re.compile(r"(?i)all_?reduce|barrier")
"""Collectives to which every member brings as much."""
_MOST_COLLECTIVES: Final = 400
"""Of a set of collectives as many as are looked at."""

_Key = tuple[int, int, int]
"""A call of a step: name, bytes, and which of those with both."""


def groups_of_lanes(rows: Columns, known: Sequence[Family], job: Job) -> tuple[dict[int, dict[str, str]], int]:
    """rank → lane → group, for the lanes of the collectives in `rows`; and how many of them have no known group.

    `rows` are in order of (rank, step, start).
    """
    rows = rows.chosen(rows.is_any("kind", ("collective",)))
    if not len(rows):
        return {}, 0
    keys = _keys(rows)
    rank, lane = rows.of["rank"].tolist(), rows.text("lane")
    sets = _sets(list(zip(rank, lane, strict=True)), keys)
    of_lane: dict[int, dict[str, str]] = {}
    unknown = 0
    for of_set, family in zip(sets, _families_of(rows, sets, keys, known, job), strict=True):
        members = of_set.tolist()
        if family is None:
            unknown += len(members) if len({rank[row] for row in members}) > 1 else 0
            continue
        for row in members:
            of_lane.setdefault(rank[row], {})[lane[row]] = family.of_rank[rank[row]].name
    return of_lane, unknown


def _keys(rows: Columns) -> list[_Key]:
    rank, step, name, size = (rows.of[column].astype(np.int64) for column in ("rank", "step", "name", "bytes"))
    turn = ordinal(np.stack((rank, step, name, size)))
    return list(zip(name.tolist(), size.tolist(), turn.tolist(), strict=True))


def _sets(lanes: Sequence[tuple[int, str]], keys: Sequence[_Key]) -> list[Ints]:
    """The rows that ran in one group each: on one lane of a rank, or as the same call of a step."""
    leader: dict[_Key, _Key] = {key: key for key in keys}

    def first(key: _Key) -> _Key:
        while leader[key] != key:
            leader[key] = key = leader[leader[key]]
        return key

    of_lane: dict[tuple[int, str], _Key] = {}
    for lane, key in zip(lanes, keys, strict=True):
        leader[first(key)] = first(of_lane.setdefault(lane, key))
    sets: dict[_Key, list[int]] = {}
    for row, key in enumerate(keys):
        sets.setdefault(first(key), []).append(row)
    return [np.array(rows, dtype=np.int64) for rows in sets.values()]


def _families_of(
    rows: Columns, sets: Sequence[Ints], keys: Sequence[_Key], known: Sequence[Family], job: Job
) -> list[Family | None]:
    """The family of each set, where the times show it.

    What they show at once puts ranks on one clock; on that, more can be told.
    """
    telling = rows.is_any("name", [name for name in rows.texts["name"] if _LEFT_TOGETHER.search(name)])
    alike = rows.is_any("name", [name for name in rows.texts["name"] if _OF_ONE_SIZE.search(name)])
    visits = [_visits(rows, of_set[telling[of_set]], keys) for of_set in sets]
    whole = [bool(alike[of_set].all()) for of_set in sets]
    found = [_family_of(one, known, job.ranks, whole=of) for one, of in zip(visits, whole, strict=True)]
    decided = [(one, family) for one, family in zip(visits, found, strict=True) if family is not None]
    if not decided or None not in found:
        return found
    return [
        family or _family_of(one, known, job.ranks, whole=of)
        for one, family, of in zip(aligned(visits, decided), found, whole, strict=True)
    ]


def _family_of(visits: Visits, known: Sequence[Family], recorded: Collection[int], *, whole: bool) -> Family | None:
    """`whole` where no member of a group can have called with another size: then all of them are among the ranks."""
    rivals = [family for family in known if family.pairs(visits.ranks)]
    candidates = [family for family in rivals if family.divides(visits.ranks, recorded)]
    return choose(visits, candidates, candidates if whole else rivals)


def _visits(rows: Columns, of_set: Ints, keys: Sequence[_Key]) -> Visits:
    """The rows `of_set` as a table of calls, in order, and ranks.

    Every rank has a clock of its own, be the names of their hosts equal: containers are all called `localhost`.
    """
    rank, step, duration = (rows.of[name][of_set] for name in ("rank", "step", "duration_ns"))
    since = rows.of["start_ns"] - rows.of["start_ns"].min()
    ranks, place = np.unique(rank, return_inverse=True)
    calls = [(int(number), keys[row]) for number, row in zip(step, of_set.tolist(), strict=True)]
    order = {call: at for at, call in enumerate(dict.fromkeys(sorted(calls, key=lambda call: call[0])))}
    at = np.array([order[call] for call in calls], dtype=np.int64)
    start = np.full((len(order), len(ranks)), np.nan)
    end = np.full_like(start, np.nan)
    start[at, place.reshape(-1)] = since[of_set]
    end[at, place.reshape(-1)] = since[of_set] + duration
    clock = ranks.astype(np.int64)
    return Visits(tuple(ranks.tolist()), clock, start[:_MOST_COLLECTIVES], end[:_MOST_COLLECTIVES])
