"""The last steps of every rank, and which ranks run the same program, so that their times may be compared.

As in analyses, how ranks communicate tells programs apart, and never how long they compute. Who sends to each other is
a pipeline, and the k-th ranks of all pipelines are one stage; what else tells is how often which groups are used.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kair_capture.agent.step_rows import Rows
from kair_capture.ring import UNFIT
from kair_capture.wire import Communication
from kair_engine.arrays import Floats, Ints
from kair_engine.timeline.roles import programs

HISTORY: Final = 256
"""Steps that are remembered of a rank."""
ONE_STEP_US: Final = 2000
"""Between two begins of the same step of the same attempt: an agent that was killed reads its clocks anew, within a
millisecond."""
STEPS_SHOWN: Final = 20
MOST_RANKS: Final = 1 << 17
_NONE: Final = -1

_ABOVE_0: Final = ("cpu_us", "device_us", "samples")
"""What stands at 0 where it is not told."""
_TIMES: Final = ("step_us", "self_us", "cpu_us", "delay_us", "device_us", "input_us", "inserted_us")
_COPIED: Final = ("flags", "samples", *_TIMES)
_HELD: Final = np.dtype(
    [("number", "<i8"), ("begin_us", "<i8"), *((name, "<f4" if name in _TIMES else "<u4") for name in _COPIED)]
)
"""`number`: the step's and 1, so that a table of zeros, whose pages cost nothing, has none."""


@dataclass(frozen=True)
class Recent:
    """The last steps that the ranks have in common: matrices (rank, step) in µs, NaN where a step says nothing."""

    ranks: Ints
    steps: Ints
    step_us: Floats
    self_us: Floats
    """On the device, where all ranks tell it: hosts may be far ahead."""
    cpu_us: Floats
    """What the training threads computed; NaN where that is not told, or may be busy waiting."""
    ready_us: Floats
    """The self times without what threads waited for a core."""
    samples: Floats | None = None
    """That the ranks took; None where not all of them told it of half of the steps."""


@dataclass(frozen=True)
class Told:
    """Some steps of some ranks as they were told: matrices (rank, step)."""

    begin_us: Floats
    step_us: Floats
    """NaN, as in `begin_us`, where a step was not told or is no longer remembered."""
    flags: npt.NDArray[np.uint32]
    own_us: Floats
    """What ranks spent themselves, without what they waited for each other and for data."""
    inserted_us: Floats
    """By which `kair confirm` delayed them."""


