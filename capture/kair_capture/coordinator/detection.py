"""What is slow: the job's steps against those before (when), and ranks' self times against their peers' (who).

Synchronous training makes all ranks' steps equally long, so step times name nobody; self times, the steps without what
was waited in collectives, do. Medians over 20 steps are tested, every 5 steps, and three tests in a row must agree.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from kair_capture.coordinator.step_table import Floats, Recent

STEPS: Final = 20
EVERY: Final = 5
HITS: Final = 3
Z: Final = 6.0
FEWEST_RANKS: Final = 3
"""Of two ranks nobody can tell which one is as usual."""
LEAST_EXCESS: Final = 0.08
"""A rank that is slower by less is not worth a window: of a small job, whose peers say little about chance."""
LEAST_EXCESS_OF_MANY: Final = 0.05
MANY: Final = 32
LEAST_SHIFT: Final = 0.15
"""The same of the job's steps."""
_FLOOR: Final = 0.01
_FEW: Final = 8
_NORMAL: Final = 1.4826
_BLOCKS: Final = 100
_LEAST_BLOCKS: Final = 5
_WARM_UP: Final = 2
"""Blocks at the begin that count for nothing: compilation, allocators, caches."""


@dataclass(frozen=True)
class Standing:
    """Each rank against its peers: arrays of one length."""

    rank: Floats
    self_us: Floats
    """Median of the last 20 steps."""
    excess: Floats
    """Of the peers' median; 0.2 is 20 % slower."""
    z: Floats
    """The excess in units of what is chance."""


def standing(recent: Recent, noise: float) -> Standing:
    """Every rank's median self time against that of all others; `noise` is how much that changes by itself.

    With fewer than FEWEST_RANKS nobody has peers: z is 0.
    """
    median = np.nanmedian(recent.self_us, axis=1) if len(recent.ranks) else np.zeros(0)
    count = len(median)
    if count < FEWEST_RANKS or np.median(median) <= 0:
        return Standing(recent.ranks.astype(float), median, np.zeros(count), np.zeros(count))
    others, spread = _without_each(median) if count <= 64 else _of_all(median)
    excess = median / np.maximum(others, 1e-9) - 1
    # How far a median of 20 steps is from the true one, by the steps' own spread.
    within = np.nanmedian(np.abs(recent.self_us - median[:, None]), axis=1) / np.maximum(median, 1e-9)
    error = 1.2533 * _NORMAL * within / np.sqrt(recent.self_us.shape[1])
    scale = np.maximum.reduce([spread, error, np.full(count, max(noise, _FLOOR))])
    return Standing(recent.ranks.astype(float), median, excess, excess / scale)


def _without_each(values: Floats) -> tuple[Floats, Floats]:
    """For each value the median of the others, and their spread about it, as a share."""
    middle, spread = np.empty(len(values)), np.empty(len(values))
    for at in range(len(values)):
        others = np.delete(values, at)
        middle[at] = np.median(others)
        away = np.abs(others - middle[at])
        # A median of few distances can be small by chance; the largest of them is not.
        spread[at] = away.max() / 1.2 if len(others) < _FEW else np.median(away) * _NORMAL
    return middle, spread / np.maximum(middle, 1e-9)


def _of_all(values: Floats) -> tuple[Floats, Floats]:
    """The same where one among many moves neither."""
    middle = float(np.median(values))
    spread = float(np.median(np.abs(values - middle))) * _NORMAL / max(middle, 1e-9)
    return np.full(len(values), middle), np.full(len(values), spread)


class Who:
    """Ranks that stand out for three tests in a row."""

    def __init__(self) -> None:
        self._hits: dict[int, int] = {}
        self._changes: deque[float] = deque(maxlen=4096)
        """How much ranks' excesses changed from one block of 20 steps to the next."""
        self._before: dict[int, float] = {}
        self._blocks = 0

    @property
    def noise(self) -> float:
        """How much an excess changes by itself. A rank that becomes slow does so in one block: that does not count."""
        if not self._changes:
            return 0.0
        return float(np.median(np.abs(self._changes))) * _NORMAL / 2**0.5

    def look(self, recent: Recent, *, whole_block: bool) -> tuple[Standing, list[int]]:
        """The standing, and the ranks that are slow now. `whole_block`: the last such block had none of these steps."""
        now = standing(recent, self.noise)
        if whole_block:
            self._note(now)
        least = LEAST_EXCESS_OF_MANY if len(now.rank) >= MANY else LEAST_EXCESS
        ready = self._blocks > _WARM_UP and len(self._changes) >= _LEAST_BLOCKS
        hit = {int(one) for one in now.rank[(now.z > Z) & (now.excess > least)]} if ready else set()
        self._hits = {rank: self._hits.get(rank, 0) + 1 for rank in hit}
        return now, sorted(rank for rank, hits in self._hits.items() if hits >= HITS)

    def _note(self, now: Standing) -> None:
        self._blocks += 1
        if self._blocks <= _WARM_UP:
            return
        excess = {int(rank): float(one) for rank, one in zip(now.rank, now.excess, strict=True)}
        self._changes.extend(one - self._before[rank] for rank, one in excess.items() if rank in self._before)
        self._before = excess


class When:
    """The job's steps over time: whether they became longer, for three tests in a row."""

    def __init__(self) -> None:
        self._blocks: deque[float] = deque(maxlen=_BLOCKS)
        self._hits = 0
        self._skipped = 0

    @property
    def usual_us(self) -> float | None:
        """The median step before; None while too little is known."""
        return float(np.median(self._blocks)) if len(self._blocks) >= _LEAST_BLOCKS else None

    def look(self, recent: Recent, *, whole_block: bool) -> tuple[float, float, bool]:
        """Shift (0.2 is 20 % longer), its z, and whether it is to be told."""
        told = ~np.isnan(recent.step_us).all(axis=0)
        of_steps = np.nanmedian(recent.step_us[:, told], axis=0) if len(recent.ranks) else np.zeros(0)
        if not len(of_steps):
            return 0.0, 0.0, False
        now, usual = float(np.median(of_steps)), self.usual_us
        shift = z = 0.0
        if usual is not None and usual > 0:
            # Of the blocks about their median, slow swings of the machine's included.
            spread = float(np.median(np.abs(np.array(self._blocks) - usual))) * _NORMAL / usual
            shift = now / usual - 1
            z = shift / max(spread, _FLOOR)
        self._hits = self._hits + 1 if z > Z and shift > LEAST_SHIFT else 0
        if whole_block:
            self._skipped += 1
            if self._skipped > _WARM_UP:
                self._blocks.append(now)
        return shift, z, self._hits >= HITS

    def accept(self) -> None:
        """What was told is the usual from now on: it is told once."""
        last = self._blocks[-1] if self._blocks else None
        self._blocks.clear()
        self._hits = 0
        if last is not None:
            self._blocks.append(last)
