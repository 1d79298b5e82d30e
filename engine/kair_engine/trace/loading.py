"""From the operations table to one step's arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kair_engine.arrays import NONE
from kair_engine.trace.model import DerivedGroups, Trace
from kair_engine.trace.operations import (
    COLLECTIVE,
    KIND_NAMES,
    PHASE_NAMES,
    RECV,
    SCOPE,
    SEND,
    STEP_SCOPE,
    Operations,
)
from kair_engine.trace.step_batches import step_batches

_DICTIONARIES = ("lane", "name", "group")
_NULLABLE = ("group_seq", "peer", "correlation")


def each_step(trace: Trace) -> Iterator[Operations]:
    """The chosen steps' operations in order.

    A consumer that drops one step before it takes the next (`map` does) holds one in memory, or a few small ones.
    """
    if trace.memory is not None:
        yield from trace.memory.each(trace.steps, lambda steps: each_step(_unremembered(trace, steps)))
        return
    for steps in step_batches(trace):
        yield from _steps_of(trace, steps)


def _unremembered(trace: Trace, steps: Sequence[int]) -> Trace:
    return replace(trace, steps=tuple(steps), memory=None)


def load_step(trace: Trace, step: int) -> Operations:
    """One step of all ranks; only that step's row groups are read."""
    return next(each_step(trace.select([step])))


def codes(column: str) -> pl.Expr:
    """The category codes of a dictionary column; NONE for null."""
    return pl.col(column).cast(pl.Categorical).to_physical().cast(pl.Int32).fill_null(NONE)


def _read(trace: Trace, steps: list[int]) -> pl.DataFrame:
    phases = {text: code for code, text in enumerate(PHASE_NAMES)}
    chosen = pl.col("step") == steps[0] if len(steps) == 1 else pl.col("step").is_in(steps)
    return (
        trace.scan()
        .filter(chosen)
        .select(
            "step",
            "rank",
            *_DICTIONARIES,
            *(codes(column).alias(f"{column}_code") for column in _DICTIONARIES),
            pl.col("kind").cast(pl.String).cast(pl.Enum(KIND_NAMES)).to_physical().cast(pl.Int8),
            pl.col("phase").cast(pl.String).replace_strict(phases, default=NONE, return_dtype=pl.Int64).fill_null(NONE),
            "occurrence",
            "start_ns",
            "duration_ns",
            *(pl.col(column).cast(pl.Int64).fill_null(NONE) for column in _NULLABLE),
        )
        .collect()
    )


def _texts(frame: pl.DataFrame, column: str) -> dict[int, str]:
    """What each code stands for, from one row of each."""
    of_row = frame[f"{column}_code"].to_numpy()
    if not len(of_row):
        return {}
    example = np.full(int(of_row.max()) + 2, NONE, dtype=np.int64)
    example[of_row[::-1]] = np.arange(len(of_row))[::-1]
    # Null's code, −1, wrote to the last entry.
    rows = example[:-1][example[:-1] != NONE]
    return dict(zip(of_row[rows].tolist(), frame[column].gather(rows.tolist()).cast(pl.String).to_list(), strict=True))


def _steps_of(trace: Trace, steps: list[int]) -> Iterator[Operations]:
    frame = _read(trace, steps)
    texts = {column: _texts(frame, column) for column in _DICTIONARIES}
    # Dropped from the frame one by one: a step can be large, and null-free columns become arrays without a copy.
    columns = {name: frame.drop_in_place(name).to_numpy() for name in frame.columns if name not in _DICTIONARIES}
    del frame
    if trace.job.derived is not None:
        columns, texts["group"] = _with_derived_groups(columns, texts, trace.job.derived)
    if len(steps) == 1:
        ops = _operations(columns, steps[0], trace.job.ranks, texts)
        del columns
        yield ops
        return
    for step in steps:
        rows = np.flatnonzero(columns["step"] == step)
        yield _operations({name: values[rows] for name, values in columns.items()}, step, trace.job.ranks, texts)


