"""Numbers collectives that gloo runs: PyTorch's flight recorder has them where capture put its entries into the file.

gloo's own rows say neither their process group nor their place in its sequence. An entry is made when a collective is
issued, and its row begins when a thread of that group takes it up: the k-th of one is the k-th of the other.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from kair_engine.frozen import dataclass
from kair_engine.readers.kineto.classify import NameClass
from kair_engine.readers.kineto.group_layout import process_groups
from kair_engine.readers.kineto.rows import Records
from kair_engine.readers.kineto.tables import EventTables

_TOLERANCE_NS: Final = 1_000_000
"""By which a row may begin before its entry: both are stamped by clocks that are set to each other."""
_MOST_ENTRIES: Final = 1 << 20
_INT64: Final = range(1 << 63)


@dataclass(frozen=True)
class _Entry:
    """A collective as it was issued."""

    name: str
    group: str
    issued_ns: int
    """Unix."""
    sequence: int


@dataclass(frozen=True)
class _Row:
    name: str
    track: int
    start_ns: int
    """Unix."""
    detail: int


def number_collectives(
    header: Mapping[str, Any], rank: int, tables: EventTables, batches: Iterable[Records], base_ns: int
) -> None:
    """Writes group and sequence number into the details of the rows in `batches` that entries in `header` are of.

    Nothing is written where they do not fit together: as many of each, none taken up before it was issued.
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
    """In the order in which they were issued; of groups whose ranks the file lists."""
    ours, distributed = header.get("kair"), header.get("distributedInfo")
    listed = ours.get("collectives") if isinstance(ours, dict) else None
    if not isinstance(listed, list) or not isinstance(distributed, dict):
        return []
    groups = {group.name.partition(" ")[0]: group for group in process_groups(distributed, rank)}
    found = []
    for one in listed[:_MOST_ENTRIES]:
        pair = one.get("process_group") if isinstance(one, dict) and not one.get("is_p2p") else None
        group = groups.get(str(pair[0])) if isinstance(pair, list) and pair else None
        if group is not None and (entry := _entry(one, group.name)) is not None:
            found.append(entry)
    return sorted(found, key=lambda entry: (entry.issued_ns, entry.sequence))


def _entry(of: Mapping[str, Any], group: str) -> _Entry | None:
    name, issued, number = (of.get(key) for key in ("profiling_name", "time_created_ns", "collective_seq_id"))
    if (
        isinstance(name, str)
        and isinstance(issued, int)
        and isinstance(number, int)
        and issued in _INT64
        and number in _INT64
    ):
        return _Entry(name, group, issued, number)
    return None


def _rows(tables: EventTables, batches: Iterable[Records], base_ns: int) -> list[_Row]:
    """Collectives timed on the host, in the order of their begins."""
    on_host = tables.name_classes() == NameClass.HOST_COLLECTIVE
    chosen = np.concatenate([batch[on_host[batch["name"]] & (batch["detail"] >= 0)] for batch in batches])
    chosen = chosen[np.argsort(chosen["start"], kind="stable")]
    names = tables.names.items_
    columns = (chosen[key].tolist() for key in ("name", "track", "start", "detail"))
    return [
        _Row(names[name], track, start + base_ns, detail) for name, track, start, detail in zip(*columns, strict=True)
    ]


def _fitting(rows: list[_Row], entries: list[_Entry]) -> list[tuple[_Row, _Entry]]:
    """The pairs of one name, none where they do not fit."""
    if len({entry.group for entry in entries}) == 1:
        return _in_order(rows, entries)
    # What two groups' threads take up at almost the same time may begin in another order than it was issued.
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
    """The k-th row with the k-th entry; rows from before the oldest entry that is left have none."""
    if not rows or not entries:
        return []
    rows = [row for row in rows if row.start_ns + _TOLERANCE_NS >= entries[0].issued_ns]
    entries = [entry for entry in entries if rows and entry.issued_ns <= rows[-1].start_ns + _TOLERANCE_NS]
    pairs = list(zip(rows, entries, strict=False))
    fits = len(rows) == len(entries) and all(entry.issued_ns <= row.start_ns + _TOLERANCE_NS for row, entry in pairs)
    return pairs if fits else []
