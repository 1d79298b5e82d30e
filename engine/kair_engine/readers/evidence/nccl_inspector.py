"""Reads NCCL Inspector's output: JSON lines, one per collective, or a snapshot of averages for Prometheus.

Ranks are those of a communicator. A process's rank in its largest communicator is its rank in the job if that
communicator has all ranks; the note of `ranks_of` states how many it has.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kair_engine.errors import InputError
from kair_engine.readers.evidence.moments import modified_ns
from kair_engine.readers.evidence.opening import CUT, FileRows, Lines
from kair_engine.readers.inspector_lines import InspectorLines
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.identity import uuid_of
from kair_engine.trace.measures import HOST, gpu, of_rank

KIND: Final = "nccl inspector"

_MOST_OPERATIONS: Final = 100_000
"""Operations kept per file; beyond that every second, fourth, … by number, the same on all ranks."""
_SAMPLE: Final = re.compile(
    r"nccl_(?P<p2p>p2p_)?(?:(?P<bus>bus_bandwidth_gbs)|(?:collective_)?exec_time_microseconds)"
    r"\{(?P<labels>[^{}]*)\} (?P<value>[0-9.eE+-]{1,32})"
)
_LABEL: Final = re.compile(r'(\w{1,40})="([^"]{0,200})"')
_DEVICE_IN_NAME: Final = re.compile(r"nccl_inspector_metrics_(.{32,44})\.prom")


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (the content is enough)
    """Return whether the first line is an object of the Inspector, or the file has its samples for Prometheus."""
    if head.lstrip()[:1] == b"{":
        return b'"inspector_output_format_version"' in head[: 16 << 10]
    return b"nccl_bus_bandwidth_gbs{" in head or b"nccl_p2p_bus_bandwidth_gbs{" in head


def ranks_of(size: int) -> str:
    """Return the note of a source whose ranks are those of communicators of `size` ranks."""
    return f"its ranks are those of communicators of {size} ranks: they are the job's if it has as many"


class _Operation(NamedTuple):
    """One collective, or one send or receive, of one process."""

    time_ns: int
    number: int
    process: tuple[str, int]
    rank: int
    size: int
    text: str
    seconds: float
    bus: float
    algorithm: float
    line: int


def read(path: Path) -> EvidenceFile:
    """Return time and bandwidth of operations by rank, dated by their end if known, else by when they were written.

    Raises InputError if nothing in the file is the Inspector's.
    """
    lines = Lines(path)
    samples = _Samples()
    records = _Records()
    for number, text in lines:
        if text.startswith("{"):
            records.take(number, text)
        elif text.strip() and not text.startswith("#"):
            samples.take(number, text)
    if not records.kept and not samples.found and not records.is_known:
        raise InputError(f"{path} holds nothing that NCCL's Inspector writes")
    rows = FileRows(path, KIND)
    rows.passed_over = records.passed_over + samples.passed_over
    rows.hosts = {one.process[0] for one in records.kept} | samples.hosts()
    rows.note(CUT, holds=lines.is_cut)
    if records.kept:
        records.add_to(rows)
        rows.notes += records.notes()
    if samples.found:
        samples.add_to(rows)
        rows.note("its samples are averages since the previous snapshot, dated by when the file was written")
    return rows.evidence()


class _Records:
    """Collects operations from JSON lines."""

    def __init__(self) -> None:
        self._lines = InspectorLines()
        self._every = 1
        self.kept: list[_Operation] = []
        self._is_traced = True

    @property
    def is_known(self) -> bool:
        """Return whether any line described the process of the next ones."""
        return self._lines.is_known

    @property
    def passed_over(self) -> int:
        """Return the number of lines without an operation."""
        return self._lines.passed_over

    def take(self, number: int, text: str) -> None:
        """Read the next line."""
        found = self._lines.take(text)
        if found is None:
            return
        owner = found.owner
        towards = f" with {found.peer}" if found.kind == "p2p" and found.peer >= 0 else ""
        what = f"{found.name}{towards} of {found.size} B"
        self._is_traced = self._is_traced and bool(found.ended_us)
        operation = _Operation(
            time_ns=(found.ended_us or owner.dumped_us) * 1000,
            number=found.number,
            process=owner.process,
            rank=owner.rank,
            size=owner.size,
            text=f"{what} by {owner.rank} of {owner.size} in {owner.communicator}, no. {found.number}",
            seconds=found.us / 1e6,
            bus=found.bus,
            algorithm=found.algorithm,
            line=number,
        )
        self._keep(operation)

    def _keep(self, operation: _Operation) -> None:
        if operation.number % self._every:
            return
        self.kept.append(operation)
        if len(self.kept) > _MOST_OPERATIONS and self._every < 1 << 40:
            self._every *= 2
            self.kept = [one for one in self.kept if one.number % self._every == 0]

    def _ranks(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return process → (size of its largest communicator, its rank there)."""
        found: dict[tuple[str, int], tuple[int, int]] = {}
        for one in self.kept:
            found[one.process] = max(found.get(one.process, (0, 0)), (one.size, one.rank))
        return found

    def add_to(self, rows: FileRows) -> None:
        """Add a row for each known quantity of an operation."""
        ranks = self._ranks()
        for one in self.kept:
            entity = of_rank(ranks[one.process][1])
            values = {
                "nccl_time": one.seconds,
                "nccl_bus_bandwidth": one.bus,
                "nccl_algorithm_bandwidth": one.algorithm,
            }
            for measure, value in values.items():
                if value > 0:
                    host, raw = one.process[0], rows.at(one.line)
                    rows.add(one.time_ns, entity, measure, value, host=host, text=one.text, raw=raw)

    def notes(self) -> Iterator[str]:
        """Yield what readers of its rows should know."""
        for size in sorted({size for size, _ in self._ranks().values()}):
            yield ranks_of(size)
        if not self._is_traced:
            yield (
                "its times are those of writing, later than the operations: NCCL_INSPECTOR_DUMP_VERBOSE=1 records when "
                "each ended"
            )
        if self._every > 1:
            yield f"one in {self._every} of its operations is kept"
        if lost := self._lines.lost:
            yield f"{lost} operations were overwritten before they were written: set NCCL_INSPECTOR_DUMP_COLL_RING_SIZE"


