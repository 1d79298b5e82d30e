"""Which rows a rank's step has in the operations table, and all of their columns but the times."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from device_operations import Operation
from layouts import JobLayout
from programs import Program

SmallInts = npt.NDArray[np.int32]

MAIN_THREAD: Final = 7001
STEP, FETCH, WAIT = 0, 1, 2
"""Times of the host that a step has once; they come after those of the device and of the launches."""
FETCH_NAME: Final = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
WAIT_NAME: Final = "cudaStreamSynchronize"
GRAPH_LAUNCH: Final = "cudaGraphLaunch"
GC_NAME: Final = "python gc"
SCOPE_LEAD_NS, SCOPE_TAIL_NS = 1_000, 500
"""How much earlier each scope around a launch begins, and how much later it ends, than the one in it."""

_TEXT_COLUMNS: Final = ("lane", "name", "kind", "phase", "group")
ABSENT: Final = -1


@dataclass(frozen=True)
class Row:
    """One row of a rank's step: what it is, and which times it has."""

    lane: str
    name: str
    kind: str
    phase: str | None
    begin: int
    """Index of its begin among the stage's times: operations, launches, then STEP, FETCH, WAIT."""
    end: int
    slot: int | None = None
    """The operation that it belongs to."""
    depth: int = 0
    """Of a scope, how many lie between it and its launch, itself included; 0 of everything else."""


@dataclass(frozen=True, eq=False)
class StageRows:
    """One stage's rows in the table's order, and where their times come from; `shift` in ns."""

    rows: tuple[Row, ...]
    begin: npt.NDArray[np.int64]
    begin_shift: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    end_shift: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Template:
    """The table of every recording of a program, without its times: ordered by step, rank, lane and start."""

    stages: tuple[StageRows, ...]
    columns: dict[str, SmallInts]
    """Texts as codes; ABSENT for null."""
    texts: dict[str, tuple[str, ...]]
    rows_per_step: int


@lru_cache(maxsize=8)
def template_of(program: Program, steps: int, host_operators: bool) -> Template:
    """The template for so many steps, with or without the operators around the launches."""
    graphed = program.layout.graphed
    stages = tuple(_stage_rows(operations, host_operators, graphed) for operations in program.stages)
    codes: dict[str, dict[str, int]] = {column: {} for column in _TEXT_COLUMNS}
    groups = {group.name: f"{group.name} {group.rank_list}" for group in program.layout.groups.all}
    codes["group"] = {text: code for code, text in enumerate(groups.values())}
    parts = [_step_columns(program, stage, of_stage, codes) for stage, of_stage in enumerate(stages)]
    first = {column: np.concatenate([part[column].ravel() for part in parts]) for column in parts[0]}
    count = len(first["rank"])
    columns = {column: np.tile(values, steps) for column, values in first.items() if not column.endswith("_per_step")}
    number = np.repeat(np.arange(steps, dtype=np.int32), count)
    columns["step"] = number
    for column in ("group_seq", "correlation"):
        growth = np.tile(first[f"{column}_per_step"], steps)
        columns[column] = np.where(columns[column] == ABSENT, ABSENT, columns[column] + number * growth)
    return Template(stages, columns, {column: tuple(texts) for column, texts in codes.items()}, count)


def _stage_rows(operations: tuple[Operation, ...], host_operators: bool, graphed: bool) -> StageRows:
    rows = (*_device_rows(operations), *_host_rows(operations, host_operators, graphed))
    depth = np.array([row.depth for row in rows])
    return StageRows(
        rows,
        begin=np.array([row.begin for row in rows]),
        begin_shift=-SCOPE_LEAD_NS * depth,
        end=np.array([row.end for row in rows]),
        end_shift=SCOPE_TAIL_NS * depth,
    )


def _device_rows(operations: tuple[Operation, ...]) -> list[Row]:
    rows = [
        Row(f"stream {one.stream}", one.name, one.kind, one.phase, slot, slot, slot)
        for slot, one in enumerate(operations)
    ]
    # Stable: on its stream every operation begins after those launched before it.
    return sorted(rows, key=lambda row: row.lane)


def _host_rows(operations: tuple[Operation, ...], host_operators: bool, graphed: bool) -> list[Row]:
    lane, count = f"thread {MAIN_THREAD}", len(operations)
    once = 2 * count
    rows = [
        Row(lane, "step", "scope", None, once + STEP, once + STEP),
        Row(lane, FETCH_NAME, "input", "input", once + FETCH, once + FETCH),
    ]
    for slot, one in enumerate(operations):
        launch = count + slot
        if graphed and one.kind != "memory":
            if not slot:
                rows.append(Row(lane, GRAPH_LAUNCH, "host", one.phase, launch, launch, slot))
            continue
        if host_operators:
            # `loss.item()` covers the copy and the wait for it.
            end = once + WAIT if one.label == "copy" else launch
            for index, scope in enumerate(one.scopes):
                depth = len(one.scopes) - index
                kind = "scope" if scope.annotation else "host"
                rows.append(Row(lane, scope.name, kind, one.phase, launch, end, slot, depth))
        rows.append(Row(lane, one.launch_name, "host", one.phase, launch, launch, slot))
    rows.append(Row(lane, WAIT_NAME, "sync", operations[-1].phase, once + WAIT, once + WAIT))
    return rows


