"""Finds the collectives of a step, the calls that issued them, and their process groups.

Reads the process groups that a recording lists (`distributedInfo.pg_config`), and a rank's place in its parallel
dimensions.

Numbers gloo's collectives from the entries of PyTorch's flight recorder that capture puts into the file: gloo's own
rows state neither their process group nor their sequence number. An entry is made when a collective is issued, and its
row begins when a thread of that group takes it up, so that the k-th entry belongs to the k-th row.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from kair_engine.frozen import dataclass
from kair_engine.readers.json_values import listing, mapping, mappings, whole
from kair_engine.readers.kineto.classify import Category, NameClass
from kair_engine.readers.kineto.collective_details import DetailColumns, group_text
from kair_engine.readers.kineto.events import Records
from kair_engine.readers.kineto.tables import EventTables
from kair_engine.readers.paths import MAX_RANKS
from kair_engine.trace.model import Layout, ProcessGroup

Int64s = npt.NDArray[np.int64]
# gloo's timed row, and the call that issues it.
_TRANSFERS: Final = ((NameClass.HOST_SEND, "c10d::send"), (NameClass.HOST_RECV, "c10d::recv_"))


class StepCollectives:
    """Looks up the details of one step's rows, given as columns of equal length."""

    def __init__(
        self,
        tables: EventTables,
        details: DetailColumns,
        *,
        detail: Int64s,
        category: Int64s,
        name: Int64s,
        name_class: Int64s,
        thread: Int64s,
        start: Int64s,
        end: Int64s,
    ) -> None:
        self._tables, self._details = tables, details
        self._detail, self._thread, self._start, self._end = detail, thread, start, end
        self._name, self._name_class = name, name_class
        host_op = category == Category.CPU_OP
        calls = host_op & (name_class == NameClass.COLLECTIVE_CALL)
        records = host_op & (name_class == NameClass.COLLECTIVE_RECORD)
        self._calls = self._by_start(np.flatnonzero(calls))
        # Records that identify their collective.
        known = np.flatnonzero(records & details.known[detail])
        self._records = known[np.lexsort((thread[known], start[known]))]

    def of_device_rows(self, rows: Int64s, launch: Int64s) -> Int64s:
        """Return the details of device collectives: their own, else those of the call that contains their launch."""
        details = self._detail[rows].copy()
        launched = np.flatnonzero(~self._details.known[details] & (launch[rows] >= 0))
        launches = launch[rows[launched]]
        for thread in sorted(set(self._thread[launches].tolist())):
            records = self._records[self._thread[self._records] == thread]
            of_thread = np.flatnonzero(self._thread[launches] == thread)
            at = np.searchsorted(self._start[records], self._start[launches[of_thread]], "right") - 1
            of_thread, at = of_thread[at >= 0], at[at >= 0]
            within = self._end[records[at]] >= self._start[launches[of_thread]]
            details[launched[of_thread[within]]] = self._detail[records[at[within]]]
        return details

    def of_host_rows(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the details of collectives timed on the host, and the other ends of sends and receives.

        The k-th row stands for the k-th recorded call.
        """
        details = self._detail[rows].copy()
        peers = self._peers(rows, details)
        if len(self._records) == len(rows):
            order = self._by_start(np.arange(len(rows)), rows)
            details[order] = self._detail[self._records]
            peers = self._details.peer[details]
        return details, peers

    def _peers(self, rows: Int64s, details: Int64s) -> Int64s:
        """Return the peers of sends and receives; the k-th row without one takes it from the k-th call of its kind."""
        peers: Int64s = self._details.peer[details]
        for name_class, call in _TRANSFERS:
            number = self._tables.names.get(call, -1)
            calls = self._calls[self._name[self._calls] == number]
            places = np.flatnonzero(self._name_class[rows] == name_class)
            if len(calls) == len(places):
                places = self._by_start(places, rows[places])
                unsaid = (details[places] >= 0) & (peers[places] < 0)
                peers[places[unsaid]] = self._details.peer[self._detail[calls[unsaid]]]
        return peers

    def calls_of_host_rows(self, rows: Int64s) -> Int64s:
        """Return the row of the call that issued each host collective: by order, else the latest before it.

        -1: none.
        """
        if not len(self._calls):
            return np.full(len(rows), -1)
        at = np.searchsorted(self._start[self._calls], self._start[rows], "right") - 1
        latest = np.where(at >= 0, self._calls[np.maximum(at, 0)], -1)
        if len(self._calls) == len(rows):
            latest[self._by_start(np.arange(len(rows)), rows)] = self._calls
        return latest

    def begins_of_host_rows(self, rows: Int64s, issued_by: Int64s, copies: Int64s, launch: Int64s) -> Int64s:
        """Return when each host collective had its input: not before its call's copies from the device had ended.

        gloo times a device's collective from its call on, which starts with that copy; the device performs it after
        earlier work. `copies` are the copies from the device, and `launch` is per row the row that launched it. The
        result follows the order of the rows' starts and preserves it.
        """
        begins = self._start[rows].copy()
        copies = copies[launch[copies] >= 0]
        if not len(copies) or not len(rows):
            return begins
        at, thread = self._start[launch[copies]], self._thread[launch[copies]]
        for place, call in enumerate(issued_by.tolist()):
            if call >= 0:
                inside = (thread == self._thread[call]) & (at >= self._start[call]) & (at <= self._end[call])
                begins[place] = max(begins[place], self._end[copies[inside]].max(initial=0))
        begins = np.minimum(begins, self._end[rows])
        order = self._by_start(np.arange(len(rows)), rows)
        # Collectives are matched by their order, so an earlier input does not move one ahead of its predecessor.
        turn = np.arange(len(rows))
        begins[order] = np.minimum(np.maximum.accumulate(begins[order] - turn) + turn, self._end[rows[order]])
        return begins

    def _by_start(self, values: Int64s, rows: Int64s | None = None) -> Int64s:
        return values[np.argsort(self._start[values if rows is None else rows], kind="stable")]


# Names of one-dimensional groups in Megatron-Core and PyTorch's DeviceMesh. Groups of several dimensions
# (`TENSOR_AND_DATA_PARALLEL_GROUP`, `MODEL_PARALLEL_GROUP`) give no place in a single one and are skipped.
_DIMENSIONS: Final = {
    "tensor_model_parallel": "tp",
    "tensor": "tp",
    "tp": "tp",
    "pipeline_model_parallel": "pp",
    "pipeline": "pp",
    "pipe": "pp",
    "pp": "pp",
    "data_parallel": "dp",
    "data": "dp",
    "dp": "dp",
    "fsdp": "dp",
}


def layout_of(distributed: Mapping[str, Any], rank: int) -> Layout | None:
    """Return the layout in `distributedInfo.pg_config`, with this rank's own place.

    None if it states no layout.
    """
    found: dict[str, tuple[int, int]] = {}
    for group in mappings(distributed.get("pg_config")):
        if (dimension := _dimension(group.get("pg_desc"))) is not None:
            members = listing(group.get("ranks"))
            if rank in members:
                found.setdefault(dimension, (len(members), members.index(rank)))
    if not found:
        return None
    size = {dimension: members for dimension, (members, _) in found.items()}
    return Layout(
        dp=size.get("dp"),
        pp=size.get("pp"),
        tp=size.get("tp"),
        pipeline_stage={rank: found["pp"][1]} if "pp" in found else {},
        dp_rank={rank: found["dp"][1]} if "dp" in found else {},
    )


def same_batches(distributed: Mapping[str, Any], rank: int) -> tuple[int, ...]:
    """Return the ranks of the rank's pipeline and tensor groups in `distributedInfo.pg_config`, itself included."""
    found = {rank}
    for group in mappings(distributed.get("pg_config")):
        members = listing(group.get("ranks"))
        if _dimension(group.get("pg_desc")) in ("pp", "tp") and rank in members:
            found.update(one for one in members if type(one) is int and 0 <= one < MAX_RANKS)
    return tuple(sorted(found))


def only_group(distributed: Mapping[str, Any]) -> str | None:
    """Return the process group of every collective if the job has a single group of two or more ranks."""
    groups = [group for group in mappings(distributed.get("pg_config")) if group.get("pg_size") != 1]
    if len(groups) != 1:
        return None
    name, ranks = groups[0].get("pg_name"), groups[0].get("ranks")
    return group_text(str(name), str(ranks) if ranks else None) if isinstance(name, str | int) else None


def process_groups(distributed: Mapping[str, Any], rank: int) -> tuple[ProcessGroup, ...]:
    """Return the groups of two or more ranks that list their ranks, `rank` among them, and can run on the host (gloo).

    Empty if the list is incomplete.
    """
    found = []
    for group in mappings(distributed.get("pg_config")):
        if group.get("pg_size") == 1 or "gloo" not in str(group.get("backend_config", "gloo")):
            continue
        name, ranks = group.get("pg_name"), group.get("ranks")
        listed = isinstance(ranks, list) and all(type(one) is int and 0 <= one < MAX_RANKS for one in ranks)
        if not isinstance(name, str | int) or not isinstance(ranks, list) or not listed:
            # The members of an unlisted group cannot be derived from when they leave.
            return ()
        if len(ranks) > 1 and rank in ranks:
            text = group_text(str(name), str(ranks)) or ""
            found.append(ProcessGroup(text, str(group.get("pg_desc") or ""), tuple(ranks)))
    return tuple(found)


def group_names(distributed: Mapping[str, Any], rank: int) -> dict[str, str]:
    """Return the descriptions of a rank's groups, by their text in the operations table."""
    found = {}
    for group in mappings(distributed.get("pg_config")):
        name, ranks, words = group.get("pg_name"), group.get("ranks"), group.get("pg_desc")
        if isinstance(ranks, list) and rank in ranks and isinstance(name, str | int) and isinstance(words, str):
            found[group_text(str(name), str(ranks)) or ""] = words[:_MAX_NAME]
    return found


_MAX_NAME: Final = 200


def _dimension(description: object) -> str | None:
    if not isinstance(description, str):
        return None
    words = re.sub(r"^(mesh|default)_|_group$", "", description.strip().lower())
    return _DIMENSIONS.get(words)


_TOLERANCE_NS: Final = 1_000_000
"""A row may begin this long before its entry, because the two clocks are only synchronised."""
_MOST_ENTRIES: Final = 1 << 20


@dataclass(frozen=True)
class _Entry:
    """A collective as it was issued."""

    name: str
    group: str
    issued_ns: int
    """Unix ns."""
    sequence: int


@dataclass(frozen=True)
class _Row:
    name: str
    track: int
    start_ns: int
    """Unix ns."""
    detail: int


def number_collectives(
    header: Mapping[str, Any], rank: int, tables: EventTables, batches: Iterable[Records], base_ns: int
) -> None:
    """Write group and sequence number from entries in `header` into the details of the matching rows in `batches`.

    Nothing is written unless all fit: equal counts, and no row that begins before its collective was issued.
    """
    entries = _entries(header, rank)
    if not entries:
        return
    rows = _rows(tables, batches, base_ns)
    for name in sorted({entry.name for entry in entries}):
        of_name = _fitting([row for row in rows if row.name == name], [one for one in entries if one.name == name])
        for row, entry in of_name:
            known = tables.details[row.detail]
            tables.details[row.detail] = replace(known, group=entry.group, sequence=entry.sequence)


def _entries(header: Mapping[str, Any], rank: int) -> list[_Entry]:
    """Return the entries in the order of issue, for groups whose ranks the file lists."""
    listed, distributed = mapping(header.get("kair")).get("collectives"), mapping(header.get("distributedInfo"))
    groups = {group.name.partition(" ")[0]: group for group in process_groups(distributed, rank)}
    found = []
    for one in mappings(listing(listed)[:_MOST_ENTRIES]):
        pair = [] if one.get("is_p2p") else listing(one.get("process_group"))
        group = groups.get(str(pair[0])) if pair else None
        if group is not None and (entry := _entry(one, group.name)) is not None:
            found.append(entry)
    return sorted(found, key=lambda entry: (entry.issued_ns, entry.sequence))


def _entry(of: Mapping[str, Any], group: str) -> _Entry | None:
    name = of.get("profiling_name")
    issued, number = (whole(of.get(key), -1) for key in ("time_created_ns", "collective_seq_id"))
    return _Entry(name, group, issued, number) if isinstance(name, str) and min(issued, number) >= 0 else None


def _rows(tables: EventTables, batches: Iterable[Records], base_ns: int) -> list[_Row]:
    """Return collectives timed on the host, in the order of their begins."""
    on_host = tables.name_classes() == NameClass.HOST_COLLECTIVE
    chosen = np.concatenate([batch[on_host[batch["name"]] & (batch["detail"] >= 0)] for batch in batches])
    chosen = chosen[np.argsort(chosen["start"], kind="stable")]
    names = tables.names.items_
    columns = (chosen[key].tolist() for key in ("name", "track", "start", "detail"))
    return [
        _Row(names[name], track, start + base_ns, detail) for name, track, start, detail in zip(*columns, strict=True)
    ]


def _fitting(rows: list[_Row], entries: list[_Entry]) -> list[tuple[_Row, _Entry]]:
    """Return the pairs of equal names; none if they do not fit."""
    if len({entry.group for entry in entries}) == 1:
        return _in_order(rows, entries)
    # Two groups' threads may take up collectives at almost the same time in another order than they were issued.
    of_track: dict[int, Counter[str]] = {}
    for row, entry in _in_order(rows, entries):
        of_track.setdefault(row.track, Counter())[entry.group] += 1
    group_of = {track: groups.most_common(1)[0][0] for track, groups in of_track.items()}
    pairs: list[tuple[_Row, _Entry]] = []
    for group, of_group in groupby(sorted(entries, key=lambda entry: entry.group), key=lambda entry: entry.group):
        own = [row for row in rows if group_of.get(row.track) == group]
        fitting = _in_order(own, list(of_group))
        if len(fitting) < len(own):
            return []
        pairs += fitting
    return pairs


def _in_order(rows: list[_Row], entries: list[_Entry]) -> list[tuple[_Row, _Entry]]:
    """Return the k-th row with the k-th entry; rows from before the oldest remaining entry have none."""
    if not rows or not entries:
        return []
    rows = [row for row in rows if row.start_ns + _TOLERANCE_NS >= entries[0].issued_ns]
    entries = [entry for entry in entries if rows and entry.issued_ns <= rows[-1].start_ns + _TOLERANCE_NS]
    pairs = list(zip(rows, entries, strict=False))
    fits = len(rows) == len(entries) and all(entry.issued_ns <= row.start_ns + _TOLERANCE_NS for row, entry in pairs)
    return pairs if fits else []
