"""Rows of the table that a Kineto trace becomes."""

import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from support import kineto_builder as kb

from kair_engine.readers.kineto.reader import read_kineto
from kair_engine.trace.model import FragmentInfo

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def read(events: list[kb.Event], *, rank: int | None = 0, **header: object) -> tuple[pl.DataFrame, FragmentInfo]:
    with tempfile.TemporaryDirectory() as folder:
        source = kb.write(Path(folder) / "rank0.json", kb.trace(events, rank=rank, **header))
        out = Path(folder) / "out.parquet"
        info = read_kineto(source, out)
        return pl.read_parquet(out).with_columns(pl.col(pl.Categorical).cast(pl.String)), info


def row(rows: pl.DataFrame, name: str) -> dict[str, Any]:
    (found,) = rows.filter(pl.col("name") == name).to_dicts()
    return found


def kinds(rows: pl.DataFrame) -> dict[str, str]:
    return {found["name"]: found["kind"] for found in rows.to_dicts()}
