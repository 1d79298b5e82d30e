"""Prices fixes: from step times to throughput, GPU hours and money.

Compares step times: S of every part, on average and step by step.

Concludes from prices what the cause is: one machine, a stage, uneven batches, or nothing worth acting on.

Warns of replays that are far off their recording.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.errors import UsageError
from kair_engine.frozen import dataclass
from kair_engine.results.fixes import fix_text
from kair_engine.results.money import currency_of
from kair_engine.results.warning_kinds import InexactReplay
from kair_engine.results.whatif import (
    ERROR_GATE,
    HIGHEST_COST,
    SLOW,
    Fix,
    FixPrice,
    PartEffect,
    SequenceImbalance,
    SlowdownCause,
    SlowdownPattern,
    SlowWorkers,
    StageImbalance,
    WhatifResult,
)
from kair_engine.trace.model import KairWarning, Layout

HOURS_PER_DAY = 24.0


def each_and_all(fixes: Sequence[Fix]) -> list[tuple[Fix, ...]]:
    """Each fix by itself, and where there are several all together."""
    return [*((fix,) for fix in fixes), *([tuple(fixes)] if len(fixes) > 1 else [])]


def fix_prices(
    fixes: Sequence[Fix], before_ns: float, steps_ns: Sequence[Floats], *, devices: int, gpu_cost: float | None
) -> tuple[FixPrice, ...]:
    """Return the prices of `each_and_all` of the fixes, given each one's step times."""
    texts = [*map(fix_text, fixes), *(["all together"] if len(fixes) > 1 else [])]
    return tuple(
        price(text, before_ns, float(steps.mean()), devices=devices, gpu_cost=gpu_cost)
        for text, steps in zip(texts, steps_ns, strict=True)
    )


def price(text: str, before_ns: float, after_ns: float, *, devices: int, gpu_cost: float | None) -> FixPrice:
    """From step times to what one pays for: a job that runs all day saves that share of its devices' hours."""
    share = 1 - after_ns / before_ns if before_ns else 0.0
    hours = share * devices * HOURS_PER_DAY
    return FixPrice(
        fix=text,
        step_time_us=after_ns / 1e3,
        saved_us=(before_ns - after_ns) / 1e3,
        saved_share=share,
        throughput_gain=before_ns / after_ns - 1 if after_ns else 0.0,
        gpu_hours_per_day=hours,
        cost_per_day=None if gpu_cost is None else hours * gpu_cost,
        currency=currency_of(gpu_cost),
    )


def require_cost(gpu_cost: float | None) -> None:
    """Raise UsageError for what is no cost of a GPU hour."""
    if gpu_cost is not None and not 0 <= gpu_cost <= HIGHEST_COST:
        raise UsageError(f"the price of a GPU hour must be from 0 to {HIGHEST_COST:,.0f}, got {gpu_cost:g}")


def nothing_fits(fix: Fix, hint: str | None = None) -> UsageError:
    """Return the error for a fix that changes no operation."""
    return UsageError(f"nothing in the chosen steps fits {fix_text(fix)}", hint)


Part = TypeVar("Part")
Other = TypeVar("Other")
Key = TypeVar("Key", int, str)


@dataclass(frozen=True)
class OfParts(Generic[Part]):
    """Something for each part of a job."""

    kinds: dict[str, Part]
    """Kinds of time, or operation types."""
    stages: dict[int, Part] = field(default_factory=dict)
    dp_ranks: dict[int, Part] = field(default_factory=dict)
    hosts: dict[str, Part] = field(default_factory=dict)
    ranks: dict[int, Part] = field(default_factory=dict)

    def all(self) -> list[Part]:
        """Return the values one after another."""
        return [value for sort in fields(self) for value in getattr(self, sort.name).values()]

    def mapped(self, values: Iterable[Other]) -> "OfParts[Other]":
        """Return the same parts with other values, in the order of `all`."""
        rest = iter(values)
        changed: dict[str, Any] = {}
        for sort in fields(self):
            of: dict[Any, Part] = getattr(self, sort.name)
            changed[sort.name] = dict(zip(of, islice(rest, len(of)), strict=True))
        return OfParts(**changed)


def ratio(one: float, other: float) -> float:
    """one / other; 1 of two zeros, and where only the other is zero as large as can be said."""
    if other == 0:
        return 1.0 if one == 0 else 1e9
    return one / other


