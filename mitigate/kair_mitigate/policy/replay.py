"""Replays policies on the steps of a recorded job: what each would have saved, as a range.

The recording has each rank's own time in each step; the rest of a step is unchanged. Ranks that are resized together
are one unit, as slow as its slowest rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.cancelling import checkpoint
from kair_engine.results.mitigate import RecordedReplay, SimulatedPolicy
from kair_mitigate.policy.policies import DEAD_BAND
from kair_mitigate.policy.simulation import Simulated, simulate_recorded
from kair_mitigate.policy.table import row_of, simulated_policy
from kair_mitigate.policy.units import Units

PLAYED: Final = 600
"""A shorter recording is extended to this many steps by random draws."""
IN_ORDER: Final = 300
"""A recording of at least this many steps is replayed in order: policies settle within 160."""
_DRAWS: Final = 3
_MANY_RANKS: Final = 512
"""From this many ranks on, there is one draw only: a step takes milliseconds."""
_TO_COMPARE: Final = {"each-step", "each-step-no-delay", "claims", "backup-workers", "static"}
"""Never recommended: resizing is free here, claims were not validated on real jobs, and no job continues without its
slowest units.
"""
PER_CENT: Final = 100
"""Replaces unknown samples of a rank: sizes are then per cent of the present ones."""


def replay(
    own_s: Floats,
    step_s: Floats,
    sizes: Sequence[int],
    units: Units,
    chosen: Sequence[str],
    *,
    fixed_shares: Sequence[float],
    most: int | None,
    larger: float,
) -> tuple[RecordedReplay, tuple[SimulatedPolicy, ...]]:
    """Return the replayed recording and a row per policy, from own times (steps × ranks) and step times.

    Each of `fixed_shares`, the own time that does not depend on the batch, is tried. A rank takes `most` samples at
    most, by default `larger` times the present largest. Raises UsageError or InputError for an invalid policy.
    """
    of_units = np.array([units.compute_s(row) for row in own_s])
    rests_s = np.maximum(step_s - of_units.max(axis=1), 0.0)
    now = np.array([max(sizes[rank] for rank in ranks) for ranks in units.members], dtype=np.int64)
    highest = np.maximum(np.full(len(now), most or int(now.max() * larger)), now)
    plays = list(_plays(len(own_s), own_s.shape[1]))
    mean_us = 1e6 * float(step_s.mean())
    rows = []
    for name in chosen:
        make = simulated_policy(name)
        played = []
        for steps, share in product(plays, fixed_shares):
            checkpoint()
            compute_s, rest_s = of_units[steps], rests_s[steps]
            played.append(simulate_recorded(make(), compute_s, rest_s, now, highest=highest, fixed_share=share))
        row = row_of(name, "as recorded", len(sizes), len(plays[0]), played)
        rows.append(_with_savings(row, played, mean_us, units))
    found = RecordedReplay(
        steps=len(own_s),
        step_us=mean_us,
        played=len(plays[0]),
        fixed_shares=tuple(fixed_shares),
        sizes=tuple(sizes),
        units=tuple(units.members),
        saves=_saves_most(rows, mean_us),
    )
    return found, tuple(rows)


def _plays(steps: int, ranks: int) -> Iterator[Ints]:
    """Yield the steps to play: the recorded order, or enough random draws for policies.

    Later draws are from a resampled recording, because another recording would have had other steps.
    """
    if steps >= IN_ORDER:
        yield np.arange(steps)
        return
    for seed in range(_DRAWS if ranks < _MANY_RANKS else 1):
        rng = np.random.default_rng(seed)
        pool = rng.integers(steps, size=steps) if seed else np.arange(steps)
        yield pool[rng.integers(steps, size=PLAYED)]


def _with_savings(row: SimulatedPolicy, played: Sequence[Simulated], mean_us: float, units: Units) -> SimulatedPolicy:
    saved_us = [mean_us * (1 - 1 / one.speed_up) if one.actions else 0.0 for one in played]
    actions = next((one.actions for one in played if one.actions), ())
    sizes = next((action.sizes for _, action in reversed(actions) if action.sizes is not None), None)
    waiting = next((action for _, action in reversed(actions) if action.kind == "backup_workers"), None)
    saved = float(np.mean(saved_us))
    return replace(
        row,
        step_us=mean_us - saved,
        saved_us=saved,
        least_saved_us=min(saved_us),
        most_saved_us=max(saved_us),
        sizes=() if sizes is None else units.of_ranks(sizes),
        deadline=None if waiting is None else waiting.deadline,
        spare=0 if waiting is None else waiting.spare,
        first_after=actions[0][0] + 1 if actions else None,
    )


def _saves_most(rows: Sequence[SimulatedPolicy], mean_us: float) -> str | None:
    """Return the policy that certainly saves something, and most; of policies within the dead band, the first."""
    worth = {
        row.policy: row.saved_us
        for row in rows
        if row.policy not in _TO_COMPARE and row.saved_us is not None and row.least_saved_us is not None
        if row.saved_us >= DEAD_BAND * mean_us and row.least_saved_us > 0
    }
    return next((one for one, us in worth.items() if us >= max(worth.values()) - DEAD_BAND * mean_us), None)
