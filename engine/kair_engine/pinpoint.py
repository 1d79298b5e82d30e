"""Stage 2: which of a rank's operations differ from the same operations on its peers.

Outlying operations as both methods report them.

Stage 2 as the paper states it: z-scores of start and duration over all ranks, outliers beyond 3.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kair_engine.arrays import Floats, Ints, is_one_of
from kair_engine.localize.large_step_detail import with_some_peers
from kair_engine.localize.unnamed_collectives import unnamed_collective_warnings, with_collectives_marked
from kair_engine.ranks import Rank
from kair_engine.results import Method, StepClock
from kair_engine.results.pinpoint import Outlier, PinpointResult
from kair_engine.results.warning_kinds import ZCannotFire
from kair_engine.stats import benjamini_hochberg, student_t_tail
from kair_engine.timeline.clocks import begin_ns, synchronise
from kair_engine.timeline.roles import PeerGroups, Role, logical_keys, robust_sigma, role_codes, roles, split_off
from kair_engine.timeline.self_time import host_gap_ns, own_ns
from kair_engine.trace.loading import each_step
from kair_engine.trace.model import KairWarning, Trace, require_rank, require_steps
from kair_engine.trace.operations import KIND_NAMES, PHASE_NAMES, SCOPE, SYNC, Operations


class Identity(NamedTuple):
    """Which operation it is; `start_us` from the step's begin on its rank."""

    step: int
    operator: str
    kind: str
    phase: str | None
    occurrence: int
    start_us: float


def identify(ops: Operations, row: int) -> Identity:
    """Which operation a row is."""
    phase = int(ops.phase[row])
    return Identity(
        step=ops.step,
        operator=ops.operator(row),
        kind=KIND_NAMES[ops.kind[row]],
        phase=PHASE_NAMES[phase] if phase >= 0 else None,
        occurrence=int(ops.occurrence[row]),
        start_us=float(ops.start_ns[row] - ops.begin_ns[ops.rank[row]]) / 1e3,
    )


def outlier(
    which: Identity,
    *,
    z: tuple[float, float],
    score: float,
    p_value: float | None,
    duration_ns: float,
    expected_ns: float,
) -> Outlier:
    """Return the record of one outlying operation; `z` is (start, duration)."""
    return Outlier(
        step=which.step,
        operator=which.operator,
        phase=which.phase,
        occurrence=which.occurrence,
        start_z=z[0],
        duration_z=z[1],
        score=score,
        p_value=p_value,
        start_us=which.start_us,
        duration_us=duration_ns / 1e3,
        expected_duration_us=expected_ns / 1e3,
    )


FALSE_DISCOVERY_RATE = 0.05
SMALLEST_OUTLIER_SHARE = 0.003
"""An outlier must cost at least this share of the step."""
_RELATIVE_FLOOR, _ABSOLUTE_FLOOR_NS = 0.02, 2_000.0
"""Spreads below 2 % of the operation or 2 µs are the clock's, not the operation's."""


@dataclass(frozen=True)
class Cells:
    """The rank's operations in one step compared with their peers: one entry per operation with at least two peers.

    `held_up` is the idle time its own host left before the operation. Times in ns.
    """

    which: tuple[Identity, ...]
    step_time: float
    own: Floats
    own_median: Floats
    own_sigma: Floats
    held_up: Floats
    held_up_median: Floats
    held_up_sigma: Floats
    peers: Ints


