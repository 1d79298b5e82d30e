"""Takes out of steps' times what is no change of the job: warm-up and single slow steps; and says how noisy they are.

Times are logarithms everywhere here, so that a difference is a share of the step.
"""

from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.frozen import dataclass

NORMAL: Final = 0.6745
"""The median distance from the mean of a normal number of spread 1."""
SHORT: Final = 40
"""Steps of a log, below which chances are counted out by permutation: its noise is not known well enough."""
_APART: Final = 8
"""Steps that are this far from each other hardly have noise in common."""
_MOST_ALIKE: Final = 0.95
_SMALLEST: Final = 1e-4
"""Of the step: printed times are no finer than that."""
_MOST_WARM_UP: Final = 50
_BEYOND_NEXT: Final = 11
_WARM: Final = 8.0
"""Times the noise; and at least this share of the step:"""
_WARM_SHARE: Final = float(np.log(1.05))
_SURELY_WARM: Final = float(np.log(1.5))
"""So much more is warm-up however noisy the log is."""
_DISPATCHED: Final = 3
"""The first steps may print how long they took to launch, which is less than a step."""
SPIKE: Final = 4.0
_SPIKE_STEPS: Final = 5
"""A run of as many steps is no spike."""
_NEAR: Final = 11


@dataclass(frozen=True)
class Noise:
    """How much the logarithm of a step's time varies."""

    of_step: float
    """From one step to the next, divided by √2: its own noise."""
    of_mean: float
    """What a mean of n steps varies by, times √n: more than its own where steps are alike."""


def noise_of(y: Floats) -> Noise:
    """Return the noise of steps, by differences, which changes of level hardly touch.

    In a short log most distant steps lie on both sides of a change or of its warm-up, so that only neighbours tell its
    noise; how alike they are is not known, and is taken as not at all.
    """
    near = _spread(y, 1)
    own = max(near, _SMALLEST)
    if len(y) < SHORT:
        return Noise(own, own)
    far = _spread(y, _APART)
    alike = 0.0 if far <= 0 else float(np.clip(1 - (near / far) ** 2, 0.0, _MOST_ALIKE))
    return Noise(own, max(far, _SMALLEST) * float(np.sqrt((1 + alike) / (1 - alike))))


def _spread(y: Floats, apart: int) -> float:
    if len(y) <= apart:
        return 0.0
    return float(np.median(np.abs(y[apart:] - y[:-apart])) / (NORMAL * np.sqrt(2)))


def running_median(y: Floats, width: int) -> Floats:
    """Return the median of the `width` steps around each one; at the ends of as many as there are."""
    if len(y) <= width:
        return np.full(len(y), np.median(y) if len(y) else 0.0)
    half = width // 2
    padded = np.concatenate((y[half:0:-1], y, y[-2 : -half - 2 : -1]))
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    parts = [np.partition(windows[at : at + _PART], half, axis=1)[:, half] for at in range(0, len(y), _PART)]
    return np.concatenate(parts)


_PART: Final = 1 << 16
"""Windows that are sorted at once: a million would take a gigabyte."""


def warm_up(y: Floats, noise: Noise) -> int:
    """Return how many steps at the begin are warm-up: compilation, autotuning, caches that fill."""
    limit = min(_MOST_WARM_UP, len(y) // 4)
    # The next steps show what is usual only as long as the log is not over in as many.
    next_ones = min(_BEYOND_NEXT, max(len(y) // 4, 1))
    beyond = min(max(_WARM * noise.of_mean, _WARM_SHARE), _SURELY_WARM)
    count = 0
    for at in range(limit):
        usual = float(np.median(y[at + 1 : at + 1 + next_ones]))
        short = at < _DISPATCHED and y[at] < usual - 2 * beyond
        if not (y[at] > usual + beyond or short):
            if at >= _DISPATCHED:
                break
            continue
        count = at + 1
    return count


def spikes(y: Floats, noise: Noise) -> tuple[Ints, Floats]:
    """Return the places of single slow steps, and the times with these replaced by what is usual near them."""
    usual = running_median(y, _NEAR)
    off = np.abs(y - usual) > SPIKE * noise.of_step
    off &= ~_long_runs(off)
    replaced = np.where(off, usual, y)
    return np.flatnonzero(off & (y > usual)), replaced


def _long_runs(marked: Bools) -> Bools:
    """Those that are in a run of `_SPIKE_STEPS` and more."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], marked.astype(np.int8), [0]))))
    result = np.zeros(len(marked), bool)
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        result[begin:end] = end - begin >= _SPIKE_STEPS
    return result
