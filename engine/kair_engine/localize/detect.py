"""Who is slow: every signal in every shape, one chance per rank, one rate of false alarms.

    again and again:
        per rank the chances of its signals, put together (Cauchy); per host, and per group that shares a batch: one
        the one least likely by chance leaves: it is no peer of the others from here on
    accused are all that left up to the last look whose chance, times what was looked at, is below the rate

So culprits that are slow alike do not hide each other (Rosner's generalised extreme deviates, 1983): the first look may
see none of two, and the second sees one, then both are accused.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints, zero_for_nan
from kair_engine.frozen import dataclass
from kair_engine.localize.anomalies import FALSE_ALARM_RATE, RANK_SHARE, Anomaly
from kair_engine.localize.excess import CLASSES
from kair_engine.localize.excess_table import Excesses
from kair_engine.localize.large_delays import Events, events_of
from kair_engine.localize.peers import Columns, Means, Spread, above_others, set_above_rest
from kair_engine.localize.shapes import NowAndThen, OfRole, Since, Steady, cauchy, onset, roles_left
from kair_engine.localize.signals import Measured, Shape, Signal, operators_of, signals_of
from kair_engine.ranks import Position, as_positions
from kair_engine.results import SMALLEST_SHARE
from kair_engine.stats import TRIM, median, trimmed_mean

_RATE = FALSE_ALARM_RATE * RANK_SHARE
_SMALLEST_SET = 2
"""A set has at least so many ranks, and leaves so many others."""
LEAST_OF_SET = 0.5
"""Of what a host or a group is slower by, the part by which each of its members must be."""
_RANKS_PER_HIDDEN = 4
"""Up to one rank in four may be slow in the same way and still be found, though each hides the others; ranks that are
like every third one are not slow."""
_ALWAYS_HIDDEN = 4
"""This many ranks are always set aside to look for slower ones behind them; more only while each of them takes so much
longer that it would be reported."""
_MOST_LOOKS = 64
"""A large job's ranks leave several at a time, so that a quarter of them is gone after so many looks."""


class RowOfLook(NamedTuple):
    """What one signal in one shape says of the rank that a look accuses."""

    name: str
    shape: Shape
    weight: float
    chance: float


@dataclass(frozen=True)
class Left:
    """Who left at one look at all ranks, and why: what its p-value is worked out from."""

    members: tuple[int, ...]
    """Places among the ranks."""
    chance: float
    tests: int
    """At that look."""
    rows: tuple[RowOfLook, ...] = ()
    """Of a rank by itself; none of a set, which has one test."""
    operators: tuple[RowOfLook, ...] = ()
    """Which count as one row together, with those in which nobody is slow."""
    silent: int = 0
    """So many operators nobody is slow in."""

    @property
    def corrected(self) -> float:
        """Its chance, times what was looked at."""
        return self.chance * self.tests


@dataclass(frozen=True)
class Detections:
    """What the tests say of every rank."""

    t: Floats
    """The largest distance from its peers of any class of time, in standard errors."""
    p_value: Floats
    """The p-value of a rank by itself, corrected for all tests tried; NaN without peers. A sure effect may still be too
    small to report."""
    anomalies: tuple[Anomaly, ...]
    """`since` is a place among the steps."""
    left: tuple[Left, ...] = ()
    """Who left up to the last one that is accused, in this order."""


