"""Reads PyTorch's device memory: snapshots (`torch.cuda.memory._dump_snapshot`), and memory_stats() as JSON.

A snapshot is a pickle of plain values, read without pickle's loader. It has the last allocations and the total at its
end, from which earlier totals are computed backwards. Only the statistics have num_alloc_retries, the number of times
that the allocator first had to free cached memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.errors import InputError
from kair_engine.readers.evidence.moments import LATEST_NS, modified_ns
from kair_engine.readers.evidence.opening import FileRows, json_of, read_bounded
from kair_engine.readers.json_values import listing, mapping, mappings
from kair_engine.readers.paths import MAX_RANKS, host_of, rank_from_name
from kair_engine.readers.plain_pickle import NotPlainError, load_plain
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.measures import of_rank

KIND: Final = "torch memory"

_MOST_BYTES: Final = 256 << 20
_MOST_POINTS: Final = 2_000
"""Points of one measure that are kept."""
_STATISTICS: Final = {
    "num_alloc_retries": "torch_allocator_retries",
    "num_ooms": "torch_out_of_memory",
    "reserved_bytes.all.current": "torch_reserved",
    "allocated_bytes.all.current": "torch_allocated",
}
_RESERVED: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_ALLOCATED: Final = {"alloc": 1, "free_requested": -1}
_ASKED: Final = ("segment_alloc", "segment_map")


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (the content is enough)
    """Return whether it begins like a snapshot, or is an object with memory_stats()' names."""
    if head.lstrip()[:1] == b"{":
        return b'"num_alloc_retries"' in head or b'"reserved_bytes.all.current"' in head
    return head[:1] == b"\x80" and (b"device_traces" in head or (b"segments" in head and b"segment_type" in head))


def read(path: Path) -> EvidenceFile:
    """Return reserved and allocated memory over time, new segments, and failed allocations.

    The file's name or folder states the rank. Raises InputError if the file is damaged or something else.
    """
    content = read_bounded(path, _MOST_BYTES)
    if content.lstrip()[:1] == b"{":
        return _statistics(path, content)
    try:
        snapshot = load_plain(content)
    except NotPlainError as error:
        raise InputError(f"{path} is no snapshot of PyTorch's memory: {error}") from error
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("device_traces"), list):
        raise InputError(f"{path} is no snapshot of PyTorch's memory: it holds no trace of allocations")
    traces = [_Trace(device, entries) for device, entries in enumerate(snapshot["device_traces"])]
    traces = sorted((one for one in traces if len(one.times)), key=lambda one: -len(one.times))
    rows = _Rows(path)
    for one in traces:
        # A rank has one device; of several, the one it uses most.
        own = rows.rank is not None and one is traces[0]
        one.add_to(rows, mappings(snapshot.get("segments")), rows.entity if own else f"gpu ordinal:{one.device}")
    rows.passed_over = sum(one.passed_over for one in traces)
    rows.note("a snapshot does not say how often the allocator had to free cached memory first: memory_stats() does")
    hint = "record with torch.cuda.memory._record_memory_history()"
    rows.note(f"it holds no allocation with a time: {hint}", holds=not traces)
    rows.note(_nobody("snapshot.pickle"), holds=rows.rank is None)
    is_thinned = any(len(one.times) > _MOST_POINTS for one in traces)
    text = f"{_MOST_POINTS} points of its allocations are kept, each the largest of its interval"
    rows.note(text, holds=is_thinned)
    return rows.evidence(bound_s=1e-3)


def _nobody(ending: str) -> str:
    return f"it does not say whose it is: name the file after its rank, as in rank3_{ending}"


