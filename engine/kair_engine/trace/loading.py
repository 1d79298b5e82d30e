"""Converts the operations table to one step's arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import NONE, Codes, Ints, is_one_of, narrow
from kair_engine.cancelling import checkpoint
from kair_engine.frozen import dataclass
from kair_engine.progress import counted
from kair_engine.trace.batches import ROWS_AT_A_TIME, require_memory, step_batches
from kair_engine.trace.columns import Columns, read_columns
from kair_engine.trace.group_names import listed_ranks
from kair_engine.trace.model import DerivedGroups, Job, Trace
from kair_engine.trace.operations import (
    COLLECTIVE,
    COMPUTE,
    HOST,
    INPUT,
    KIND_NAMES,
    PHASE_NAMES,
    RECV,
    SCOPE,
    SEND,
    STEP_SCOPE,
    Operations,
)

_GIVEN_INPUTS = (COMPUTE, HOST, INPUT)
_CODED = ("lane", "name", "group", "inputs")
_NULLABLE = ("group_seq", "peer", "correlation", "bytes")
COLUMNS = (*_CODED, "kind", "phase", "occurrence", "start_ns", "duration_ns", *_NULLABLE)
"""The columns of an operation, in addition to its step and rank."""


def each_step(trace: Trace, operations: int = ROWS_AT_A_TIME) -> Iterator[Operations]:
    """Yield the chosen steps' operations in order, `operations` read at a time.

    A consumer that drops one step before it takes the next (`map` does) holds one in memory, or a few small ones.
    Raises InputError if one of them needs more memory than there is.
    """
    if trace.memory is not None:
        for ops in trace.memory.each(step_batches(trace), lambda steps: each_step(_unremembered(trace, steps))):
            checkpoint()
            yield ops
        return
    require_memory(trace)
    for steps in counted(list(step_batches(trace, operations)), f"reading {len(trace.steps):,} steps"):
        yield from _steps_of(trace, steps)


def _unremembered(trace: Trace, steps: Sequence[int]) -> Trace:
    return replace(trace, steps=tuple(steps), memory=None)


def load_step(trace: Trace, step: int) -> Operations:
    """Return one step of all ranks; only that step's row groups are read."""
    return next(each_step(trace.select([step])))


def _steps_of(trace: Trace, steps: list[int]) -> Iterator[Operations]:
    columns, texts = _coded(trace, read_rows(trace, steps))
    if len(steps) == 1:
        ops = _operations(columns, steps[0], trace.job, texts)
        del columns
        yield ops
        return
    for step in steps:
        checkpoint()
        rows = np.flatnonzero(columns["step"] == step)
        yield _operations({name: values[rows] for name, values in columns.items()}, step, trace.job, texts)


def read_rows(trace: Trace, steps: Sequence[int]) -> Columns:
    """Return the rows of these steps, with kinds and phases as indices into KIND_NAMES and PHASE_NAMES."""
    return recoded(trace, read_columns(trace, COLUMNS, steps))


def recoded(trace: Trace, read: Columns) -> Columns:
    """Return the rows of COLUMNS with kinds and phases as such indices."""
    read.recode("kind", KIND_NAMES, np.int8)
    read.recode("phase", PHASE_NAMES, np.int8)
    if trace.job.communicates:
        unnamed = read.is_any("name", trace.job.communicates) & (read.of["kind"] == COMPUTE)
        read.of["kind"] = np.where(unnamed, np.int8(COLLECTIVE), read.of["kind"])
    return read


@dataclass(frozen=True)
class Cells:
    """Steps of ranks, each treated as a rank of one step: work that needs no other rank is done for all at once."""

    step: Ints
    rank: Ints
    """Per cell; cells are ordered by rank and then by step."""
    begin_ns: Ints
    """Per cell, on its rank's clock."""
    ops: Operations
    """Its rank indices are cells; each one's times count from its own begin."""
    rows: Columns
    """The rows they were made from."""