def detect(
    job: Excesses, measured: Measured | None = None, *, sought: int | None = None, onsets: bool = True
) -> Detections:
    """Return the ranks that are slow beyond chance, alone or as a host or a group that shares a batch.

    If only one is `sought`, nobody is looked at after that one. Without `onsets` it is known that no fault begins:
    then nothing speaks for one, at the same rate of false alarms.
    """
    looks = _Looks(job, measured or Measured(), onsets=onsets)
    left, gone = np.ones(len(job.role), dtype=bool), list[Left]()
    t, p_value = np.zeros(len(job.role)), np.full(len(job.role), np.nan)
    accused = 0
    most_hidden = max(1, len(job.role) // _RANKS_PER_HIDDEN)
    notable_ns, at_a_time = SMALLEST_SHARE * job.step_time_ns, max(1, most_hidden // _MOST_LOOKS)
    while len(gone) < accused + most_hidden and (known := _with_peers(job, left)).any():
        look = looks.at(left)
        order = np.argsort(np.where(known, look.chance, 1.0), kind="stable")[:at_a_time].tolist()
        of_ranks = [(float(look.chance[rank]), (rank,)) for rank in order if known[rank]]
        asked, sets = looks.sets(left, below=of_ranks[0][0])
        tests = int(np.count_nonzero(known)) + asked
        if len(gone) == accused:
            t[left], p_value[known] = look.t[left], np.minimum(1.0, look.chance[known] * tests / RANK_SHARE)
        chance, members = min([of_ranks[0], *sets], key=lambda one: one[0])
        if len(gone) - accused >= _ALWAYS_HIDDEN and looks.above_ns(members, left) <= notable_ns:
            break
        leaving = of_ranks if members == of_ranks[0][1] else [(chance, members)]
        for chance, members in leaving:
            gone.append(look.leaving(members, chance, tests))
            left[list(members)] = False
            if chance * tests < _RATE:
                accused = len(gone)
        if sought is not None and any(sought in one.members for one in gone[:accused]):
            break
    healthy = np.ones(len(job.role), dtype=bool)
    for one in gone[:accused]:
        healthy[list(one.members)] = False
    anomalies: list[Anomaly] = []
    for at, one in enumerate(gone[:accused]):
        members, p = one.members, min(1.0, min(later.corrected for later in gone[at:accused]) / RANK_SHARE)
        p_value[list(members)] = p
        slow = _Slow(job, looks.own.above_ns, as_positions(np.array(members)), healthy, p)
        if slow.is_notable:
            beside = healthy | np.isin(np.arange(len(healthy)), members)
            anomalies += slow.as_set() if len(members) > 1 else slow.by(looks.at(beside))
    return Detections(t, p_value, tuple(anomalies), tuple(gone[:accused]))


@dataclass(frozen=True)
class _Row:
    """One signal in one shape, as one look at all ranks shows it."""

    shape: Shape
    signal: Signal
    chance: Floats
    events: Events | None = None
    """Of what comes now and then, of the smallest size."""


@dataclass(frozen=True)
class _Look:
    """All rows at once: `chance` puts them together per rank."""

    rows: Sequence[_Row]
    chance: Floats
    t: Floats
    operators: Sequence[_Row] = ()
    """The rows of single operators."""
    silent: int = 0
    """So many operators have no row of their own."""

    def leaving(self, members: tuple[int, ...], chance: float, tests: int) -> Left:
        """Return who leaves at this look, with the rows that say why."""
        if len(members) > 1:
            return Left(members, chance, tests)
        (place,) = members
        rows, operators = (
            tuple(RowOfLook(row.signal.name, row.shape, row.signal.weight, float(row.chance[place])) for row in some)
            for some in (self.rows, self.operators)
        )
        return Left(members, chance, tests, rows[: len(rows) - len(operators)], operators, self.silent)


class _Looks:
    """The table of a job's signals, with what does not change from look to look."""

    def __init__(self, job: Excesses, measured: Measured, *, onsets: bool) -> None:
        self._job, signals = job, signals_of(job, measured)
        self.own = signals[0]
        self._steady = Steady([one for one in signals if "steady" in one.shapes], job.role)
        self._since = [Since(one, job.role, asked=onsets) for one in signals if "since" in one.shapes]
        self._since = [of for of in self._since if of]
        self._events = [
            (one, NowAndThen(events_of(job, one.above_ns), job.role, job.unit))
            for one in signals
            if "now_and_then" in one.shapes
        ]
        self._operators = Steady(list(operators_of(job)), job.role)
        self._at_all: _Look | None = None
        self._sets = OfRole[tuple[Sequence[Ints], int, list[tuple[float, Bools]]]](job.role)

    def at(self, left: Bools) -> _Look:
        """Look at the ranks that are left; whoever is accused alone is shown by the first look, which is kept."""
        if not left.all():
            return self._at(left)
        if self._at_all is None:
            self._at_all = self._at(left)
        return self._at_all

    def _at(self, left: Bools) -> _Look:
        t, steady = self._steady.chances(left)
        rows = [
            *(_Row("steady", signal, chance) for signal, chance in zip(self._steady.signals, steady, strict=True)),
            *(_Row("since", of.signal, of.chances(left)) for of in self._since),
            *(_Row("now_and_then", signal, of.chances(left), of.events[0]) for signal, of in self._events),
        ]
        chances, weights = [row.chance for row in rows], [row.signal.weight for row in rows]
        operators, silent = list[_Row](), len(self._job.operators) - len(self._operators.signals)
        if self._operators.signals:
            _, of_each = self._operators.chances(left)
            operators = [_Row("steady", one, of) for one, of in zip(self._operators.signals, of_each, strict=True)]
            # All operators are one row: those in which nobody is slow count among them.
            every = np.concatenate((of_each, np.full((silent, len(left)), 0.5)))
            chances, weights = [*chances, cauchy(every, np.ones(len(every)))], [*weights, 1.0]
        classes = [signal.name in CLASSES for signal in self._steady.signals]
        chance = cauchy(np.stack(chances), np.array(weights))
        return _Look([*rows, *operators], chance, t[classes].max(axis=0), operators, silent)

    def above_ns(self, members: Sequence[int], left: Bools) -> float:
        """Return how much longer some ranks take by themselves than the ranks that are left, the mean over steps."""
        means = self._own_means
        role = left & (self._job.role == self._job.role[members[0]])
        return float(means[list(members)].mean() - median(means[role])) if role.any() else 0.0

    @cached_property
    def _own_means(self) -> Floats:
        return np.asarray(self.own.above_ns.mean(axis=0))

    def sets(self, left: Bools, below: float) -> tuple[int, list[tuple[float, tuple[int, ...]]]]:
        """(how many sets are looked at, chance and members of those less likely than `below`).

        A set is a host, or a group that shares a batch, within a role. Ranks that share a batch are slow together for
        a long one: they count as one.
        """
        job, asked, found = self._job, 0, list[tuple[float, tuple[int, ...]]]()
        if job.host is None and job.unit is None:
            return asked, found
        every, unit_of, _ = self._units
        whole = np.bincount(unit_of[~left], minlength=len(every)) == 0
        for role in roles_left(job.role, left):
            inside = whole & (np.bincount(unit_of[role], minlength=len(every)) > 0)
            units, of_role, slow = self._sets.of(self._sets_of, role, inside)
            asked += of_role
            for chance, chosen in slow:
                if chance < below and self._all_are_slow(units, chosen):
                    members = [units[at] for at in np.flatnonzero(chosen).tolist()]
                    found.append((chance, tuple(np.concatenate(members).tolist())))
        return asked, found

    def _sets_of(self, role: Bools, inside: Bools) -> tuple[Sequence[Ints], int, list[tuple[float, Bools]]]:
        """Return a role's units, how many sets they make, and the chance and the units of those that may be slow."""
        every, _, columns = self._units
        units = [every[at] for at in np.flatnonzero(inside).tolist()]
        if not units:
            return units, 0, []
        means = Means.of_columns(columns.at(inside))
        spread = Spread(float(median(self.own.usual_ns[role])), float(median(self.own.wide_ns[role])))
        asked, slow = self._slow_hosts(means, spread, units)
        several = [at for at, unit in enumerate(units) if len(unit) > 1]
        if len(units) > 1 and several:
            chances = above_others(means, spread)[1]
            slow += [(float(chances[at]), np.arange(len(units)) == at) for at in several]
            asked += len(several)
        return units, asked, slow

    @cached_property
    def _units(self) -> tuple[Sequence[Ints], Ints, Columns]:
        """Return the ranks of every unit, each rank's unit, and the columns of what units take by themselves."""
        unit, own = self._job.unit, self.own.above_ns
        if unit is None:
            every = np.arange(len(self._job.role))
            return list(every[:, None]), every, self._steady.columns[0]
        codes, unit_of = np.unique(unit, return_inverse=True)
        units = [np.flatnonzero(unit == code) for code in codes]
        means = np.stack([own[:, some].mean(axis=1) for some in units])
        return units, unit_of, Columns.of(means.T)

    def _slow_hosts(self, means: Means, spread: Spread, units: Sequence[Ints]) -> tuple[int, list[tuple[float, Bools]]]:
        """(hosts with several units, chance and units of those that take notably longer than the others)."""
        host, found = self._job.host, list[tuple[float, Bools]]()
        if host is None:
            return 0, found
        of_unit, least = host[[some[0] for some in units]], SMALLEST_SHARE * self._job.step_time_ns
        _, code, size = np.unique(of_unit, return_inverse=True, return_counts=True)
        others = len(units) - size
        is_set = np.minimum(size, others) >= _SMALLEST_SET
        mine = np.bincount(code, weights=means.mean_ns)
        above = mine / size - (mine.sum() - mine) / np.maximum(others, 1)
        for at in np.flatnonzero(is_set & (above > least)):
            chosen = code == at
            found.append((set_above_rest(means, chosen, spread)[1], chosen))
        return int(np.count_nonzero(is_set)), found

    def _all_are_slow(self, units: Sequence[Ints], chosen: Bools) -> bool:
        """Return whether every rank of a set is slower than the others: else some of its ranks are, and no set."""
        own = self._own_means
        mine, others = (
            own[np.concatenate([units[at] for at in np.flatnonzero(of).tolist()])] for of in (chosen, ~chosen)
        )
        usual = float(median(others))
        return float(mine.min()) - usual > LEAST_OF_SET * (float(mine.mean()) - usual)


@dataclass(frozen=True)
class _Slow:
    """Compares accused ranks with the peers that are left."""

    job: Excesses
    own_ns: Floats
    positions: tuple[Position, ...]
    left: Bools
    p_value: float

    @property
    def is_notable(self) -> bool:
        """Return whether they take so much longer by themselves than their peers that it is worth reporting."""
        return float(self._beyond(self.own_ns).mean()) > SMALLEST_SHARE * self.job.step_time_ns

    def as_set(self) -> list[Anomaly]:
        """By the class that they lose most in."""
        row, lost = self._largest(0)
        return [Anomaly("group", self.positions, row, self.p_value, lost)]

    def by(self, look: _Look) -> list[Anomaly]:
        """Return one rank by every row that shows it, classes of time before their operators.

        If an onset shows it more clearly than all steps together, what is steady is reported from then on.
        """
        (place,) = self.positions
        rows = sorted(
            look.rows, key=lambda row: (row.signal.operator is not None, row.chance[place] / row.signal.weight)
        )
        clearest = min(rows, key=lambda row: float(row.chance[place]) / row.signal.weight)
        shown = [row for row in rows if row is clearest or row.chance[place] < FALSE_ALARM_RATE]
        steady = min(float(row.chance[place]) for row in rows if row.shape == "steady")
        begun = next((row for row in shown if row.shape == "since" and row.chance[place] <= steady), None)
        begin = 0 if begun is None else onset(self._beyond(begun.signal.above_ns))
        large = next(row.events.hit for row in look.rows if row.events is not None)
        found: dict[tuple[object, ...], Anomaly] = {}
        for row in shown:
            one = self._by_row(row, begin) if row.events is None else self._now_and_then(row.events.hit, large)
            found.setdefault((one.kind, one.class_index, one.operator), one)
        return list(found.values())

    def _by_row(self, row: _Row, begin: int) -> Anomaly:
        since = begin or None
        if row.signal.class_index is None:
            class_index, lost = self._largest(begin)
        else:
            class_index = row.signal.class_index
            lost = float(trimmed_mean(self._beyond(row.signal.above_ns)[begin:], TRIM))
        return Anomaly(
            "persistent", self.positions, class_index, self.p_value, lost, operator=row.signal.operator, since=since
        )

    def _now_and_then(self, hit: Bools, large: Bools) -> Anomaly:
        """Return the delays that one row shows, of all that are `large` or such."""
        (place,) = self.positions
        of_class = zero_for_nan(self.job.by_step_ns)[hit[:, place], :, place].sum(axis=0)
        at = tuple(np.flatnonzero(hit[:, place]).tolist())
        lost = float(of_class.sum()) / len(hit)
        either = hit | large
        events = int(either[:, place].sum()), int(either.sum())
        return Anomaly("intermittent", self.positions, int(np.argmax(of_class)), self.p_value, lost, events, at)

    def _largest(self, begin: int) -> tuple[int, float]:
        """(class, ns): what they lose most in."""
        lost = [float(trimmed_mean(beyond[begin:], TRIM)) for beyond in self._beyond_by_class]
        return int(np.argmax(lost)), max(lost)

    @cached_property
    def _beyond_by_class(self) -> list[Floats]:
        of_class = zero_for_nan(self.job.by_step_ns)
        return [self._beyond(of_class[:, row]) for row in range(len(CLASSES))]

    def _beyond(self, values: Floats) -> Floats:
        """Per step, how far they lie above the median of their peers."""
        peers = self.left & (self.job.role == self.job.role[self.positions[0]])
        mine = values[:, list(self.positions)].mean(axis=1)
        return np.asarray(mine - median(values.compress(peers, axis=1), axis=1) if peers.any() else mine)


def _with_peers(job: Excesses, left: Bools) -> Bools:
    """Of the ranks that are left those whose role has another one left."""
    result = np.zeros(len(left), dtype=bool)
    for members in roles_left(job.role, left):
        if np.count_nonzero(members) > 1:
            result |= members
    return result


def at_steps(anomalies: Sequence[Anomaly], numbers: Sequence[int]) -> tuple[Anomaly, ...]:
    """Return the anomalies with steps' numbers in place of their places."""
    return tuple(one if one.since is None else replace(one, since=numbers[one.since]) for one in anomalies)
