"""Which places in communicators are one rank of the job, and which number it has.

A process with one GPU is a rank, whatever communicators it is in. Where one of these holds all processes of the job,
its ranks are the job's. Else processes are numbered by host and process id, in the order of their communicators.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Ints
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.trace.inspector_calls import Member

_NUMBERS: Final = re.compile(r"(\d{1,18})")


@dataclass(frozen=True)
class Who:
    """The ranks of one run, in the order of their numbers."""

    ranks: tuple[Rank, ...]
    hosts: dict[int, str]
    place: Ints
    """Per member: the place of its rank in `ranks`; -1 of those of other runs."""
    world_size: int
    is_numbered: bool
    """Whether no communicator says the job's ranks."""
    left_out: int
    """Processes of other runs, or that met nobody."""


def who_is_who(members: Sequence[Member], last_us: Ints) -> Who:
    """Return the ranks of the largest run, of equally large ones the last: `last_us` is when a member last wrote."""
    process = _processes(members)
    runs = _runs(members, process)
    latest: dict[int, int] = defaultdict(int)
    for run, at in zip(runs, last_us.tolist(), strict=True):
        latest[run] = max(latest[run], at)
    size = {run: len({process[at] for at, of in enumerate(runs) if of == run}) for run in latest}
    chosen = max(latest, key=lambda run: (size[run], latest[run]))
    kept = [at for at, run in enumerate(runs) if run == chosen]
    of_process: dict[Hashable, list[Member]] = defaultdict(list)
    for at in kept:
        of_process[process[at]].append(members[at])
    known = _ranks_of_all(of_process)
    number = known or {key: at for at, key in enumerate(sorted(of_process, key=lambda key: _order(of_process[key])))}
    ordered = sorted(number, key=lambda key: number[key])
    at_place = {key: at for at, key in enumerate(ordered)}
    place = np.full(len(members), -1, np.int64)
    place[kept] = [at_place[process[at]] for at in kept]
    return Who(
        ranks=tuple(Rank(number[key]) for key in ordered),
        hosts={number[key]: host for key in ordered if (host := of_process[key][0].host)},
        place=place,
        world_size=max(len(ordered), *(members[at].size for at in kept)),
        is_numbered=known is None,
        left_out=len(set(process)) - len(ordered),
    )


def _processes(members: Sequence[Member]) -> list[Hashable]:
    """Per member the process; of one with several GPUs, which has several places in a communicator, the place too.

    Without a host a process id says little: then communicators go together if all of their processes are the same.
    """
    places = Counter((one.host, one.pid, one.communicator) for one in members)
    several = {(host, pid) for (host, pid, _), count in places.items() if count > 1}
    pids: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for one in members:
        pids[one.communicator].add((one.rank, one.pid))
    alike = {communicator: frozenset(all_of_it) for communicator, all_of_it in pids.items()}
    return [
        (one.host, one.pid, one.rank if (one.host, one.pid) in several else None)
        if one.host
        else (one.pid, one.rank, alike[one.communicator])
        for one in members
    ]


def _runs(members: Sequence[Member], process: Sequence[Hashable]) -> list[int]:
    """Per member a number, equal for those that communicators tie together."""
    parent = list(range(len(members)))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    for keys in (process, [one.communicator for one in members]):
        first: dict[Hashable, int] = {}
        for at, key in enumerate(keys):
            parent[root(at)] = root(first.setdefault(key, at))
    return [root(at) for at in range(len(members))]


def _ranks_of_all(of_process: dict[Hashable, list[Member]]) -> dict[Hashable, int] | None:
    """Process → its rank in a communicator that all are in; None without one."""
    of: dict[str, dict[Hashable, int]] = defaultdict(dict)
    for key, places in of_process.items():
        for one in places:
            of[one.communicator][key] = one.rank
    whole = [ranks for ranks in of.values() if len(ranks) == len(of_process) == len(set(ranks.values()))]
    return whole[0] if whole else None


def _order(places: Iterable[Member]) -> tuple[int, list[tuple[int, str]], int, int]:
    largest = max(places, key=lambda one: (one.nodes, one.size))
    host = [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(largest.host)]
    return (largest.rank if largest.nodes > 1 else 0, host, largest.pid, largest.rank)
