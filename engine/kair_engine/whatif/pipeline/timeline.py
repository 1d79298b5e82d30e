"""Lays a pipeline job's steps out as they are replayed: both timelines, and a step with fixes made."""

from collections.abc import Iterator

import numpy as np

from kair_engine.arrays import NONE, Floats, Ints, dense
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import Trace
from kair_engine.trace.operations import SCOPE, Operations
from kair_engine.whatif.model import TITLES, DrawnStep, MovedStep, PathPiece
from kair_engine.whatif.pipeline.rows import TYPES
from kair_engine.whatif.pipeline.times import PipelineTimes
from kair_engine.whatif.replay import critical_path, starts, waits


def drawn_steps(times: PipelineTimes, trace: Trace, rank_of: dict[tuple[int, int], int]) -> Iterator[DrawnStep]:
    """Lay out every step as recorded, without launch delays, and ideal; in each timeline one follows the other."""
    rows, graph = times.rows, times.graph
    ranks, closing = rows.ranks(rank_of), rows.closing()
    ends = [times.ends(durations) for durations in (times.own_ns, times.ideal_ns)]
    waited = [waits(graph, end) for end in ends]
    since = [0.0] * len(TITLES)
    for step, ops in enumerate(each_step(trace.select(rows.steps))):
        of, shown = _matched(times, step, ops, ranks)
        last = closing[rows.step[closing] == step]
        for at, (title, end) in enumerate(zip(TITLES, ends, strict=True)):
            path = critical_path(graph, waited[at], end, int(last[np.argmax(end[last])]))
            yield DrawnStep(
                title=title,
                ops=ops,
                rows=of,
                start_ns=np.rint(waited[at].start[shown] + since[at]).astype(np.int64),
                end_ns=np.rint(end[shown] + since[at]).astype(np.int64),
                on_path=np.isin(shown, [piece.node for piece in path]),
                path=tuple(
                    PathPiece(
                        int(ranks[piece.node]),
                        TYPES[rows.type[piece.node]],
                        round(piece.begin + since[at]),
                        round(piece.end + since[at]),
                    )
                    for piece in path
                    if piece.end > piece.begin
                ),
                microbatch=rows.microbatch[shown],
            )
            since[at] += float(end[rows.step == step].max())


def moved_step(
    times: PipelineTimes, ops: Operations, rank_of: dict[tuple[int, int], int], durations: Floats
) -> MovedStep:
    """Return the one step of `times` with these durations of its rows; `ops` are the same step's operations.

    All ranks begin together, without launch delays, when the first of them began. Operations of types that the model
    does not know stay where they are.
    """
    end = times.ends(durations)
    shown, of_row = _matched(times, 0, ops, times.rows.ranks(rank_of))
    first = int(ops.start_ns[shown].min()) if len(shown) else 0
    start, over = ops.start_ns.copy(), ops.end_ns.copy()
    start[shown], over[shown] = (np.rint(of[of_row]).astype(np.int64) + first for of in (starts(times.graph, end), end))
    begin, last = ops.begin_ns.copy(), ops.begin_ns.copy()
    np.minimum.at(begin, ops.rank[shown], start[shown])
    np.maximum.at(last, ops.rank[shown], over[shown])
    return MovedStep(ops, start, over, begin, last - begin)


def _matched(times: PipelineTimes, step: int, ops: Operations, ranks: Ints) -> tuple[Ints, Ints]:
    """Match operations of the step of that code, and rows: of the same rank and type, with as many before."""
    rows = times.rows
    known = np.full(max(ops.name_text, default=0) + 1, NONE)
    for code, text in ops.name_text.items():
        known[code] = TYPES.index(text) if text in TYPES else NONE
    kind = known[ops.name]
    shown, row = np.flatnonzero((kind != NONE) & (ops.kind != SCOPE)), np.flatnonzero(rows.step == step)
    asked = np.stack((ops.ranks[ops.rank[shown]], kind[shown], ops.occurrence[shown]))
    key = dense(np.concatenate((asked, np.stack((ranks[row], rows.type[row], rows.turn[row]))), axis=1))
    _, at, place = np.intersect1d(key[: len(shown)], key[len(shown) :], return_indices=True)
    return shown[at], row[place]
