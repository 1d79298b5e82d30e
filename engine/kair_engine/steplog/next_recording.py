"""Says what to record so that traces name the rank that a log cannot name: which ranks, which steps, at what cost."""

import math
from statistics import NormalDist
from typing import Final

from kair_engine.results.steplog import LogChange, LogOfSteps, NextRecording
from kair_engine.steplog.cleaning import Noise
from kair_engine.steplog.formats import Window

_FEWEST: Final = 10
"""Steps: fewer settle less than their number says, since ranks of one role are few."""
_MOST: Final = 50
"""Steps that capture samples at once; a recording of more is large."""
_OF_RANK: Final = ((4, 0.70), (8, 0.61), (16, 0.55), (32, 0.50), (64, 0.46))
"""Ranks, and the noise of a step over that of one rank: a step is the maximum of its ranks'."""
_FLOOR: Final = 0.03
"""A change by a smaller share of the step was not settled by any number of steps (docs/methods.md)."""
_LOOKED_FOR: Final = 0.05
"""Of the step: what is looked for where nothing was found."""
_MANY: Final = 64
"""Ranks from which on one of each node is recorded first."""
_OF_NODE: Final = 8
_START_S: Final = 31.0
"""A profiler takes up to that long to start, once."""
_OVERHEAD: Final = 0.2
"""Of a step while it is recorded."""
_HOUR_US: Final = 3.6e9
_SURE: Final = 1.64
"""95 % of such faults are found."""
_RANKS_UNKNOWN: Final = 8


NOTHING: Final = NextRecording("nothing", _FEWEST, 0, None, None, None, None, is_below_floor=False)
"""Of a log with too few steps."""


def what_to_record(found: LogOfSteps, window: Window, noise: Noise | None) -> NextRecording:
    """Return what to record next, given all that was found."""
    if noise is None:
        return NOTHING
    last = found.attempts[-1]
    reason, share, change = _largest(found)
    period = next((one for one in found.periods if one.attempt == last.number), None) if reason == "period" else None
    every_line = last.steps_per_line
    if period is not None and window == "mean" and 2 * every_line >= period.every and every_line > 1:
        reason = "means"
    world = found.world_size
    steps = steps_needed(noise.of_step, share, world or _RANKS_UNKNOWN)
    ranks = world or 0
    if ranks > _MANY:
        ranks = math.ceil(ranks / _OF_NODE) + _OF_NODE
    every = period.every if period is not None else None
    skip = None if period is None else period.first % period.every
    trigger = None
    if reason == "ended" and change is not None and change.usual_us is not None:
        trigger = change.usual_us * (1 + change.share / 2)
    recorded = 3 * steps if every else steps
    hours = None
    if world and last.step_us is not None:
        during = recorded * last.step_us * (1 + share) * (1 + _OVERHEAD)
        hours = world * (during + _START_S * 1e6) / _HOUR_US
    return NextRecording(
        reason=reason,  # type: ignore[arg-type]
        steps=steps,
        ranks=ranks,
        every=every,
        skip_first=skip,
        trigger_us=trigger,
        gpu_hours=hours,
        is_below_floor=share < _FLOOR,
        commands=_commands(reason, steps, every, skip, last.last_step),
    )


def _largest(found: LogOfSteps) -> tuple[str, float, LogChange | None]:
    """Why to record, the share of a step that it shows in, and the change: what lasts comes first."""
    last = found.attempts[-1].number
    changes = [one for one in found.changes if one.attempt == last and one.kind in ("slower", "drift")]
    standing = next((one for one in changes if one.until is None), None)
    if standing is not None:
        return "standing", standing.share, standing
    period = next((one for one in found.periods if one.attempt == last), None)
    steps = found.attempts[-1].last_step - found.attempts[-1].first_step + 1
    if changes and (period is None or changes[0].share * changes[0].steps / steps >= period.share):
        return "ended", changes[0].share, changes[0]
    if period is not None:
        return "period", min(period.share * period.every, 1.0), None
    if found.spikes:
        return "spikes", min(found.spikes[0].share, 1.0), None
    return "nothing", _LOOKED_FOR, None


def steps_needed(noise: float, share: float, ranks: int) -> int:
    """Return the steps of each rank that name one which is slower by `share`, given the noise of the job's steps."""
    factor = next((one for most, one in _OF_RANK if ranks <= most), _OF_RANK[-1][1])
    of_rank = noise / factor
    z = NormalDist().inv_cdf(1 - 0.01 / ranks) + _SURE
    needed = math.ceil((z * of_rank / math.log1p(max(share, 1e-3))) ** 2)
    return min(max(needed, _FEWEST), 1000)


def _commands(reason: str, steps: int, every: int | None, skip: int | None, last: int) -> tuple[str, ...]:
    """Return what to run of a job under capture, and what to write into one that is not."""
    schedule = f"schedule(skip_first={last % 10 + 10}, wait=0, warmup=2, active={min(steps, _MOST)}, repeat=1)"
    if reason == "means":
        return ("log every step first: --log-interval 1 (logging_steps=1, log_freq=1)",)
    if every is not None and every > 3:
        cycle = f"skip_first={skip}, wait={every - 3}, warmup=1, active=2, repeat={steps}"
        return (f"torch.profiler.schedule({cycle})", "kair triage traces/")
    if reason in ("ended", "spikes", "nothing"):
        return ("kair capture run --watch --job NAME -- COMMAND", "kair triage NAME")
    return (
        f"torch.profiler.{schedule}",
        f"kair capture now --job NAME --steps {min(steps, _MOST)}",
        "kair triage traces/",
    )
