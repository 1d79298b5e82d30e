"""The time-frequency view [K, figure 4]: how often an operator ran, per window of time and rank."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from kair_engine.arrays import Floats, Ints
from kair_engine.errors import UsageError
from kair_engine.ranks import Rank
from kair_engine.results.views import DegradedWindow, FrequencyResult, RankCounts
from kair_engine.stats import median_of_others
from kair_engine.timeline.clocks import offsets_ns
from kair_engine.timeline.graph import scopes_named, within
from kair_engine.timeline.roles import role_codes, roles
from kair_engine.trace.large_steps import each_part
from kair_engine.trace.model import KairWarning, StepTimes, Trace, require_steps
from kair_engine.trace.operations import KIND_NAMES, PHASE_NAMES, SCOPE, STEP_SCOPE
from kair_engine.trace.queries import counted_in_windows

MISSING_BELOW, DEGRADED_BELOW = 0.1, 0.5
"""Of the peers' median: a window with less than this share of the normal frequency is listed."""
_NAMED = 5
"""Scopes that a hint names."""
_MOST_COUNTS = 4_000_000
"""Ranks × windows: 16,384 ranks in 244 windows; an answer takes 200 bytes for each."""
_SMALLEST_EXPECTED = 2.0
"""Windows where peers run it less often than this say nothing."""