class _Samples:
    """Collects samples for Prometheus."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, float, dict[str, str]]] = []
        self.passed_over = 0

    def take(self, number: int, text: str) -> None:
        """Read the next line."""
        match = _SAMPLE.fullmatch(text.strip())
        value = _of_text(match["value"]) if match else None
        if match is None or value is None:
            self.passed_over += 1
            return
        measure = "nccl_bus_bandwidth" if match["bus"] else "nccl_time"
        labels = dict(_LABEL.findall(match["labels"]))
        self.found.append((number, measure, value if match["bus"] else value / 1e6, labels))

    def hosts(self) -> set[str]:
        """Return the hosts that samples name."""
        return {labels["node"] for _, _, _, labels in self.found if labels.get("node")}

    def add_to(self, rows: FileRows) -> None:
        """Add a row for each sample; the file's name contains the device."""
        match = _DEVICE_IN_NAME.fullmatch(rows.path.name)
        uuid = uuid_of(match[1]) if match else None
        time_ns = modified_ns(rows.path)
        for number, measure, value, labels in self.found:
            operation = labels.get("collective") or labels.get("p2p_operation") or "?"
            text = (
                f"{operation} of {labels.get('message_size', '?')} in {labels.get('comm_name', '?')} of "
                f"{labels.get('nranks', '?')} ranks, CUDA device {labels.get('gpu', '?')}"
            )
            entity = HOST if uuid is None else gpu(uuid)
            rows.add(time_ns, entity, measure, value, host=labels.get("node"), text=text, raw=rows.at(number))


def _of_text(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) < 1e300 else None