class StepTable:
    """A ring of steps per rank; the place of a step is its number modulo HISTORY."""

    def __init__(self) -> None:
        self._held = _empty(0)
        self._latest: Ints = np.full(0, _NONE, np.int64)
        self._latest_begin_us: Ints = np.zeros(0, np.int64)
        self._ranks = 0
        self.attempt = 0
        """The job's, that all of these steps are of."""

    @property
    def latest(self) -> Ints:
        """The last step of every rank in this attempt; −1 before its first, and of those that have departed."""
        return self._latest[: self._ranks]

    def unknown(self, rows: Rows) -> Rows:
        """Those of `rows` that are not here yet. Rows of impossible ranks are left out."""
        rows = rows[rows["rank"] < MOST_RANKS]
        if not len(rows):
            return rows
        rank, step, begin = _keys(rows)
        self._grow(int(rank.max()) + 1)
        place = step % HISTORY
        held = self._held[rank, place]
        known = (held["number"] == step + 1) & (np.abs(held["begin_us"] - begin) < ONE_STEP_US)
        unknown: Rows = rows[~known]
        return unknown

    def add(self, rows: Rows) -> None:
        """Take rows; of one place the later one stays, so that the same twice change nothing.

        Rows of a new attempt take the place of all others; of an earlier one none are taken.
        """
        rows = rows[rows["rank"] < MOST_RANKS]
        if (newest := int(rows["attempt"].max(initial=0))) > self.attempt:
            self.attempt = newest
            self._held = _empty(len(self._held))
            self._latest[:], self._latest_begin_us[:] = _NONE, 0
        rows = rows[rows["attempt"] == self.attempt]
        if not len(rows):
            return
        rank, step, begin = _keys(rows)
        self._grow(int(rank.max()) + 1)
        place = step % HISTORY
        newer = self._held["begin_us"][rank, place] < begin
        rank, step, begin, place, kept = rank[newer], step[newer], begin[newer], place[newer], rows[newer]
        for name in _COPIED:
            self._held[name][rank, place] = kept[name]
        self._held["number"][rank, place], self._held["begin_us"][rank, place] = step + 1, begin
        for one, number, at in zip(rank.tolist(), step.tolist(), begin.tolist(), strict=True):
            # By time, not by number: a job that went back to a checkpoint counts lower ones.
            if at >= self._latest_begin_us[one]:
                self._latest[one], self._latest_begin_us[one] = number, at

    @property
    def last_common_step(self) -> int:
        """The step that nine in ten of the ranks have reached; −1 without ranks. A dead rank holds nobody up."""
        told = self.latest[self.latest >= 0]
        return int(np.quantile(told, 0.1, method="lower")) if len(told) else _NONE

    def forget_left_behind(self, living: Ints, steps: int) -> None:
        """Of ranks that do not live, and that all living ones are so many steps ahead of, nothing is waited for."""
        latest = self.latest
        told = living[living < len(latest)]
        of_living = latest[told][latest[told] >= 0]
        if len(of_living):
            gone = latest < of_living.min() - steps
            gone[told] = False
            latest[gone] = _NONE

    def recent(self, count: int, until: int) -> Recent:
        """Return steps `until − count + 1 … until` of the ranks that have told half of them, but for unfit ones."""
        steps = np.arange(until - count + 1, until + 1)
        place = steps % HISTORY
        there = (self._held["number"][:, place] == steps + 1) & ((self._held["flags"][:, place] & UNFIT) == 0)
        there &= steps >= 0
        ranks = np.flatnonzero(there.sum(axis=1) * 2 >= count)
        there, at = there[ranks], np.ix_(ranks, place)
        step_us, self_us, cpu_us, device_us, samples, delay_us = (
            np.where(there & ((held > 0) | (name not in _ABOVE_0)), held, np.nan).astype(np.float64)
            for name in ("step_us", "self_us", "cpu_us", "device_us", "samples", "delay_us")
            for held in (self._held[name][at],)
        )
        if len(ranks) and not np.isnan(device_us).all(axis=1).any():
            self_us = device_us
        ready_us = self_us - delay_us
        # Who computes longer than it does not wait, waits busily; half a millisecond is the clocks' own.
        cpu_us[cpu_us > self_us + 500] = np.nan
        tells = len(ranks) > 0 and bool((np.count_nonzero(samples > 0, axis=1) * 2 >= count).all())
        return Recent(ranks, steps, step_us, self_us, cpu_us, ready_us, samples if tells else None)

    def steps(self, ranks: Ints, steps: Ints) -> Told:
        """Return these steps, unfit ones too, of those of the ranks that were ever heard."""
        at = np.ix_(ranks[ranks < self._ranks], steps % HISTORY)
        there = (self._held["number"][at] == steps + 1) & (steps >= 0)
        begin_us, step_us, self_us, input_us, inserted_us = (
            np.where(there, self._held[name][at], np.nan).astype(np.float64)
            for name in ("begin_us", "step_us", "self_us", "input_us", "inserted_us")
        )
        return Told(begin_us, step_us, self._held["flags"][at], self_us - input_us, inserted_us)

    def _grow(self, ranks: int) -> None:
        """Make room for so many; for twice as many as there were, as ranks come host by host."""
        self._ranks = max(self._ranks, ranks)
        if (more := max(2 * len(self._held), ranks, 64) - len(self._held)) and ranks > len(self._held):
            before, self._held = self._held, _empty(len(self._held) + more)
            self._held[: len(before)] = before
            self._latest = np.concatenate([self._latest, np.full(more, _NONE)])
            self._latest_begin_us = np.concatenate([self._latest_begin_us, np.zeros(more, np.int64)])


def _empty(ranks: int) -> Rows:
    return np.zeros((ranks, HISTORY), _HELD)


def _keys(rows: Rows) -> tuple[Ints, Ints, Ints]:
    """Rank, step and begin (Unix µs) of rows."""
    begin = np.minimum(rows["begin_us"], np.uint64(2**62)).astype(np.int64)
    return rows["rank"].astype(np.int64), rows["step"].astype(np.int64), begin