def frequency(
    trace: Trace,
    *,
    operator: str | None = None,
    phase: str | None = None,
    scope: str | None = None,
    windows: int = 100,
) -> FrequencyResult:
    """Counts begun operations per rank in `windows` equal windows over the chosen steps.

    `operator` narrows to names that contain it (case matters); where no operation's does, annotated scopes that do are
    counted themselves. `phase` narrows to one phase, `scope` to what runs within scopes whose name contains it.
    A window is degraded where a rank ran less than half as many as its role's median, and fewer than any of its peers,
    in that window and the two beside it; missing below a tenth of the median. The largest shortfall comes first.
    Raises UsageError for an unknown phase, an operator or scope that never ran, no windows, or more than
    anybody looks at.
    """
    require_steps(trace)
    if windows < 1:
        raise UsageError("at least one window is needed")
    if windows > (most := max(_MOST_COUNTS // len(trace.job.ranks), 1)):
        raise UsageError(f"{windows} windows are too many", f"of {len(trace.job.ranks)} ranks, at most {most}")
    if phase is not None and phase not in PHASE_NAMES:
        raise UsageError(f"unknown phase '{phase}'", hint=f"phases: {', '.join(PHASE_NAMES)}")
    ranks = np.array(trace.job.ranks, dtype=np.int64)
    grid, nothing = _grid(trace, ranks, windows), np.zeros((len(ranks), windows), dtype=np.int64)
    if scope is not None:
        counts = sum((_counts(rows, ranks, grid) for rows in _in_scope(trace, scope, operator, phase)), nothing)
    else:
        counts = _counts(_chosen(trace, operator, phase), ranks, grid)
        if operator is not None and not counts.any():
            counts = _counts(_chosen(trace, operator, phase, scopes=True), ranks, grid)
    if not counts.any():
        named = " and ".join(f"'{one}'" for one in (operator, phase, scope) if one)
        which = f" matches {named}" if named else ""
        raise UsageError(f"no operation{which} in the chosen steps", _hint(trace) if operator or scope else None)
    role = role_codes(ranks, roles(trace))
    degraded = sorted(_degraded(counts, ranks, role, grid), key=lambda w: (w.count - w.expected, w.rank, w.window))
    return FrequencyResult(
        operator=operator or phase or scope or "*",
        window_us=grid.width_ns / 1e3,
        windows=windows,
        counts=tuple(RankCounts(Rank(int(rank)), tuple(row)) for rank, row in zip(ranks, counts.tolist(), strict=True)),
        degraded=tuple(degraded),
        warnings=_warnings(trace, role),
    )


@dataclass(frozen=True)
class _Grid:
    """Equal windows of time on the job's clock; `origin_ns` says where the first begins on each rank's own."""

    origin_ns: Ints
    width_ns: float
    windows: int


def _grid(trace: Trace, ranks: Ints, windows: int) -> _Grid:
    """From the earliest begin of the chosen steps to their latest end, on clocks aligned by the first step.

    Where hosts run ahead from when they begin with the first, a launch queue before their devices do.
    """
    offset = offsets_ns(trace, ranks)
    known = filter(None, (trace.job.step_times, trace.job.host_times))
    spans = [_span(times, ranks, trace.steps, offset) for times in known]
    begin, end = min(begin for begin, _ in spans), max(end for _, end in spans)
    return _Grid(begin + offset, max((end - begin) / windows, 1.0), windows)


def _span(times: StepTimes, ranks: Ints, steps: Sequence[int], offset: Ints) -> tuple[int, int]:
    """The earliest begin of the steps and their latest end, on the job's clock."""
    rank, step = np.array(times.rank, dtype=np.int64), np.array(times.step, dtype=np.int64)
    chosen = np.isin(step, steps) & np.isin(rank, ranks)
    begin = np.array(times.begin_ns, dtype=np.int64)[chosen] - offset[np.searchsorted(ranks, rank[chosen])]
    end = begin + np.array(times.duration_ns, dtype=np.int64)[chosen]
    return int(begin.min()), int(end.max())


def _hint(trace: Trace) -> str:
    names = trace.scan().filter(pl.col("kind").cast(pl.String) == KIND_NAMES[SCOPE])
    there = set(names.select(pl.col("name").cast(pl.String).unique()).collect()["name"]) - {STEP_SCOPE}
    shown = ", ".join(sorted(there)[:_NAMED])
    return "kair info --operators lists what ran" + (
        f"; scopes: {shown}{', …' * (len(there) > _NAMED)}" if there else ""
    )


def _in_scope(trace: Trace, scope: str, operator: str | None, phase: str | None) -> Iterator[pl.LazyFrame]:
    """The ranks and begins of what runs within scopes, part by part."""
    for ops in each_part(trace):
        chosen = within(ops, scopes_named(ops, lambda name: scope in name))
        if operator is not None:
            chosen &= np.isin(ops.name, [code for code, name in ops.name_text.items() if operator in name])
        if phase is not None:
            chosen &= ops.phase == PHASE_NAMES.index(phase)
        rank, start = ops.ranks[ops.rank[chosen]].astype(np.int32), ops.start_ns[chosen] + ops.origin_ns
        yield pl.LazyFrame({"rank": rank, "start_ns": start})


def _chosen(trace: Trace, operator: str | None, phase: str | None, *, scopes: bool = False) -> pl.LazyFrame:
    is_scope = pl.col("kind").cast(pl.String) == KIND_NAMES[SCOPE]
    rows = trace.scan().filter(is_scope & (pl.col("name").cast(pl.String) != STEP_SCOPE) if scopes else ~is_scope)
    if operator is not None:
        rows = rows.filter(pl.col("name").cast(pl.String).str.contains(operator, literal=True))
    if phase is not None:
        rows = rows.filter(pl.col("phase").cast(pl.String) == phase)
    return rows


def _counts(rows: pl.LazyFrame, ranks: Ints, grid: _Grid) -> Ints:
    """(ranks × windows)."""
    rows = rows.select("rank", "start_ns")
    return counted_in_windows(
        rows, pl.col("start_ns"), ranks, origin_ns=grid.origin_ns, window_ns=grid.width_ns, windows=grid.windows
    )


def _degraded(counts: Ints, ranks: Ints, role: Ints, grid: _Grid) -> Iterator[DegradedWindow]:
    # Over three windows: an operator that falls just beyond a window's edge is not missing.
    smooth = _over_three(counts)
    for code in np.unique(role):
        members = np.flatnonzero(role == code)
        if len(members) < 2:
            continue
        expected, least = median_of_others(smooth[members]), _least_of_others(smooth[members])
        shown = median_of_others(counts[members].astype(float))
        low = (smooth[members] < DEGRADED_BELOW * expected) & (expected >= _SMALLEST_EXPECTED)
        low &= smooth[members] < least
        # Smoothed, an edge of what the peers run reaches into windows where they run nothing.
        low &= shown > counts[members]
        for member, window in zip(*np.nonzero(low), strict=True):
            place = members[member]
            share = smooth[place, window] / expected[member, window]
            yield DegradedWindow(
                rank=Rank(int(ranks[place])),
                window=int(window),
                start_us=float(window * grid.width_ns / 1e3),
                count=int(counts[place, window]),
                expected=float(shown[member, window]),
                state="missing" if share < MISSING_BELOW else "degraded",
            )


def _least_of_others(values: Floats) -> Floats:
    """(rows × columns): the least of every row's others, per column, of two rows or more."""
    least, next_to_it = np.partition(values, 1, axis=0)[:2]
    return np.asarray(np.where(values == least, next_to_it, least))


def _over_three(counts: Ints) -> Floats:
    padded = np.pad(counts, ((0, 0), (1, 1)), mode="edge").astype(float)
    return np.asarray((padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3)


def _warnings(trace: Trace, role: Ints) -> tuple[KairWarning, ...]:
    alone = [int(rank) for rank, code in zip(trace.job.ranks, role, strict=True) if (role == code).sum() == 1]
    if not alone:
        return ()
    return (KairWarning("few_peers", f"{len(alone)} rank(s) have no peer whose frequency could be the normal one"),)
