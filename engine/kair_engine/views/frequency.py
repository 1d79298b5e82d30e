"""The time-frequency view [K, figure 4]: how often an operator ran, per window of time and rank."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from kair_engine.arrays import Bools, Floats, Ints, ranges
from kair_engine.errors import UsageError
from kair_engine.ranks import Rank
from kair_engine.results.views import DegradedRegion, DegradedWindow, FrequencyResult, RankCounts
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
_PER_STEP = 8
"""Windows in a step that ranks are compared in, over three at a time, however many are drawn: over a whole step, who
comes late has caught up; over much less, healthy ranks differ."""
_SMALLEST_EXPECTED = 3.0
"""Where peers run it less often than this in three of these, nothing is said."""
_MOST_LATE = 4
"""Ranks of which it is looked up what they ran meanwhile, those that fall behind most."""


def frequency(
    trace: Trace,
    *,
    operator: str | None = None,
    phase: str | None = None,
    scope: str | None = None,
    windows: int = 100,
) -> FrequencyResult:
    """Count begun operations per rank in `windows` equal windows over the chosen steps.

    `operator` narrows to names that contain it (case matters); where no operation's does, annotated scopes that do are
    counted themselves. `phase` narrows to one phase, `scope` to what runs within scopes whose name contains it.
    A rank falls behind where it ran less than half as many as its role's median, and fewer than any of its peers, in
    three eighths of a step; it is missing below a tenth of the median. Such stretches are the regions, and the windows
    that they lie in are degraded. The largest shortfall comes first.
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
    finer = _finer(trace, windows)
    grid = _grid(trace, ranks, windows * finer)
    nothing = np.zeros((len(ranks), grid.windows), dtype=np.int64)
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
    behind = _Behind.of(counts, role, usual=grid.windows / len(trace.steps) / _PER_STEP)
    counted = counts.reshape(len(ranks), windows, finer).sum(axis=2)
    return FrequencyResult(
        operator=operator or phase or scope or "*",
        window_us=finer * grid.width_ns / 1e3,
        windows=windows,
        counts=tuple(
            RankCounts(Rank(int(rank)), tuple(row)) for rank, row in zip(ranks, counted.tolist(), strict=True)
        ),
        degraded=tuple(sorted(behind.windows(ranks, grid, finer), key=_shortfall)),
        warnings=_warnings(trace, role),
        regions=_with_operators(trace, sorted(behind.regions(ranks, grid), key=_shortfall), grid),
    )


def _shortfall(of: DegradedRegion | DegradedWindow) -> tuple[float, int, float]:
    return of.count - of.expected, of.rank, of.start_us


