"""Finds the communicator of an NCCL kernel in an Nsight Systems report, its bytes and its peers.

NCCL writes them into the payloads of its NVTX ranges, which `nsys export --include-blobs` keeps, with schemas that the
report holds as well. A kernel is launched within the range of its call, or, if calls are grouped, within the range that
ends the group. The reader of reports uses this for the rows of collectives.

A payload begins with 32 bytes, as Nsight Systems of 2026 writes it: domain, 0, schema, 0 (4 bytes each), the size of
the remainder, the total size (8 bytes each).
"""

import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

_HEADER: Final = struct.Struct("<4I2Q")
_WIDTHS: Final = {5: 4, 6: 4, 15: 4, 16: 4, 7: 8, 8: 8, 9: 8, 10: 8, 17: 8, 18: 8, 22: 8}
"""NVTX's integer types → bytes."""
_FIELDS: Final = {
    "communicator": re.compile(r"communicator id", re.IGNORECASE),
    "size": re.compile(r"message size", re.IGNORECASE),
    "ranks": re.compile(r"(no\.|number) of ranks", re.IGNORECASE),
    "place": re.compile(r"^rank$", re.IGNORECASE),
    "peer": re.compile(r"^peer( rank)?$", re.IGNORECASE),
}
"""NCCL's names for the entries of its schemas."""
_MOST: Final = 1 << 40
"""Bytes, or ranks: larger values are no payload of NCCL's."""

Kind = Literal["collective", "send", "recv"]
Schemas = dict[tuple[int, int], dict[str, tuple[int, int]]]
"""(domain, schema) → field → (offset, bytes); for those that name a communicator."""


@dataclass(frozen=True)
class Call:
    """The payload of one call of NCCL."""

    start: int
    end: int
    name: str
    communicator: int
    size: int | None = None
    ranks: int | None = None
    """Size of the communicator."""
    place: int | None = None
    """The caller's rank in it."""
    peer: int | None = None
    """The other end's rank in it."""


@dataclass(frozen=True)
class Kernel:
    """The known details of one NCCL kernel."""

    kind: Kind
    group: str | None
    size: int | None


@dataclass
class Calls:
    """The calls of one process, by thread."""

    of_thread: dict[int, list[Call]] = field(default_factory=dict)

    def add(self, thread: int, call: Call) -> None:
        """Add a call."""
        self.of_thread.setdefault(thread, []).append(call)

    def kernels(
        self, launches: Sequence[tuple[int, int]], group_ends: dict[int, list[tuple[int, int]]]
    ) -> Iterator[Kernel | None]:
        """Yield the details of each kernel by its launch (thread, time), in any order; None if no call explains it.

        `group_ends` has, per thread, begins and ends of the ranges in which grouped calls are launched.
        """
        places = {call.communicator: call for of_thread in self.of_thread.values() for call in of_thread if call.ranks}
        threads = {thread: _Thread.of(calls, group_ends.get(thread, [])) for thread, calls in self.of_thread.items()}
        for thread, at in launches:
            if thread in threads:
                threads[thread].see_launch(at)
        for thread, at in launches:
            calls = threads[thread].calls_at(at) if thread in threads else ()
            yield _kernel(calls, places)


