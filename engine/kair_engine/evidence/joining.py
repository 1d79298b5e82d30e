"""What ties evidence to ranks: devices by UUID, else by PCI address, processes by host and pid, pods and jobs by name.

Else the host alone. A device that a rank is known by no name of is tied by the number that the rank's process gives it,
as an assumption, and only where nothing speaks against that.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from kair_engine.results.evidence import JoinedBy
from kair_engine.trace.evidence_table import NamedDevice
from kair_engine.trace.identity import DeviceIdentity, RankIdentity, uuid_of
from kair_engine.trace.measures import HOST, pci

Joined = tuple[tuple[int, ...], JoinedBy | None]
"""The ranks, ascending, and what ties them to it; none and None where nothing does."""

ASSUMED: Final[frozenset[JoinedBy]] = frozenset({"ordinal", "local_rank"})
"""What ties by an assumption: what it shows may be so, and explains nothing."""
Obstacle = Literal["host", "other_names", "no_device", "no_list", "hidden", "same_number", "no_number"]
"""Why a rank's number of its device is not taken for the driver's: the rank is not known to be of the host; its device
is known by a surer name; the recording names no device of it, or does not list devices of one model that its process
saw; the process saw fewer than the host has; another rank of the host has the same number; the
source tells no numbers."""

_NOBODY: Final[Joined] = ((), None)
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


class Joins:
    """Finds the ranks that a row of evidence is of.

    `hosts` is the recording's rank → host. A rank's host may be known by several names: those of the recording and of
    its identity, short or with a domain.
    """

    def __init__(
        self, identities: Mapping[int, RankIdentity], hosts: Mapping[int, str], devices: Iterable[NamedDevice] = ()
    ) -> None:
        """`devices`: as the sources of evidence call them."""
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
        self._devices: Final[dict[tuple[str | None, str], NamedDevice]] = {}
        for one in devices:
            self._devices[one.host, one.entity] = one
            if one.address is not None:
                self._devices[one.host, pci(one.address)] = one
        self._count: Final[dict[str | None, int]] = {}
        for one in self._devices.values():
            if one.index is not None:
                self._count[one.host] = max(self._count.get(one.host, 0), one.index + 1)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the recording's hosts, in lower case."""
        return tuple(sorted(self._named))

    def on_host(self, host: str | None) -> tuple[int, ...]:
        """Return the ranks of a host, whichever of its names is given; of none, where all ranks share one host, all.

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
        elif kind in ("gpu", "pci") or (kind == "gpu index" and _NUMBER.fullmatch(name)):
            found = self._of_device(host, entity)
        elif kind == "pid":
            found = self._where(host, lambda one: str(one.pid) == name, "process")
        elif kind in ("pod", "job"):
            found = self._of_scheduler(host, entity)
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
        """Return the ranks that use a NIC, where that is known of every rank of its host."""
        ranks = self.on_host(host)
        if kind == "nic" and all(rank in self._of and self._of[rank].nics for rank in ranks):
            device = name.partition("/")[0]
            using = [rank for rank in ranks if any(device == nic.partition("/")[0] for nic in self._of[rank].nics)]
            # One that none of them uses is of the host as a whole: nothing says whom it serves.
            ranks = tuple(using) or ranks
        return self._tied(ranks, "host")

    def _of_scheduler(self, host: str | None, entity: str) -> Joined:
        """Return a pod's ranks may not know its namespace: then the pod's node must be theirs, where it is told."""
        kind, _, name = entity.partition(":")
        ranks = self._scheduled.get(entity) or self._scheduled.get(f"{kind}:{name.rpartition('/')[2]}", ())
        there = self.on_host(host)
        return self._tied(tuple(rank for rank in ranks if rank in there) if there or host else ranks, "scheduler")

    def _of_device(self, host: str | None, entity: str) -> Joined:
        """By the surest of its names that a rank's device is known by; not where a surer one differs.

        Drivers number devices by their PCI addresses: where a rank's number is told, that is as good as these.
        Elsewhere the number is assumed to be the one of the rank's process, else the local rank.
        """
        uuid, address, index = self._names(host, entity)
        if uuid is not None and (ranks := self._by_uuid.get(uuid)):
            return ranks, "uuid"

        def may_be(one: RankIdentity, *, by_address: bool = False) -> bool:
            of = one.device
            return (uuid is None or of.uuid is None) and (by_address or address is None or of.pci is None)

        if address is not None:
            found = self._where(host, lambda one: one.device.pci == address and may_be(one, by_address=True), "pci")
            if found[1] is not None:
                return found
        if index is None:
            return _NOBODY
        found = self._where(host, lambda one: one.device.index == index and may_be(one), "pci")
        if found[1] is not None:
            return found
        numbered = [rank for rank in self._on_numbered_host(host) if rank in self._of and may_be(self._of[rank])]
        by_number = [rank for rank in numbered if self._of[rank].device.ordinal == index]
        if ranks := tuple(rank for rank in by_number if self.obstacle(rank, host) is None):
            return ranks, "ordinal"
        is_local = lambda one: one.device.index is None and one.local_rank == index and may_be(one)  # noqa: E731
        return self._where(host, is_local, "local_rank")

    def obstacle(self, rank: int, host: str | None) -> Obstacle | None:
        """Why a number of a device of `host` is not taken for the one that the rank's process gives it; None: it is."""
        ranks = self._on_numbered_host(host)
        if rank not in ranks:
            return "host"
        own = self._of[rank].device if rank in self._of else DeviceIdentity()
        if any(name is not None for name in (own.uuid, own.pci, own.index)):
            return "other_names"
        if own.ordinal is None:
            return "no_device"
        if own.visible is None:
            return "no_list"
        if own.visible < self._count.get(host, 0):
            return "hidden"
        others = (self._of[one].device.ordinal for one in ranks if one != rank and one in self._of)
        return "same_number" if own.ordinal in others else None

    def can_tell(self, rank: int, host: str | None, entities: Iterable[str]) -> bool:
        """Whether one of these devices of a host has a name of a kind that the rank's device has."""
        own = self._of[rank].device
        names = [self._names(host, entity) for entity in entities]
        mine = (own.uuid, own.pci, own.index)
        return any(theirs is not None and of is not None for one in names for theirs, of in zip(one, mine, strict=True))

    def are_numbered(self, host: str | None, entities: Iterable[str]) -> bool:
        """Whether the driver's number is told of one of these devices of a host."""
        return any(self._names(host, entity)[2] is not None for entity in entities)

    def _names(self, host: str | None, entity: str) -> tuple[str | None, str | None, int | None]:
        """Return a device's UUID, PCI address and the driver's number of it, as far as the sources tell them."""
        kind, _, name = entity.partition(":")
        known = self._devices.get((host, entity), NamedDevice(entity))
        called, _, uuid = known.entity.partition(":")
        return (
            uuid_of(uuid) if called == "gpu" else None,
            name if kind == "pci" else known.address,
            int(name) if kind == "gpu index" else known.index,
        )

    def _on_numbered_host(self, host: str | None) -> tuple[int, ...]:
        """Return the ranks of a host by whose numbers devices are looked up; all where neither side can mean another
        host.

        That is so where the recording names no host and the evidence tells of one at most: two hosts would have two
        ranks of each number.
        """
        if not self._named and len({one.host for one in self._devices.values()}) <= 1:
            return self.ranks
        return self.on_host(host)


def _by_key(pairs: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    found: defaultdict[str, set[int]] = defaultdict(set)
    for key, rank in pairs:
        found[key].add(rank)
    return {key: tuple(sorted(ranks)) for key, ranks in found.items()}


def _is_prefix(short: str, long: str) -> bool:
    return long.startswith(f"{short}.")
