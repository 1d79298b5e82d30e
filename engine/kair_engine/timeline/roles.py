"""Roles: ranks that run the same program, and so may be compared with one another.

If the layout is unknown, roles follow from how ranks communicate, and never from what they compute: a rank with extra
work is a suspect, and does not run another program.

Logical operators: the same operation on the ranks of one role, and statistics over those peers.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints, is_one_of, stable_order
from kair_engine.frozen import dataclass
from kair_engine.stats import MAD_TO_SIGMA
from kair_engine.trace.batches import known_once
from kair_engine.trace.format import STREAM_PREFIX
from kair_engine.trace.large_steps import read_chosen
from kair_engine.trace.model import Job, Trace
from kair_engine.trace.operations import KIND_NAMES, PHASE_NAMES, RECV, SEND, Operations

SAME_PROGRAM = 0.95
"""Two ranks count as running the same program if they have this share of communication calls in common."""


@dataclass(frozen=True)
class Role:
    """Ranks that run the same program: those of a pipeline stage, or those that communicate alike."""

    name: str
    stage: int | None = None
    """The pipeline stage's number; None where roles are no stages, or the rank's is unknown."""


def roles(trace: Trace, ops: Operations | None = None) -> dict[int, Role]:
    """Return the role of each rank: the pipeline stage if the metadata has it, else ranks that communicate alike.

    The first chosen step shows that; `ops` may be a step in memory: if it is that step, it is not read again.
    """
    layout = trace.job.layout
    if layout is not None and layout.pipeline_stage:
        return {rank: _of_stage(layout.pipeline_stage.get(rank)) for rank in trace.job.ranks}
    return known_once(trace, "roles", lambda: _by_program(trace, _in_equal_time(trace, _calls_of(trace, ops))))


def role_codes(ranks: Ints, role_of: Mapping[int, Role]) -> Ints:
    """Return the roles of `ranks` as numbers, in order of the roles' names."""
    ordered = sorted(set(role_of.values()), key=lambda role: role.name)
    number = {role: code for code, role in enumerate(ordered)}
    return np.array([number[role_of[int(rank)]] for rank in ranks], dtype=np.int64)


def tensor_groups(job: Job) -> Ints | None:
    """Per rank of the job a number, equal for the ranks of one pipeline stage and data-parallel position.

    They compute one batch together. None if the layout is unknown, or no two ranks share a position.
    """
    layout = job.layout
    if layout is None or not layout.dp_rank:
        return None
    place = [(layout.pipeline_stage.get(rank, 0), layout.dp_rank.get(rank, -1 - rank)) for rank in job.ranks]
    number = {of: code for code, of in enumerate(dict.fromkeys(place))}
    return np.array([number[of] for of in place], dtype=np.int64) if len(number) < len(place) else None


def replicas(job: Job) -> Ints | None:
    """Per rank of the job its data-parallel position: those of one run the same batch through all stages.

    Return None if the layout does not have that for all.
    """
    layout = job.layout
    if layout is None or not all(rank in layout.dp_rank for rank in job.ranks):
        return None
    return np.array([layout.dp_rank[rank] for rank in job.ranks], dtype=np.int64)


def _of_stage(stage: int | None) -> Role:
    return Role(f"stage {'?' if stage is None else stage}", stage)


def _by_program(trace: Trace, calls: Mapping[int, Floats]) -> dict[int, Role]:
    of_rank = programs({rank: calls[rank] for rank in trace.job.ranks if rank in calls}, trace.job.truncated)
    # A rank whose recording ends before it could show its program runs that of most.
    usual = Counter(of_rank.values()).most_common(1)[0][0] if of_rank else 0
    of_rank |= {rank: usual for rank in trace.job.ranks if rank not in of_rank}
    if len(set(of_rank.values())) <= 1:
        return dict.fromkeys(trace.job.ranks, Role("all"))
    return {rank: Role(f"program {code}") for rank, code in of_rank.items()}


