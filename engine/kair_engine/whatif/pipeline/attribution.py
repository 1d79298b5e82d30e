"""Attributes the slowdown of a pipeline job: to operation types, data-parallel ranks, stages and workers [W §4].

Ranks that are ideal and run the same program are alike. So beside each rank, recorded in part, a copy of it that is
wholly ideal stands for all the others: two lanes instead of as many as there are ranks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.results.whatif import PartEffect
from kair_engine.whatif.pipeline.alike_steps import AlikeSteps
from kair_engine.whatif.pipeline.choices import Choice, all_but, both, everything, of_dp_rank, of_stage, of_types
from kair_engine.whatif.pipeline.times import AT_ONCE, PipelineTimes, parts_of, step_times
from kair_engine.whatif.ratios import part_effect, ratios
from kair_engine.whatif.verdict import SLOWEST_SHARE

_LARGEST = 300_000_000
"""Operations × scenarios that are replayed one by one where ranks do not run alike."""


@dataclass(frozen=True)
class PartTimes:
    """Step times (… × steps), ns, of the main scenarios: only the named part as recorded, all else ideal."""

    replayed: Floats
    ideal: Floats
    types: dict[str, Floats]
    dp_ranks: Floats
    """(dp ranks × steps)."""
    stages: Floats
    """(stages × steps)."""
    workers: Floats | None
    """(dp ranks × stages × steps); None where that takes too long."""

    def approximate(self) -> Floats:
        """(dp ranks × stages): the published S_w."""
        return np.minimum(self._slowdowns(self.dp_ranks)[:, None], self._slowdowns(self.stages))

    def of_workers(self) -> Floats:
        """(dp ranks × stages): S of every worker, approximate where each could not be replayed."""
        return self.approximate() if self.workers is None else self._slowdowns(self.workers)

    def _slowdowns(self, times: Floats) -> Floats:
        return ratios(times.mean(axis=-1), float(self.ideal.mean()))


def attribute(times: PipelineTimes) -> PartTimes:
    """Replays every scenario."""
    types = of_types(times.rows)
    stages = [of_stage(stage) for stage in range(times.rows.pp_size)]
    steps = times.steps_if([everything, all_but(everything), *types.values(), *stages])
    by_type = dict(zip(types, steps[2 : 2 + len(types)], strict=True))
    dp_ranks, workers = _by_worker(times)
    return PartTimes(steps[0], steps[1], by_type, dp_ranks, steps[2 + len(types) :], workers)


def slowest_workers(approximate: Floats, rank_of: Mapping[tuple[int, int], int]) -> tuple[int, ...]:
    """The ranks of the slowest 3 % of workers, rounded up; of equal ones the lowest rank."""
    ranked = sorted(rank_of.items(), key=lambda item: (-approximate[item[0]], item[1]))
    return tuple(rank for _, rank in ranked[: math.ceil(len(ranked) * SLOWEST_SHARE)])


def explained(
    times: PipelineTimes, parts: Sequence[Choice], replayed_ns: float, ideal_ns: float
) -> list[PartEffect | None]:
    """Of each part: what goes away without it, and what it does alone; None where nothing is lost."""
    steps = times.steps_if([scenario for part in parts for scenario in (all_but(part), part)])
    return [
        part_effect(replayed_ns, ideal_ns, removed_ns=float(removed.mean()), alone_ns=float(alone.mean()))
        for removed, alone in zip(steps[::2], steps[1::2], strict=True)
    ]


def _by_worker(times: PipelineTimes) -> tuple[Floats, Floats | None]:
    """Step times with every data-parallel rank, and every worker, as recorded among ideal others."""
    rows, dps, pps = times.rows, times.rows.dp_size, times.rows.pp_size
    dp_ranks, workers = np.empty((dps, len(rows.steps))), np.empty((dps, pps, len(rows.steps)))
    stages = [of_stage(stage) for stage in range(pps)]
    too_many = False
    for of in times.alike:
        if of.lanes > 1:
            found = _beside_ideal(times, of, [everything, *stages])
            dp_ranks[:, of.steps], workers[:, :, of.steps] = found[0], found[1:].transpose(1, 0, 2)
            continue
        each = [of_dp_rank(dp) for dp in range(dps)]
        dp_ranks[:, of.steps] = times.alike_steps_if(of, each)
        too_many |= dps * pps * len(of.rows) * len(of.steps) > _LARGEST
        if not too_many:
            single = [both(dp, stage) for dp in each for stage in stages]
            workers[:, :, of.steps] = times.alike_steps_if(of, single).reshape(dps, pps, -1)
    return dp_ranks, None if too_many else workers


def _beside_ideal(times: PipelineTimes, of: AlikeSteps, recorded: list[Choice]) -> Floats:
    """(scenarios × dp ranks × steps): every rank with the chosen rows as recorded, beside an ideal one."""
    example, size = of.rows.take(slice(0, of.lane.nodes)), of.lane.nodes
    masks = np.stack([choice(example)[of.order.order] for choice in recorded], axis=1)[:, :, None, None]
    ideal = times.ideal_ns[of.at[:, 0, 0]][:, None, None, None]
    result = np.empty((len(recorded), of.lanes, len(of.steps)))
    for dps in parts_of(of.lanes, AT_ONCE // (2 * len(recorded) * size * len(of.steps))):
        own = times.own_ns[of.at[:, dps]][:, None]
        ends = np.empty((size, 2, len(recorded), *own.shape[2:]))
        ends[:, 0], ends[:, 1] = np.where(masks, own, ideal), ideal
        result[:, dps] = step_times(of, ends)
    return result
