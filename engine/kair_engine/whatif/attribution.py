"""Who costs what: S of every operation type, data-parallel rank, stage and worker; M_W, M_S [W §4]."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.results.whatif import PartEffect
from kair_engine.whatif.pipeline.choices import Choice, all_but, everything, of_stage, of_types
from kair_engine.whatif.pipeline.times import PipelineTimes
from kair_engine.whatif.pipeline.workers import by_part

SLOWEST_SHARE = 0.03
"""Of the workers, rounded up: those whose fixing M_W measures [W]."""
Key = TypeVar("Key", int, str)


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

    def slowdowns(self, times: Floats) -> Floats:
        """The same of each (… × steps)."""
        return ratios(times.mean(axis=-1), float(self.ideal.mean()))

    def approximate(self) -> Floats:
        """(dp ranks × stages): the published S_w."""
        return np.minimum(self.slowdowns(self.dp_ranks)[:, None], self.slowdowns(self.stages))


def attribute(times: PipelineTimes) -> Attribution:
    """Replays every scenario."""
    types = of_types(times.rows)
    stages = [of_stage(stage) for stage in range(times.rows.pp_size)]
    steps = times.steps_if([everything, all_but(everything), *types.values(), *stages])
    by_type = dict(zip(types, steps[2 : 2 + len(types)], strict=True))
    parts = by_part(times)
    return Attribution(steps[0], steps[1], by_type, parts.dp_ranks, steps[2 + len(types) :], parts.workers)


def largest_first(values: Mapping[Key, float]) -> dict[Key, float]:
    """The same, in the order of what they cost."""
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def of_each_step(values: Mapping[Key, Floats], base: Floats) -> list[dict[Key, float]]:
    """Per step every part's time (steps) over the base's (steps), the largest first."""
    keys = list(values)
    shares = ratios(np.array(list(values.values())).reshape(len(keys), len(base)), base)
    order = np.argsort(-shares, axis=0, kind="stable").T.tolist()
    columns = np.sort(-shares, axis=0).T
    return [
        dict(zip([keys[at] for at in of], column, strict=True))
        for of, column in zip(order, (-columns).tolist(), strict=True)
    ]


def slowest_workers(approximate: Floats, rank_of: Mapping[tuple[int, int], int]) -> tuple[int, ...]:
    """The ranks of the slowest 3 % of workers, rounded up; of equal ones the lowest rank."""
    ranked = sorted(rank_of.items(), key=lambda item: (-approximate[item[0]], item[1]))
    return tuple(rank for _, rank in ranked[: math.ceil(len(ranked) * SLOWEST_SHARE)])


def explained(times: PipelineTimes, of: Attribution, parts: Sequence[Choice]) -> list[PartEffect | None]:
    """Of each part: what goes away without it, and what it does alone; None where nothing is lost."""
    steps = times.steps_if([scenario for part in parts for scenario in (all_but(part), part)])
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


def ratio(one: float, other: float) -> float:
    """one / other; 1 of two zeros, and where only the other is zero as large as can be said."""
    if other == 0:
        return 1.0 if one == 0 else 1e9
    return one / other


def ratios(one: Floats, other: Floats | float) -> Floats:
    """`ratio` of each."""
    known = np.not_equal(other, 0)
    return np.where(known, one / np.where(known, other, 1.0), np.where(one == 0, 1.0, 1e9))