def ratios(one: Floats, other: Floats | float) -> Floats:
    """`ratio` of each."""
    known = np.not_equal(other, 0)
    return np.where(known, one / np.where(known, other, 1.0), np.where(one == 0, 1.0, 1e9))


def largest_first(values: Mapping[Key, float]) -> dict[Key, float]:
    """Return the same, in the order of what they cost."""
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def mean_ratios(values: Mapping[Key, Floats], base: Floats) -> dict[Key, float]:
    """Return the mean of every part's time (steps) over the base's (steps), the largest first."""
    means = _table(values, base).mean(axis=1)
    return largest_first(dict(zip(values, ratios(means, float(base.mean())).tolist(), strict=True)))


def step_ratios(values: Mapping[Key, Floats], base: Floats) -> list[dict[Key, float]]:
    """Per step every part's time (steps) over the base's (steps), the largest first."""
    keys = list(values)
    shares = ratios(_table(values, base), base)
    order = np.argsort(-shares, axis=0, kind="stable").T.tolist()
    columns = np.sort(-shares, axis=0).T
    return [
        dict(zip([keys[at] for at in of], column, strict=True))
        for of, column in zip(order, (-columns).tolist(), strict=True)
    ]


def _table(values: Mapping[Key, Floats], base: Floats) -> Floats:
    """(parts × steps)."""
    return np.array(list(values.values())).reshape(len(values), len(base))


def placed(of_ranks: Mapping[int, float], layout: Layout | None, shape: tuple[int, ...] | None = None) -> Floats:
    """Lay ranks' values out as (stages × dp ranks), if each position has one rank; else in one row.

    For a heatmap with more positions than ranks the `shape` is given; without it, each position must be a rank's.
    """
    ranks = sorted(of_ranks)
    if layout is not None and layout.pipeline_stage and layout.dp_rank:
        places = {rank: (layout.pipeline_stage.get(rank, 0), layout.dp_rank.get(rank, 0)) for rank in ranks}
        stages, dp_ranks = (sorted({place[at] for place in places.values()}) for at in (0, 1))
        size = len(stages), len(dp_ranks)
        if len(set(places.values())) == len(ranks) and (shape == size or len(ranks) == size[0] * size[1]):
            result = np.zeros(size)
            for rank, (stage, dp) in places.items():
                result[stages.index(stage), dp_ranks.index(dp)] = of_ranks[rank]
            return result
    return np.array([[of_ranks[rank] for rank in ranks]])


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


SLOWEST_SHARE = 0.03
"""M_W measures what fixing this share of the workers saves, rounded up [W]."""
MIN_EXPLAINED = 0.5
"""Fixing who is to blame must take away this part of the slowdown [W]."""
CORRELATED, VARIES = 0.9, 0.05
"""Forward and backward time of a microbatch, and the forward time's variation: batches of different length [W]."""
MIN_NAMED = 0.2
"""Pauses and flapping transfers that cost less than this part of the slowdown are not what the job suffers from."""
LONGER_STAGE = 0.05
"""What the last stage computes above the mean of the stages: of two alike ones each takes half of any slowdown."""
FEW_STEPS = 3
"""In fewer a worker's microbatches need not even out."""
_HOT = 0.5
"""Workers stand out of the heatmap if they cost this part of what the costliest one does."""
_STANDS_OUT = 0.1
"""No worker stands out of the heatmap where none costs this part of the slowdown by itself."""
_MOST_OF_STAGE = 0.75


def pattern_of(slowdown: float, workers: Floats) -> SlowdownPattern:
    """Return what the heatmap (dp ranks × stages, S of each worker) shows: single cells, one column, or no structure.

    An empty one, of a job with too many workers to price each, shows nothing.
    """
    if slowdown < SLOW:
        return "none"
    if not workers.size:
        return "unknown"
    cost = workers - 1
    if cost.max() < _STANDS_OUT * (slowdown - 1):
        return "diffuse"
    hot = cost >= _HOT * cost.max()
    count = int(hot.sum())
    if workers.size > 1 and count <= math.ceil(workers.size * SLOWEST_SHARE):
        return "one_worker" if count == 1 else "few_workers"
    per_stage = hot.mean(axis=0)
    stages = np.flatnonzero(per_stage > 0)
    if workers.shape[1] > 1 and len(stages) == 1 and per_stage[stages[0]] >= _MOST_OF_STAGE:
        return "one_stage"
    return "diffuse"


