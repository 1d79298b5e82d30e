"""Stage 3 as the paper states it: from each of a rank's outliers back along that rank's own graph."""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from kair_engine.arrays import NONE, Floats
from kair_engine.blame.walk import cause_of, path_node
from kair_engine.causes import Cause
from kair_engine.localize.paper import localize_paper
from kair_engine.pinpoint import PAPER_THRESHOLD, paper_limits, z_scores
from kair_engine.ranks import Rank
from kair_engine.results import StepClock
from kair_engine.results.blame import BlamePath, BlameResult, MadeLate, RankBlame, RoleInPath, RootCause
from kair_engine.timeline.clocks import begin_ns, synchronise
from kair_engine.timeline.graph import ExecutionGraph, build
from kair_engine.timeline.roles import PeerGroups, logical_keys
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import KairWarning, Trace
from kair_engine.trace.operations import SCOPE, Operations

_Key = tuple[Rank, str, Cause, bool]


@dataclass(frozen=True)
class _Scores:
    """Two-sided z-scores over all ranks, one entry per operation; 0 where only one rank runs it."""

    start: Floats
    duration: Floats
    start_excess_ns: Floats
    duration_excess_ns: Floats

    def slow(self, row: int) -> bool:
        return bool(abs(self.duration[row]) > PAPER_THRESHOLD)

    def late(self, row: int) -> bool:
        return bool(abs(self.start[row]) > PAPER_THRESHOLD)


def blame_paper(
    trace: Trace, *, rank: int | None, operator: str | None, limit: int, clock: StepClock = "rank"
) -> BlameResult:
    """[K] stage 3: an outlier of abnormal duration is its own cause; one that only started abnormally leads
    to its direct predecessor on the rank, and where that was normal and on time, the edge is the cause.

    `rank` defaults to stage 1's candidate. Blamed time is the root cause's deviation from its mean over the
    ranks, counted once per root cause: the paper ranks causes and prices none, so no waiting is reported. Starts count
    from the rank's own begin of the step; with the `clock` job from the first rank's.
    """
    chosen = rank
    if chosen is None:
        found = localize_paper(trace, whole_run=False, normalized=False, by="rank", matrix=False, clock=clock)
        chosen = found.scores[0].rank
    blamed: dict[_Key, float] = defaultdict(float)
    steps: dict[_Key, set[int]] = defaultdict(set)
    paths: list[BlamePath] = []
    for ops in each_step(trace):
        graph = build(ops, synchronise(ops))
        scores = _scores(ops, clock)
        mine = np.flatnonzero((ops.ranks[ops.rank] == chosen) & (ops.kind != SCOPE))
        roots: dict[tuple[int, bool], float] = {}
        for row in (row for row in map(int, mine) if scores.slow(row) or scores.late(row)):
            chain, is_edge = _walk(graph, scores, row)
            root = chain[-1]
            excess = scores.start_excess_ns[root] if is_edge else scores.duration_excess_ns[root]
            roots[root, is_edge] = abs(float(excess))
            paths.append(_path(graph, scores, chain, is_edge))
        for (root, is_edge), excess in roots.items():
            key = (Rank(chosen), ops.operator(root), _cause(ops, root, is_edge), is_edge)
            blamed[key] += excess
            steps[key].add(ops.step)
    asked = None if rank is None else Rank(rank)
    return replace(_result(trace, blamed, steps, _chosen(paths, operator, limit), operator), only_rank=asked)


def _scores(ops: Operations, clock: StepClock) -> _Scores:
    keys = logical_keys(ops, np.zeros(len(ops.ranks), dtype=np.int64))
    start = (ops.start_ns - begin_ns(ops, clock)[ops.rank]).astype(float) if len(ops) else np.zeros(0)
    duration = ops.duration_ns.astype(float)
    result = _Scores(*(np.zeros(len(ops)) for _ in range(4)))
    for block in PeerGroups.of(keys, np.flatnonzero(ops.kind != SCOPE)).blocks(smallest=2):
        for values, z, excess in (
            (start, result.start, result.start_excess_ns),
            (duration, result.duration, result.duration_excess_ns),
        ):
            z[block] = z_scores(values[block])
            excess[block] = values[block] - values[block].mean(axis=1, keepdims=True)
    return result


def _walk(graph: ExecutionGraph, scores: _Scores, row: int) -> tuple[list[int], bool]:
    """(rows from the outlier back to its root, whether the root is the edge that leads to the last row)."""
    chain = [row]
    while not scores.slow(row):
        before = int(graph.predecessor[row])
        if before == NONE or before in chain or graph.ops.rank[before] != graph.ops.rank[row]:
            return chain, True
        if not scores.slow(before) and not scores.late(before):
            return chain, True
        row = before
        chain.append(row)
    return chain, False


def _cause(ops: Operations, row: int, is_edge: bool) -> Cause:
    if not is_edge:
        return cause_of(ops, row)
    return "communication" if cause_of(ops, row) == "communication" else "host"


def _path(graph: ExecutionGraph, scores: _Scores, chain: list[int], is_edge: bool) -> BlamePath:
    roles: list[RoleInPath] = ["victim"] * (len(chain) - 1)
    roles.append("edge" if is_edge else "culprit")
    nodes = [
        path_node(graph.ops, row, float(scores.start_excess_ns[row]), role)
        for row, role in zip(chain, roles, strict=True)
    ]
    return BlamePath(
        symptom=replace(nodes[0], role_in_path="victim"),
        chain=tuple(nodes),
        cause=_cause(graph.ops, chain[-1], is_edge),
        waited_us=0.0,
        step=graph.ops.step,
    )


def _chosen(paths: list[BlamePath], operator: str | None, limit: int) -> tuple[BlamePath, ...]:
    fitting = [p for p in paths if operator is None or any(operator in node.operator for node in p.chain)]
    return tuple(sorted(fitting, key=lambda p: -abs(p.chain[-1].lateness_us))[:limit])


def _result(
    trace: Trace,
    blamed: dict[_Key, float],
    steps: dict[_Key, set[int]],
    paths: tuple[BlamePath, ...],
    operator: str | None,
) -> BlameResult:
    total = sum(blamed.values())
    causes = sorted(
        (
            RootCause(
                *key,
                blamed_us=us / 1e3,
                share=us / total,
                steps=tuple(sorted(steps[key])),
                synchronisations=0,
            )
            for key, us in blamed.items()
            if operator is None or operator in key[1]
        ),
        key=lambda cause: (-cause.blamed_us, cause.operator or ""),
    )
    ranks = {cause.rank for cause in causes}
    return BlameResult(
        step=trace.steps[0] if len(trace.steps) == 1 else None,
        steps=trace.steps,
        method="paper",
        paths=paths,
        root_causes=tuple(causes),
        by_rank=tuple(RankBlame(r, total / 1e3, 1.0, 0) for r in ranks),
        waiting=(),
        made_late=tuple(MadeLate(c.rank, c.rank, c.operator, c.cause, c.is_edge, c.blamed_us, 0) for c in causes),
        waiting_us=0.0,
        attributed_us=0.0,
        unattributed_us=0.0,
        collectives=0,
        warnings=(
            KairWarning("one_rank_walk", "the paper's walk stays on one rank and prices no waiting"),
            *paper_limits(len(trace.job.ranks)),
        ),
        only_operator=operator,
    )
