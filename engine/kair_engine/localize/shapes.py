"""The three shapes of slowness, one function each: per rank the chance that a healthy one looks so.

In every step; since one of them; in some steps. Each is asked of the ranks that are `left`: whoever was accused before
is no peer of the others.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, present
from kair_engine.localize.large_delays import Events, chance_of
from kair_engine.localize.peers import Columns, Means, Pooled, Spread, above_others, steps_side_by_side
from kair_engine.localize.signals import Signal
from kair_engine.stats import median

FEWEST_BEFORE, FEWEST_AFTER = 4, 8
"""An onset needs this many steps before and after it: a few at the end of a recording are a spell as soon as an onset.
"""
MOST_CUTS = 8
"""An onset is looked for at this many steps at most: those near it show it, too."""
T = TypeVar("T")


def cauchy(chances: Floats, weights: Floats) -> Floats:
    """Chances (rows × ranks) put together per rank, however the rows depend on one another (Liu and Xie 2020).

    None counts as more than one half: many rows that say nothing would hide one that does.
    """
    known = np.clip(chances, 1e-300, 0.5)
    total = (weights[:, None] / np.tan(np.pi * known)).sum(axis=0) / weights.sum()
    return np.asarray(np.arctan2(1.0, total) / np.pi)


class OfRole(Generic[T]):
    """What is worked out for the ranks of a role that are left, once until one of them leaves."""

    def __init__(self, role: Ints) -> None:
        self._role = role
        self._made: dict[int, tuple[tuple[bytes, ...], T]] = {}

    def of(self, make: Callable[..., T], members: Bools, *others: Bools) -> T:
        """Return what `make` makes of the `members` of one role, and of what else it depends on.

        It is given here and not kept: whoever keeps its own method is freed late, with all its arrays.
        """
        code, given = int(self._role[np.argmax(members)]), tuple(one.tobytes() for one in (members, *others))
        if code not in self._made or self._made[code][0] != given:
            self._made[code] = given, make(members, *others)
        return self._made[code][1]


class Steady:
    """Signals' means over all steps, made once for all looks."""

    def __init__(self, signals: Sequence[Signal], role: Ints) -> None:
        self.signals, self._role = signals, role
        self.columns = [Columns.of(steps_side_by_side(one.above_ns)) for one in signals]
        nobody = Means(np.zeros((0, len(role))), np.zeros((0, len(role))))
        self.means = Means.stacked([Means.of_roles(of, role) for of in self.columns]) if signals else nobody
        self._known = OfRole[tuple[Means, Spread, Pooled]](role)

    def _known_of(self, members: Bools) -> tuple[Means, Spread, Pooled]:
        means, spread = self.means.at(members), _spread(self.signals, members)
        return means, spread, Pooled.of(means, spread)

    def chances(self, left: Bools) -> tuple[Floats, Floats]:
        """(t, chance), (signals × ranks) each."""
        t = np.zeros(self.means.mean_ns.shape)
        chance = np.full(t.shape, 0.5)
        roles = list(roles_left(self._role, left))
        every = [self._known.of(self._known_of, members) for members in roles]
        for at, (members, (means, spread, _)) in enumerate(zip(roles, every, strict=True)):
            others = Pooled.together([of_role for _, _, of_role in every[:at] + every[at + 1 :]])
            t[:, members], chance[:, members] = above_others(means, spread, pooled=others)
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
            per_step = steps_side_by_side(signal.above_ns)
            self._before, self._after = (
                Means.stacked([Means.of_roles(Columns.of(per_step[part]), role) for part in parts])
                for parts in ([slice(None, at) for at in cuts], [slice(at, None) for at in cuts])
            )

    def __bool__(self) -> bool:
        return bool(len(self._cuts))

    def chances(self, left: Bools) -> Floats:
        """Per rank; whoever was faster before and is like the others now has no fault that began."""
        if not self._asked:
            return np.full(len(self._role), 0.5)
        chance = np.full((len(self._cuts), len(self._role)), 0.5)
        for members in roles_left(self._role, left):
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


def _spread(signals: Sequence[Signal], members: Bools) -> Spread:
    """(signals × 1): what the healthy of some ranks differ by."""
    usual = np.stack([one.usual_ns[members] for one in signals])
    wide = np.stack([one.wide_ns[members] for one in signals])
    return Spread(median(usual)[:, None], median(wide)[:, None])


def roles_left(role: Ints, left: Bools) -> Iterator[Bools]:
    """Of every role the ranks that are left."""
    for code in present(role[left]):
        yield left & (role == code)
