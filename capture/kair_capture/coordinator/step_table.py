"""Holds the last steps of every rank, and which ranks run the same program, so that their times are comparable.

As in analyses, programs are distinguished by how ranks communicate, never by how long they compute. Ranks that send to
each other form a pipeline, and the k-th ranks of all pipelines are one stage; otherwise the use of groups distinguishes
them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kair_capture.agent.step_rows import Rows, parts_every
from kair_capture.ring import UNFIT, StepFlag
from kair_capture.wire import Communication
from kair_engine.arrays import Floats, Ints
from kair_engine.timeline.roles import programs

HISTORY: Final = 256
"""Steps that are kept per rank."""
ONE_STEP_US: Final = 2000
"""Tolerance for the begin of the same step: an agent restarted after a kill reads its clocks again, within a
millisecond.
"""
STEPS_SHOWN: Final = 20
MOST_RANKS: Final = 1 << 17
_NONE: Final = -1

_ABOVE_0: Final = ("cpu_us", "device_us", "samples")
"""Columns that are 0 if not known."""
_TIMES: Final = ("step_us", "self_us", "cpu_us", "delay_us", "device_us", "input_us", "inserted_us")
_COPIED: Final = ("flags", "samples", *_TIMES)
_HELD: Final = np.dtype(
    [("number", "<i8"), ("begin_us", "<i8"), *((name, "<f4" if name in _TIMES else "<u4") for name in _COPIED)]
)
"""`number` is the step's plus 1, so that an empty table of zeros, whose pages cost nothing, has no step."""


@dataclass(frozen=True)
class Recent:
    """The last steps that the ranks have in common: matrices (rank, step) in µs, NaN where missing."""

    ranks: Ints
    steps: Ints
    step_us: Floats
    self_us: Floats
    """On the device if all ranks report that, because hosts may be far ahead."""
    cpu_us: Floats
    """CPU time of training threads; NaN if missing or possibly busy waiting."""
    ready_us: Floats
    """Self times without waiting for a core."""
    samples: Floats | None = None
    """Samples of the ranks; None unless all reported them for half of the steps."""


@dataclass(frozen=True)
class ReportedSteps:
    """Reported steps of some ranks: matrices (rank, step)."""

    begin_us: Floats
    step_us: Floats
    """NaN, as in `begin_us`, if a step was not reported or is no longer stored."""
    flags: npt.NDArray[np.uint32]
    own_us: Floats
    """Time of the ranks themselves, without waiting for each other and for data."""
    inserted_us: Floats
    """Delay by `kair confirm`."""