def cells_of(trace: Trace, read: Columns) -> Cells:
    """Return cells from the rows that `read_rows` gives for some ranks and steps; communication is not matched.

    Steps of ranks without a scope row are left out.
    """
    step, rank = read.of["step"].astype(np.int64), read.of["rank"].astype(np.int64)
    low, span = int(step.min(initial=0)), int(step.max(initial=0)) - int(step.min(initial=0)) + 1
    key = rank * span + (step - low)
    scopes = np.flatnonzero((read.of["kind"] == SCOPE) & read.is_any("name", (STEP_SCOPE,)))
    scopes = scopes[np.isin(rank[scopes], trace.job.ranks)]
    cells, first = np.unique(key[scopes], return_index=True)
    known = np.isin(key, cells)
    if not known.all() or np.any(np.diff(key) < 0):
        rows = np.flatnonzero(known)
        rows = rows[np.argsort(key[rows], kind="stable")]
        place = np.full(len(key), NONE)
        place[rows] = np.arange(len(rows))
        read, key, scopes = read.chosen(rows), key[rows], place[scopes]
    of_rank, of_step = cells // span, cells % span + low
    columns, texts = _coded(trace, Columns(dict(read.of), read.texts))
    scope = {name: columns[name][scopes[first]] for name in ("start_ns", "duration_ns", "lane_code")}
    begin, length, rank = scope["start_ns"], scope["duration_ns"], np.searchsorted(cells, key)
    if trace.job.host_times is not None:
        of_cells = zip(of_rank.tolist(), of_step.tolist(), strict=True)
        begin, length = np.array([trace.job.times_of[cell] for cell in of_cells], np.int64).reshape(-1, 2).T
    unknown = np.broadcast_to(np.int64(NONE), len(key))
    ops = Operations(
        step=NONE,
        origin_ns=0,
        ranks=np.arange(len(cells)),
        begin_ns=np.zeros_like(begin),
        length_ns=length,
        main_lane=scope["lane_code"],
        rank=rank,
        lane=columns["lane_code"],
        name=columns["name_code"],
        kind=columns["kind"],
        phase=columns["phase"],
        occurrence=columns["occurrence"],
        start_ns=columns["start_ns"] - begin[rank],
        duration_ns=columns["duration_ns"],
        group=columns["group_code"],
        group_seq=unknown,
        peer=unknown,
        correlation=columns["correlation"],
        name_text=texts["name"],
        lane_text=texts["lane"],
        group_text=texts["group"],
        input_bytes=columns.get("bytes"),
        inputs=columns.get("inputs_code"),
        inputs_text=texts["inputs"],
        in_device_job=trace.job.has_device,
        runs_ahead=trace.job.host_times is not None,
    )
    return Cells(of_step, of_rank, begin, ops, read)


def operations_of(trace: Trace, read: Columns, step: int) -> Operations:
    """Return the operations of one step, of all ranks or some, from the rows that `read_rows` gives."""
    columns, texts = _coded(trace, read)
    return _operations(columns, step, trace.job, texts)


def _coded(trace: Trace, read: Columns) -> tuple[dict[str, npt.NDArray[Any]], dict[str, dict[int, str]]]:
    """Return the columns of the rows, and the texts of the codes of lanes, names and groups.

    Groups and peers are those in the rows, or are derived from the job.
    """
    columns, texts = _split_texts(read)
    if trace.job.peers_are_ranks:
        columns["peer"] = _stated_peers(columns, texts["group"], trace.job.peers_are_ranks)
    if trace.job.derived is not None:
        columns, texts["group"] = _with_derived_groups(columns, texts, trace.job.derived)
    return columns, texts


def _split_texts(read: Columns) -> tuple[dict[str, npt.NDArray[Any]], dict[str, dict[int, str]]]:
    """Return the columns of the rows, which are taken from `read`, and the texts of their codes."""
    texts = {name: {code: read.texts[name][code] for code in read.present(name)} for name in _CODED}
    coded = {f"{name}_code": read.of.pop(name) for name in _CODED}
    # What fits takes half of the memory for as long as a step is looked at.
    narrowed = {name: narrow(read.of.pop(name), np.int32) for name in _NULLABLE}
    columns = {**read.of, **coded, **narrowed}
    sized = columns["bytes"] >= 0
    if not np.any(sized & is_one_of(columns["kind"], _GIVEN_INPUTS)):
        bytes_ = columns.pop("bytes")
        if np.any(sized & is_one_of(columns["kind"], (COLLECTIVE, SEND, RECV))):
            columns["message_bytes"] = bytes_
    if not texts["inputs"]:
        del columns["inputs_code"]
    return columns, texts


