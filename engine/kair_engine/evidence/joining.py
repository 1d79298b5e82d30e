"""Ties evidence to ranks: devices by UUID or PCI address, processes by host and pid, pods and jobs by name.

Anything else is tied by its host alone. If a rank's device has none of these names, the number that its process gives
the device is assumed to be the driver's, unless something contradicts it.
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
"""The ranks, ascending, and what ties the evidence to them; () and None if nothing does."""

ASSUMED: Final[frozenset[JoinedBy]] = frozenset({"ordinal", "local_rank"})
"""Ties that rest on an assumption: their evidence is consistent at most."""
Obstacle = Literal["host", "other_names", "no_device", "no_list", "hidden", "same_number", "no_number"]
"""Why a rank's number of its device is not taken for the driver's: the rank is not known to be on the host; its device
has a surer name; the recording names no device for it, or does not list devices of one model that its process saw; the
process saw fewer devices than the host has; another rank of the host has the same number; the source has no numbers.
"""

_NOBODY: Final[Joined] = ((), None)
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


class Joins:
    """Finds the ranks that a row of evidence belongs to.

    `hosts` is the recording's rank → host. A rank's host may have several names: those of the recording and of its
    identity, short or with a domain.
    """

    def __init__(
        self, identities: Mapping[int, RankIdentity], hosts: Mapping[int, str], devices: Iterable[NamedDevice] = ()
    ) -> None:
        """`devices` has the names that the sources of evidence use."""
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
        """Return the names of the recording's hosts, in lower case."""
        return tuple(sorted(self._named))

    def on_host(self, host: str | None) -> tuple[int, ...]:
        """Return the ranks on a host, given any of its names; for None, all ranks if they share one host.

        `node-7` and `node-7.cluster.local` are one host, unless another name has the same prefix.
        """
        if host is None:
            return self.ranks if len({*self._named.values()}) == 1 else ()
        name = host.lower()
        if name not in self._resolved:
            self._resolved[name] = self._find(name)
        return self._resolved[name]

    def ranks_of(self, host: str | None, entity: str, rank: int | None = None) -> Joined:
        """Return the ranks of a row of evidence. `rank` comes from a source that ran in the rank's own process."""
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
        """Return the ranks that use a NIC, if the NICs of every rank of the host are known; else all of the host."""
        ranks = self.on_host(host)
        if kind == "nic" and all(rank in self._of and self._of[rank].nics for rank in ranks):
            device = name.partition("/")[0]
            using = [rank for rank in ranks if any(device == nic.partition("/")[0] for nic in self._of[rank].nics)]
            # A NIC that no rank uses belongs to the host as a whole: which rank it serves is not known.
            ranks = tuple(using) or ranks
        return self._tied(ranks, "host")

    def _of_scheduler(self, host: str | None, entity: str) -> Joined:
        """Return the ranks of a pod or job; a pod without a namespace must be on the rank's host, if that is known."""
        kind, _, name = entity.partition(":")
        ranks = self._scheduled.get(entity) or self._scheduled.get(f"{kind}:{name.rpartition('/')[2]}", ())
        there = self.on_host(host)
        return self._tied(tuple(rank for rank in ranks if rank in there) if there or host else ranks, "scheduler")

    def _of_device(self, host: str | None, entity: str) -> Joined:
        """Tie by the surest name that a rank's device has; never if a surer one differs.

        Drivers number devices by PCI address, so a known driver number is as good as an address. Otherwise the number
        is assumed to be that of the rank's process, else the local rank.
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
        """Return why a device number of `host` is not taken for the one in the rank's process; None if it is."""
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
        """Return whether one of these devices has a kind of name that the rank's device has too."""
        own = self._of[rank].device
        names = [self._names(host, entity) for entity in entities]
        mine = (own.uuid, own.pci, own.index)
        return any(theirs is not None and of is not None for one in names for theirs, of in zip(one, mine, strict=True))

    def are_numbered(self, host: str | None, entities: Iterable[str]) -> bool:
        """Return whether a source gives the driver's number of one of these devices."""
        return any(self._names(host, entity)[2] is not None for entity in entities)

    def _names(self, host: str | None, entity: str) -> tuple[str | None, str | None, int | None]:
        """Return a device's UUID, PCI address and driver number, as far as the sources give them."""
        kind, _, name = entity.partition(":")
        known = self._devices.get((host, entity), NamedDevice(entity))
        called, _, uuid = known.entity.partition(":")
        return (
            uuid_of(uuid) if called == "gpu" else None,
            name if kind == "pci" else known.address,
            int(name) if kind == "gpu index" else known.index,
        )

    def _on_numbered_host(self, host: str | None) -> tuple[int, ...]:
        """Return the ranks of a host whose device numbers are usable; all ranks if only one host can be meant.

        That is the case if the recording names no host and the evidence at most one: two hosts would share each number.
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
