"""What NCCL's Inspector writes: JSON lines, one a collective, or a snapshot of averages for Prometheus.

Ranks are those in a communicator. A process's rank in its largest communicator is its rank in the job if that
communicator has all ranks of the job: `ranks_of` is the note that says how many it has. Since v4.3 the lines of one
communicator follow a line that says whose they are (NVIDIA/nccl, plugins/profiler/inspector).
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.evidence.moments import is_possible, modified_ns
from kair_engine.readers.evidence.opening import CUT, FileRows, Lines
from kair_engine.readers.json_values import mapping, mappings, whole
from kair_engine.readers.paths import MAX_RANKS
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.identity import uuid_of
from kair_engine.trace.measures import HOST, gpu, of_rank

KIND: Final = "nccl inspector"

_MOST_OPERATIONS: Final = 100_000
"""Operations of a file that are kept: of more every second, fourth, … by number, the same on all ranks."""
_SAMPLE: Final = re.compile(
    r"nccl_(?P<p2p>p2p_)?(?:(?P<bus>bus_bandwidth_gbs)|(?:collective_)?exec_time_microseconds)"
    r"\{(?P<labels>[^{}]*)\} (?P<value>[0-9.eE+-]{1,32})"
)
_LABEL: Final = re.compile(r'(\w{1,40})="([^"]{0,200})"')
_DEVICE_IN_NAME: Final = re.compile(r"nccl_inspector_metrics_(.{32,44})\.prom")


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (what they hold tells enough)
    """Whether the first line is an object of the Inspector's, or the file holds its samples for Prometheus."""
    if head.lstrip()[:1] == b"{":
        return b'"inspector_output_format_version"' in head[: 16 << 10]
    return b"nccl_bus_bandwidth_gbs{" in head or b"nccl_p2p_bus_bandwidth_gbs{" in head


def ranks_of(size: int) -> str:
    """The note of a source whose ranks are those of communicators of `size` ranks."""
    return f"its ranks are those of communicators of {size} ranks: they are the job's if it has as many"


class _Operation(NamedTuple):
    """One collective, or one sending or receiving, of one process."""

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


@dataclass(frozen=True)
class _Owner:
    """Whose the lines are."""

    communicator: str
    rank: int
    size: int
    process: tuple[str, int]
    dumped_ns: int