@dataclass
class _Thread:
    """The calls of a thread in order, and the groups whose end launched something."""

    calls: list[Call]
    starts: list[int]
    ends: list[tuple[int, int]]
    launched: set[int] = field(default_factory=set)
    """Indices of group ends that launched a kernel."""
    alone: set[int] = field(default_factory=set)
    """Indices of calls that launched their own kernel."""
    _sorted: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, calls: Sequence[Call], ends: Sequence[tuple[int, int]]) -> "_Thread":
        ordered = sorted(calls, key=lambda call: call.start)
        return cls(ordered, [call.start for call in ordered], sorted(ends))

    def _call_at(self, at: int) -> int | None:
        place = bisect_right(self.starts, at) - 1
        return place if place >= 0 and at <= self.calls[place].end else None

    def _group_at(self, at: int) -> int | None:
        place = bisect_right(self.ends, (at, 1 << 63)) - 1
        return place if place >= 0 and at <= self.ends[place][1] else None

    def see_launch(self, at: int) -> None:
        """Note the launcher of a kernel at a time."""
        if (call := self._call_at(at)) is not None:
            self.alone.add(call)
        elif (group := self._group_at(at)) is not None:
            self.launched.add(group)

    def calls_at(self, at: int) -> Sequence[Call]:
        """Return the calls whose kernel was launched at a time: the one around it, else those of the group that ended
        then.
        """
        if (call := self._call_at(at)) is not None:
            return self.calls[call : call + 1]
        if (group := self._group_at(at)) is None:
            return ()
        if len(self._sorted) != len(self.launched):
            self._sorted = sorted(self.launched)
        before = bisect_left(self._sorted, group) - 1
        since = self.ends[self._sorted[before]][1] if before >= 0 else -(1 << 63)
        first, last = bisect_left(self.starts, since), bisect_left(self.starts, self.ends[group][0])
        return [self.calls[place] for place in range(first, last) if place not in self.alone]


def _kernel(calls: Sequence[Call], known: dict[int, Call]) -> Kernel | None:
    calls = [call for call in calls if call.size is not None]
    communicators = {call.communicator for call in calls}
    if len(communicators) != 1:
        return None
    (number,) = communicators
    size, group = sum(call.size or 0 for call in calls), f"communicator {number:016x}"
    peers = {call.peer for call in calls if call.peer is not None}
    if not peers:
        return Kernel("collective", group, size)
    sends, receives = (
        {call.peer for call in calls if call.peer is not None and name in call.name.lower()}
        for name in ("send", "recv")
    )
    size = max(sum(call.size or 0 for call in calls if name in call.name.lower()) for name in ("send", "recv"))
    of_process = known.get(number)
    if of_process is None or of_process.place is None or of_process.ranks is None:
        # Only an exchange with all of a communicator includes the rank itself.
        whole = sends == receives == set(range(len(peers))) and len(peers) > 1
        return Kernel("collective", group if whole else None, size)
    others = peers - {of_process.place}
    if len(others) == of_process.ranks - 1 and sends == receives:
        return Kernel("collective", group, size)
    if len(others) != 1:
        return Kernel("collective", None, size)
    low, high = sorted((of_process.place, *others))
    kind: Kind = "collective" if sends and receives else "send" if sends else "recv"
    return Kernel(kind, f"{group}, {low} and {high}", size)


def schemas_of(rows: Iterator[tuple[object, ...]]) -> Schemas:
    """Return the schemas that name a communicator, from (domain, schema, type, name, offset) of their entries.

    Each process registers its own; schemas with contradicting layouts are left out.
    """
    found: Schemas = {}
    contradicted = set()
    for domain, schema, sort, name, offset in rows:
        if not (isinstance(domain, int) and isinstance(schema, int) and isinstance(name, str)):
            continue
        what = next((one for one, pattern in _FIELDS.items() if pattern.search(name)), None)
        width = _WIDTHS.get(sort) if isinstance(sort, int) else None
        at = 0 if offset is None else offset
        if what is None or width is None or not isinstance(at, int) or not 0 <= at < 1 << 16:
            continue
        if found.setdefault((domain, schema), {}).setdefault(what, (at, width)) != (at, width):
            contradicted.add((domain, schema))
    return {key: of for key, of in found.items() if "communicator" in of and key not in contradicted}


def call_of(blob: bytes, schemas: Schemas, start: int, end: int, name: str) -> Call | None:
    """Return the call that a payload describes; None for another payload, or one that does not fit its schema."""
    if len(blob) < _HEADER.size:
        return None
    domain, _, schema, _, _, _ = _HEADER.unpack_from(blob)
    layout, found = schemas.get((domain, schema)), dict[str, int]()
    if layout is None:
        return None
    for what, (at, width) in layout.items():
        value = blob[_HEADER.size + at : _HEADER.size + at + width]
        if len(value) < width:
            return None
        found[what] = int.from_bytes(value, "little", signed=width == 4)
    valid = {what: value for what, value in found.items() if what == "communicator" or 0 <= value < _MOST}
    return Call(start, end, name, **valid)