def _finer(trace: Trace, windows: int) -> int:
    """Into how many parts windows are divided so that a step has enough of them."""
    most = max(_MOST_COUNTS // (len(trace.job.ranks) * windows), 1)
    return min(math.ceil(_PER_STEP * len(trace.steps) / windows), most)


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
    """Return the earliest begin of the steps and their latest end, on the job's clock."""
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
    """Yield the ranks and begins of what runs within scopes, part by part."""
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


@dataclass(frozen=True)
class _Behind:
    """Where ranks run less than their peers: (ranks × windows) each."""

    around: Bools
    """Also where the peers run nothing for a while."""
    is_low: Bools
    is_missing: Bools
    counts: Ints
    expected: Floats

    @classmethod
    def of(cls, counts: Ints, role: Ints, usual: float) -> "_Behind":
        """Compare each rank with its role's others, over three times `usual` windows."""
        span = 2 * round((3 * usual - 1) / 2) + 1 if usual > 1 else 3
        smooth, (around, is_low, is_missing) = _smoothed(counts, span), np.zeros((3, *counts.shape), dtype=bool)
        found = cls(around, is_low, is_missing, counts, np.zeros(counts.shape))
        for code in np.unique(role):
            members = np.flatnonzero(role == code)
            if len(members) < 2:
                continue
            # Smoothed: an operator that falls just beyond a window's edge is not missing.
            expected, least = median_of_others(smooth[members]), _least_of_others(smooth[members])
            found.expected[members] = shown = median_of_others(counts[members].astype(float))
            low = (smooth[members] < DEGRADED_BELOW * expected) & (expected * span >= _SMALLEST_EXPECTED)
            found.around[members] = low = low & (smooth[members] < least)
            # Smoothed, an edge of what the peers run reaches into windows where they run nothing.
            found.is_low[members] = low = low & (shown > counts[members])
            found.is_missing[members] = low & (smooth[members] < MISSING_BELOW * expected)
        return found

    def windows(self, ranks: Ints, grid: _Grid, finer: int) -> Iterator[DegradedWindow]:
        """Yield the drawn windows in which a rank is behind; each has `finer` of these."""
        shape = (len(ranks), -1, finer)
        low = self.is_low.reshape(shape)
        count = np.where(low, self.counts.reshape(shape), 0).sum(axis=2)
        expected = np.where(low, self.expected.reshape(shape), 0.0).sum(axis=2)
        missing: Bools = np.asarray((self.is_missing.reshape(shape) | ~low).all(axis=2))
        for place, window in np.argwhere(low.any(axis=2)).tolist():
            yield DegradedWindow(
                rank=Rank(int(ranks[place])),
                window=window,
                start_us=float(window * finer * grid.width_ns / 1e3),
                count=int(count[place, window]),
                expected=float(expected[place, window]),
                state="missing" if missing[place, window] else "degraded",
            )

    def regions(self, ranks: Ints, grid: _Grid) -> Iterator[DegradedRegion]:
        """Yield the stretches of windows in which a rank is behind."""
        edges = np.diff(np.pad(self.around, ((0, 0), (1, 1))).astype(np.int8), axis=1)
        begins, ends = np.argwhere(edges > 0), np.argwhere(edges < 0)
        for (place, begin), (_, end) in zip(begins.tolist(), ends.tolist(), strict=True):
            low = begin + np.flatnonzero(self.is_low[place, begin:end])
            if not len(low):
                continue
            within = slice(int(low[0]), int(low[-1]) + 1)
            yield DegradedRegion(
                rank=Rank(int(ranks[place])),
                start_us=float(within.start * grid.width_ns / 1e3),
                duration_us=float((within.stop - within.start) * grid.width_ns / 1e3),
                count=int(self.counts[place, within].sum()),
                expected=float(self.expected[place, within].sum()),
                state="missing" if self.is_missing[place, low].all() else "degraded",
            )


def _with_operators(trace: Trace, regions: Sequence[DegradedRegion], grid: _Grid) -> tuple[DegradedRegion, ...]:
    """Return the regions with what their ranks ran meanwhile, of the ranks that fall behind most."""
    result = list(regions)
    for rank in list(dict.fromkeys(one.rank for one in regions))[:_MOST_LATE]:
        mine = sorted((at for at, one in enumerate(regions) if one.rank == rank), key=lambda at: regions[at].start_us)
        begin, lasts = (np.array([getattr(regions[at], of) * 1e3 for at in mine]) for of in ("start_us", "duration_us"))
        begin += grid.origin_ns[trace.job.ranks.index(rank)]
        spent = _spent(trace, rank, begin, begin + lasts)
        for region, at in enumerate(mine):
            inside = {name: of[:, region] for name, of in spent.items() if of[0, region] >= lasts[region] / 2}
            # The innermost one.
            result[at] = replace(result[at], operator=min(inside, key=lambda name: tuple(inside[name]), default=None))
    return tuple(result)


def _spent(trace: Trace, rank: Rank, begin_ns: Floats, end_ns: Floats) -> dict[str, Floats]:
    """Return by operator how long it ran in each of some stretches, which are in order and do not overlap.

    Of each there are two rows: so long within the stretch, and with what of these calls is outside it.
    """
    start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("duration_ns")
    rows = trace.scan().filter(pl.col("kind").cast(pl.String) != KIND_NAMES[SCOPE], pl.col("rank") == rank)
    rows = rows.filter(start < end_ns[-1], end > begin_ns[0])
    found = rows.select(pl.col("name").cast(pl.String), start, end.alias("end")).collect(engine="streaming")
    starts, ends = found["start_ns"].to_numpy(), found["end"].to_numpy()
    first, last = np.searchsorted(end_ns, starts, side="right"), np.searchsorted(begin_ns, ends)
    last = np.maximum(first, last)
    row, region = np.repeat(np.arange(len(first)), last - first), ranges(first, last)
    within = np.minimum(ends[row], end_ns[region]) - np.maximum(starts[row], begin_ns[region])
    names, code = np.unique(found["name"].to_numpy()[row].astype(str), return_inverse=True)
    sums = np.zeros((len(names), 2, len(begin_ns)))
    for at, values in enumerate((within, ends[row] - starts[row])):
        np.add.at(sums[:, at], (code, region), values)
    return dict(zip(names.tolist(), sums, strict=True))


def _least_of_others(values: Floats) -> Floats:
    """(rows × columns): the least of every row's others, per column, of two rows or more."""
    least, next_to_it = np.partition(values, 1, axis=0)[:2]
    return np.asarray(np.where(values == least, next_to_it, least))


def _smoothed(counts: Ints, span: int) -> Floats:
    """Return the mean over an odd number of windows, the outermost ones counted again beyond the edges."""
    half = span // 2
    sums = np.cumsum(np.pad(counts, ((0, 0), (half + 1, half)), mode="edge"), axis=1)
    sums -= sums[:, :1]
    return np.asarray((sums[:, span:] - sums[:, :-span]) / span)


def _warnings(trace: Trace, role: Ints) -> tuple[KairWarning, ...]:
    alone = [int(rank) for rank, code in zip(trace.job.ranks, role, strict=True) if (role == code).sum() == 1]
    if not alone:
        return ()
    return (KairWarning("few_peers", f"{len(alone)} rank(s) have no peer whose frequency could be the normal one"),)