@dataclass(frozen=True)
class _Place:
    """Of a rank in its pipeline."""

    stage: int
    stages: int


class Roles:
    """What the ranks' agents told. Ranks of which nothing was told have a role of their own together."""

    def __init__(self, told: Iterable[Communication] = ()) -> None:
        self._told = {one.rank: one for one in told}
        self._names: dict[int, str] | None = None

    @property
    def told(self) -> tuple[Communication, ...]:
        """Everything, for `__init__` after a restart."""
        return tuple(self._told.values())

    def tell(self, one: Communication) -> bool:
        """How a rank communicates; whether that was not known. A job of another size begins anew."""
        if one.rank >= MOST_RANKS or self._told.get(one.rank) == one:
            return False
        self._told = {rank: other for rank, other in self._told.items() if other.world_size == one.world_size}
        self._told[one.rank] = one
        self._names = None
        return True

    def name(self, rank: int) -> str:
        """`all` where all ranks are alike."""
        if self._names is None:
            self._names = role_names(self._told)
        return self._names.get(rank, "all")

    def codes(self, ranks: Ints) -> Ints:
        """For each rank a number, equal for those of one role."""
        return np.unique([self.name(rank) for rank in ranks.tolist()], return_inverse=True)[1].reshape(-1)


def role_names(told: Mapping[int, Communication]) -> dict[int, str]:
    """rank → the name of its role, of what all ranks told."""
    places = _places(told)
    program = programs(_calls(told))
    several: Counter[_Place | None] = Counter()
    for place, _ in {(places.get(rank), program[rank]) for rank in told}:
        several[place] += 1
    names = {}
    for rank in told:
        place = places.get(rank)
        words = [] if place is None else [f"stage {place.stage} of {place.stages}"]
        if several[place] > 1:
            words.append(f"program {program[rank]}")
        names[rank] = ", ".join(words) or "all"
    return names


def _calls(told: Mapping[int, Communication]) -> dict[int, Floats]:
    """Return how often each rank calls groups of each size, in the order of the ranks."""
    sizes = sorted({size for one in told.values() for size, _ in one.groups})
    calls = {rank: np.zeros(len(sizes)) for rank in sorted(told)}
    for rank, one in told.items():
        for size, often in one.groups:
            calls[rank][sizes.index(size)] += often
    return calls


def _places(told: Mapping[int, Communication]) -> dict[int, _Place]:
    """rank → its place among those that send to each other, in the order of their numbers.

    Those that pass things round in one direction, or each to all, do alike: they have no places.
    """
    places: dict[int, _Place] = {}
    for members in _connected(told):
        if len(members) > 1 and not _do_alike(members, told):
            places |= {rank: _Place(at, len(members)) for at, rank in enumerate(members)}
    return places


def _connected(told: Mapping[int, Communication]) -> list[list[int]]:
    """Set of ranks that are joined by sends, each in order."""
    leader: dict[int, int] = {}

    def found(rank: int) -> int:
        while (above := leader.setdefault(rank, rank)) != rank:
            leader[rank] = leader[above]
            rank = above
        return rank

    for rank, one in told.items():
        for other in (*one.sends, *one.receives):
            leader[found(rank)] = found(other)
    sets: dict[int, list[int]] = {}
    for rank in sorted(leader):
        sets.setdefault(found(rank), []).append(rank)
    return list(sets.values())


def _do_alike(members: list[int], told: Mapping[int, Communication]) -> bool:
    """Whether every member sends equally far, and receives from equally far, round the circle of them.

    A pipeline whose last stage sends to its first does so too, but both ways: who sends to whom it receives from is a
    stage, unless that is everybody.
    """
    place = {rank: at for at, rank in enumerate(members)}
    if not all(rank in told for rank in members):
        return False

    def steps(rank: int, others: Iterable[int]) -> frozenset[int]:
        return frozenset((place[other] - place[rank]) % len(members) for other in others if other in place)

    sends = {steps(rank, told[rank].sends) for rank in members}
    receives = {steps(rank, told[rank].receives) for rank in members}
    if len(sends) > 1 or len(receives) > 1:
        return False
    to_all = len(members) > _FEW and len(next(iter(sends))) == len(members) - 1
    return to_all or sends != receives


_FEW: Final = 3
"""In a circle of three, to both neighbours is to everybody."""