class StepTable:
    """A ring of steps per rank; a step's index is its number modulo HISTORY."""

    def __init__(self) -> None:
        self._held = _empty(0)
        self._latest: Ints = np.full(0, _NONE, np.int64)
        self._latest_begin_us: Ints = np.zeros(0, np.int64)
        self._ranks = 0
        self.attempt = 0
        """Attempt of the job that all stored steps are from."""

    @property
    def latest(self) -> Ints:
        """Return the last step of every rank in this attempt; −1 before its first, and for departed ranks."""
        return self._latest[: self._ranks]

    def unknown(self, rows: Rows) -> Rows:
        """Return those of `rows` that are not stored yet. Rows of impossible ranks are left out."""
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
        """Add rows; at equal indices the later one stays, so duplicates change nothing.

        Rows of a new attempt replace all others; those of an earlier one are ignored.
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
            # By time, not by number: a job that went back to a checkpoint repeats lower numbers.
            if at >= self._latest_begin_us[one]:
                self._latest[one], self._latest_begin_us[one] = number, at

    @property
    def last_common_step(self) -> int:
        """Return the step that nine in ten of the ranks have reached; −1 without ranks. A dead rank delays nothing."""
        reported = self.latest[self.latest >= 0]
        return int(np.quantile(reported, 0.1, method="lower")) if len(reported) else _NONE

    @property
    def parts_every(self) -> int | None:
        """Return of how many steps one records its parts, by the last step of each rank; None before the first."""
        ranks = np.flatnonzero(self.latest >= 0)
        return parts_every(self._held["flags"][ranks, self.latest[ranks] % HISTORY])

    def forget_left_behind(self, living: Ints, steps: int) -> None:
        """Forget ranks that do not live and are at least `steps` behind all living ones."""
        latest = self.latest
        inside = living[living < len(latest)]
        of_living = latest[inside][latest[inside] >= 0]
        if len(of_living):
            gone = latest < of_living.min() - steps
            gone[inside] = False
            latest[gone] = _NONE

    def recent(self, count: int, until: int) -> Recent:
        """Return steps `until − count + 1 … until` of ranks that reported half of them, without unfit steps."""
        steps = np.arange(until - count + 1, until + 1)
        held = self._held[: self._ranks, steps % HISTORY]
        there = (held["number"] == steps + 1) & ((held["flags"] & UNFIT) == 0) & (steps >= 0)
        ranks = np.flatnonzero(there.sum(axis=1) * 2 >= count)
        there, held = there[ranks], held[ranks]
        step_us, self_us, cpu_us, device_us, samples, delay_us = (
            np.where(there & ((held[name] > 0) | (name not in _ABOVE_0)), held[name], np.nan).astype(np.float64)
            for name in ("step_us", "self_us", "cpu_us", "device_us", "samples", "delay_us")
        )
        if len(ranks) and not np.isnan(device_us).all(axis=1).any():
            self_us = device_us
        ready_us = self_us - delay_us
        # CPU time above self time means busy waiting; 0.5 ms is clock error. That of a thinned step is another step's:
        # one measurement that is repeated shows no chance between steps.
        is_thinned = held["flags"] & StepFlag.THINNED > 0
        cpu_us[is_thinned | (cpu_us > self_us + 500)] = np.nan
        tells = len(ranks) > 0 and bool((np.count_nonzero(samples > 0, axis=1) * 2 >= count).all())
        return Recent(ranks, steps, step_us, self_us, cpu_us, ready_us, samples if tells else None)

    def steps(self, ranks: Ints, steps: Ints) -> ReportedSteps:
        """Return these steps, unfit ones too, of those of the ranks that were ever heard."""
        at = np.ix_(ranks[ranks < self._ranks], steps % HISTORY)
        there = (self._held["number"][at] == steps + 1) & (steps >= 0)
        begin_us, step_us, self_us, input_us, inserted_us = (
            np.where(there, self._held[name][at], np.nan).astype(np.float64)
            for name in ("begin_us", "step_us", "self_us", "input_us", "inserted_us")
        )
        return ReportedSteps(begin_us, step_us, self._held["flags"][at], self_us - input_us, inserted_us)

    def _grow(self, ranks: int) -> None:
        """Make room for this many ranks, at least doubling it, because ranks arrive host by host."""
        self._ranks = max(self._ranks, ranks)
        if (more := max(2 * len(self._held), ranks, 64) - len(self._held)) and ranks > len(self._held):
            before, self._held = self._held, _empty(len(self._held) + more)
            self._held[: len(before)] = before
            self._latest = np.concatenate([self._latest, np.full(more, _NONE)])
            self._latest_begin_us = np.concatenate([self._latest_begin_us, np.zeros(more, np.int64)])


def _empty(ranks: int) -> Rows:
    return np.zeros((ranks, HISTORY), _HELD)


def _keys(rows: Rows) -> tuple[Ints, Ints, Ints]:
    """Return rank, step and begin (Unix µs) of rows."""
    begin = np.minimum(rows["begin_us"], np.uint64(2**62)).astype(np.int64)
    return rows["rank"].astype(np.int64), rows["step"].astype(np.int64), begin


@dataclass(frozen=True)
class _Place:
    """Position of a rank in its pipeline."""

    stage: int
    stages: int


class Roles:
    """Roles from agents' reports. Ranks without a report share one role."""

    def __init__(self, reports: Iterable[Communication] = ()) -> None:
        self._reports = {one.rank: one for one in reports}
        self._names: dict[int, str] | None = None

    @property
    def reports(self) -> tuple[Communication, ...]:
        """Return all reports, for `__init__` after a restart."""
        return tuple(self._reports.values())

    def add(self, one: Communication) -> bool:
        """Add a rank's report; return whether it is new. Another world size replaces all reports."""
        if one.rank >= MOST_RANKS or self._reports.get(one.rank) == one:
            return False
        self._reports = {rank: other for rank, other in self._reports.items() if other.world_size == one.world_size}
        self._reports[one.rank] = one
        self._names = None
        return True

    def name(self, rank: int) -> str:
        """Return the name of a rank's role; `all` if all ranks are alike."""
        if self._names is None:
            self._names = role_names(self._reports)
        return self._names.get(rank, "all")

    def codes(self, ranks: Ints) -> Ints:
        """Return a number per rank, equal for ranks of one role."""
        return np.unique([self.name(rank) for rank in ranks.tolist()], return_inverse=True)[1].reshape(-1)