def _stated_peers(
    columns: dict[str, npt.NDArray[Any]], groups: dict[int, str], ranks: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Return the peers of transfers as these ranks' recordings number them: as ranks of the job.

    Such peers were taken for places in their groups.
    """
    peer = columns["peer"].copy()
    rows = np.flatnonzero((peer >= 0) & np.isin(columns["rank"], ranks))
    for code, text in groups.items():
        of_group = rows[columns["group_code"][rows] == code]
        members = np.array(listed_ranks(text), dtype=np.int64)
        if len(of_group) and len(members):
            order = np.argsort(members)
            place = order[np.minimum(np.searchsorted(members[order], peer[of_group]), len(members) - 1)]
            peer[of_group] = np.where(members[place] == peer[of_group], place, peer[of_group])
    return peer


def _with_derived_groups(
    columns: dict[str, npt.NDArray[Any]], texts: dict[str, dict[int, str]], derived: DerivedGroups
) -> tuple[dict[str, npt.NDArray[Any]], dict[int, str]]:
    """Return the columns with derived process groups and peers where rows state none, and the groups' names."""
    group, peer = columns["group_code"].copy(), columns["peer"].copy()
    stated = texts["group"]
    names = {text for lanes in derived.of_lane.values() for text in lanes.values()}
    names |= set(derived.of_rank.values())
    names |= {of_rank.name for of_rank in derived.of_transfers.values() if of_rank is not None}
    first_free = max(stated, default=NONE) + 1
    code_of = {text: code for code, text in enumerate(sorted(names - set(stated.values())), first_free)}
    code_of |= {text: code for code, text in stated.items()}
    lane_of = {text: code for code, text in texts["lane"].items()}
    unstated = np.flatnonzero((group == NONE) & is_one_of(columns["kind"], (COLLECTIVE, SEND, RECV)))
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


def _positions(numbers: Ints, ranks: Ints) -> Codes:
    """Return ranks as indices into `ranks`; NONE for others."""
    known = np.flatnonzero(numbers != NONE)
    if not len(known):
        return np.broadcast_to(np.int32(NONE), len(numbers))
    place = np.full(len(numbers), NONE, dtype=np.int32)
    if len(ranks):
        found = np.minimum(np.searchsorted(ranks, numbers[known]), len(ranks) - 1)
        place[known] = np.where(ranks[found] == numbers[known], found, NONE)
    return place


def _operations(
    columns: dict[str, npt.NDArray[Any]], step: int, job: Job, texts: dict[str, dict[int, str]]
) -> Operations:
    """Return one step's rows as operations. Ranks without a scope row for the step are left out.

    The step's own times are its scope's, on the host; if hosts run ahead, those of its devices.
    """
    step_codes = [code for code, text in texts["name"].items() if text == STEP_SCOPE]
    is_scope = (columns["kind"] == SCOPE) & is_one_of(columns["name_code"], step_codes)
    ranks, first = np.unique(columns["rank"][is_scope], return_index=True)
    known = np.isin(ranks, job.ranks)
    ranks, scope_rows = ranks[known].astype(np.int64), np.flatnonzero(is_scope)[first[known]]
    scope = {name: values[scope_rows] for name, values in columns.items()}
    begin, length = scope["start_ns"], scope["duration_ns"]
    if job.host_times is not None:
        times = np.array([job.times_of[rank, step] for rank in ranks.tolist()], np.int64).reshape(-1, 2)
        begin, length = times[:, 0], times[:, 1]
    origin = int(begin.min()) if len(begin) else 0
    numbers = columns["rank"]
    begins = np.flatnonzero(np.diff(numbers, prepend=NONE))
    if not np.array_equal(numbers[begins], ranks):
        # Not in order, or with ranks that are left out.
        rows = np.flatnonzero(np.isin(numbers, ranks))
        rows = rows[np.argsort(numbers[rows], kind="stable")]
        columns = {name: columns.pop(name)[rows] for name in list(columns)}
        begins = np.flatnonzero(np.diff(columns["rank"], prepend=NONE))
    return Operations(
        step=step,
        origin_ns=origin,
        ranks=ranks,
        begin_ns=begin - origin,
        length_ns=length,
        main_lane=scope["lane_code"],
        rank=np.repeat(np.arange(len(ranks)), np.diff(begins, append=len(columns["rank"]))),
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
        input_bytes=columns.get("bytes"),
        message_bytes=columns.get("bytes", columns.get("message_bytes")),
        inputs=columns.get("inputs_code"),
        inputs_text=texts["inputs"],
        runs_ahead=job.host_times is not None,
        clock=_clocks(job, ranks),
    )


def _clocks(job: Job, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Return per rank index a number, equal for ranks that share a clock; None if every rank has its own."""
    if not job.clock_of:
        return None
    own = max(job.clock_of.values()) + 1
    numbers = [job.clock_of.get(rank, own + at) for at, rank in enumerate(ranks.tolist())]
    return np.array(numbers, dtype=np.int64)
