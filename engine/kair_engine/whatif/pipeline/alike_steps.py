"""Groups steps that run alike, the same operations in the same order: one plan replays them side by side."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from kair_engine.arrays import NONE, Bools, Ints, dense, order_by, ranges, whole_parts
from kair_engine.whatif.pipeline.dependencies import pipeline_graph, schedule_of
from kair_engine.whatif.pipeline.order import RecordedOrder, recorded_order
from kair_engine.whatif.pipeline.rows import PipelineRows
from kair_engine.whatif.replay.levels import Graph
from kair_engine.whatif.replay.plan import Plan, plan

_AT_ONCE = 1 << 18
"""Operations."""


@dataclass(frozen=True)
class AlikeSteps:
    """Some steps, and what their operations and dependencies are."""

    steps: Ints
    """Their codes."""
    begins: Ints
    """Where the rows of each begin."""
    rows: PipelineRows
    """Of the first step. In the others dp rank, stage, type, turn and chunk are the same, row by row."""
    graph: Graph
    """Of one step."""
    unpaired: int
    """Of its sends and receives those whose other end is missing: they wait for nobody."""
    lanes: int
    """Data-parallel ranks that all run the same, one after another in `rows`; 1 where they do not."""
    lane: Graph
    """Of one lane of one step."""
    across: Bools
    """Its nodes that communicate with other lanes."""

    @cached_property
    def order(self) -> Plan:
        """The plan that replays each lane."""
        return plan(self.lane)

    @cached_property
    def last(self) -> Bools:
        """The places of the operations that end a step."""
        closes = np.zeros(len(self.rows), dtype=bool)
        closes[self.rows.closing()] = True
        return closes[self.order.order]

    @cached_property
    def in_step(self) -> Ints:
        """(places of the plan × lanes): the rows of the first step."""
        return np.asarray(self.order.order[:, None] + self.lane.nodes * np.arange(self.lanes))

    @cached_property
    def at(self) -> Ints:
        """(places of the plan × lanes × steps): the rows."""
        return np.asarray(self.in_step[:, :, None] + self.begins)

    @property
    def every(self) -> Ints:
        """(steps × rows of one): the rows, in their order."""
        return np.asarray(self.begins[:, None] + np.arange(len(self.rows)))


def alike_steps(rows: PipelineRows) -> tuple[AlikeSteps, ...]:
    """All steps, those together that differ in nothing but times."""
    order, begins = recorded_order(rows), np.searchsorted(rows.step, np.arange(len(rows.steps) + 1))
    together, job = _together(rows, order, begins), schedule_of(rows)
    example = np.array([steps[0] for steps in together], dtype=np.int64)
    result: list[AlikeSteps] = []
    # Few at a time need little memory.
    for first, last in whole_parts(np.append(0, np.cumsum(begins[example + 1] - begins[example])), _AT_ONCE):
        shown = example[first:last]
        at = ranges(begins[shown], begins[shown + 1])
        of_part = rows.take(at)
        graph, unpaired = pipeline_graph(of_part, order.take(at), job)
        for one, steps in zip(_by_step(of_part, graph, unpaired, shown), together[first:last], strict=True):
            result.append(_side_by_side(steps, begins[steps], *one))
    return tuple(result)


def _together(rows: PipelineRows, order: RecordedOrder, begins: Ints) -> list[Ints]:
    """The codes of the steps that run the same operations in the same order, by the first of them."""
    found: dict[tuple[bytes, ...], list[int]] = {}
    flags = order.launched + 2 * order.last.view(np.int8) + 4 * order.last_of_chunk.view(np.int8)
    columns = (rows.dp, rows.stage, rows.type, rows.turn, rows.chunk, order.turn, flags)
    for step, (begin, end) in enumerate(pairwise(begins.tolist())):
        found.setdefault(tuple(of[begin:end].tobytes() for of in columns), []).append(step)
    return [np.array(steps) for steps in found.values()]


def _by_step(
    rows: PipelineRows, graph: Graph, unpaired: Ints, steps: Ints
) -> Iterator[tuple[PipelineRows, Graph, int]]:
    """The rows and graph of each step, and how many transfers lack their other end."""
    # One more than there are: NONE finds the last, also where nothing is synchronised.
    first_member = np.full(int(graph.group.max(initial=NONE)) + 2, NONE)
    member = np.flatnonzero(graph.group != NONE)[::-1]
    first_member[graph.group[member]] = member
    edges = order_by(rows.step[graph.before])
    step_of_edge = rows.step[graph.before[edges]]
    for step in steps:
        begin, end = np.searchsorted(rows.step, (step, step + 1))
        own = edges[slice(*np.searchsorted(step_of_edge, (step, step + 1)))]
        group = graph.group[begin:end]
        one = Graph(
            nodes=end - begin,
            before=graph.before[own] - begin,
            after=graph.after[own] - begin,
            group=np.where(group == NONE, NONE, first_member[group] - begin),
        )
        yield rows.take(slice(begin, end)), one, int(np.count_nonzero(rows.step[unpaired] == step))


def _side_by_side(steps: Ints, begins: Ints, rows: PipelineRows, graph: Graph, unpaired: int) -> AlikeSteps:
    """Steps whose data-parallel ranks are lanes where all run the same operations with the same dependencies."""
    across, dps = np.zeros(len(rows), dtype=bool), rows.dp_size
    one = AlikeSteps(steps, begins, rows, graph, unpaired, 1, graph, across)
    size, rest = divmod(len(rows), dps)
    first = np.arange(dps)[:, None] * size
    if dps < 2 or rest or len(graph.before) % dps or np.any(rows.dp != np.arange(len(rows)) // size):
        return one
    order = order_by(graph.before, graph.after)
    edges = np.stack((graph.before[order], graph.after[order])).reshape(2, dps, -1) - first
    member = np.flatnonzero(graph.group != NONE)
    of_rank = dense(np.stack((graph.group[member], rows.dp[member])))
    one_of_each = member[np.unique(of_rank, return_index=True)[1]]
    meets, across = np.full(len(rows), NONE), across.copy()
    meets[member] = one_of_each[of_rank] % size
    across[member] = (np.bincount(graph.group[one_of_each]) > 1)[graph.group[member]]
    what = np.stack((rows.stage, rows.type, rows.turn, meets, across)).reshape(5, dps, size)
    if np.any(what != what[:, :1]) or np.any(edges != edges[:, :1]):
        return one
    shared = graph.group.reshape(dps, size)[:, across[:size]]
    if np.any(shared != shared[0]):
        return one
    lane = Graph(size, edges[0, 0], edges[1, 0], meets[:size])
    return replace(one, lanes=dps, lane=lane, across=across[:size])
