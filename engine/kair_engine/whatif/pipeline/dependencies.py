"""Builds the dependency graph of pipeline-parallel steps [W §3.2]: edges and communications, by sorts and joins.

Every worker-step keeps its own recorded order; nothing is taken from one rank or step for another.

Groups steps that run alike, the same operations in the same order: one plan replays them side by side.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from kair_engine.arrays import NONE, Bools, Ints, dense, order_by, ranges, whole_parts
from kair_engine.timeline.collectives import ordinal
from kair_engine.whatif.pipeline.rows import (
    BACKWARD,
    CLIP,
    EMBEDDING,
    FORWARD,
    GARBAGE,
    GATHER,
    LAYERNORM,
    OPTIMIZER,
    SCATTER,
    SENDS,
    SEPARATE,
    TRANSFERS,
    TYPES,
    PipelineRows,
    RecordedOrder,
    is_type,
    recorded_order,
    turns,
)
from kair_engine.whatif.replay import Graph, Plan, plan

_NEXT_STAGE = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}


class _Edges:
    def __init__(self) -> None:
        self.before: list[Ints] = []
        self.after: list[Ints] = []

    def add(self, before: Ints, after: Ints) -> None:
        self.before.append(before)
        self.after.append(after)

    def chain(self, rows: Ints, *keys: Ints) -> None:
        """Each of `rows` waits for the one before it, where their keys agree."""
        same = np.ones(max(len(rows) - 1, 0), dtype=bool)
        for key in keys:
            same &= key[rows[1:]] == key[rows[:-1]]
        self.add(rows[:-1][same], rows[1:][same])


@dataclass(frozen=True)
class Schedule:
    """What all steps show together."""

    synchronised: bool
    """Data-parallel ranks gather parameters and reduce gradients."""
    overlapped: bool
    """Gradients are reduced while others are computed."""
    chunks: int
    """Of the whole model."""


def schedule_of(rows: PipelineRows) -> Schedule:
    """From the operations of all steps."""
    occurs = np.bincount(rows.type, minlength=len(TYPES)) > 0
    return Schedule(
        synchronised=rows.dp_size > 1 or any(occurs[TYPES.index(name)] for name in (GATHER, SCATTER)),
        overlapped=bool(occurs[TYPES.index(SEPARATE)]),
        chunks=max(int(rows.chunk[rows.of_type(FORWARD, BACKWARD)].max(initial=0)) + 1, rows.pp_size),
    )


def pipeline_graph(rows: PipelineRows, order: RecordedOrder, job: Schedule) -> tuple[Graph, Ints]:
    """Return the graph of these worker-steps, and the sends and receives whose other end is missing: they wait for
    nobody.
    """
    edges, computes = _Edges(), _by_turn(rows, order, rows.of_type(FORWARD, BACKWARD))
    edges.chain(computes, rows.worker_step)
    transfers = rows.of_type(*TRANSFERS)
    edges.chain(transfers, rows.worker_step, rows.type)
    matched = _matched_compute(rows, order, transfers, job.chunks)
    _transfer_edges(rows, edges, transfers, matched)
    _first_backward_edges(rows, edges, computes, transfers)
    if job.synchronised:
        edges.chain(_by_turn(rows, order, rows.of_type(GATHER, SCATTER)), rows.worker_step)
        _gather_edges(rows, edges)
    if job.synchronised and job.overlapped:
        # The last backward computation of a chunk comes before the first scatter of its gradients.
        scatters = rows.of_type(SCATTER)
        first = _one_per(rows, scatters, rows.chunk_of_stage(scatters), last=False)
        edges.add(*_joined(rows, np.flatnonzero(order.last_of_chunk), first))
    _closing_edges(rows, order, edges, overlapped=job.overlapped)
    key, paired = _transfer_pairs(rows, transfers, matched, job.chunks)
    group = _communications(rows, transfers, key)
    return Graph(len(rows), np.concatenate(edges.before), np.concatenate(edges.after), group), transfers[~paired]


def _by_turn(rows: PipelineRows, order: RecordedOrder, chosen: Ints) -> Ints:
    """Within worker-steps in the order of their starts, across types."""
    return chosen[order_by(rows.worker_step[chosen], order.turn[chosen])]


def _matched_compute(rows: PipelineRows, order: RecordedOrder, transfers: Ints, chunks: int) -> Ints:
    """Per transfer the computation that it feeds or carries on; NONE of those without.

    The n-th transfer belongs to the n-th computation of its direction, once those are left out that begin after the
    last one (receives) or end before the first one (sends): the profiler records more than was launched. Where there
    are as many as computations with a neighbour in the model, those have one each; where one receive is missing else,
    it is the first.
    """
    result = np.full(len(transfers), NONE)
    for number, direction in ((0, FORWARD), (2, BACKWARD)):
        computes = rows.of_type(direction)
        places = _places(rows, computes)
        count = np.bincount(rows.worker_step[computes], minlength=places.shape[0])
        for name in TRANSFERS[number : number + 2]:
            at = np.flatnonzero((rows.type[transfers] == TYPES.index(name)) & order.launched[transfers])
            of = rows.worker_step[transfers[at]]
            receives = name.endswith("recv")
            neighbour = rows.chunk[computes] + _NEXT_STAGE[name]
            real = computes[(neighbour >= 0) & (neighbour < chunks)]
            real_count = np.bincount(rows.worker_step[real], minlength=len(count))
            launched_count = np.bincount(of, minlength=len(count))
            turn = turns(of)
            only_real = ((launched_count == real_count) & (real_count < count))[of]
            if only_real.any():
                result[at[only_real]] = _places(rows, real)[of[only_real], turn[only_real]]
            if receives:
                turn = turn + (launched_count + 1 == count)[of]
            known = (turn < count[of]) & ~only_real
            result[at[known]] = places[of[known], turn[known]]
    return result


def _places(rows: PipelineRows, computes: Ints) -> Ints:
    """Return the computation of each turn, in their order (worker-steps × turns); NONE if a turn has none."""
    worker_steps = int(rows.worker_step.max(initial=-1)) + 1
    of = rows.worker_step[computes]
    turn = turns(of)
    result = np.full((worker_steps, int(turn.max(initial=-1)) + 1), NONE)
    result[of, turn] = computes
    return result


def _transfer_edges(rows: PipelineRows, edges: _Edges, transfers: Ints, matched: Ints) -> None:
    """Add the edges of transfers: a receive feeds its computation, and begins after the one before that; a send carries
    on what was computed.
    """
    known = matched != NONE
    own, compute = transfers[known], matched[known]
    sends = is_type(rows.type[own], *SENDS)
    edges.add(compute[sends], own[sends])
    edges.add(own[~sends], compute[~sends])
    # Per row the one of the same type before it in the worker-step.
    earlier = np.full(len(rows), NONE)
    same = (rows.worker_step[1:] == rows.worker_step[:-1]) & (rows.type[1:] == rows.type[:-1])
    earlier[1:][same] = np.flatnonzero(same)
    previous = earlier[compute]
    receives = ~sends & (previous != NONE)
    edges.add(previous[receives], own[receives])


def _first_backward_edges(rows: PipelineRows, edges: _Edges, computes: Ints, transfers: Ints) -> None:
    """Make the first backward transfers begin once the last forward computation but one has ended."""
    at = np.flatnonzero(rows.type[computes] == TYPES.index(BACKWARD))
    first = at[turns(rows.worker_step[computes[at]]) == 0]
    first = first[first >= 2]
    earlier = first - 2
    inside = rows.worker_step[computes[earlier]] == rows.worker_step[computes[first]]
    of = np.full(int(rows.worker_step.max(initial=-1)) + 1, NONE)
    of[rows.worker_step[computes[first[inside]]]] = computes[earlier[inside]]
    backward = transfers[is_type(rows.type[transfers], "backward-send", "backward-recv") & (rows.turn[transfers] == 0)]
    forward = of[rows.worker_step[backward]]
    edges.add(forward[forward != NONE], backward[forward != NONE])


def _gather_edges(rows: PipelineRows, edges: _Edges) -> None:
    """Put the last gather of a chunk's parameters before the chunk's first forward computation."""
    gathers = rows.of_type(GATHER)
    last = _one_per(rows, gathers, rows.chunk_of_stage(gathers), last=True)
    forwards = rows.of_type(FORWARD)
    first = _one_per(rows, forwards, rows.chunk_of_stage(forwards), last=False)
    edges.add(*_joined(rows, last, first))


def _one_per(rows: PipelineRows, chosen: Ints, chunk: Ints, *, last: bool) -> Ints:
    """Of `chosen`, ordered within worker-steps, the first or last of each chunk."""
    key = dense(np.stack((rows.worker_step[chosen], chunk)))
    if last:
        chosen, key = chosen[::-1], key[::-1]
    return chosen[np.unique(key, return_index=True)[1]]


def _joined(rows: PipelineRows, before: Ints, after: Ints) -> tuple[Ints, Ints]:
    """Return the rows of both that have worker-step and chunk in common; each occurs once on either side."""
    both = np.concatenate((before, after))
    key = dense(np.stack((rows.worker_step[both], rows.chunk_of_stage(both))))
    _, left, right = np.intersect1d(key[: len(before)], key[len(before) :], assume_unique=True, return_indices=True)
    return before[left], after[right]


def _closing_edges(rows: PipelineRows, order: RecordedOrder, edges: _Edges, *, overlapped: bool) -> None:
    """Add what follows the last computation, one after another; gradients are reduced meanwhile, or in between."""
    between = (SEPARATE,) if overlapped else (SCATTER,)
    names = (GARBAGE, LAYERNORM, EMBEDDING, *between, CLIP, OPTIMIZER)
    place = {TYPES.index(name): at + 1 for at, name in enumerate(names)}
    closing = np.concatenate((np.flatnonzero(order.last), rows.of_type(*names)))
    position = np.array([place.get(kind, 0) for kind in range(len(TYPES))])[rows.type[closing]]
    closing = closing[order_by(rows.worker_step[closing], position, rows.turn[closing] * (position > 0))]
    edges.chain(closing, rows.worker_step)
    if overlapped:
        scatters = rows.of_type(SCATTER)
        final = scatters[np.diff(rows.worker_step[scatters], append=NONE) != 0]
        opening = closing[is_type(rows.type[closing], *names[1:])]
        opening = opening[turns(rows.worker_step[opening]) == 0]
        of = np.full(int(rows.worker_step.max(initial=-1)) + 1, NONE)
        of[rows.worker_step[opening]] = opening
        target = of[rows.worker_step[final]]
        edges.add(final[target != NONE], target[target != NONE])


def _communications(rows: PipelineRows, transfers: Ints, key: Ints) -> Ints:
    """Return, per row, the number of its communication; for transfers their key identifies it."""
    pipeline, everywhere = rows.step * rows.dp_size + rows.dp, np.zeros(len(rows), dtype=np.int64)
    members = [(transfers, key)]
    for names, where in (
        ((GATHER, SCATTER, SEPARATE), (rows.step, rows.stage)),
        ((CLIP,), (rows.step, everywhere)),
        ((EMBEDDING,), (pipeline, everywhere)),
    ):
        chosen = rows.of_type(*names)
        members.append((chosen, np.stack([of[chosen] for of in (*where, rows.type, rows.turn)])))
    group, count = np.full(len(rows), NONE), 0
    for chosen, of_chosen in members:
        group[chosen] = count + dense(of_chosen)
        count = int(group.max(initial=NONE)) + 1
    return group


def _transfer_pairs(rows: PipelineRows, transfers: Ints, matched: Ints, chunks: int) -> tuple[Ints, Bools]:
    """(4 × transfers): a key that a send and its receive share; and which ones have their other end."""
    towards = np.zeros(len(TYPES), dtype=np.int64)
    for name, stages in _NEXT_STAGE.items():
        towards[TYPES.index(name)] = stages
    kind = rows.type[transfers]
    ahead = towards[kind]
    chunk = np.where(matched != NONE, rows.chunk[matched], NONE)
    # Past the first or last chunk of the model there is nobody.
    real = (matched != NONE) & (chunk + ahead >= 0) & (chunk + ahead < chunks)
    stage = rows.stage[transfers]
    other = (stage + ahead) % rows.pp_size
    sends = is_type(kind, *SENDS)
    forward = is_type(kind, "forward-send", "forward-recv")
    pipeline = rows.step[transfers] * rows.dp_size + rows.dp[transfers]
    turn = np.full(len(transfers), NONE)
    turn[real] = ordinal(np.stack((rows.worker_step[transfers][real], kind[real])))
    # One key for both ends: from the sending stage, forward or backward, the n-th.
    edge = np.where(sends, stage, other) * 2 + forward
    direction = np.where(forward, TYPES.index("forward-send"), TYPES.index("backward-send"))
    keys = np.stack((pipeline, edge, direction, turn))
    alone = ~real
    keys[:, alone] = np.stack((-2 - np.arange(len(transfers)), edge, direction, turn))[:, alone]
    both = np.bincount(code := dense(keys))[code] == 2
    return keys, np.asarray(both | alone)


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
    """Return the codes of the steps that run the same operations in the same order, by the first of them."""
    found: dict[tuple[bytes, ...], list[int]] = {}
    flags = order.launched + 2 * order.last.view(np.int8) + 4 * order.last_of_chunk.view(np.int8)
    columns = (rows.dp, rows.stage, rows.type, rows.turn, rows.chunk, order.turn, flags)
    for step, (begin, end) in enumerate(pairwise(begins.tolist())):
        found.setdefault(tuple(of[begin:end].tobytes() for of in columns), []).append(step)
    return [np.array(steps) for steps in found.values()]


def _by_step(
    rows: PipelineRows, graph: Graph, unpaired: Ints, steps: Ints
) -> Iterator[tuple[PipelineRows, Graph, int]]:
    """Yield the rows and graph of each step, and how many transfers lack their other end."""
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
    """Return steps whose data-parallel ranks are lanes where all run the same operations with the same dependencies."""
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
