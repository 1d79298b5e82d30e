"""Reads logs of NCCL's Inspector or of its example profiler plug-in as columns, of long ones the last lines."""

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from kair_engine.errors import InputError
from kair_engine.readers import profiler_plugin
from kair_engine.readers.evidence import nccl_inspector
from kair_engine.readers.evidence.opening import Lines
from kair_engine.readers.formats import read_head
from kair_engine.readers.inspector_lines import InspectorLines, Operation
from kair_engine.readers.profiler_plugin import ProfilerLines
from kair_engine.trace.inspector_calls import MEETING, RECV, CallKind, InspectorCalls, Member
from kair_engine.trace.model import KairWarning, short_warning

MOST_ROWS: Final = 3_500_000
"""Of all files together: 40 bytes each, and several times that while they are matched."""
_OF_HOST: Final = "collective_cpu"
"""The timing source of times that are the host's launching instead of a kernel's."""


def is_inspector_log(path: Path) -> bool:
    """Return whether a file begins as those of the Inspector or the plug-in; False if it cannot be read."""
    try:
        head = read_head(path)
    except (OSError, InputError):
        return False
    is_of_inspector = head.text.startswith(b"{") and nccl_inspector.fits(path.name, head.content)
    return is_of_inspector or profiler_plugin.fits(head.text)


def read_calls(paths: Sequence[Path], progress: Callable[[int, int, str], None]) -> InspectorCalls:
    """Return the calls in the logs. Raises InputError if one cannot be read, or none has a collective."""
    columns = _Columns(max(MOST_ROWS // max(len(paths), 1), 1000))
    passed_over, lost, cut = 0, 0, []
    for number, path in enumerate(paths, 1):
        lines = Lines(path)
        of_file = InspectorLines() if ".log" in path.name else ProfilerLines()
        for _, text in lines:
            if text and (found := of_file.take(text)) is not None:
                columns.add(found)
        columns.end_file()
        passed_over += of_file.passed_over
        lost += of_file.lost
        cut += [path.name] * lines.is_cut
        progress(number, len(paths), path.name)
    if not len(columns.us):
        hint = "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=0 keeps those without times of their kernels; kair help formats"
        raise InputError(f"{paths[0]} has no collective with times of its kernels", hint)
    return columns.calls(tuple(_warnings(columns, passed_over, lost, cut)))


def _warnings(columns: "_Columns", passed_over: int, lost: int, cut: list[str]) -> list[KairWarning]:
    found = []
    if passed_over or cut:
        files = f", {len(cut)} files are cut off ({cut[0]})" if cut else ""
        found.append(short_warning("damaged_lines", f"{passed_over:,} lines could not be read{files}"))
    if columns.without_kernel:
        text = f"{columns.without_kernel:,} operations have no times of their kernels and are left out"
        found.append(short_warning("without_kernel", text))
    if columns.dropped:
        text = f"of {columns.dropped + len(columns.us):,} operations the last {len(columns.us):,} are read"
        found.append(short_warning("last_steps", text))
    if lost:
        text = f"{lost:,} operations were overwritten before they were written: NCCL_INSPECTOR_DUMP_COLL_RING_SIZE"
        found.append(short_warning("lost_operations", text))
    return found


class _Columns:
    """Collects rows, at most `most` per file."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._members: dict[Member, int] = {}
        self._kinds: dict[CallKind, int] = {}
        self.member, self.kind = array("i"), array("i")
        self.number, self.began, self.written = array("q"), array("q"), array("q")
        self.us = array("f")
        self._first = 0
        self.dropped = 0
        self.without_kernel = 0

    @property
    def _all(self) -> tuple["array[int] | array[float]", ...]:
        return self.member, self.kind, self.number, self.began, self.written, self.us

    def add(self, one: Operation) -> None:
        """Add an operation in which members meet, or that waits for a sender; others only show who is present."""
        owner = one.owner
        member = Member(owner.communicator, owner.rank, owner.size, owner.nodes, *owner.process)
        place = self._members.setdefault(member, len(self._members))
        if one.name not in MEETING and one.name != RECV:
            return
        if one.timing == _OF_HOST or not 0 <= one.us < 1e12:
            self.without_kernel += 1
            return
        kind = CallKind(one.name, one.size, one.peer)
        self.member.append(place)
        self.kind.append(self._kinds.setdefault(kind, len(self._kinds)))
        self.number.append(one.number)
        self.began.append(one.began_us)
        self.written.append(one.owner.dumped_us)
        self.us.append(one.us)
        if len(self.us) - self._first >= 2 * self._most:
            self._keep_last()

    def end_file(self) -> None:
        """Keep the last rows of the file that ends."""
        self._keep_last()
        self._first = len(self.us)

    def _keep_last(self) -> None:
        if (more := len(self.us) - self._first - self._most) > 0:
            self.dropped += more
            for column in self._all:
                del column[self._first : self._first + more]

    def _sized(self) -> tuple[Member, ...]:
        """Return the members; a communicator of unknown size gets the size that its highest rank implies."""
        needed: dict[str, int] = {}
        for one in self._members:
            needed[one.communicator] = max(needed.get(one.communicator, 0), one.rank + 1)
        return tuple(one._replace(size=one.size or needed[one.communicator]) for one in self._members)

    def calls(self, warnings: tuple[KairWarning, ...]) -> InspectorCalls:
        """Return all collected calls."""
        return InspectorCalls(
            members=self._sized(),
            kinds=tuple(self._kinds),
            member=np.frombuffer(self.member, dtype=np.int32),
            kind=np.frombuffer(self.kind, dtype=np.int32),
            number=np.frombuffer(self.number, dtype=np.int64),
            us=np.frombuffer(self.us, dtype=np.float32),
            began_us=np.frombuffer(self.began, dtype=np.int64),
            written_us=np.frombuffer(self.written, dtype=np.int64),
            warnings=warnings,
        )
