"""Compares the rows that processes wrote about their training with the dataset: each sample of each epoch counts once.

Rows of ranks that step together are {"gen", "rank", "step", "epoch", "begin", "end"}. A later generation's rows count
from its first step on, because the earlier one's work from there was lost with its state.

Rows of shard workers are {"gen", "worker", "shard", "epoch", "begin", "end"}. Rows written when a push is applied
always count. If only the checkpoint counts, a worker writes its rows before the checkpoint that includes them, with its
name as "checkpoint": they count if the shard store has that checkpoint with this worker in this generation.

`begin` and `end` are positions of the epoch's order, or, with a "file", records of that. Other keys are ignored.
Standard library only: this runs in the training process.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final, Self

Ranges = tuple[tuple[int, int], ...]
"""Ranges [begin, end), ascending and disjoint."""
Committed = Mapping[str, Mapping[str, int]]
"""Checkpoint → worker → generation, for all valid checkpoints: `ShardStore.checkpoints`."""

_NUMBERS: Final = ("gen", "epoch", "begin", "end")


@dataclass(frozen=True, slots=True)
class Row:
    """Positions that one process trained."""

    gen: int
    epoch: int
    begin: int
    end: int
    step: int | None
    """None for shard workers."""
    worker: str | None
    file: str | None
    checkpoint: str | None


@dataclass(frozen=True, slots=True)
class Audit:
    """Errors by epoch; epochs without errors are left out."""

    missing: dict[int, Ranges]
    twice: dict[int, Ranges]
    """Trained at least twice."""
    outside: dict[int, Ranges]
    """Trained, but outside the dataset or its epochs."""
    counted: int
    """Positions in rows that count."""
    undone: int
    """Positions in rows that do not count: lost with a state, and trained again."""
    damaged: int
    """Lines that were at least partly unreadable: one per kill is usual."""

    @property
    def exactly_once(self) -> bool:
        """Return whether each sample of each epoch counts once."""
        return not (self.missing or self.twice or self.outside)


class AuditLog:
    """The file of one process, its only writer; complete rows survive a kill."""

    def __init__(self, path: Path) -> None:
        """Open the file, and append to an existing one. Raises OSError."""
        self._file = path.open("a", encoding="utf-8")
        if self._file.tell():
            self._file.write("\n")  # a kill may have cut the last row: start a new line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, row: Mapping[str, int | str]) -> None:
        """Add a row. Raises OSError."""
        self._file.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def audit(files: Iterable[Path], samples: int, epochs: int, *, committed: Committed | None = None) -> Audit:
    """Compare the rows of all processes with `epochs` times the positions [0, `samples`). Raises OSError."""
    rows, damaged = read_rows(files)
    return audit_rows(rows, samples, epochs, committed=committed, damaged=damaged)


def audit_files(
    files: Iterable[Path], records: Mapping[str, int], epochs: int, *, committed: Committed | None = None
) -> dict[str, Audit]:
    """Return the audit of each file of a dataset; `records` has their numbers of records. Raises OSError."""
    rows, damaged = read_rows(files)
    of_file: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of_file[row.file or ""].append(row)
    return {
        file: audit_rows(of_file[file], records.get(file, 0), epochs, committed=committed, damaged=damaged)
        for file in sorted({*records, *of_file})
    }


def audit_rows(
    rows: Sequence[Row], samples: int, epochs: int, *, committed: Committed | None = None, damaged: int = 0
) -> Audit:
    """Compare rows with the positions to train; `damaged` is only passed on."""
    counting = list(_counting(rows, committed or {}))
    by_epoch: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in counting:
        by_epoch[row.epoch].append((row.begin, row.end))
    missing, twice, outside = {}, {}, {}
    for epoch in sorted({*range(epochs), *by_epoch}):
        there = samples if 0 <= epoch < epochs else 0
        parts = list(_times(by_epoch[epoch], there))
        missing[epoch] = _joined((begin, end) for begin, end, times in parts if times == 0 and end <= there)
        twice[epoch] = _joined((begin, end) for begin, end, times in parts if times > 1)
        outside[epoch] = _joined((begin, end) for begin, end, times in parts if times and not 0 <= begin < there)
    counted = sum(row.end - row.begin for row in counting)
    return Audit(
        missing=_not_empty(missing),
        twice=_not_empty(twice),
        outside=_not_empty(outside),
        counted=counted,
        undone=sum(row.end - row.begin for row in rows) - counted,
        damaged=damaged,
    )


def read_rows(files: Iterable[Path]) -> tuple[list[Row], int]:
    """Return all readable rows, and the number of damaged lines. Raises OSError."""
    rows: list[Row] = []
    damaged = 0
    for path in files:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if not line.strip():
                    continue
                row, whole = _read(line)
                damaged += not whole
                rows += [row] if row is not None else []
    return rows, damaged


def _read(line: str) -> tuple[Row | None, bool]:
    """Return the row of a line, and whether it was the whole line.

    A row cut by a kill may be followed by the next row in the same line.
    """
    row = _parsed(line)
    if row is not None:
        return row, True
    last = line.rfind("{")
    return (_parsed(line[last:]) if last > 0 else None), False


def _parsed(text: str) -> Row | None:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not all(_is_whole(fields.get(name)) for name in _NUMBERS):
        return None
    step, worker = fields.get("step"), fields.get("worker")
    if fields["begin"] > fields["end"] or not (_is_whole(step) or "shard" in fields):
        return None
    return Row(
        **{name: fields[name] for name in _NUMBERS},
        step=step if _is_whole(step) else None,
        worker=None if worker is None else str(worker),
        file=None if fields.get("file") is None else str(fields["file"]),
        checkpoint=None if fields.get("checkpoint") is None else str(fields["checkpoint"]),
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _counting(rows: Sequence[Row], committed: Committed) -> Iterator[Row]:
    first: dict[int, int] = {}
    for row in rows:
        if row.step is not None:
            first[row.gen] = min(row.step, first.get(row.gen, row.step))
    lost_from: dict[int, float] = {}
    nearest = float("inf")
    for gen in sorted(first, reverse=True):
        lost_from[gen], nearest = nearest, min(nearest, first[gen])
    for row in rows:
        if row.step is not None:
            if row.step < lost_from[row.gen]:
                yield row
        elif row.checkpoint is None or committed.get(row.checkpoint, {}).get(row.worker or "") == row.gen:
            yield row


def _times(ranges: list[tuple[int, int]], samples: int) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, end, times trained) between all ends of ranges, and between 0 and `samples`."""
    changes: defaultdict[int, int] = defaultdict(int, {0: 0, samples: 0})
    for begin, end in ranges:
        changes[begin] += 1
        changes[end] -= 1
    places, times = sorted(changes), 0
    for begin, end in pairwise(places):
        times += changes[begin]
        yield begin, end, times


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for begin, end in ranges:
        if joined and joined[-1][1] == begin:
            begin = joined.pop()[0]  # noqa: PLW2901
        joined.append((begin, end))
    return tuple(joined)


def _not_empty(by_epoch: Mapping[int, Ranges]) -> dict[int, Ranges]:
    return {epoch: ranges for epoch, ranges in by_epoch.items() if ranges}
