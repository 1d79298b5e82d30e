"""The three shapes of slowness, one function each: per rank the chance that a healthy one looks so.

In every step; since one of them; in some steps. Each is asked of the ranks that are `left`: whoever was accused before
is no peer of the others.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, present
from kair_engine.localize.large_delays import Events, chance_of
from kair_engine.localize.peers import NOTHING_POOLED, Means, Pooled, Spread, above_others
from kair_engine.localize.signals import Signal
from kair_engine.stats import median

FEWEST_BEFORE, FEWEST_AFTER = 4, 8
"""An onset needs this many steps before and after it: a few at the end of a recording are a spell as soon as an onset.
"""
MOST_CUTS = 8
"""An onset is looked for at this many steps at most: those near it show it, too."""


def cauchy(chances: Floats, weights: Floats) -> Floats:
    """Chances (rows × ranks) put together per rank, however the rows depend on one another (Liu and Xie 2020).

    None counts as more than one half: many rows that say nothing would hide one that does.
    """
    known = np.clip(chances, 1e-300, 0.5)
    total = (weights[:, None] / np.tan(np.pi * known)).sum(axis=0) / weights.sum()
    return np.asarray(np.arctan2(1.0, total) / np.pi)


class Steady:
    """Signals' means over all steps, made once for all looks."""

    def __init__(self, signals: Sequence[Signal], role: Ints) -> None:
        self.signals, self._role = signals, role
        nobody = Means(np.zeros((0, len(role))), np.zeros((0, len(role))))
        means = [of for one in signals for of in _means(one.above_ns, role, [slice(None)])]
        self.means = Means.stacked(means) if signals else nobody

    def chances(self, left: Bools) -> tuple[Floats, Floats]:
        """(t, chance), (signals × ranks) each."""
        t = np.zeros(self.means.mean_ns.shape)
        chance = np.full(t.shape, 0.5)
        roles = list(roles_left(self._role, left))
        spreads = [_spread(self.signals, members) for members in roles]
        means = [self.means.at(members) for members in roles]
        known = [Pooled.of(of, spread) for of, spread in zip(means, spreads, strict=True)] if len(roles) > 1 else []
        for at, members in enumerate(roles):
            others = Pooled.together(known[:at] + known[at + 1 :]) if known else NOTHING_POOLED
            t[:, members], chance[:, members] = above_others(means[at], spreads[at], pooled=others)
        for row, signal in enumerate(self.signals):
            if signal.asked is not None:
                chance[row, ~signal.asked] = 0.5
        return t, chance


class Since:
    """A signal's means before and after each step that may be an onset, made once for all looks."""

    def __init__(self, signal: Signal, role: Ints, *, asked: bool = True) -> None:
        self.signal, self._role, self._asked = signal, role, asked
        self._cuts = _cuts(len(signal.above_ns))
        if asked and len(self._cuts):
            cuts = self._cuts.tolist()
            parts = [*(slice(None, at) for at in cuts), *(slice(at, None) for at in cuts)]
            means = _means(signal.above_ns, role, parts)
            self._before, self._after = Means.stacked(means[: len(cuts)]), Means.stacked(means[len(cuts) :])

    def __bool__(self) -> bool:
        return bool(len(self._cuts))

    def chances(self, left: Bools) -> Floats:
        """Per rank; whoever was faster before and is like the others now has no fault that began."""
        chance = np.full((len(self._cuts), len(self._role)), 0.5)
        for members in roles_left(self._role, left) if self._asked else ():
            after, spread = self._after.at(members), _spread([self.signal], members)
            others = len(after.mean_ns.T) / max(len(after.mean_ns.T) - 1, 1)
            at_most = (after.mean_ns - after.mean_ns.mean(axis=1, keepdims=True)) * others
            chance[:, members] = above_others(after.less(self._before.at(members)), spread, at_most)[1]
        return cauchy(chance, np.ones(len(chance)))


class NowAndThen:
    """A signal's large delays, of several sizes: the rarer the larger."""

    def __init__(self, events: Sequence[Events], role: Ints, unit: Ints | None) -> None:
        self.events, self._role, self._unit = events, role, unit

    def chances(self, left: Bools) -> Floats:
        """Per rank, of as many delays as it has."""
        rows = [chance_of(events, self._role, self._unit, left) for events in self.events]
        return cauchy(np.stack(rows), np.ones(len(rows)))


def onset(per_step: Floats) -> int:
    """Where values (steps) change most: the place at which two means fit them best, by least squares."""
    at = np.arange(1, len(per_step))
    before = np.cumsum(per_step)[:-1]
    apart = (per_step.sum() - before) / (len(per_step) - at) - before / at
    return int(np.argmax(np.where(apart > 0, apart**2 * at * (len(per_step) - at), 0.0))) + 1


def _cuts(steps: int) -> Ints:
    every = np.arange(FEWEST_BEFORE, steps - FEWEST_AFTER + 1)
    if len(every) <= MOST_CUTS:
        return every
    return np.unique(np.linspace(every[0], every[-1], MOST_CUTS).astype(np.int64))


def _means(per_step: Floats, role: Ints, parts: Sequence[slice]) -> list[Means]:
    """Those of each part of the steps."""
    result = [Means(np.zeros(len(role)), np.zeros(len(role))) for _ in parts]
    for code in present(role):
        members = np.flatnonzero(role == code)
        of_role = per_step[:, members]
        for part, means in zip(parts, result, strict=True):
            means.mean_ns[members], means.variance[members] = Means.of(of_role[part])
    return result


def _spread(signals: Sequence[Signal], members: Bools) -> Spread:
    """(signals × 1): what the healthy of some ranks differ by."""
    usual = np.stack([one.usual_ns[members] for one in signals])
    wide = np.stack([one.wide_ns[members] for one in signals])
    return Spread(median(usual)[:, None], median(wide)[:, None])


def roles_left(role: Ints, left: Bools) -> Iterator[Bools]:
    """Of every role the ranks that are left."""
    for code in present(role[left]):
        yield left & (role == code)
