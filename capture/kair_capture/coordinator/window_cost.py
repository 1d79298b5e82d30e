"""What sampling took of the job's time: a window that was ordered, and those that ranks had without being asked."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from kair_capture.coordinator.step_table import HISTORY, Bools, Floats, Ints, StepTable
from kair_capture.ring.layout import StepFlag

_NEIGHBOURS: Final = 20
"""Steps before a window that its own are compared with."""
_LONGEST_PAUSE_US: Final = 60e6
"""What is longer is a clock that was set."""
_LOOK_EVERY: Final = 5
"""Steps between two looks for windows that nobody asked for."""
_MOST_LOOKED_AT: Final = HISTORY - 2 * _NEIGHBOURS
"""Of these looks: steps further back are not remembered together with those before them."""


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


class Unasked:
    """Windows that nobody asked for: there is one budget, whoever spends it.

    Whether a step was sampled its rows say; whether it was asked for, the windows that were ordered.
    """

    def __init__(self, until: int = -1) -> None:
        self.until = until
        """The last step that was looked at."""

    def cost_us(self, table: StepTable, asked: Iterable[tuple[int, int]]) -> float:
        """What windows that nobody asked for cost since the last call, of the job's time.

        `asked`: first and last step of each window that was ordered, whose costs are known otherwise.
        """
        # The pause after a step shows once the next one is told.
        last = table.last_common_step - 1
        if table.latest.max(initial=-1) < self.until:
            self.until = last  # the job went back to a checkpoint
        if last - self.until < _LOOK_EVERY:
            return 0.0
        steps = np.arange(max(self.until, last - _MOST_LOOKED_AT) + 1, last + 1)
        told = table.steps(np.arange(len(table.latest)), steps)
        sampled = ~np.isnan(told.step_us) & ((told.flags & StepFlag.SAMPLED) > 0)
        for first, final in asked:
            sampled[:, (steps >= first) & (steps <= final)] = False
        self.until, cost = last, 0.0
        for begin, end in _runs(np.asarray(sampled.any(axis=0))):
            if end == len(steps) and begin:
                # It may go on: its cost is asked for when it is whole.
                self.until = int(steps[begin]) - 1
                break
            ranks: Ints = np.flatnonzero(sampled[:, begin:end].any(axis=1))
            cost += cost_us(table, ranks.tolist(), int(steps[begin]), int(steps[end - 1])) or 0.0
        return cost


def _runs(marked: Bools) -> Iterator[tuple[int, int]]:
    """Where each row of marks begins and ends."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marked.astype(np.int8), [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