def programs(calls: Mapping[int, Floats], truncated: Container[int] = ()) -> dict[int, int]:
    """Return the number of each rank's program: that of the first rank which calls the same, SAME_PROGRAM of it.

    `calls` says how often each rank calls each operator, in one common order. A `truncated` rank may be missing calls:
    it gets no separate program, and is left out if no other rank calls the same.
    """
    of_rank: dict[int, int] = {}
    leaders: list[Floats] = []
    known: dict[bytes, int] = {}
    for rank, mine in calls.items():
        code = known.get(mine.tobytes())
        if code is None:
            code = next((at for at, other in enumerate(leaders) if _overlap(mine, other) >= SAME_PROGRAM), None)
        if code is None and rank in truncated:
            continue
        if code is None:
            code = len(leaders)
            leaders.append(mine)
        of_rank[rank] = known[mine.tobytes()] = code
    return of_rank


def _in_equal_time(trace: Trace, calls: Mapping[int, Floats]) -> dict[int, Floats]:
    """Return the calls as they would be of recordings of one length, where a whole recording stands for one step.

    Such begin and end anywhere: who was recorded for longer runs no other program.
    """
    if len(trace.steps) != 1 or "no_step_marks" not in {warning.code for warning in trace.job.warnings}:
        return dict(calls)
    times = trace.job.step_times
    lasted = dict(zip(times.rank, times.duration_ns, strict=True))
    return {rank: of_rank / max(lasted.get(rank, 1), 1) for rank, of_rank in calls.items()}


def _calls_of(trace: Trace, ops: Operations | None) -> dict[int, Floats]:
    is_at_hand = ops is not None and _first_steps(trace) == dict.fromkeys(ops.ranks.tolist(), ops.step)
    return _calls_in(ops) if ops is not None and is_at_hand else _calls(trace)


def _calls(trace: Trace) -> dict[int, Floats]:
    """rank → how often it called each communication in its first chosen step (operators in one common order).

    Those of a rank whose first of all sends and receives is a send are operators of their own: the first and the last
    stage of a pipeline call both equally often. That is so on threads, which call in the program's order; streams run
    what is called together in any order.
    """
    first = _first_steps(trace)
    if not first:
        return {}
    steps = replace(trace, steps=tuple(sorted(set(first.values()))))
    columns = ("kind", "name", "phase", "lane", "start_ns")
    rows = read_chosen(steps, columns, lambda rows: rows.is_any("kind", ("collective", "send", "recv")))
    numbers, place = np.unique(rows.of["rank"], return_inverse=True)
    begun = np.array([first.get(number, NONE) for number in numbers.tolist()], dtype=np.int64)[place]
    chosen = rows.of["step"] == begun
    rank, rows = place[chosen], rows.chosen(chosen)
    operator = rows.of["name"] * (len(rows.texts["phase"]) + 1) + rows.of["phase"]
    streams = [text for text in rows.texts["lane"] if text.startswith(STREAM_PREFIX)]
    transfers = rows.is_any("kind", ("send", "recv")) & ~rows.is_any("lane", streams)
    sends_first = _sends_first(rank, rows.of["start_ns"], rows.is_any("kind", ("send",)), transfers)
    return _counted(numbers, rank, 2 * operator + sends_first)


def _calls_in(ops: Operations) -> dict[int, Floats]:
    """Return the same of a step's operations."""
    rows = np.flatnonzero(ops.communication)
    operator = ops.name[rows] * (len(PHASE_NAMES) + 1) + ops.phase[rows]
    transfers = is_one_of(ops.kind[rows], (SEND, RECV)) & ~ops.on_stream[rows]
    sends_first = _sends_first(ops.rank[rows], ops.start_ns[rows], ops.kind[rows] == SEND, transfers)
    return _counted(ops.ranks, ops.rank[rows], 2 * operator + sends_first)