@dataclass(frozen=True)
class Symptoms:
    """What speaks for a cause next to who costs what."""

    forward_backward_correlation: float | None = None
    """Pearson's, within a rank over microbatches; the median of ranks."""
    forward_variation: float | None = None
    """Coefficient of variation of the forward time, median of ranks."""
    last_stage_excess: float | None = None
    """How much longer the last stage computes than the mean of the stages, as a share."""
    irregular: tuple[SlowdownCause, ...] = ()
    """What happens only at times, each with what its removal takes away."""


def causes_of(  # noqa: PLR0917 (one call)
    result: WhatifResult,
    symptoms: Symptoms,
    effects: Sequence[PartEffect | None],
    steps: int,
    host: str | None,
    of_host: tuple[int, ...],
) -> tuple[SlowdownCause, ...]:
    """Return the causes that the figures of a job slower than SLOW speak for [W §5], of several the first one first.

    `effects` are those of the slowest workers, of the last stage, and of the costliest host's ranks. Long sequences are
    looked for only where no worker is to blame. In one step or two, though, who has them looks like a slow worker: then
    both are said.
    """
    if result.slowdown < SLOW:
        return ()
    of_slowest, of_last, of_all = (0.0 if part is None else part.share_removed for part in effects)
    uneven, excess = _sequence_imbalance(symptoms, steps), symptoms.last_stage_excess
    first: list[SlowdownCause] = []
    rest: list[SlowdownCause] = []
    if of_slowest >= MIN_EXPLAINED and (uneven is None or steps >= FEW_STEPS):
        first.append(_at_its_price(SlowWorkers(ranks=result.slowest_ranks, share=of_slowest), result))
    elif uneven is not None:
        first.append(uneven.changed(or_slow_ranks=result.slowest_ranks if of_slowest >= MIN_EXPLAINED else ()))
    if of_last >= MIN_EXPLAINED and (excess is None or excess >= LONGER_STAGE):
        rest.append(StageImbalance(share=of_last))
    rest += [one for one in symptoms.irregular if one.share is not None and one.share >= MIN_NAMED]
    if not any(isinstance(one, SlowWorkers) for one in first) and host is not None and of_all >= MIN_EXPLAINED:
        # All ranks of a host together explain what none of them does alone.
        first.insert(0, _at_its_price(SlowWorkers(ranks=of_host, share=of_all, host=host), result))
    return (*first, *sorted(rest, key=lambda cause: -(cause.share or 0.0)))


def _sequence_imbalance(of: Symptoms, steps: int) -> SlowdownCause | None:
    correlation, variation = of.forward_backward_correlation, of.forward_variation
    if correlation is None or variation is None or correlation < CORRELATED or variation < VARIES:
        return None
    return SequenceImbalance(forward_backward_correlation=correlation, forward_variation_share=variation, steps=steps)


def _at_its_price(cause: SlowdownCause, result: WhatifResult) -> SlowdownCause:
    """Give a cause the share that the fix of its one rank, or host, saves: it has no other price than that."""
    lost_us = result.step_time_us - result.ideal_step_time_us
    price = None if cause.host is None else result.saved_by_host_us.get(cause.host)
    if len(cause.ranks) == 1:
        price = result.saved_by_rank_us.get(cause.ranks[0])
    return cause if price is None or lost_us <= 0 else cause.changed(share=price / lost_us)


STEADY_ERROR_GATE = 0.02
"""A replay in steady state has this limit, as it keeps no delay only because it was recorded."""


def replay_error(replayed: Floats, measured: Floats) -> float:
    """Of the mean step: how far the replayed one (steps) is off the measured one (steps)."""
    return abs(ratio(float(replayed.mean()), float(measured.mean())) - 1)


def inexact_replay(
    steps: tuple[int, ...], replayed: Floats, measured: Floats, gate: float = ERROR_GATE
) -> Iterator[KairWarning]:
    """Yield a warning where the mean step is off by more than `gate`."""
    off = replay_error(replayed, measured)
    if off <= gate:
        return
    worst = int(np.argmax(step_errors(replayed, measured)))
    replayed_us, recorded_us = float(replayed[worst]) / 1e3, float(measured[worst]) / 1e3
    yield InexactReplay(off=off, worst_step=steps[worst], replayed_us=replayed_us, recorded_us=recorded_us)


def step_errors(replayed: Floats, measured: Floats) -> Floats:
    """Per step |replayed − measured| / measured."""
    return np.asarray(np.abs(replayed - measured) / np.maximum(measured, 1.0))
