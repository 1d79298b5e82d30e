"""What a window took of the job's time: its pauses, and how much longer its steps were than those before it."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kair_capture.coordinator.step_table import Bools, Floats, StepTable
from kair_capture.ring.layout import StepFlag

_NEIGHBOURS: Final = 20
_LONGEST_PAUSE_US: Final = 60e6
"""What is longer is a clock that was set."""


def cost_us(table: StepTable, ranks: Sequence[int], first: int, last: int) -> float | None:
    """Of steps `first` to `last`, sampled on `ranks`; None where these steps are not remembered (any more).

    Between steps a rank's time stands still for nothing but its profiler, which begins, ends and is written there. Of
    each such pause the longest of any rank counts, since the others wait for it. Of the sampled steps the median
    counts, so that a checkpoint among them is not taken for the profiler's work. Who did not sample does not count.
    """
    steps = table.steps(np.asarray(ranks), np.arange(first - _NEIGHBOURS, last + 2))
    window, told = slice(_NEIGHBOURS, -1), ~np.isnan(steps.step_us)
    if not told[:, window].any() or not told[:, :_NEIGHBOURS].any():
        return None
    sampled = told & ((steps.flags & StepFlag.SAMPLED) > 0)
    sampled = sampled[took_part := sampled[:, window].any(axis=1)]
    begin, length = steps.begin_us[took_part], steps.step_us[took_part]
    pauses = np.where(sampled[:, 1:] | sampled[:, :-1], begin[:, 1:] - begin[:, :-1] - length[:, :-1], np.nan)
    pauses = np.clip(np.nan_to_num(pauses), 0.0, _LONGEST_PAUSE_US)[:, _NEIGHBOURS - 1 :]
    longer = (_longer(length[at], sampled[at], window) for at in range(len(length)))
    return float(pauses.max(axis=0, initial=0.0).sum() + max(longer, default=0.0))


def _longer(length: Floats, sampled: Bools, window: slice) -> float:
    """How much longer one rank's sampled steps were, all together."""
    usual = length[~sampled & ~np.isnan(length)]
    within = length[window][sampled[window]]
    return max(float(np.median(within) - np.median(usual)), 0.0) * len(within) if len(usual) else 0.0
