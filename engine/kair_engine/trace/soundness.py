"""Soundness of what a trace is read from: whether an analysis failed for its files' sake.

Checksums tell damage, not who wrote a file: a job from somebody else can hold any table under a seal that fits. To look
through all of it at every opening would cost more than most questions, so it is done where one failed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kair_engine.trace.columns import filled
from kair_engine.trace.format import KINDS, PHASES, SCHEMA, STEP_SCOPE
from kair_engine.trace.model import Trace

_REQUIRED: Final = tuple(field.name for field in SCHEMA if not field.nullable)
_KNOWN: Final = {"kind": frozenset(KINDS), "phase": frozenset(PHASES)}
_LONGEST_NS: Final = 10**18
_LATEST_NS: Final = 4 * 10**18


def unsound_file(trace: Trace) -> tuple[Path, str] | None:
    """The first file that is gone, or holds no table as readers write it, and why; None where all do."""
    times = trace.job.step_times
    cells = {(rank, step): count for rank, step, count in zip(times.rank, times.step, times.operations, strict=True)}
    shift = trace.job.step_shift
    cells = {(rank, step + shift.get(rank, 0)): count for (rank, step), count in cells.items()}
    for path in trace.fragments:
        try:
            why = next(_faults(path, cells), None)
        except FileNotFoundError:
            return path, "it was removed while it was read"
        except (OSError, pa.ArrowException, ValueError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
        if why is not None:
            return path, why
    return None


def _faults(path: Path, cells: dict[tuple[int, int], int]) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        if not file.schema_arrow.equals(SCHEMA):
            yield "its columns are others"
            return
        for group in range(file.num_row_groups):
            yield from _faults_of_rows(file.read_row_group(group, use_threads=False), cells)


def _faults_of_rows(rows: pa.Table, cells: dict[tuple[int, int], int]) -> Iterator[str]:
    if not len(rows):
        yield "a part of it has no rows"
        return
    rows.validate(full=True)  # texts that are none, which Arrow hands on, too
    lacking = [name for name in _REQUIRED if rows[name].null_count]
    if lacking:
        yield f"it has rows without {lacking[0]}"
        return
    for name, known in _KNOWN.items():
        if set(_texts(rows, name)) - known - {None}:
            yield f"it has a {name} that there is not"
    start, duration = (filled(rows[name]) for name in ("start_ns", "duration_ns"))
    if duration.min() < 0 or duration.max() > _LONGEST_NS or np.abs(start.astype(float)).max() > _LATEST_NS:
        yield "it has times that no recording has"
    step, rank = (filled(rows[name]) for name in ("step", "rank"))
    scopes = np.array([name == STEP_SCOPE for name in _texts(rows, "name")], dtype=bool)
    scopes &= np.array([kind == "scope" for kind in _texts(rows, "kind")], dtype=bool)
    found, counts = np.unique(np.stack((rank, step)), axis=1, return_counts=True)
    marked, marks = np.unique(np.stack((rank[scopes], step[scopes])), axis=1, return_counts=True)
    if found.shape != marked.shape or (found != marked).any() or (marks != 1).any():
        yield "not every step in it has one scope"
    of = zip(found[0].tolist(), found[1].tolist(), counts.tolist(), strict=True)
    if any(cells.get((of_rank, of_step), -1) != count - 1 for of_rank, of_step, count in of):
        yield "it has other operations than are stated of it"


def _texts(rows: pa.Table, name: str) -> list[str | None]:
    texts: list[str | None] = rows[name].to_pylist()
    return texts
