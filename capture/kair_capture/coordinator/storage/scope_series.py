"""Reads what capture keeps of every step of a job, sampled or not, as one series for each part of the step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kair_capture.agent.ring_reader import UNFIT
from kair_capture.agent.scopes import SCHEMA
from kair_capture.agent.step_rows import PHASES, Rows
from kair_capture.coordinator.storage.step_log import read_all
from kair_engine.errors import InputError
from kair_engine.trace.permissions import read_kept
from kair_engine.views.scope_changes import Floats, Ints, ScopeSeries

Column = npt.NDArray[Any]

Waiting = Literal["none", "some", "all"]
_WAITING: Final[Mapping[str, Waiting]] = {"forward": "some", "backward": "some", "optimizer": "some", "input": "none"}
MOST_ROWS: Final = 4_000_000
"""The last so many: a step on a rank each, or a scope of one."""
_SPARSEST: Final = 64
"""Ranks tell nearly all their steps: one cell in so many has a row, in any but a small table of `_FEW` cells."""
_FEW: Final = 1_000_000
_SAME_US: Final = 2000
"""The begin of one step may be told by two readings of the clocks."""


def scope_series(steps: Path, scopes: Path) -> tuple[list[ScopeSeries], float]:
    """The series of a job's two folders, and the median step, µs. Raises OSError, pa.ArrowException, InputError.

    Of a job that was started again, or went back to a checkpoint, the last attempt.
    """
    rows = _last_attempt(read_all(steps, MOST_ROWS))
    rows = rows[(rows["flags"] & UNFIT) == 0]
    if not len(rows):
        return [], 0.0
    found = [
        _series("self", rows["rank"], rows["step"], rows["self_us"], waiting="none"),
        _series("waiting", rows["rank"], rows["step"], rows["waited_us"], waiting="all"),
        *(_series(phase, rows["rank"], rows["step"], rows[f"{phase}_us"], waiting=_WAITING[phase]) for phase in PHASES),
    ]
    found = [one for one in found if np.nanmax(one.time_us) > 0]
    return found + _of_script(scopes, rows), float(np.median(rows["step_us"]))


def _of_script(folder: Path, rows: Rows) -> list[ScopeSeries]:
    """The script's own scopes, in those of the steps that call them."""
    sums = _sums_in(folder)
    places, wanted = _places(rows["rank"], rows["step"]), _places(sums["rank"].to_numpy(), sums["step"].to_numpy())
    order = np.argsort(places)
    at = order[np.minimum(np.searchsorted(places, wanted, sorter=order), len(places) - 1)]
    apart = np.abs(sums["begin_us"].to_numpy() - rows["begin_us"][at].astype(np.int64))
    sums = sums.filter(pa.array((places[at] == wanted) & (apart < _SAME_US)))
    scopes = sums["scope"].combine_chunks().dictionary_encode()
    number = scopes.indices.to_numpy()
    rank, step, time_us = (sums[name].to_numpy() for name in ("rank", "step", "time_us"))
    found = []
    for name, code in sorted(zip(scopes.dictionary.to_pylist(), range(len(scopes.dictionary)), strict=True)):
        own = number == code
        found.append(_series(name, rank[own], step[own], time_us[own], waiting="some"))
    return found


def _sums_in(folder: Path) -> pa.Table:
    """The newest files' rows."""
    tables, rows = [SCHEMA.empty_table()], 0
    for path in sorted(folder.glob("[!.]*.parquet"), key=lambda path: -path.stat().st_mtime_ns):
        if rows < MOST_ROWS:
            kept = pa.BufferReader(read_kept(path))
            tables.append(pq.read_table(kept, schema=SCHEMA).replace_schema_metadata())
            rows += len(tables[-1])
    return pa.concat_tables(tables).drop_null()


def _last_attempt(rows: Rows) -> Rows:
    """Of each rank the rows since its numbers last went back."""
    rows = rows[np.lexsort((rows["begin_us"], rows["rank"]))]
    rank, step = rows["rank"].astype(np.int64), rows["step"].astype(np.int64)
    anew = np.concatenate([[True], (rank[1:] != rank[:-1]) | (step[1:] <= step[:-1])]) if len(rows) else rank > 0
    last = np.zeros(int(rank.max(initial=0)) + 1, np.int64)
    last[rank[anew]] = np.flatnonzero(anew)  # of several the last one stays
    return rows[np.arange(len(rows)) >= last[rank]]


def _places(rank: Column, step: Column) -> Ints:
    """A number for each rank and step."""
    return rank.astype(np.int64) << 32 | step.astype(np.int64)


def _series(name: str, rank: Column, step: Column, us: Column, *, waiting: Waiting) -> ScopeSeries:
    ranks, row = np.unique(rank, return_inverse=True)
    steps, column = np.unique(step, return_inverse=True)
    if len(ranks) * len(steps) > _SPARSEST * len(us) + _FEW:
        raise InputError(f"the steps of the job are damaged: {len(us)} rows of {len(ranks)} ranks, {len(steps)} steps")
    time_us: Floats = np.full((len(ranks), len(steps)), np.nan)
    time_us[row, column] = us
    numbers: tuple[Ints, Ints] = (ranks.astype(np.int64), steps.astype(np.int64))
    return ScopeSeries(name, *numbers, time_us, waiting)
