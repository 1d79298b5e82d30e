"""What one data-parallel rank, or one worker, costs: all the others ideal, for all of them at once.

Ranks that are ideal and run the same program are alike. So beside each rank, recorded in part, a copy of it that is
wholly ideal stands for all the others: two lanes instead of as many as there are ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.collectives import dense
from kair_engine.whatif.pipeline_rows import PipelineRows
from kair_engine.whatif.pipeline_times import AT_ONCE, PipelineTimes, closing
from kair_engine.whatif.replay import Graph, Plan, plan, replay

_LARGEST = 300_000_000
"""Operations × scenarios that are replayed one by one where ranks do not run alike."""


def alike(rows: PipelineRows, graph: Graph) -> bool:
    """Whether within each step all data-parallel ranks run the same operations with the same dependencies."""
    cell = rows.step * rows.dp_size + rows.dp
    sizes = np.bincount(cell, minlength=len(rows.steps) * rows.dp_size).reshape(len(rows.steps), rows.dp_size)
    if np.any(sizes != sizes[:, :1]) or np.any(np.diff(cell) < 0):
        return False
    first = np.concatenate(([0], np.cumsum(sizes.ravel())))[:-1]
    place = np.arange(len(rows)) - first[cell]
    own = np.stack((rows.stage, rows.type, rows.turn))
    edges = np.stack((place[graph.before], place[graph.after]))
    crossing = cell[graph.before] != cell[graph.after]
    if crossing.any():
        return False
    return _same(rows, cell, place, own) and _same_edges(rows, cell[graph.after], edges)


@dataclass(frozen=True)
class Parts:
    """Step times, ns, where only one part is as recorded."""

    dp_ranks: Floats
    """(dp ranks × steps)."""
    workers: Floats | None
    """(dp ranks × stages × steps); None where that takes too long."""


def by_part(times: PipelineTimes) -> Parts:
    """Every data-parallel rank, and every worker, as recorded among ideal others."""
    rows = times.rows
    stages = [rows.stage == stage for stage in range(rows.pp_size)]
    if rows.dp_size > 1 and alike(rows, times.model.graph):
        masks = [np.ones(len(rows), dtype=bool), *stages]
        at_once = max(1, AT_ONCE // (2 * len(rows)))
        meeting, order = _lanes(times)
        chunks = (masks[begin : begin + at_once] for begin in range(0, len(masks), at_once))
        found = np.concatenate([_beside_ideal(times, order, meeting, chunk) for chunk in chunks])
        return Parts(found[0], found[1:].transpose(1, 0, 2))
    dp_ranks = [rows.dp == dp for dp in range(rows.dp_size)]
    workers = None
    if rows.dp_size * rows.pp_size * len(rows) <= _LARGEST:
        masks = [dp & stage for dp in dp_ranks for stage in stages]
        workers = times.steps_if(masks).reshape(rows.dp_size, rows.pp_size, -1)
    return Parts(times.steps_if(dp_ranks), workers)


def _lanes(times: PipelineTimes) -> tuple[Bools, Plan]:
    """The operations where a rank meets its ideal counterpart, and the replay of each rank by itself."""
    rows, graph = times.rows, times.model.graph
    member = np.flatnonzero(graph.group != NONE)
    group = np.full(graph.nodes, NONE)
    group[member] = dense(np.stack((graph.group[member], rows.dp[member])))
    return _across(rows, graph), plan(Graph(graph.nodes, graph.before, graph.after, group))


def _beside_ideal(times: PipelineTimes, order: Plan, meeting: Bools, recorded: Sequence[Bools]) -> Floats:
    """(scenarios × dp ranks × steps): every rank with the masked rows as recorded, beside ideal others."""
    durations = np.repeat(times.ideal_ns[:, None], 2 * len(recorded), axis=1)
    for lane, mask in enumerate(recorded):
        durations[mask, lane] = times.own_ns[mask]
    end = replay(order, durations, meeting=meeting)
    both = np.maximum(end[:, : len(recorded)], end[:, len(recorded) :])
    return _last_of_each(times.rows, both)


def _across(rows: PipelineRows, graph: Graph) -> Bools:
    """The operations in communications across data-parallel ranks."""
    member = np.flatnonzero(graph.group != NONE)
    groups = int(graph.group.max(initial=NONE)) + 1
    low, high = np.full(groups, rows.dp_size), np.full(groups, NONE)
    np.minimum.at(low, graph.group[member], rows.dp[member])
    np.maximum.at(high, graph.group[member], rows.dp[member])
    return np.asarray((graph.group != NONE) & (low < high)[graph.group]) if groups else np.zeros(len(rows), dtype=bool)


def _last_of_each(rows: PipelineRows, end: Floats) -> Floats:
    """(scenarios × dp ranks × steps): when the last optimizer has ended."""
    last = closing(rows)
    result = np.full((rows.dp_size, len(rows.steps), end.shape[1]), -np.inf)
    np.maximum.at(result, (rows.dp[last], rows.step[last]), end[last])
    return result.transpose(2, 0, 1)


def _same(rows: PipelineRows, cell: Ints, place: Ints, values: Ints) -> bool:
    """Whether the rows at one place are the same on all ranks of a step."""
    reference = np.full((values.shape[0], len(rows.steps), int(place.max(initial=0)) + 1), NONE)
    step = cell // rows.dp_size
    reference[:, step, place] = values
    return bool(np.all(reference[:, step, place] == values))


def _same_edges(rows: PipelineRows, cell: Ints, edges: Ints) -> bool:
    """Whether all ranks of a step have the same edges, places for rows."""
    order = np.lexsort((edges[1], edges[0], cell))
    sizes = np.bincount(cell, minlength=len(rows.steps) * rows.dp_size).reshape(len(rows.steps), rows.dp_size)
    if np.any(sizes != sizes[:, :1]):
        return False
    first = np.concatenate(([0], np.cumsum(sizes.ravel())))[:-1]
    ordered = cell[order]
    return _same(rows, ordered, np.arange(len(ordered)) - first[ordered], edges[:, order])