def read(path: Path) -> EvidenceFile:
    """Time and bandwidth of operations by rank, at their ends where that is told, else when they were written.

    Raises InputError where nothing of it is the Inspector's.
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
        rows.note("its samples are averages since the snapshot before, of the moment at which the file was written")
    return rows.evidence()


class _Records:
    """Reads JSON lines."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(dict[str, Any]).decode
        self._owner: _Owner | None = None
        """Of lines behind that do not say it themselves."""
        self._every = 1
        self.kept: list[_Operation] = []
        self.is_known = False
        self.passed_over = 0
        self._lost: dict[tuple[str, tuple[str, int]], int] = {}
        """Operations overwritten before they were written, by communicator and process."""
        self._is_traced = True

    def take(self, number: int, text: str) -> None:
        """Takes the next line."""
        try:
            record = self._decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            self.passed_over += 1
            return
        owner = _owner(record)
        if "header" in record and owner is None:
            self._owner = None
            self.passed_over += 1
            return
        if isinstance(stats := record.get("dump_stats"), dict):
            self._owner = owner
            self.is_known = self.is_known or owner is not None
            if owner is not None:
                lost = whole(stats.get("coll_dropped_total")) + whole(stats.get("p2p_dropped_total"))
                self._lost[owner.communicator, owner.process] = lost
            return
        owner = owner or self._owner
        operation = None if owner is None else self._operation(record, owner, number)
        if operation is not None:
            self._keep(operation)
        elif not isinstance(record.get("proxy_trace"), dict):
            self.passed_over += 1

    def _operation(self, record: Mapping[str, Any], owner: _Owner, line: int) -> _Operation | None:
        kind = "coll" if isinstance(record.get("coll_perf"), dict) else "p2p"
        told = record.get(f"{kind}_perf")
        if not isinstance(told, dict):
            return None
        micros = _number(told.get(f"{kind}_exec_time_us"))
        name = told.get(kind)
        if micros is None or not isinstance(name, str):
            return None
        size, number = whole(told.get(f"{kind}_msg_size_bytes")), whole(told.get(f"{kind}_sn"))
        peer = told.get("p2p_peer")
        towards = f" with {peer}" if kind == "p2p" and isinstance(peer, int) else ""
        what = f"{name[:40]}{towards} of {size} B"
        ended = _ended_ns(told)
        self._is_traced = self._is_traced and ended is not None
        return _Operation(
            time_ns=ended or owner.dumped_ns,
            number=number,
            process=owner.process,
            rank=owner.rank,
            size=owner.size,
            text=f"{what} by {owner.rank} of {owner.size} in {owner.communicator}, no. {number}",
            seconds=micros / 1e6,
            bus=_number(told.get(f"{kind}_busbw_gbs")) or 0.0,
            algorithm=_number(told.get(f"{kind}_algobw_gbs")) or 0.0,
            line=line,
        )

    def _keep(self, operation: _Operation) -> None:
        if operation.number % self._every:
            return
        self.kept.append(operation)
        if len(self.kept) > _MOST_OPERATIONS and self._every < 1 << 40:
            self._every *= 2
            self.kept = [one for one in self.kept if one.number % self._every == 0]

    def _ranks(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Process → (ranks of its largest communicator, its rank in it)."""
        found: dict[tuple[str, int], tuple[int, int]] = {}
        for one in self.kept:
            found[one.process] = max(found.get(one.process, (0, 0)), (one.size, one.rank))
        return found

    def add_to(self, rows: FileRows) -> None:
        """A row of each thing that is told of an operation."""
        ranks = self._ranks()
        for one in self.kept:
            entity = of_rank(ranks[one.process][1])
            told = {
                "nccl_time": one.seconds,
                "nccl_bus_bandwidth": one.bus,
                "nccl_algorithm_bandwidth": one.algorithm,
            }
            for measure, value in told.items():
                if value > 0:
                    host, raw = one.process[0], rows.at(one.line)
                    rows.add(one.time_ns, entity, measure, value, host=host, text=one.text, raw=raw)

    def notes(self) -> Iterator[str]:
        """What is to be known of its rows."""
        for size in sorted({size for size, _ in self._ranks().values()}):
            yield ranks_of(size)
        if not self._is_traced:
            yield (
                "its times are those of writing, later than the operations: NCCL_INSPECTOR_DUMP_VERBOSE=1 records when "
                "each ended"
            )
        if self._every > 1:
            yield f"of its operations those are kept whose number {self._every} divides"
        if lost := sum(self._lost.values()):
            yield f"{lost} operations were overwritten before they were written: set NCCL_INSPECTOR_DUMP_COLL_RING_SIZE"


def _owner(record: Mapping[str, Any]) -> _Owner | None:
    header, metadata = record.get("header"), record.get("metadata")
    if not isinstance(header, dict) or not isinstance(metadata, dict):
        return None
    rank, size = header.get("rank"), header.get("n_ranks")
    host, pid, dumped = metadata.get("hostname"), metadata.get("pid"), metadata.get("dump_timestamp_us")
    if type(rank) is not int or type(size) is not int or not 0 <= rank < size <= MAX_RANKS:
        return None
    if not isinstance(host, str) or not host or type(pid) is not int or type(dumped) is not int:
        return None
    if not is_possible(dumped * 1000):
        return None
    return _Owner(str(header.get("id", ""))[:40], rank, size, (host[:253], pid), dumped * 1000)


def _ended_ns(told: Mapping[str, Any]) -> int | None:
    """The end of the last of its kernels, where its events are told."""
    kernels = mappings(mapping(told.get("event_trace_ts")).get("kernel_events"))
    ends = [whole(one.get("kernel_stop_ts")) for one in kernels]
    last = max(ends, default=0) * 1000
    return last if last and is_possible(last) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 and math.isfinite(value) else None


class _Samples:
    """Reads samples for Prometheus."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, float, dict[str, str]]] = []
        self.passed_over = 0

    def take(self, number: int, text: str) -> None:
        """Takes the next line."""
        match = _SAMPLE.fullmatch(text.strip())
        value = _of_text(match["value"]) if match else None
        if match is None or value is None:
            self.passed_over += 1
            return
        measure = "nccl_bus_bandwidth" if match["bus"] else "nccl_time"
        labels = dict(_LABEL.findall(match["labels"]))
        self.found.append((number, measure, value if match["bus"] else value / 1e6, labels))

    def hosts(self) -> set[str]:
        """That are named."""
        return {labels["node"] for _, _, _, labels in self.found if labels.get("node")}

    def add_to(self, rows: FileRows) -> None:
        """A row of each sample; the device is the one that the file is named for."""
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
        return _number(float(value))
    except ValueError:
        return None