def _with_derived_groups(
    columns: dict[str, npt.NDArray[Any]], texts: dict[str, dict[int, str]], derived: DerivedGroups
) -> tuple[dict[str, npt.NDArray[Any]], dict[int, str]]:
    """The columns with the process groups and peers that the rows themselves do not state, and the groups' names."""
    group, peer = columns["group_code"].copy(), columns["peer"].copy()
    stated = texts["group"]
    names = {text for lanes in derived.of_lane.values() for text in lanes.values()}
    names |= set(derived.of_rank.values())
    names |= {of_rank.name for of_rank in derived.of_transfers.values() if of_rank is not None}
    first_free = max(stated, default=NONE) + 1
    code_of = {text: code for code, text in enumerate(sorted(names - set(stated.values())), first_free)}
    code_of |= {text: code for code, text in stated.items()}
    lane_of = {text: code for code, text in texts["lane"].items()}
    unstated = np.flatnonzero((group == NONE) & np.isin(columns["kind"], (COLLECTIVE, SEND, RECV)))
    rank, lane = columns["rank"][unstated], columns["lane_code"][unstated]
    collective = columns["kind"][unstated] == COLLECTIVE
    for number, lanes in derived.of_lane.items():
        for lane_text, text in lanes.items():
            chosen = collective & (rank == number) & (lane == lane_of.get(lane_text, NONE))
            group[unstated[chosen]] = code_of[text]
    for number, text in derived.of_rank.items():
        group[unstated[rank == number]] = code_of[text]
    for number, of_transfers in derived.of_transfers.items():
        rows = unstated[~collective & (rank == number)]
        members = np.array(of_transfers.ranks if of_transfers else (), dtype=np.int64)
        known = rows[(peer[rows] >= 0) & (peer[rows] < len(members))]
        place, peer[rows] = peer[known], NONE
        if of_transfers is not None:
            peer[known] = members[place]
            group[known] = code_of[of_transfers.name]
    return columns | {"group_code": group, "peer": peer}, {code: text for text, code in code_of.items()}


def _positions(numbers: npt.NDArray[Any], ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Ranks as positions in `ranks`; NONE for those that are not among them."""
    found = np.minimum(np.searchsorted(ranks, numbers), max(len(ranks) - 1, 0))
    return np.where(ranks[found] == numbers, found, NONE) if len(ranks) else np.full(len(numbers), NONE)


def _operations(
    columns: dict[str, npt.NDArray[Any]], step: int, job_ranks: tuple[int, ...], texts: dict[str, dict[int, str]]
) -> Operations:
    """One step's rows as operations. Ranks without a scope row for the step are left out."""
    step_codes = [code for code, text in texts["name"].items() if text == STEP_SCOPE]
    is_scope = (columns["kind"] == SCOPE) & np.isin(columns["name_code"], step_codes)
    ranks, first = np.unique(columns["rank"][is_scope], return_index=True)
    known = np.isin(ranks, job_ranks)
    ranks, scope_rows = ranks[known].astype(np.int64), np.flatnonzero(is_scope)[first[known]]
    origin = int(columns["start_ns"][scope_rows].min()) if len(scope_rows) else 0
    scope = {name: values[scope_rows] for name, values in columns.items()}
    numbers = columns["rank"]
    if not np.isin(numbers, ranks).all() or np.any(np.diff(numbers) < 0):
        rows = np.flatnonzero(np.isin(numbers, ranks))
        rows = rows[np.argsort(numbers[rows], kind="stable")]
        columns = {name: values[rows] for name, values in columns.items()}
    return Operations(
        step=step,
        origin_ns=origin,
        ranks=ranks,
        begin_ns=scope["start_ns"] - origin,
        length_ns=scope["duration_ns"],
        main_lane=scope["lane_code"],
        rank=np.searchsorted(ranks, columns["rank"]),
        lane=columns["lane_code"],
        name=columns["name_code"],
        kind=columns["kind"],
        phase=columns["phase"],
        occurrence=columns["occurrence"],
        start_ns=columns["start_ns"] - origin,
        duration_ns=columns["duration_ns"],
        group=columns["group_code"],
        group_seq=columns["group_seq"],
        peer=_positions(columns["peer"], ranks),
        correlation=columns["correlation"],
        name_text=texts["name"],
        lane_text=texts["lane"],
        group_text=texts["group"],
    )
