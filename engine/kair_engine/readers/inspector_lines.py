"""Parses the JSON lines of NCCL's Inspector: one collective, send or receive of one process per line.

Since v4.3 the lines of one communicator follow a line that states their owner (NVIDIA/nccl, plugins/profiler/inspector;
this follows `inspector_json.cc` of v4.0, without having run on a GPU).
"""

import math
from typing import Final, Literal, NamedTuple

import msgspec

from kair_engine.frozen import dataclass
from kair_engine.readers.evidence.moments import is_possible
from kair_engine.readers.paths import MAX_RANKS

_MOST: Final = 1 << 62


class _Header(msgspec.Struct):
    id: str = ""
    rank: int = -1
    n_ranks: int = 0
    nnodes: int = 0


class _Metadata(msgspec.Struct):
    hostname: str = ""
    pid: int = -1
    dump_timestamp_us: int = -1


class _Kernel(msgspec.Struct):
    kernel_start_ts: int = 0
    kernel_stop_ts: int = 0


class _Events(msgspec.Struct):
    kernel_events: list[_Kernel] = []


def _of_collectives(field: str) -> str:
    return "coll" if field == "name" else field if field == "event_trace_ts" else f"coll_{field}"


def _of_transfers(field: str) -> str:
    return _of_collectives(field).replace("coll", "p2p")


class _Collective(msgspec.Struct, rename=_of_collectives):
    name: str
    exec_time_us: float
    sn: int = 0
    msg_size_bytes: int = 0
    timing_source: str = ""
    algobw_gbs: float = 0.0
    busbw_gbs: float = 0.0
    event_trace_ts: _Events = msgspec.field(default_factory=_Events)


# Not a subclass of the other: only a class's own fields are renamed.
class _Transfer(msgspec.Struct, rename=_of_transfers):
    name: str
    exec_time_us: float
    sn: int = 0
    msg_size_bytes: int = 0
    timing_source: str = ""
    algobw_gbs: float = 0.0
    busbw_gbs: float = 0.0
    peer: int = -1
    event_trace_ts: _Events = msgspec.field(default_factory=_Events)


class _Dropped(msgspec.Struct):
    coll_dropped_total: int = 0
    p2p_dropped_total: int = 0


class _Record(msgspec.Struct):
    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Collective | None = None
    p2p_perf: _Transfer | None = None
    dump_stats: _Dropped | None = None
    proxy_trace: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class Owner:
    """The owner of a line: a place in a communicator, and its process."""

    communicator: str
    rank: int
    size: int
    nodes: int
    process: tuple[str, int]
    """Host and pid."""
    dumped_us: int
    """When the line was written, Unix µs."""


class Operation(NamedTuple):
    """One collective, send or receive."""

    owner: Owner
    kind: Literal["coll", "p2p"]
    name: str
    number: int
    """Its number among those of its kind in its communicator; for p2p among the process's own there."""
    size: int
    """Bytes."""
    peer: int
    us: float
    timing: str
    """`kernel_gpu`, `kernel_cpu` or `collective_cpu`; empty if old versions do not state it."""
    bus: float
    algorithm: float
    began_us: int
    """Begin of its first kernel by the host's clock, Unix µs; 0 if unknown."""
    ended_us: int
    """End of its last kernel, likewise."""


class InspectorLines:
    """Reads the lines of one file in order."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(_Record).decode
        self._owner: Owner | None = None
        """Owner of following lines that do not state one."""
        self.is_known = False
        """Whether a line has named the owner of the following ones."""
        self.passed_over = 0
        self._lost: dict[tuple[str, tuple[str, int]], int] = {}

    @property
    def lost(self) -> int:
        """The known number of operations that were overwritten before they were written."""
        return sum(self._lost.values())

    def take(self, line: str) -> Operation | None:
        """Return the operation of the next line; None for a line without one, which counts if it should have one."""
        try:
            record = self._decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            self.passed_over += 1
            return None
        owner = _owner(record)
        if record.header is not None and owner is None:
            self._owner = None
            self.passed_over += 1
            return None
        if record.dump_stats is not None:
            self._owner = owner
            self.is_known = self.is_known or owner is not None
            if owner is not None:
                dropped = record.dump_stats.coll_dropped_total + record.dump_stats.p2p_dropped_total
                self._lost[owner.communicator, owner.process] = max(dropped, 0)
            return None
        owner = owner or self._owner
        operation = None if owner is None else _operation(record, owner)
        self.passed_over += operation is None and record.proxy_trace is msgspec.UNSET
        return operation


def _owner(record: _Record) -> Owner | None:
    header, metadata = record.header, record.metadata
    if header is None or metadata is None or not 0 <= header.rank < header.n_ranks <= MAX_RANKS:
        return None
    if not metadata.hostname or not 0 <= metadata.pid < _MOST or not is_possible(metadata.dump_timestamp_us * 1000):
        return None
    process = metadata.hostname[:253], metadata.pid
    nodes = header.nnodes if 0 < header.nnodes <= MAX_RANKS else 0
    return Owner(header.id[:40], header.rank, header.n_ranks, nodes, process, metadata.dump_timestamp_us)


def _operation(record: _Record, owner: Owner) -> Operation | None:
    perf = record.coll_perf if record.coll_perf is not None else record.p2p_perf
    if perf is None or not (math.isfinite(perf.exec_time_us) and abs(perf.exec_time_us) < _MOST):
        return None
    kernels = perf.event_trace_ts.kernel_events
    began = min((one.kernel_start_ts for one in kernels if one.kernel_start_ts > 0), default=0)
    ended = max((one.kernel_stop_ts for one in kernels), default=0)
    return Operation(
        owner,
        "p2p" if record.coll_perf is None else "coll",
        perf.name[:40],
        perf.sn if 0 <= perf.sn < _MOST else 0,
        perf.msg_size_bytes if 0 <= perf.msg_size_bytes < _MOST else 0,
        perf.peer if isinstance(perf, _Transfer) else -1,
        perf.exec_time_us,
        perf.timing_source[:40],
        perf.busbw_gbs if math.isfinite(perf.busbw_gbs) else 0.0,
        perf.algobw_gbs if math.isfinite(perf.algobw_gbs) else 0.0,
        began if began and is_possible(began * 1000) else 0,
        ended if ended > 0 and is_possible(ended * 1000) else 0,
    )
