"""Who costs what: S of every operation type, data-parallel rank, stage and worker; M_W, M_S [W §4]."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.collectives import dense
from kair_engine.whatif.pipeline_rows import BACKWARD, FORWARD, FORWARD_BACKWARD, TRANSFERS, TYPES, PipelineRows
from kair_engine.whatif.pipeline_times import PipelineTimes
from kair_engine.whatif.result import PartEffect
from kair_engine.whatif.workers import by_part

SLOWEST_SHARE = 0.03
"""Of the workers, rounded up: those whose fixing M_W measures [W]."""
Key = TypeVar("Key", int, str)
_MERGED = {
    **dict.fromkeys(TRANSFERS[:2], "forward-pp-comm"),
    **dict.fromkeys(TRANSFERS[2:], "backward-pp-comm"),
}


@dataclass(frozen=True)
class Attribution:
    """Step times (… × steps), ns, of the main scenarios: only the named part as recorded, all else ideal."""

    replayed: Floats
    ideal: Floats
    types: dict[str, Floats]
    dp_ranks: Floats
    """(dp ranks × steps)."""
    stages: Floats
    """(stages × steps)."""
    workers: Floats | None
    """(dp ranks × stages × steps)."""

    def slowdown(self, times: Floats) -> float:
        """The mean step over the ideal mean step."""
        return ratio(float(times.mean()), float(self.ideal.mean()))

    def approximate(self) -> Floats:
        """(dp ranks × stages): the published S_w."""
        dp, stage = (np.array([self.slowdown(one) for one in of]) for of in (self.dp_ranks, self.stages))
        return np.asarray(np.minimum(dp[:, None], stage[None, :]))


def attribute(times: PipelineTimes) -> Attribution:
    """Replays every scenario."""
    rows = times.rows
    everything = np.ones(len(rows), dtype=bool)
    types = type_masks(rows)
    stages = [rows.stage == stage for stage in range(rows.pp_size)]
    steps = times.steps_if([everything, ~everything, *types.values(), *stages])
    of_types = dict(zip(types, steps[2 : 2 + len(types)], strict=True))
    parts = by_part(times)
    return Attribution(steps[0], steps[1], of_types, parts.dp_ranks, steps[2 + len(types) :], parts.workers)


def type_masks(rows: PipelineRows) -> dict[str, Bools]:
    """Operation type → its rows; sends and receives of one direction count together [W]."""
    result: dict[str, Bools] = {}
    for code in np.unique(rows.type).tolist():
        name = _MERGED.get(TYPES[code], TYPES[code])
        result[name] = result.get(name, np.zeros(len(rows), dtype=bool)) | (rows.type == code)
    return result


def largest_first(values: Mapping[Key, float]) -> dict[Key, float]:
    """The same, in the order of what they cost."""
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def slowest_workers(approximate: Floats, rank_of: Mapping[tuple[int, int], int]) -> tuple[int, ...]:
    """The ranks of the slowest 3 % of workers, rounded up; of equal ones the lowest rank."""
    ranked = sorted(rank_of.items(), key=lambda item: (-approximate[item[0]], item[1]))
    return tuple(rank for _, rank in ranked[: math.ceil(len(ranked) * SLOWEST_SHARE)])


def explained(times: PipelineTimes, of: Attribution, parts: Sequence[Bools]) -> list[PartEffect | None]:
    """Of each part (a mask of rows): what goes away without it, and what it does alone; None where nothing is lost."""
    steps = times.steps_if([scenario for mask in parts for scenario in (~mask, mask)])
    replayed, ideal = float(of.replayed.mean()), float(of.ideal.mean())
    return [
        part_effect(replayed, ideal, removed_ns=float(removed.mean()), alone_ns=float(alone.mean()))
        for removed, alone in zip(steps[::2], steps[1::2], strict=True)
    ]


def part_effect(replayed_ns: float, ideal_ns: float, *, removed_ns: float, alone_ns: float) -> PartEffect | None:
    """From mean step times to shares of what is lost, T - T_ideal; None where nothing is lost."""
    lost = replayed_ns - ideal_ns
    if lost <= 0:
        return None
    return PartEffect(
        share_removed=(replayed_ns - removed_ns) / lost,
        share_alone=(alone_ns - ideal_ns) / lost,
        step_time_removed_us=removed_ns / 1e3,
        step_time_alone_us=alone_ns / 1e3,
    )


def forward_backward(rows: PipelineRows, own_ns: Floats) -> tuple[float | None, float | None]:
    """Correlation of forward and backward time per microbatch, and the forward's variation: medians over workers."""
    forward, backward = (by_microbatch(rows, name) for name in (FORWARD, BACKWARD))
    _, left, right = np.intersect1d(forward[1], backward[1], assume_unique=True, return_indices=True)
    f, b = forward[0][left], backward[0][right]
    worker = rows.dp[f] * rows.pp_size + rows.stage[f]
    correlations, variations = [], []
    for one in np.unique(worker):
        x, y = own_ns[f[worker == one]], own_ns[b[worker == one]]
        if len(x) > 2 and x.std() > 0 and y.std() > 0:
            correlations.append(float(np.corrcoef(x, y)[0, 1]))
            variations.append(float(x.std() / x.mean()))
    if not correlations:
        return None, None
    return float(np.median(correlations)), float(np.median(variations))


def by_microbatch(rows: PipelineRows, name: str) -> tuple[Ints, Ints]:
    """The rows of forward or backward, and a number of each microbatch of a chunk on a worker-step, alike of both."""
    computes = rows.of_type(*FORWARD_BACKWARD)
    number = np.where(rows.microbatch[computes] == NONE, rows.turn[computes], rows.microbatch[computes])
    key = dense(np.stack((rows.worker_step[computes], rows.chunk[computes], number)))
    chosen = rows.type[computes] == TYPES.index(name)
    key, first = np.unique(key[chosen], return_index=True)
    return computes[chosen][first], key


def ratio(one: float, other: float) -> float:
    """one / other; 1 of two zeros, and where only the other is zero as large as can be said."""
    if other == 0:
        return 1.0 if one == 0 else 1e9
    return one / other