def _step_columns(
    program: Program, stage: int, stage_rows: StageRows, codes: dict[str, dict[str, int]]
) -> dict[str, SmallInts]:
    """One stage's columns in the first step, (ranks × rows) each, and by how much two of them grow with each step."""
    layout, operations, rows = program.layout, program.stages[stage], stage_rows.rows
    ranks = np.array(layout.stage_ranks(stage))
    shape = (len(ranks), len(rows))
    sequence, per_step = _sequence_numbers(operations)
    fixed = {
        **{column: [_code(codes[column], getattr(row, column)) for row in rows] for column in _TEXT_COLUMNS[:-1]},
        "occurrence": _occurrences(rows),
        "microbatch": [_of_kernel(row, operations, "microbatch") for row in rows],
        "bytes": [_of_kernel(row, operations, "size") for row in rows],
        "group_seq": [_of_communication(row, operations, sequence) for row in rows],
        "group_seq_per_step": [_of_communication(row, operations, per_step) for row in rows],
        "correlation": [_correlation(row, operations, layout.graphed) for row in rows],
        "correlation_per_step": [len(operations) + 1] * len(rows),
    }
    result = {column: np.broadcast_to(np.array(values, np.int32), shape) for column, values in fixed.items()}
    result["rank"] = np.broadcast_to(ranks[:, None], shape).astype(np.int32)
    result["group"] = np.full(shape, ABSENT, np.int32)
    result["peer"] = np.full(shape, ABSENT, np.int32)
    for at, row in enumerate(rows):
        operation = _communication_of(row, operations)
        if operation is not None:
            assert operation.dimension is not None
            result["group"][:, at] = layout.groups.of_rank[operation.dimension][ranks]
            result["peer"][:, at] = _peers(operation, stage, layout, ranks)
    return result


def _communication_of(row: Row, operations: tuple[Operation, ...]) -> Operation | None:
    if row.slot is None or row.kind not in ("collective", "send", "recv"):
        return None
    return operations[row.slot]


def _peers(
    operation: Operation, stage: int, layout: JobLayout, ranks: npt.NDArray[np.int64]
) -> int | npt.NDArray[np.int64]:
    """The other ends of a send or receive, ABSENT of a collective."""
    if operation.edge is None:
        return ABSENT
    return ranks + (layout.ranks_per_stage if operation.edge == stage else -layout.ranks_per_stage)


def _sequence_numbers(operations: tuple[Operation, ...]) -> tuple[list[int], list[int]]:
    """Per operation: its number in its process group in the first step, and how many of the group a step has."""
    seen: Counter[str | None] = Counter()
    numbers = []
    for operation in operations:
        seen[operation.dimension] += 1
        numbers.append(seen[operation.dimension])
    return numbers, [seen[operation.dimension] for operation in operations]


def _of_communication(row: Row, operations: tuple[Operation, ...], values: list[int]) -> int:
    return ABSENT if row.slot is None or _communication_of(row, operations) is None else values[row.slot]


def _of_kernel(row: Row, operations: tuple[Operation, ...], attribute: str) -> int:
    on_device = row.slot is not None and row.lane.startswith("stream")
    value = getattr(operations[row.slot], attribute) if on_device and row.slot is not None else None
    return ABSENT if value is None else int(value)


def _correlation(row: Row, operations: tuple[Operation, ...], graphed: bool) -> int:
    if row.depth:
        return ABSENT
    if row.slot is not None:
        # All kernels of a graph have its launch's.
        return 1 if graphed and operations[row.slot].kind != "memory" else row.slot + 1
    return len(operations) + 1 if row.name == WAIT_NAME else ABSENT


def _occurrences(rows: tuple[Row, ...]) -> list[int]:
    """Rows of one name, kind and phase share a lane, so that their order is the same on all ranks."""
    seen: Counter[tuple[str, str, str | None]] = Counter()
    result = []
    for row in rows:
        key = (row.name, row.kind, row.phase)
        result.append(seen[key])
        seen[key] += 1
    return result


def _code(codes: dict[str, int], text: str | None) -> int:
    return ABSENT if text is None else codes.setdefault(text, len(codes))