def _sends_first(rank: Ints, start_ns: Ints, sends: Bools, transfers: Bools) -> Bools:
    """Per row: is it one of the `transfers` of a rank whose first of them is a send?"""
    result = np.zeros(len(rank), dtype=bool)
    rows = np.flatnonzero(transfers)
    rows = rows[np.lexsort((start_ns[rows], rank[rows]))]
    _, first, of_row = np.unique(rank[rows], return_index=True, return_inverse=True)
    result[rows] = sends[rows[first]][of_row.reshape(-1)]
    return result


def _counted(numbers: Ints, rank: Ints, operator: Ints) -> dict[int, Floats]:
    """How often each rank (a place in `numbers`) called each operator (any codes): those that called any."""
    column = np.unique(operator, return_inverse=True)[1]
    calls = np.zeros((len(numbers), int(column.max(initial=NONE)) + 1))
    np.add.at(calls, (rank, column), 1)
    return {int(numbers[at]): calls[at] for at in np.unique(rank).tolist()}


def _first_steps(trace: Trace) -> dict[int, int]:
    """rank → the first chosen step that it recorded, a whole one where it has one."""
    chosen, times, cut_off = set(trace.steps), trace.job.step_times, trace.job.cut_off
    cells = [(rank, step) for rank, step in zip(times.rank, times.step, strict=True) if step in chosen]
    latest = sorted(cells, key=lambda cell: (cell[0] not in cut_off.get(cell[1], ()), -cell[1]))
    return dict(latest)


def _overlap(a: Floats, b: Floats) -> float:
    larger = float(np.maximum(a, b).sum())
    return float(np.minimum(a, b).sum()) / larger if larger else 1.0


def logical_keys(ops: Operations, role_of_rank: Ints) -> Ints:
    """One number per row, equal for the same logical operator (role, phase, kind, name, occurrence) on its peers.

    `role_of_rank` holds a role code per position in `ops.ranks`.
    """
    names = int(ops.name.max(initial=0)) + 1
    occurrences = int(ops.occurrence.max(initial=0)) + 1
    phases = len(PHASE_NAMES) + 1
    role = role_of_rank[ops.rank] if len(ops) else ops.rank
    # torch.compile gives a host operator and its kernel one name; occurrences are counted by kind.
    which = (role * phases + ops.phase - NONE) * len(KIND_NAMES) + ops.kind
    return (which * names + ops.name) * occurrences + ops.occurrence


@dataclass(frozen=True)
class PeerGroups:
    """Rows grouped by logical operator.

    `rows` lists the rows group after group; `starts` and `sizes` cut it into groups.
    """

    rows: Ints
    starts: Ints
    sizes: Ints

    @classmethod
    def of(cls, keys: Ints, selected: Ints) -> "PeerGroups":
        """Group the `selected` rows by their key."""
        order = selected[stable_order(keys[selected])]
        ordered = keys[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(order) else order
        return cls(order, starts, np.diff(np.concatenate((starts, [len(order)]))))

    def blocks(self, smallest: int = 1) -> Iterator[Ints]:
        """Rows as (groups × peers) matrices, one for each group size of at least `smallest`."""
        for size in np.unique(self.sizes):
            if size >= smallest:
                begin = self.starts[self.sizes == size]
                yield self.rows[begin[:, None] + np.arange(size)]


def split_off(ops: Operations, block: Ints, rank: int) -> tuple[Ints, Ints]:
    """Of a (groups × peers) block the groups the rank (a position) is part of: its rows, and the others'.

    Returns shapes (groups,) and (groups, peers − 1).
    """
    mine = ops.rank[block] == rank
    once = mine.sum(axis=1) == 1
    block, mine = block[once], mine[once]
    return block[mine], block[~mine].reshape(len(block), block.shape[1] - 1)


def robust_sigma(data: Floats) -> Floats:
    """1.4826 · MAD of each row of (groups × peers)."""
    deviation = np.abs(data - np.median(data, axis=1, keepdims=True))
    return np.asarray(MAD_TO_SIGMA * np.median(deviation, axis=1))


def main_lane_rows(ops: Operations) -> Bools:
    """Return True for rows on their rank's main thread."""
    return ops.lane == ops.main_lane[ops.rank] if len(ops) else np.zeros(0, dtype=bool)
