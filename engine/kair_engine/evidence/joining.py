"""What ties evidence to ranks: devices by UUID, else by PCI address, processes by host and pid, pods and jobs by name.

Else the host alone.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kair_engine.results.evidence import JoinedBy
from kair_engine.trace.identity import RankIdentity, uuid_of
from kair_engine.trace.measures import HOST

Joined = tuple[tuple[int, ...], JoinedBy | None]
"""The ranks, ascending, and what ties them to it; none and None where nothing does."""

_NOBODY: Final[Joined] = ((), None)
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


class Joins:
    """Finds the ranks that a row of evidence is of.

    `hosts` is the recording's rank → host. A rank's host may be known by several names: those of the recording and of
    its identity, short or with a domain.
    """

    def __init__(self, identities: Mapping[int, RankIdentity], hosts: Mapping[int, str]) -> None:
        self.ranks: Final = tuple(sorted({*identities, *hosts}))
        self._of: Final = identities
        self._named: Final = _by_key(
            (name.lower(), rank)
            for rank in self.ranks
            for name in (hosts.get(rank), identities[rank].host if rank in identities else None)
            if name
        )
        self._resolved: Final[dict[str, tuple[int, ...]]] = {}
        self._scheduled: Final = _by_key((name, rank) for rank, one in identities.items() for name in one.scheduled)
        self._by_uuid: Final = _by_key((one.device.uuid, rank) for rank, one in identities.items() if one.device.uuid)

    def on_host(self, host: str | None) -> tuple[int, ...]:
        """The ranks of a host, whichever of its names is given; of none, where all ranks share one host, all.

        `node-7` and `node-7.cluster.local` are one host, unless another one begins alike.
        """
        if host is None:
            return self.ranks if len({*self._named.values()}) == 1 else ()
        name = host.lower()
        if name not in self._resolved:
            self._resolved[name] = self._find(name)
        return self._resolved[name]

    def ranks_of(self, host: str | None, entity: str, rank: int | None = None) -> Joined:
        """Whom a row of evidence is of. `rank` is what its source says, where that ran in the rank's own process."""
        kind, _, name = entity.partition(":")
        if entity == HOST or kind in ("nic", "disk"):
            found = self._of_host(host, kind, name)
        elif kind == "gpu":
            found = self._tied(self._by_uuid.get(uuid_of(name) or "", ()), "uuid")
        elif kind == "pci":
            found = self._where(host, lambda one: one.device.pci == name, "pci")
        elif kind == "pid":
            found = self._where(host, lambda one: str(one.pid) == name, "process")
        elif kind in ("pod", "job"):
            found = self._of_scheduler(host, entity)
        elif kind == "gpu index" and _NUMBER.fullmatch(name):
            found = self._of_index(host, int(name))
        elif kind == "rank" and _NUMBER.fullmatch(name):
            found = self._tied((int(name),) if int(name) in self.ranks else (), "rank")
        else:
            found = _NOBODY
        return self._tied((rank,), "rank") if found[1] is None and rank in self.ranks and rank is not None else found

    def _find(self, name: str) -> tuple[int, ...]:
        if name in self._named:
            return self._named[name]
        alike = {ranks for known, ranks in self._named.items() if _is_prefix(known, name) or _is_prefix(name, known)}
        return next(iter(alike)) if len(alike) == 1 else ()

    def _tied(self, ranks: tuple[int, ...], by: JoinedBy) -> Joined:
        return (ranks, by) if ranks else _NOBODY

    def _where(self, host: str | None, fits: Callable[[RankIdentity], bool], by: JoinedBy) -> Joined:
        of = (rank for rank in self.on_host(host) if rank in self._of)
        return self._tied(tuple(rank for rank in of if fits(self._of[rank])), by)

    def _of_host(self, host: str | None, kind: str, name: str) -> Joined:
        """A NIC is of the ranks that use it, where that is told of every rank of its host."""
        ranks = self.on_host(host)
        if kind == "nic" and all(rank in self._of and self._of[rank].nics for rank in ranks):
            device = name.partition("/")[0]
            using = [rank for rank in ranks if any(device == nic.partition("/")[0] for nic in self._of[rank].nics)]
            # One that none of them uses is of the host as a whole: nothing says whom it serves.
            ranks = tuple(using) or ranks
        return self._tied(ranks, "host")

    def _of_scheduler(self, host: str | None, entity: str) -> Joined:
        """A pod's ranks may not know its namespace: then the pod's node must be theirs, where it is told."""
        kind, _, name = entity.partition(":")
        ranks = self._scheduled.get(entity) or self._scheduled.get(f"{kind}:{name.rpartition('/')[2]}", ())
        there = self.on_host(host)
        return self._tied(tuple(rank for rank in ranks if rank in there) if there or host else ranks, "scheduler")

    def _of_index(self, host: str | None, index: int) -> Joined:
        """Drivers number devices by their PCI addresses: where a rank's number is told, that is as good as these.

        Elsewhere the number is assumed to be the local rank.
        """
        found = self._where(host, lambda one: one.device.index == index, "pci")
        if found[1] is not None:
            return found
        return self._where(host, lambda one: one.device.index is None and one.local_rank == index, "local_rank")


def _by_key(pairs: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    found: defaultdict[str, set[int]] = defaultdict(set)
    for key, rank in pairs:
        found[key].add(rank)
    return {key: tuple(sorted(ranks)) for key, ranks in found.items()}


def _is_prefix(short: str, long: str) -> bool:
    return long.startswith(f"{short}.")
