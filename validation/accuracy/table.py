"""Writes a recording as Kair's operations table."""

from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from layouts import JobLayout
from recording import Columns, Recording
from rows import ABSENT, Template

from kair_engine.trace.format import SCHEMA, write_fragment
from kair_engine.trace.model import Job, Layout, StepTimes, Trace

EPOCH_NS: Final = 1_790_000_000 * 10**9
ROWS_PER_GROUP: Final = 1_000_000
DEVICE: Final = "NVIDIA H100 80GB HBM3"


def write_table(recording: Recording, folder: Path, *, host_operators: bool = False, microbatch: bool = False) -> Trace:
    """Writes one fragment with all ranks into `folder` and returns it as a trace.

    `microbatch` fills a column that profiler traces do not have. Raises OSError when the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "all-ranks.parquet"
    columns = recording.columns(host_operators=host_operators)
    table = arrow_table(columns, microbatch=microbatch)
    counts = _operations(columns, recording.layout.ranks, recording.steps)
    write_fragment(path, _row_groups(table, counts), {"source": "simulated"})
    job = _job(recording, folder, counts)
    return Trace(job, (path,), job.steps)


def arrow_table(columns: Columns, *, microbatch: bool = False) -> pa.Table:
    """The operations table in its schema, times counted from EPOCH_NS."""
    if columns.template is not None:
        arrays = _cached_arrays(columns.template, microbatch)
    else:
        arrays = _arrays(columns.arrays, columns.texts, microbatch)
    times = {"start_ns": pa.array(columns.start_ns + EPOCH_NS), "duration_ns": pa.array(columns.duration_ns)}
    return pa.table([(arrays | times)[name] for name in SCHEMA.names], schema=SCHEMA)


@lru_cache(maxsize=4)
def _cached_arrays(template: Template, microbatch: bool) -> dict[str, pa.Array]:
    return _arrays(template.columns, template.texts, microbatch)


def _arrays(
    columns: dict[str, npt.NDArray[np.int32]], texts: dict[str, tuple[str, ...]], microbatch: bool
) -> dict[str, pa.Array]:
    """All columns but the times."""
    absent = pa.nulls(len(columns["step"]), pa.int32())
    result = {"chunk": absent, "microbatch": absent, "inputs": pa.nulls(len(absent), SCHEMA.field("inputs").type)}
    for name, values in columns.items():
        if name == "microbatch" and not microbatch:
            continue
        missing = values == ABSENT
        array = pa.array(values, mask=missing if missing.any() else None)
        if name in texts:
            result[name] = pa.DictionaryArray.from_arrays(array, pa.array(texts[name], pa.string()))
        else:
            result[name] = array.cast(SCHEMA.field(name).type)
    return result


def _operations(columns: Columns, ranks: int, steps: int) -> npt.NDArray[np.int64]:
    """(steps × ranks): how many operations each has, its scope row not counted."""
    cell = columns.arrays["step"].astype(np.int64) * ranks + columns.arrays["rank"]
    return np.bincount(cell, minlength=steps * ranks).reshape(steps, ranks) - 1


def _row_groups(table: pa.Table, counts: npt.NDArray[np.int64]) -> list[pa.Table]:
    """The table in pieces of whole steps that an analysis reads at once."""
    rows = (counts + 1).sum(axis=1)
    steps = max(1, int(ROWS_PER_GROUP // rows.max()))
    ends = np.cumsum(rows)[steps - 1 :: steps].tolist()
    bounds = [0, *ends] if ends and ends[-1] == len(table) else [0, *ends, len(table)]
    return [table.slice(begin, end - begin) for begin, end in pairwise(bounds)]


def _job(recording: Recording, folder: Path, counts: npt.NDArray[np.int64]) -> Job:
    ranks, steps = recording.layout.ranks, recording.steps
    begin = recording.step_begin + recording.clock_offset_ns + EPOCH_NS
    duration = recording.step_end - recording.step_begin
    return Job(
        name=folder.name,
        source=str(folder),
        format="kineto",
        world_size=ranks,
        ranks=tuple(range(ranks)),
        hosts=recording.hosts,
        layout=_layout(recording.layout),
        device=DEVICE,
        has_device=True,
        absolute_time=True,
        steps=tuple(range(steps)),
        step_times=StepTimes(
            rank=tuple(np.repeat(np.arange(ranks), steps).tolist()),
            step=tuple(range(steps)) * ranks,
            begin_ns=tuple(begin.T.ravel().tolist()),
            duration_ns=tuple(duration.T.ravel().tolist()),
            operations=tuple(counts.T.ravel().tolist()),
        ),
        operations=int(counts.sum()),
        warnings=(),
    )


def _layout(layout: JobLayout) -> Layout | None:
    """What the job's process groups tell; a job with the default group alone tells nothing."""
    if layout.kind != "3d":
        return None
    places = {rank: layout.place(rank) for rank in range(layout.ranks)}
    return Layout(
        dp=layout.dp,
        pp=layout.pp,
        tp=layout.tp,
        pipeline_stage={rank: stage for rank, (stage, _) in places.items()},
        dp_rank={rank: position // layout.tp for rank, (_, position) in places.items()},
    )
