"""Stage 1 as the paper states it: pairwise Kolmogorov–Smirnov distances of completion counts."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from kair_engine.arrays import Floats, Ints
from kair_engine.localize.grouping import grouped
from kair_engine.ranks import Rank
from kair_engine.results import StepClock
from kair_engine.results.localize import GroupBy, LocalizeResult, RankScore
from kair_engine.timeline.clocks import offsets_ns
from kair_engine.timeline.roles import roles
from kair_engine.trace.model import Job, KairWarning, Trace, host_of
from kair_engine.trace.operations import KIND_NAMES, SCOPE
from kair_engine.trace.queries import counted_in_windows

WINDOWS = 100
_TILE = 256
"""Ranks to a side of the tiles in which distances are worked out: 0.5 MB held."""


def localize_paper(
    trace: Trace, *, whole_run: bool, normalized: bool, by: GroupBy, matrix: bool, clock: StepClock = "rank"
) -> LocalizeResult:
    """[K] stage 1: S_A = mean over peers B of max_t |F_A(t) − F_B(t)|, then over steps; the highest first.

    F is the cumulative count of operators completed in 100 windows from the step's own begin on each rank
    (`whole_run`: from the recording's begin), as a share of the rank's total where `normalized`. Of the `clock` job
    they count from the first rank's begin, so that who begins late counts as late.
    """
    ranks = np.array(trace.job.ranks, dtype=np.int64)
    total = np.zeros(len(ranks))
    counted = np.zeros(len(ranks))
    distances = np.zeros((len(ranks), len(ranks))) if matrix else None
    shared = np.zeros_like(distances) if distances is not None else None
    for present, curves in _curves(trace, ranks, whole_run, clock):
        scaled = curves / np.maximum(curves[:, -1:], 1) if normalized else curves
        total[present] += ks_scores(scaled)
        counted[present] += 1
        if distances is not None and shared is not None:
            distances[np.ix_(present, present)] += _distances(scaled, scaled)
            shared[np.ix_(present, present)] += 1
    scores = np.divide(total, counted, out=np.zeros_like(total), where=counted > 0)
    if distances is not None and shared is not None:
        distances /= np.maximum(shared, 1)
    ranked = _ranked(trace, ranks, scores)
    return LocalizeResult(
        method="paper",
        scores=ranked,
        groups=grouped(ranked, by),
        slow_links=(),
        patterns=(),
        matrix=None if distances is None else tuple(map(tuple, distances.tolist())),
        steps=trace.steps,
        warnings=(KairWarning("score_only", "the paper gives no threshold: the score is a ranking, not a verdict"),),
    )


def ks_scores(curves: Floats) -> Floats:
    """S of every rank from its cumulative counts (ranks × windows): mean distance from all other ranks.

    Tile by tile, each pair once: the ranks × ranks matrix is never held.
    """
    ranks = len(curves)
    total = np.zeros(ranks)
    tiles = [slice(begin, begin + _TILE) for begin in range(0, ranks, _TILE)]
    for number, mine in enumerate(tiles):
        for other in tiles[number:]:
            distance = _distances(curves[mine], curves[other])
            total[mine] += distance.sum(axis=1)
            if other != mine:
                total[other] += distance.sum(axis=0)
    return total / max(ranks - 1, 1)


def _distances(a: Floats, b: Floats) -> Floats:
    """Return the largest difference between each row of `a` and each of `b`."""
    from scipy.spatial.distance import cdist  # 200 ms; only this method needs it

    return np.asarray(cdist(a, b, "chebyshev"))


def _curves(trace: Trace, ranks: Ints, whole_run: bool, clock: StepClock) -> Iterator[tuple[Ints, Floats]]:
    """(positions of the ranks present, their curves), for every step or once for the whole run."""
    offset = dict(zip(ranks.tolist(), offsets_ns(trace, ranks).tolist(), strict=True)) if clock == "job" else None
    spans = [trace.steps] if whole_run else [(step,) for step in trace.steps]
    for steps in spans:
        begin, length = _windows_of(trace.job, steps)
        if offset is not None and begin:
            begin, length = _from_the_first(begin, length, offset)
        present = np.array([place for place, rank in enumerate(ranks) if int(rank) in begin], dtype=np.int64)
        if not len(present):
            continue
        width = max(length.values()) / WINDOWS
        yield present, _count(trace, steps, ranks[present], begin, max(width, 1.0))


def _windows_of(job: Job, steps: tuple[int, ...]) -> tuple[dict[int, int], dict[int, int]]:
    """rank → begin, and rank → length, of the span from the first to the last of `steps`."""
    wanted, times = set(steps), job.step_times
    begin: dict[int, int] = {}
    end: dict[int, int] = {}
    for rank, step, start, length in zip(times.rank, times.step, times.begin_ns, times.duration_ns, strict=True):
        if step in wanted and rank not in job.cut_off.get(step, ()):
            begin[rank] = min(begin.get(rank, start), start)
            end[rank] = max(end.get(rank, start + length), start + length)
    return begin, {rank: end[rank] - begin[rank] for rank in begin}


def _from_the_first(
    begin: dict[int, int], length: dict[int, int], offset: dict[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the same spans, all from when the first rank begins."""
    first = min(begin[rank] - offset[rank] for rank in begin)
    common = {rank: first + offset[rank] for rank in begin}
    return common, {rank: begin[rank] + length[rank] - common[rank] for rank in begin}


def _count(trace: Trace, steps: tuple[int, ...], ranks: Ints, begin: dict[int, int], width: float) -> Floats:
    """Return completions per rank up to the end of each window."""
    rows = trace.scan().filter(pl.col("step").is_in(list(steps)), pl.col("kind").cast(pl.String) != KIND_NAMES[SCOPE])
    begins = np.array([begin[int(rank)] for rank in ranks], dtype=np.int64)
    end = pl.col("start_ns") + pl.col("duration_ns")
    rows = rows.select("rank", "start_ns", "duration_ns")
    counts = counted_in_windows(rows, end, ranks, origin_ns=begins, window_ns=width, windows=WINDOWS)
    return np.asarray(counts.cumsum(axis=1), dtype=float)


def _ranked(trace: Trace, ranks: Ints, scores: Floats) -> tuple[RankScore, ...]:
    role_of = roles(trace)
    return tuple(
        RankScore(
            rank=Rank(int(ranks[i])),
            host=host_of(trace.job, int(ranks[i])),
            role=role_of[int(ranks[i])].name,
            score=float(scores[i]),
            p_value=None,
            flagged=False,
            excess_us={},
        )
        for i in sorted(range(len(ranks)), key=lambda i: (-scores[i], i))
    )
