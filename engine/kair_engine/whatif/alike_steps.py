"""Steps that run the same operations with the same dependencies: one plan replays them all, side by side."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kair_engine.arrays import NONE, Bools, Ints, order_by
from kair_engine.collectives import dense
from kair_engine.whatif.pipeline_rows import PipelineRows
from kair_engine.whatif.plan import Plan, plan
from kair_engine.whatif.waves import Graph


@dataclass(frozen=True)
class AlikeSteps:
    """Some steps, and what their operations and dependencies are."""

    steps: Ints
    """Their codes."""
    begins: Ints
    """Where the rows of each begin."""
    rows: PipelineRows
    """Of the first step. In the others dp rank, stage, type and turn are the same, row by row."""
    lanes: int
    """Data-parallel ranks that all run the same, one after another in `rows`; 1 where they do not."""
    graph: Graph
    """Of one lane of one step."""
    across: Bools
    """Its nodes that communicate with other lanes."""

    @cached_property
    def order(self) -> Plan:
        """The plan that replays each lane."""
        return plan(self.graph)

    @cached_property
    def last(self) -> Bools:
        """The places of the operations that end a step."""
        return np.isin(self.order.order, self.rows.closing())

    @cached_property
    def in_step(self) -> Ints:
        """(places of the plan × lanes): the rows of the first step."""
        return np.asarray(self.order.order[:, None] + self.graph.nodes * np.arange(self.lanes))

    @cached_property
    def at(self) -> Ints:
        """(places of the plan × lanes × steps): the rows."""
        return np.asarray(self.in_step[:, :, None] + self.begins)


def alike_steps(rows: PipelineRows, graph: Graph) -> tuple[AlikeSteps, ...]:
    """All steps, those together that differ in nothing but times."""
    begins = np.searchsorted(rows.step, np.arange(len(rows.steps) + 1))
    edges, edge_begins = _edges_by_step(rows, graph)
    first_member = np.full(int(graph.group.max(initial=NONE)) + 1, NONE)
    member = np.flatnonzero(graph.group != NONE)[::-1]
    first_member[graph.group[member]] = member
    example: dict[tuple[bytes, ...], tuple[PipelineRows, Graph]] = {}
    found: dict[tuple[bytes, ...], list[int]] = {}
    # Step by step, as arrays of all rows at once would double the memory of the whole analysis.
    for step in range(len(rows.steps)):
        begin, own_edges = begins[step], edges[edge_begins[step] : edge_begins[step + 1]]
        own = slice(begin, begins[step + 1])
        group = graph.group[own]
        one = Graph(
            nodes=len(group),
            before=graph.before[own_edges] - begin,
            after=graph.after[own_edges] - begin,
            group=np.where(group == NONE, NONE, first_member[group] - begin),
        )
        identity = (rows.dp[own], rows.stage[own], rows.type[own], rows.turn[own])
        key = tuple(of.tobytes() for of in (*identity, one.before * one.nodes + one.after, one.group))
        if key not in found:
            example[key] = rows.take(own), one
        found.setdefault(key, []).append(step)
    return tuple(_side_by_side(np.array(steps), begins[steps], *example[key]) for key, steps in found.items())


def _side_by_side(steps: Ints, begins: Ints, rows: PipelineRows, graph: Graph) -> AlikeSteps:
    """Steps whose data-parallel ranks are lanes where all run the same operations with the same dependencies."""
    one, dps = AlikeSteps(steps, begins, rows, 1, graph, np.zeros(len(rows), dtype=bool)), rows.dp_size
    size, rest = divmod(len(rows), dps)
    first = np.arange(dps)[:, None] * size
    if dps < 2 or rest or len(graph.before) % dps or np.any(rows.dp != np.arange(len(rows)) // size):
        return one
    order = order_by(graph.before, graph.after)
    edges = np.stack((graph.before[order], graph.after[order])).reshape(2, dps, -1) - first
    member = np.flatnonzero(graph.group != NONE)
    of_rank = dense(np.stack((graph.group[member], rows.dp[member])))
    one_of_each = member[np.unique(of_rank, return_index=True)[1]]
    meets, across = np.full(len(rows), NONE), np.zeros(len(rows), dtype=bool)
    meets[member] = one_of_each[of_rank] % size
    across[member] = (np.bincount(graph.group[one_of_each]) > 1)[graph.group[member]]
    what = np.stack((rows.stage, rows.type, rows.turn, meets, across)).reshape(5, dps, size)
    if np.any(what != what[:, :1]) or np.any(edges != edges[:, :1]):
        return one
    shared = graph.group.reshape(dps, size)[:, across[:size]]
    if np.any(shared != shared[0]):
        return one
    return AlikeSteps(steps, begins, rows, dps, Graph(size, edges[0, 0], edges[1, 0], meets[:size]), across[:size])


def _edges_by_step(rows: PipelineRows, graph: Graph) -> tuple[Ints, Ints]:
    """The edges in the order of their steps, and where each step's begin."""
    step = rows.step.astype(np.uint16 if len(rows.steps) < 1 << 16 else np.int64)[graph.before]
    return np.argsort(step, kind="stable"), np.append(0, np.cumsum(np.bincount(step, minlength=len(rows.steps))))