def pinpoint(
    trace: Trace, *, rank: int, method: Method = "robust", limit: int = 50, clock: StepClock = "rank"
) -> PinpointResult:
    """Return the rank's outlying operations over the chosen steps, the most outlying first.

    `robust` scores self time and the idle time its host left before it, signed, against the other ranks of
    its role; `paper` is stage 2 as [K] states it, with starts since the rank's begin of the step or (`clock` job) the
    first rank's. Raises UsageError for a rank that left no trace.
    """
    require_steps(trace)
    require_rank(trace, rank)
    if method == "paper":
        return pinpoint_paper(trace, rank=rank, limit=limit, clock=clock)
    trace = with_collectives_marked(trace)
    role_of = roles(trace)
    compared = partial(compare, rank=rank, role_of=role_of)
    seen, of_some = with_some_peers(trace, rank, role_of)
    cells = [cell for cell in map(compared, each_step(seen)) if cell is not None]
    outliers = sorted(_outliers(cells, len(trace.job.ranks)), key=lambda o: (-o.score, o.step, o.start_us))
    lonely = f"rank {rank} has fewer than two peers that run the same operators"
    return PinpointResult(
        rank=Rank(rank),
        method="robust",
        outliers=tuple(outliers[:limit]),
        tested=sum(len(cell.which) for cell in cells),
        total_outliers=len(outliers),
        warnings=(
            *(() if any(len(c.which) for c in cells) else (KairWarning("few_peers", lonely),)),
            *unnamed_collective_warnings(trace),
            *of_some,
        ),
    )


def compare(ops: Operations, rank: int, role_of: Mapping[int, Role]) -> Cells | None:
    """Compare the rank's operations of one step with their peers'; return None if the rank lacks the step."""
    place = np.flatnonzero(ops.ranks == rank)
    if not len(place):
        return None
    role = role_codes(ops.ranks, role_of)
    position = int(place[0])
    own = own_ns(ops, synchronise(ops)).astype(float)
    held_up = host_gap_ns(ops).astype(float)
    keys = logical_keys(ops, role)
    # Victims wait inside communication, and inside synchronisations with the device.
    scored = ~ops.communication & ~is_one_of(ops.kind, (SCOPE, SYNC))
    candidates = np.flatnonzero(scored & (role[ops.rank] == role[position]))
    parts = []
    for block in PeerGroups.of(keys, candidates).blocks(smallest=3):
        mine, others = split_off(ops, block, position)
        columns: list[npt.NDArray[Any]] = [mine]
        for values in (own, held_up):
            columns += [values[mine], np.median(values[others], axis=1), robust_sigma(values[others])]
        parts.append([*columns, np.full(len(mine), others.shape[1])])
    if not parts:
        return None
    rows, *measured = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Cells(tuple(identify(ops, int(row)) for row in rows), max(ops.step_time_ns, 1.0), *measured)


def _outliers(cells: list[Cells], ranks: int) -> Iterator[Outlier]:
    if not cells:
        return
    operator = _numbered(cells)
    sigma_own = _pooled(operator, [c.own_sigma for c in cells], [c.own_median for c in cells])
    sigma_gap = _pooled(operator, [c.held_up_sigma for c in cells], [c.own_median for c in cells])
    z_own = [(c.own - c.own_median) / s for c, s in zip(cells, sigma_own, strict=True)]
    z_gap = [(c.held_up - c.held_up_median) / s for c, s in zip(cells, sigma_gap, strict=True)]
    z = np.maximum(np.concatenate(z_own), np.concatenate(z_gap))
    df = (np.concatenate([c.peers for c in cells]) - 1) * len(cells)
    extra = [np.maximum(c.own - c.own_median, c.held_up - c.held_up_median) / c.step_time for c in cells]
    p = np.ones(len(z))
    for i in np.flatnonzero(np.concatenate(extra) > SMALLEST_OUTLIER_SHARE):
        p[i] = student_t_tail(float(z[i]), float(df[i]))
    # The rank was chosen as the worst of all: every operator counts as tried on every rank.
    adjusted = np.split(benjamini_hochberg(p, tests=2 * len(p) * ranks), np.cumsum([len(e) for e in extra])[:-1])
    for cell, share, own, gap, p_value in zip(cells, extra, z_own, z_gap, adjusted, strict=True):
        for i in np.flatnonzero((p_value < FALSE_DISCOVERY_RATE) & (share > SMALLEST_OUTLIER_SHARE)):
            yield outlier(
                cell.which[i],
                z=(float(gap[i]), float(own[i])),
                score=float(share[i]),
                p_value=float(p_value[i]),
                duration_ns=float(cell.own[i]),
                expected_ns=float(cell.own_median[i]),
            )


