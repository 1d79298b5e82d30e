"""The answer of `mitigate simulate JOB`: what each policy would save a recorded job, from its recording alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kair.app.question import Given
from kair_engine.errors import UsageError
from kair_engine.results.mitigate import MitigateResult

if TYPE_CHECKING:
    from kair_engine.arrays import Floats, Ints
    from kair_engine.trace.model import Trace
    from kair_mitigate.policy.units import Units

_NOT_OWN = ("transfer", "waiting", "unmatched")
"""Kinds of the account that are the communication's."""
_LARGEST_SHARE = 0.9


def mitigate(
    given: Given,
    *,
    policy: Sequence[str] = (),
    sizes: Sequence[int] = (),
    most: int | None = None,
    fixed_share: float | None = None,
) -> MitigateResult:
    """Return what each policy would save, by the history of all steps if capture keeps one, else by the sampled steps.

    `sizes` are each rank's samples per step, `most` is the largest number that a rank has memory for, `fixed_share`
    (0 to 1) is the share of a rank's own time that does not depend on its batch. Raises UsageError or InputError.
    """
    from kair_mitigate.controller import LARGER
    from kair_mitigate.policy.policies import ASSUMED_SHARE
    from kair_mitigate.policy.replay import PER_CENT, replay
    from kair_mitigate.policy.table import SIMULATED

    if fixed_share is not None and not 0 <= fixed_share <= _LARGEST_SHARE:
        raise UsageError(f"--fixed-share {fixed_share:g} is no share from 0 to {_LARGEST_SHARE}")
    trace = given.trace
    ranks, own_s, step_s, samples = _recorded(trace)
    known = sizes or samples
    if sizes and (len(sizes) != len(ranks) or min(sizes) < 1):
        raise UsageError(
            f"--sizes has {len(sizes)} sizes: the recording has {len(ranks)} ranks, with 1 sample at least"
        )
    if most is not None and not known:
        raise UsageError("--most needs the samples that ranks take now", "--sizes 16,16,16,16")
    units = _units(trace, ranks)
    found, rows = replay(
        own_s,
        step_s,
        known or (PER_CENT,) * len(ranks),
        units,
        policy or [name for name in SIMULATED if name != "static"],
        fixed_shares=(0.0, ASSUMED_SHARE) if fixed_share is None else (fixed_share,),
        most=most,
        larger=LARGER,
    )
    found = replace(found, is_in_per_cent=not known, is_assumed=units.known == "assumed")
    return MitigateResult("", "simulate", trace.job.name, simulated=rows, replay=found)


def _recorded(trace: "Trace") -> "tuple[Ints, Floats, Floats, tuple[int, ...]]":
    """(ranks, own times (steps × ranks) and lengths of steps in s, each rank's samples or none)."""
    from kair.app.step_history import history_of_steps, require_sampled

    history = history_of_steps(trace)
    if history is None or not history.can_judge:
        require_sampled(trace, "a history of so few steps")
        return _sampled(trace)
    own, samples, sizes = history.us["self"], history.us["samples"], tuple[int, ...]()
    if (samples > 0).all():
        # Of a job that was resized: as if it had not been.
        own, sizes = own * samples[0] / samples, tuple(samples[0].astype(np.int64).tolist())
    return history.ranks, own / 1e6, history.us["step"].max(axis=1) / 1e6, sizes


def _sampled(trace: "Trace") -> "tuple[Ints, Floats, Floats, tuple[int, ...]]":
    """Return the same of sampled steps, by their account."""
    import polars as pl

    from kair_engine.timeline.account import account
    from kair_engine.trace.model import require_steps

    require_steps(trace)
    own = pl.col("ns").filter(~pl.col("kind").is_in(_NOT_OWN)).sum()
    of_cells = account(trace).group_by("step", "rank").agg(own=own, whole=pl.col("ns").sum()).sort("step", "rank")
    ranks = of_cells["rank"].unique().sort().to_numpy()
    whole = of_cells.filter(pl.len().over("step") == len(ranks))
    if whole.is_empty():
        raise UsageError("no step was recorded by all ranks")
    own_s, step_s = (whole[name].to_numpy().reshape(-1, len(ranks)) / 1e9 for name in ("own", "whole"))
    return ranks, own_s, step_s.max(axis=1), ()


def _units(trace: "Trace", ranks: "Ints") -> "Units":
    """Ranks that meet in every micro-batch, by the last sampled steps."""
    from kair_engine.trace.loading import load_step
    from kair_mitigate.policy.units import LOOKED_AT, Units, joined, tied_in_all

    steps = () if trace.job.is_recorded_only else trace.steps[-LOOKED_AT:]
    tied = tied_in_all(load_step(trace, step) for step in steps)
    place = {rank: at for at, rank in enumerate(ranks.tolist())}
    within = [[place[rank] for rank in some if rank in place] for some in tied or ()]
    return Units(joined(len(ranks), within), "assumed" if tied is None else "recorded")
