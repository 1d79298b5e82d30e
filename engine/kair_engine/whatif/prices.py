"""What fixes save: the recorded job replayed with the excess of some operations taken away, or with a factor."""

from collections.abc import Mapping, Sequence

import numpy as np

from kair_engine.arrays import Bools, Floats
from kair_engine.errors import UsageError
from kair_engine.results.whatif import FixPrice
from kair_engine.trace.hosts import host_of
from kair_engine.trace.model import Job
from kair_engine.whatif.fixes import Fix
from kair_engine.whatif.pipeline.rows import COMMUNICATION, GARBAGE, TYPES, PipelineRows
from kair_engine.whatif.pipeline.times import PipelineTimes

HOURS_PER_DAY = 24.0
ERROR_GATE = 0.05
"""Of the measured step: a replay that is further off is answered with a warning [W]."""


def prices(
    job: Job,
    times: PipelineTimes,
    rank_of: Mapping[tuple[int, int], int],
    fixes: Sequence[Fix],
    *,
    replayed_ns: float,
    gpu_cost: float | None,
) -> tuple[FixPrice, ...]:
    """Each fix by itself, and where there are several all together. Raises UsageError where one fits nothing."""
    after = [steps_with(job, times, rank_of, scenario) for scenario in scenarios_of(fixes)]
    return priced(fixes, replayed_ns, after, devices=job.world_size, gpu_cost=gpu_cost)


def scenarios_of(fixes: Sequence[Fix]) -> list[tuple[Fix, ...]]:
    """Each fix by itself, and where there are several all together."""
    return [*((fix,) for fix in fixes), *([tuple(fixes)] if len(fixes) > 1 else [])]


def steps_with(job: Job, times: PipelineTimes, rank_of: Mapping[tuple[int, int], int], fixes: Sequence[Fix]) -> Floats:
    """Each step's time, ns, with all of `fixes` made. Raises UsageError where one fits nothing."""
    durations = times.own_ns
    for fix in fixes:
        durations = fixed_durations(job, times, rank_of, fix, durations)
    return times.steps_with(durations)


def priced(
    fixes: Sequence[Fix], before_ns: float, steps_ns: Sequence[Floats], *, devices: int, gpu_cost: float | None
) -> tuple[FixPrice, ...]:
    """The prices of `scenarios_of` fixes, given each one's step times."""
    texts = [fix.text for fix in fixes] + (["all together"] if len(fixes) > 1 else [])
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
    )


def require_cost(gpu_cost: float | None) -> None:
    """Raises UsageError for what is no cost of a GPU hour."""
    if gpu_cost is not None and not 0 <= gpu_cost < float("inf"):
        raise UsageError(f"the price of a GPU hour must be 0 or more, got {gpu_cost:g}")


def nothing_fits(fix: Fix, hint: str | None = None) -> UsageError:
    """The error for a fix that changes no operation."""
    return UsageError(f"nothing in the chosen steps fits --{'fix' if fix.scale is None else 'scale'} {fix.text}", hint)


def fixed_durations(
    job: Job, times: PipelineTimes, rank_of: Mapping[tuple[int, int], int], fix: Fix, durations: Floats
) -> Floats:
    """The durations with what fits the fix brought down to its peers' ideal, or scaled."""
    rows = times.rows
    mask = _fitting(job, rows, rank_of, fix)
    if not mask.any():
        raise nothing_fits(fix)
    if fix.scale is not None:
        return np.where(mask, durations * fix.scale, durations)
    ideal = times.ideal_ns if fix.stages else peers_ideal(times)
    return np.where(mask, np.minimum(durations, ideal), durations)


def peers_ideal(times: PipelineTimes) -> Floats:
    """The ideal among one type's operations in one stage: the mean, of communications the median; no garbage pause."""
    rows = times.rows
    kind = rows.type * rows.pp_size + rows.stage
    result = np.zeros(len(rows))
    for code in np.unique(kind):
        chosen = kind == code
        name = TYPES[int(code) // rows.pp_size]
        if name != GARBAGE:
            own = times.own_ns[chosen]
            result[chosen] = np.median(own) if name in COMMUNICATION else own.mean()
    return result


def _fitting(job: Job, rows: PipelineRows, rank_of: Mapping[tuple[int, int], int], fix: Fix) -> Bools:
    mask = np.ones(len(rows), dtype=bool)
    if fix.ranks or fix.hosts:
        ranks = np.full((rows.dp_size, rows.pp_size), -1)
        for at, rank in rank_of.items():
            ranks[at] = rank
        chosen = {
            rank
            for rank in rank_of.values()
            if (not fix.ranks or rank in fix.ranks) and (not fix.hosts or host_of(job, rank) in fix.hosts)
        }
        mask &= np.isin(ranks[rows.dp, rows.stage], list(chosen))
    if fix.stages:
        mask &= np.isin(rows.stage, fix.stages)
    types = [code for code, name in enumerate(TYPES) if fix.named(name) and (not fix.kinds or _kind(name) in fix.kinds)]
    return np.asarray(mask & np.isin(rows.type, types))


def _kind(name: str) -> str:
    if name == GARBAGE:
        return "gc"
    return "communication" if name in COMMUNICATION else "compute"