class _Rows(FileRows):
    """Rows of the rank and host that the file's name or folders state."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, KIND)
        rank = rank_from_name(path)
        self.rank: Final = rank if rank is not None and rank < MAX_RANKS else None
        self.entity: Final = "gpu ordinal:0" if self.rank is None else of_rank(self.rank)
        self._host = host_of(path)

    def value(self, time_ns: int, entity: str, name: str, value: float) -> None:
        """Add one measurement."""
        self.add(time_ns, entity, name, value, host=self._host, rank=self.rank, raw=self.at())


class _Trace:
    """Memory events of one device, in order of time."""

    def __init__(self, device: int, entries: object) -> None:
        known = [one for one in mappings(entries) if _is_known(one)]
        self.device = device
        self.passed_over = len(listing(entries)) - len(known)
        order = sorted(range(len(known)), key=lambda at: known[at]["time_us"])
        self._entries: list[Mapping[str, Any]] = [known[at] for at in order]
        self.times: Ints = np.array([one["time_us"] for one in self._entries], dtype=np.int64) * 1000

    def add_to(self, rows: _Rows, segments: Sequence[Mapping[str, Any]], entity: str) -> None:
        """Add rows for all its measures."""
        mine = [one for one in segments if one.get("device", 0) == self.device]
        for name, signs, key in (
            ("torch_reserved", _RESERVED, "total_size"),
            ("torch_allocated", _ALLOCATED, "allocated_size"),
        ):
            changes = self._changes(signs)
            after = np.cumsum(changes)
            values = np.maximum(_sum(one.get(key) for one in mine) - (after[-1] - after), 0.0)
            self._add(rows, entity, name, values, np.flatnonzero(changes), is_counter=False)
        asked = np.array([one["action"] in _ASKED for one in self._entries])
        self._add(rows, entity, "torch_segment_allocations", np.cumsum(asked), np.flatnonzero(asked), is_counter=True)
        failed = np.array([one["action"] == "oom" for one in self._entries])
        self._add(rows, entity, "torch_out_of_memory", np.cumsum(failed), np.flatnonzero(failed), is_counter=True)

    def _changes(self, signs: Mapping[str, int]) -> Floats:
        """Return the bytes that each entry adds or removes."""
        return np.array([signs.get(one["action"], 0) * float(one["size"]) for one in self._entries])

    def _add(self, rows: _Rows, entity: str, name: str, values: Floats | Ints, at: Ints, *, is_counter: bool) -> None:
        """Add a row at each change and one at the end; a counter begins at 0 before its first change."""
        first, last = 0, len(self.times) - 1
        places = {*_thinned(values, at, is_counter=is_counter), last}
        if is_counter and first not in places:
            rows.value(int(self.times[first]), entity, name, 0.0)
        for one in sorted(places):
            rows.value(int(self.times[one]), entity, name, float(values[one]))


def _thinned(values: Floats | Ints, at: Ints, *, is_counter: bool) -> Iterable[int]:
    """Return at most _MOST_POINTS of the indices `at`: the largest value of each stretch, or a counter's last."""
    if len(at) <= _MOST_POINTS:
        return [int(one) for one in at]
    stretches = np.array_split(at, _MOST_POINTS)
    return [int(one[-1] if is_counter else one[np.argmax(values[one])]) for one in stretches]


def _is_known(entry: Mapping[Any, Any]) -> bool:
    """Return whether it has an action, a size and a plausible time."""
    time, size = entry.get("time_us"), entry.get("size")
    return (
        isinstance(entry.get("action"), str)
        and type(time) is int
        and 0 < time < LATEST_NS // 1000
        and type(size) is int
        and 0 <= size < 1 << 60
    )


def _sum(values: Iterable[object]) -> float:
    return float(sum(one for one in values if type(one) is int and 0 <= one < 1 << 60))


def _statistics(path: Path, content: bytes) -> EvidenceFile:
    statistics = mapping(json_of(path, content))
    rows = _Rows(path)
    for key, name in _STATISTICS.items():
        value = statistics.get(key)
        if type(value) is int and 0 <= value < 1 << 60:
            rows.value(modified_ns(path), rows.entity, name, value)
    if not len(rows):
        raise InputError(f"{path} holds no value of memory_stats() that Kair reads")
    rows.note("the time is when the file was written, because the statistics have none")
    rows.note(_nobody("memory_stats.json"), holds=rows.rank is None)
    return rows.evidence()