def role_names(reports: Mapping[int, Communication]) -> dict[int, str]:
    """Return rank → the name of its role, from all ranks' reports."""
    places = _places(reports)
    program = programs(_calls(reports))
    several: Counter[_Place | None] = Counter()
    for place, _ in {(places.get(rank), program[rank]) for rank in reports}:
        several[place] += 1
    names = {}
    for rank in reports:
        place = places.get(rank)
        words = [] if place is None else [f"stage {place.stage} of {place.stages}"]
        if several[place] > 1:
            words.append(f"program {program[rank]}")
        names[rank] = ", ".join(words) or "all"
    return names


def _calls(reports: Mapping[int, Communication]) -> dict[int, Floats]:
    """Return how often each rank calls groups of each size, in the order of the ranks."""
    sizes = sorted({size for one in reports.values() for size, _ in one.groups})
    calls = {rank: np.zeros(len(sizes)) for rank in sorted(reports)}
    for rank, one in reports.items():
        for size, often in one.groups:
            calls[rank][sizes.index(size)] += often
    return calls


def _places(reports: Mapping[int, Communication]) -> dict[int, _Place]:
    """Return rank → its position among those that send to each other, in the order of their numbers.

    Rings with one direction, and all-to-all, are symmetric: their ranks have no positions.
    """
    places: dict[int, _Place] = {}
    for members in _connected(reports):
        if len(members) > 1 and not _do_alike(members, reports):
            places |= {rank: _Place(at, len(members)) for at, rank in enumerate(members)}
    return places


def _connected(reports: Mapping[int, Communication]) -> list[list[int]]:
    """Return sets of ranks that are connected by sends, each in order."""
    leader: dict[int, int] = {}

    def found(rank: int) -> int:
        while (above := leader.setdefault(rank, rank)) != rank:
            leader[rank] = leader[above]
            rank = above
        return rank

    for rank, one in reports.items():
        for other in (*one.sends, *one.receives):
            leader[found(rank)] = found(other)
    sets: dict[int, list[int]] = {}
    for rank in sorted(leader):
        sets.setdefault(found(rank), []).append(rank)
    return list(sets.values())


def _do_alike(members: list[int], reports: Mapping[int, Communication]) -> bool:
    """Return whether every member sends to, and receives from, the same relative positions in the circle.

    A pipeline whose last stage sends to the first does so too, but in both directions: a rank that sends to those it
    receives from is a stage, unless these are all.
    """
    place = {rank: at for at, rank in enumerate(members)}
    if not all(rank in reports for rank in members):
        return False

    def steps(rank: int, others: Iterable[int]) -> frozenset[int]:
        return frozenset((place[other] - place[rank]) % len(members) for other in others if other in place)

    sends = {steps(rank, reports[rank].sends) for rank in members}
    receives = {steps(rank, reports[rank].receives) for rank in members}
    if len(sends) > 1 or len(receives) > 1:
        return False
    to_all = len(members) > _FEW and len(next(iter(sends))) == len(members) - 1
    return to_all or sends != receives


_FEW: Final = 3
"""In a circle of three, both neighbours are everybody."""