def _numbered(cells: list[Cells]) -> Ints:
    """Return a number per cell, equal for one operator in all steps (keys of different steps cannot be compared)."""
    number: dict[tuple[str, str, str | None, int], int] = {}
    of_cell = ((one.operator, one.kind, one.phase, one.occurrence) for cell in cells for one in cell.which)
    return np.array([number.setdefault(key, len(number)) for key in of_cell], dtype=np.int64)


def _pooled(operator: Ints, sigmas: list[Floats], medians: list[Floats]) -> list[Floats]:
    """Each operator's spread, pooled over the steps (root mean square) and kept off zero."""
    square = np.bincount(operator, weights=np.concatenate(sigmas) ** 2) / np.bincount(operator)
    floor = np.maximum(_RELATIVE_FLOOR * np.concatenate(medians), _ABSOLUTE_FLOOR_NS)
    pooled = np.maximum(np.sqrt(square)[operator], floor)
    return np.split(pooled, np.cumsum([len(of_step) for of_step in sigmas])[:-1])


PAPER_THRESHOLD = 3.0
"""The empirical 3-sigma rule [K]."""


def pinpoint_paper(trace: Trace, *, rank: int, limit: int, clock: StepClock = "rank") -> PinpointResult:
    """[K] stage 2: a = max(|z_start|, |z_duration|), population SD over all ranks, outlier when a > 3.

    The start counts from the step's begin on each rank, so no common clock is needed; of the `clock` job from the first
    rank's, so that a rank that begins late starts late.
    """
    outliers: list[Outlier] = []
    tested = 0
    for ops in each_step(trace):
        found, compared = _step_outliers(ops, rank, clock)
        outliers += found
        tested += compared
    outliers.sort(key=lambda o: (-o.score, o.step, o.start_us))
    return PinpointResult(
        rank=Rank(rank),
        method="paper",
        outliers=tuple(outliers[:limit]),
        tested=tested,
        total_outliers=len(outliers),
        warnings=paper_limits(len(trace.job.ranks)),
    )


def z_scores(values: Floats) -> Floats:
    """(operators × ranks) → how many population SDs each value lies from its row's mean; 0 where all agree."""
    mean = values.mean(axis=1, keepdims=True)
    sigma = values.std(axis=1, keepdims=True)
    return np.asarray(np.divide(values - mean, sigma, out=np.zeros_like(values), where=sigma > 0))


def _step_outliers(ops: Operations, rank: int, clock: StepClock) -> tuple[list[Outlier], int]:
    rows = np.flatnonzero(ops.kind != SCOPE)
    keys = logical_keys(ops, np.zeros(len(ops.ranks), dtype=np.int64))
    start = (ops.start_ns - begin_ns(ops, clock)[ops.rank]).astype(float) if len(ops) else np.zeros(0)
    duration = ops.duration_ns.astype(float)
    found: list[Outlier] = []
    compared = 0
    for block in PeerGroups.of(keys, rows).blocks(smallest=2):
        z_start, z_duration = z_scores(start[block]), z_scores(duration[block])
        mine = ops.ranks[ops.rank[block]] == rank
        compared += int(mine.sum())
        score = np.maximum(np.abs(z_start), np.abs(z_duration))
        expected = np.broadcast_to(duration[block].mean(axis=1, keepdims=True), block.shape)
        found += [
            outlier(
                identify(ops, int(block[cell])),
                z=(float(z_start[cell]), float(z_duration[cell])),
                score=float(score[cell]),
                p_value=None,
                duration_ns=float(duration[block[cell]]),
                expected_ns=float(expected[cell]),
            )
            for cell in zip(*np.nonzero(mine & (score > PAPER_THRESHOLD)), strict=True)
        ]
    return found, compared


def paper_limits(ranks: int) -> tuple[KairWarning, ...]:
    """Return the warning that z > 3 cannot fire among so few ranks; nothing where it can."""
    highest = highest_z(ranks)
    if highest > PAPER_THRESHOLD:
        return ()
    return (ZCannotFire(among=ranks, highest_z=highest, threshold=PAPER_THRESHOLD),)


def highest_z(ranks: int) -> float:
    """max |z| = √(N − 1): no value among N can lie further from their mean, in population SDs."""
    return math.sqrt(max(ranks - 1, 0))
