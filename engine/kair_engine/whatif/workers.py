"""What one data-parallel rank, or one worker, costs: all the others ideal, for all of them at once.

Ranks that are ideal and run the same program are alike. So beside each rank, recorded in part, a copy of it that is
wholly ideal stands for all the others: two lanes instead of as many as there are ranks.
"""

from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats
from kair_engine.collectives import dense
from kair_engine.whatif.alike_steps import AlikeSteps
from kair_engine.whatif.choices import Choice, both, everything, of_dp_rank, of_stage
from kair_engine.whatif.pipeline_times import AT_ONCE, PipelineTimes, parts_of
from kair_engine.whatif.replay import Graph, plan, replay_in_place

_LARGEST = 300_000_000
"""Operations × scenarios that are replayed one by one where ranks do not run alike."""


@dataclass(frozen=True)
class Parts:
    """Step times, ns, where only one part is as recorded."""

    dp_ranks: Floats
    """(dp ranks × steps)."""
    workers: Floats | None
    """(dp ranks × stages × steps); None where that takes too long."""


@dataclass(frozen=True)
class OneRank:
    """What every data-parallel rank runs in a step."""

    graph: Graph
    across: Bools
    """The operations that communicate with other data-parallel ranks."""


def by_part(times: PipelineTimes) -> Parts:
    """Every data-parallel rank, and every worker, as recorded among ideal others."""
    rows, dps, pps = times.rows, times.rows.dp_size, times.rows.pp_size
    dp_ranks, workers = np.empty((dps, len(rows.steps))), np.empty((dps, pps, len(rows.steps)))
    stages = [of_stage(stage) for stage in range(pps)]
    too_many = False
    for of in times.alike:
        rank = one_rank(of)
        if rank is not None:
            found = _beside_ideal(times, of, rank, [everything, *stages])
            dp_ranks[:, of.steps], workers[:, :, of.steps] = found[0], found[1:].transpose(1, 0, 2)
            continue
        each = [of_dp_rank(dp) for dp in range(dps)]
        dp_ranks[:, of.steps] = times.alike_steps_if(of, each)
        too_many |= dps * pps * len(of.rows) * len(of.steps) > _LARGEST
        if not too_many:
            single = [both(dp, stage) for dp in each for stage in stages]
            workers[:, :, of.steps] = times.alike_steps_if(of, single).reshape(dps, pps, -1)
    return Parts(dp_ranks, None if too_many else workers)


def one_rank(of: AlikeSteps) -> OneRank | None:
    """What all data-parallel ranks run, the same operations with the same dependencies; None where they do not."""
    rows, graph, dps = of.rows, of.graph, of.rows.dp_size
    size, rest = divmod(len(rows), dps)
    first = np.arange(dps)[:, None] * size
    if dps < 2 or rest or len(graph.before) % dps or np.any(rows.dp != np.arange(len(rows)) // size):
        return None
    order = np.lexsort((graph.after, graph.before))
    edges = np.stack((graph.before[order], graph.after[order])).reshape(2, dps, -1) - first
    member = np.flatnonzero(graph.group != NONE)
    of_rank = dense(np.stack((graph.group[member], rows.dp[member])))
    one_of_each = member[np.unique(of_rank, return_index=True)[1]]
    meets, across = np.full(len(rows), NONE), np.zeros(len(rows), dtype=bool)
    meets[member] = one_of_each[of_rank] % size
    across[member] = (np.bincount(graph.group[one_of_each]) > 1)[graph.group[member]]
    what = np.stack((rows.stage, rows.type, rows.turn, meets, across)).reshape(5, dps, size)
    if np.any(what != what[:, :1]) or np.any(edges != edges[:, :1]):
        return None
    return OneRank(Graph(size, edges[0, 0], edges[1, 0], meets[:size]), across[:size])


def _beside_ideal(times: PipelineTimes, of: AlikeSteps, rank: OneRank, recorded: list[Choice]) -> Floats:
    """(scenarios × dp ranks × steps): every rank with the chosen rows as recorded, beside an ideal one."""
    rows, size, order = of.rows, rank.graph.nodes, plan(rank.graph)
    example = rows.take(slice(0, size))
    masks = np.array([choice(example)[order.order] for choice in recorded]).T[:, :, None, None]
    last = np.isin(order.order, example.closing())
    result = np.empty((len(recorded), rows.dp_size, len(of.steps)))
    for dps in parts_of(rows.dp_size, AT_ONCE // (2 * len(recorded) * size * len(of.steps))):
        at = order.order[:, None, None] + size * np.arange(dps.start, dps.stop)[:, None] + of.begins
        ends = np.empty((size, 2, len(recorded), *at.shape[1:]))
        ideal = times.ideal_ns[at][:, None]
        ends[:, 0], ends[:, 1] = np.where(masks, times.own_ns[at][:, None], ideal), ideal
        replay_in_place(order, ends.reshape(size, -1), meeting=rank.across[order.order])
        result[:, dps] = ends[last].max(axis=(0, 1))
    return result
