"""What changed beyond chance between two profiles: which operators, and on which ranks.

Steps are the samples: each run says how sure its means are. What slows one rank in a step can slow all of them, so that
a mean over ranks is held to be no surer than one rank's; how differently ranks changed comes on top.

Operators matched across two runs: the same name, or one that took the place of another.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final, NamedTuple

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.comparison.profile import COMPILATION, PerStep, trimmed
from kair_engine.localize.noise import episodes, inflation
from kair_engine.results.compare import Amount, OperatorProfile, PoolKind, RunProfile
from kair_engine.results.localize import ChangeKind
from kair_engine.stats import MAD_TO_SIGMA, TRIM, fisher_tail, mad, student_t_tail, trimmed_mean

LIKE_CALLS: Final = 0.05
"""A renamed operator is called as often as before, but for this share."""
LIKE_PLACE: Final = 0.15
"""It begins no further than this share of the step from where it did."""
LIKE_NAME: Final = 0.6
"""How much of both names' letters must be the same, in the same order; 1 is all."""
_PARAMETERS = re.compile(r"<[^<>]*>")


@dataclass(frozen=True)
class Pair:
    """An operator of both runs; None where one lacks it."""

    base: OperatorProfile | None
    new: OperatorProfile | None

    @property
    def any(self) -> OperatorProfile:
        """Of the new run, where that has it."""
        found = self.new or self.base
        assert found is not None
        return found

    @property
    def was(self) -> str | None:
        """The former name, of an operator that was renamed."""
        if self.base is None or self.new is None or self.base.operator == self.new.operator:
            return None
        return self.base.operator


def matched(base: Sequence[OperatorProfile], new: Sequence[OperatorProfile], least_us: float) -> list[Pair]:
    """Every operator of either run once.

    Names are compared first. Of what is left, an operator that took at least `least_us` on some rank became the one of
    the same kind that is called as often, begins at the same place in the step, and has the most similar name.
    """
    of_base = {(one.operator, one.kind): one for one in base}
    of_new = {(one.operator, one.kind): one for one in new}
    same = [Pair(of_base[key], of_new[key]) for key in of_base if key in of_new]
    gone = [one for key, one in of_base.items() if key not in of_new]
    added = [one for key, one in of_new.items() if key not in of_base]
    renamed = list(_renamed(_worth(gone, least_us), _worth(added, least_us)))
    known = {id(one) for pair in renamed for one in (pair.base, pair.new)}
    alone = [Pair(one, None) for one in gone if id(one) not in known]
    alone += [Pair(None, one) for one in added if id(one) not in known]
    return same + renamed + alone


def _worth(operators: Sequence[OperatorProfile], least_us: float) -> list[OperatorProfile]:
    return [one for one in operators if one.operator is not None and max(one.amount.by_rank_us) >= least_us]


def _renamed(gone: Sequence[OperatorProfile], added: Sequence[OperatorProfile]) -> Iterator[Pair]:
    """Yield the most similar first; each operator once."""
    likeness = [(_likeness(old, new), old, new) for old in gone for new in added if _can_be(old, new)]
    taken: set[int] = set()
    for alike, old, new in sorted(likeness, key=lambda one: -one[0]):
        if alike >= LIKE_NAME and not {id(old), id(new)} & taken:
            taken |= {id(old), id(new)}
            yield Pair(old, new)


def _can_be(old: OperatorProfile, new: OperatorProfile) -> bool:
    as_often = abs(old.calls - new.calls) <= LIKE_CALLS * max(old.calls, new.calls)
    return old.kind == new.kind and as_often and abs(old.place - new.place) <= LIKE_PLACE


def _likeness(old: OperatorProfile, new: OperatorProfile) -> float:
    """Of the names without template parameters, and of the places."""
    # What is common is found from the first name on: in one order, whichever run is the base.
    first, second = sorted((_bare(old.operator or ""), _bare(new.operator or "")))
    names = SequenceMatcher(None, first, second, autojunk=False).ratio()
    return names - abs(old.place - new.place)


def _bare(name: str) -> str:
    while (shorter := _PARAMETERS.sub("", name)) != name:
        name = shorter
    return name[:200]


FALSE_ALARM_RATE: Final = 0.01
"""Of a comparison of two runs that do not differ, over all that is tested."""
SMALLEST_SHARE: Final = 0.005
"""Changes of a rank's self time below this share of the shorter step are not reported."""
SMALLEST_RATIO: Final = 0.02
"""Of the operator's own time, where that is less; devices differ by less from one start of a job to the next."""
SMALLEST_STEP_CHANGE: Final = 0.01
"""Of the step time: it changed where it is surely beyond this, which the slowest of other devices of the same kind
explains."""
FEWEST_STEPS: Final = 4
"""Of each run."""
APART: Final = 0.05
"""Ranks changed differently where their changes differ by this share of the operator's time."""
CLEAN_GAP: Final = 0.5
"""Ranks are split into two groups only if the gap between them spans this fraction of their range."""
BEYOND_SPREAD: Final = 5.0
"""The same gap over how much the ranks of one sort differ, in standard deviations."""
POOLS: Final[Mapping[PoolKind, tuple[ChangeKind, ...]]] = {
    "compute": ("compute",),
    "hosts": ("host", "input", "compilation"),
    "communication": ("communication",),
}
"""What operators have in common that are tested together: the parts of the bar that a step's time is divided into."""
LIKE_ITSELF: Final = 0.05
"""P-value up to which a rank compiles in more steps than it did in the other run."""
_BISECTIONS: Final = 24


@dataclass(frozen=True)
class Shift:
    """By how much some ranks' time in something changed."""

    places: tuple[int, ...]
    """Among the ranks that both runs have; all of those, where it is everybody."""
    base_us: float
    new_us: float
    p_value: float
    """Not corrected."""


@dataclass(frozen=True)
class Change:
    """A shift of one operator, or of several together, that is beyond chance."""

    pairs: tuple[Pair, ...]
    """Several of a pool."""
    shift: Shift
    everywhere: bool
    p_value: float
    """Family-wise."""
    pool: PoolKind | None = None
    """What the operators have in common of which none alone is beyond chance."""

    @property
    def pair(self) -> Pair:
        """Return the operator, or the first of several."""
        return self.pairs[0]


@dataclass(frozen=True)
class Differences:
    """All that differs between two profiles."""

    pairs: tuple[Pair, ...]
    whole: tuple[Shift | None, ...]
    """Of each pair, the shift of all ranks; None of operators too short to be tested."""
    changes: tuple[Change, ...]
    """Of single operators."""
    pools: tuple[Change, ...]
    """Of several together, of which none alone changed."""
    ranks: tuple[int, ...]
    """The ranks that both runs have; empty where ranks cannot be matched."""
    step_change_us: float
    step_p_value: float
    step_changed: bool
    """Whether that is surely beyond SMALLEST_STEP_CHANGE."""
    step_noise_us: float | None
    """By how much the mean steps of two runs that do not differ can be apart; None of a single step."""


def differences(base: RunProfile, new: RunProfile, per_step: tuple[PerStep, PerStep] | None = None) -> Differences:
    """Compare two profiles, and where their steps are known the operators of each pool together.

    Ranks are matched by number where both runs have as many, else only means are compared.
    """
    least = SMALLEST_SHARE * shorter_step_us(base, new)
    pairs = matched(base.operators, new.operators, least)
    ranks = shared_ranks(base, new)
    tests = sum(_largest(pair) >= least for pair in pairs)
    whole: list[Shift | None] = []
    changes: list[Change] = []
    for pair in pairs:
        amounts = (None if one is None else one.amount for one in (pair.base, pair.new))
        rows = rows_of(base, new, ranks, *amounts)
        if _largest(pair) < least or not len(rows):
            whole.append(None)
            continue
        whole.append(rows.shift())
        changes += _told(pair, rows, least, tests)
    if per_step is not None and not any(one.pair.any.kind == "compilation" for one in changes):
        changes += _compiling(base, new, ranks, pairs, per_step)
    single = {id(one.pair) for one in changes}
    left = [pair for pair in pairs if id(pair) not in single]
    pools = () if per_step is None else tuple(_pools(base, new, ranks, left, per_step))
    step = new.step_time_us - base.step_time_us
    told = (tuple(pairs), tuple(whole), tuple(changes), pools, ranks, step, *_step_change(base, new))
    return Differences(*told, _step_noise_us(base, new))


def shorter_step_us(base: RunProfile, new: RunProfile) -> float:
    """Return what shares of the step are shares of, so that the comparison the other way round says the same."""
    return min(base.step_time_us, new.step_time_us)


def is_large(shift: "Shift", least_us: float) -> bool:
    """Return whether that much change is reported: `least_us`, and a part of what it takes in the faster run."""
    return abs(shift.new_us - shift.base_us) >= max(least_us, SMALLEST_RATIO * min(shift.base_us, shift.new_us))


def shared_ranks(base: RunProfile, new: RunProfile) -> tuple[int, ...]:
    """Ranks that do the same in both runs, as far as their numbers show."""
    if base.world_size != new.world_size:
        return ()
    return tuple(sorted(set(base.ranks) & set(new.ranks)))


class Side(NamedTuple):
    """One amount in one run: entries per rank."""

    us: Floats
    error_us: Floats
    df: float

    def of(self, chosen: Ints | Bools) -> "Side":
        """Return some of the entries."""
        return Side(self.us[chosen], self.error_us[chosen], self.df)


@dataclass(frozen=True)
class Rows:
    """One amount in both runs, of the ranks that spend any of it: entries per rank, each rank's in both runs' arrays.

    Where ranks are not matched, the runs have as many entries as ranks of their own.
    """

    matched: bool
    place: Ints
    """Of each entry, among the ranks that both runs have."""
    base: Side
    new: Side

    def __len__(self) -> int:
        return min(len(self.base.us), len(self.new.us))

    @property
    def relative(self) -> Floats:
        """Per rank, the logarithm of new over base: the same with the sign turned the other way round."""
        both = np.stack((self.base.us, self.new.us))
        was, now = np.log(np.maximum(both, max(float(both.max(initial=0.0)) * 1e-3, 1e-9)))
        return np.asarray(now - was)

    def of(self, chosen: Ints) -> "Rows":
        """Return some of the matched entries."""
        return Rows(self.matched, self.place[chosen], self.base.of(chosen), self.new.of(chosen))

    def shift(self) -> Shift:
        """Of the mean over the entries."""
        both = self.base, self.new
        base, new = (float(side.us.mean()) for side in both)
        apart = [self.new.us - self.base.us] if self.matched else [side.us for side in both]
        between = sum(float(of.var(ddof=1) / len(of)) for of in apart if len(of) > 2)
        errors = float(self.base.error_us.mean()), float(self.new.error_us.mean())
        p_value = two_sided(new - base, errors, (self.base.df, self.new.df), between)
        return Shift(tuple(self.place.tolist()), base, new, p_value)


def rows_of(base: RunProfile, new: RunProfile, ranks: Sequence[int], old: Amount | None, now: Amount | None) -> Rows:
    """Return an amount in both runs, of the matched `ranks`, or of all where there are none; 0 where a run lacks it."""
    was, is_now = _entries(base, ranks, old), _entries(new, ranks, now)
    if ranks:
        # Ranks that never run it (of other pipeline stages) say nothing of it.
        run = np.flatnonzero((was.us > 0) | (is_now.us > 0))
        return Rows(True, run, was.of(run), is_now.of(run))
    was = was if old is None else was.of(was.us > 0)
    is_now = is_now if now is None else is_now.of(is_now.us > 0)
    return Rows(False, np.zeros(0, dtype=np.int64), was, is_now)


def two_sided(change: float, errors: tuple[float, float], df: tuple[float, float], between: float = 0.0) -> float:
    """P-value of a difference of two means with these standard errors, by Welch's t; `between` is a variance more."""
    squares = [error**2 for error in errors]
    variance = sum(squares) + between
    if not np.isfinite(variance):
        return 1.0
    if variance == 0:
        return 1.0 if change == 0 else 0.0
    freedom = sum(squares) ** 2 / max(sum(one**2 / of for one, of in zip(squares, df, strict=True)), 1e-300)
    return min(1.0, 2 * student_t_tail(abs(change) / float(np.sqrt(variance)), max(freedom, 1.0)))


def _entries(run: RunProfile, ranks: Sequence[int], amount: Amount | None) -> Side:
    if amount is None:
        nothing = np.zeros(len(ranks) or len(run.ranks))
        return Side(nothing, nothing, np.inf)
    side = Side(np.array(amount.by_rank_us), np.array(amount.error_us), amount.df)
    return side.of(np.searchsorted(np.array(run.ranks), np.array(ranks))) if ranks else side


def _largest(pair: Pair) -> float:
    """Return what it takes on the rank that spends most on it, in either run."""
    return max(max(one.amount.by_rank_us) for one in (pair.base, pair.new) if one is not None)


def _told(pair: Pair, rows: Rows, least: float, tests: int) -> Iterator[Change]:
    """Yield the changes of one operator: of all ranks, of some, or of some on top of all."""

    def worth(shift: Shift, sets: int) -> Iterator[Change]:
        p_value = min(1.0, shift.p_value * tests * sets)
        if is_large(shift, least) and p_value < FALSE_ALARM_RATE / 2:
            yield Change((pair,), shift, sets == 1 and len(shift.places) in (0, len(rows)), p_value)

    both = pair.base is not None and pair.new is not None
    apart = _apart(rows) if both and rows.matched else None
    if apart is None:
        yield from worth(rows.shift(), 1)
        return
    rest, some = (rows.of(chosen).shift() for chosen in apart)
    of_rest = list(worth(rest, 1))
    if not of_rest or (rest.new_us > rest.base_us) != (some.new_us > some.base_us):
        yield from of_rest
        yield from worth(some, len(rows))
        return
    # All changed, and some of them more: that is on top of what the run takes where it takes less, with all changed.
    ratio, whole = rest.new_us / rest.base_us, rows.shift()
    if ratio > 1:
        everybody, on_top = (whole.base_us, whole.base_us * ratio), (some.base_us * ratio, some.new_us)
    else:
        everybody, on_top = (whole.new_us / ratio, whole.new_us), (some.base_us, some.new_us / ratio)
    yield Change((pair,), Shift(whole.places, *everybody, rest.p_value), True, of_rest[0].p_value)
    yield from worth(Shift(some.places, *on_top, some.p_value), len(rows))


def _apart(rows: Rows) -> tuple[Ints, Ints] | None:
    """Return (the ranks that changed less, those that changed more) where ranks changed in two ways; None where in one.

    The widest gap between the changes of neighbours parts them.
    """
    relative = rows.relative
    order = np.argsort(relative, kind="stable")
    if len(order) < 2:
        return None
    gaps = np.diff(relative[order])
    cut = int(gaps.argmax()) + 1
    low, high = order[:cut], order[cut:]
    distance = float(relative[high].mean() - relative[low].mean())
    if distance < APART or gaps[cut - 1] < CLEAN_GAP * distance:
        return None
    spread = max((mad(relative[of]) * MAD_TO_SIGMA for of in (low, high) if len(of) > 2), default=0.0)
    if gaps[cut - 1] < BEYOND_SPREAD * spread or not _surely_apart(rows, low, high, float(gaps[cut - 1])):
        return None
    rest, some = sorted((low, high), key=lambda of: abs(float(relative[of].mean())))
    return np.sort(rest), np.sort(some)


def _surely_apart(rows: Rows, low: Ints, high: Ints, gap: float) -> bool:
    """Whether the gap is beyond the errors of the ranks' own means, whichever of them was next to it."""
    errors = [float(side.error_us.max()) for side in (rows.base, rows.new)]
    scale = float(np.median((rows.base.us + rows.new.us)[np.r_[low, high]])) / 2
    p_value = two_sided(gap * scale, (2**0.5 * errors[0], 2**0.5 * errors[1]), (rows.base.df, rows.new.df))
    return p_value * len(rows) < FALSE_ALARM_RATE


def _pools(
    base: RunProfile, new: RunProfile, ranks: Sequence[int], pairs: Sequence[Pair], per_step: tuple[PerStep, PerStep]
) -> Iterator[Change]:
    """Yield the pools of `pairs` that changed; each is tested once, all of them by Holm's method."""
    found = []
    for pool, kinds in POOLS.items():
        members = tuple(pair for pair in pairs if pair.any.kind in kinds)
        shift = _shift_together(base, new, ranks, members, per_step) if len(members) > 1 else None
        if shift is not None:
            found.append((shift, pool, members))
    least, p_value = SMALLEST_SHARE * shorter_step_us(base, new), 0.0
    for at, (shift, pool, members) in enumerate(sorted(found, key=lambda one: one[0].p_value)):
        p_value = max(p_value, min(1.0, shift.p_value * (len(found) - at)))
        if p_value < FALSE_ALARM_RATE / 2 and is_large(shift, least):
            yield Change(members, shift, everywhere=True, p_value=p_value, pool=pool)


def _compiling(
    base: RunProfile, new: RunProfile, ranks: Sequence[int], pairs: Sequence[Pair], per_step: tuple[PerStep, PerStep]
) -> Iterator[Change]:
    """Yield the rank that compiles in some steps of one run, where a mean over steps is not sure of that.

    It does so in more steps than all ranks of the other run and its peers (Fisher's exact test, of steps side by side
    only the first where they come in spells), and than itself in the other run.
    """
    least = SMALLEST_SHARE * shorter_step_us(base, new)
    pair = next((pair for pair in pairs if pair.any.kind == "compilation"), None)
    if pair is None or not ranks:
        return
    of_run = [run.of(*COMPILATION)[:, np.searchsorted(run.ranks, np.array(ranks))] for run in per_step]
    steps = [len(spent) for spent in of_run]
    counts = [episodes(spent >= least) for spent in of_run]
    total, cells = int(sum(map(np.sum, counts))), sum(steps) * len(ranks)
    for here, there in ((1, 0), (0, 1)):
        for at, count in enumerate(counts[here].tolist()):
            itself = fisher_tail(count, steps[here], count + int(counts[there][at]), sum(steps))
            p_value = min(1.0, fisher_tail(count, steps[here], total, cells) * len(ranks) * 2 * len(POOLS))
            if p_value >= FALSE_ALARM_RATE / 2 or itself >= LIKE_ITSELF:
                continue
            was, now = (float(spent[:, at].mean()) for spent in of_run)
            if is_large(shift := Shift((at,), was, now, p_value), least):
                yield Change((pair,), shift, everywhere=False, p_value=p_value)


def _shift_together(
    base: RunProfile, new: RunProfile, ranks: Sequence[int], pairs: Sequence[Pair], per_step: tuple[PerStep, PerStep]
) -> Shift | None:
    """Return the shift of what operators take together; None where a run has too few steps that all ranks recorded.

    Its error is that of the ranks' mean from step to step, and how differently ranks changed.
    """
    of_runs = [
        steps.together(one for one in operators if one is not None)
        for steps, operators in zip(per_step, zip(*((pair.base, pair.new) for pair in pairs), strict=True), strict=True)
    ]
    if ranks:
        of_runs = [
            spent[:, np.searchsorted(np.array(run.ranks), np.array(ranks))]
            for spent, run in zip(of_runs, (base, new), strict=True)
        ]
    if min(map(len, of_runs)) < FEWEST_STEPS:
        return None
    means = [spent.mean(axis=1) for spent in of_runs]
    (was, *of_base), (now, *of_new) = (trimmed(mean, inflation(mean[:, None])) for mean in means)
    of_rank = [trimmed_mean(spent, TRIM) for spent in of_runs]
    apart = [of_rank[1] - of_rank[0]] if ranks else of_rank
    between = sum(float(of.var(ddof=1) / len(of)) for of in apart if len(of) > 2)
    p_value = two_sided(now - was, (of_base[0], of_new[0]), (of_base[1], of_new[1]), between)
    return Shift(tuple(range(len(ranks))), was, now, p_value)


def _step_change(base: RunProfile, new: RunProfile) -> tuple[float, bool]:
    """(p-value of the step times' difference, whether it is surely beyond SMALLEST_STEP_CHANGE), by trimmed means."""
    of_runs = [np.array(run.step_times_us) for run in (base, new)]
    (was, *of_base), (now, *of_new) = (trimmed(steps, inflation(steps[:, None])) for steps in of_runs)
    errors, df = (of_base[0], of_new[0]), (of_base[1], of_new[1])
    beyond = abs(now - was) - SMALLEST_STEP_CHANGE * shorter_step_us(base, new)
    surely = beyond > 0 and two_sided(beyond, errors, df) < FALSE_ALARM_RATE / 2
    return two_sided(now - was, errors, df), surely


def _step_noise_us(base: RunProfile, new: RunProfile) -> float | None:
    """Return what the difference of the mean steps exceeds by chance in one of a hundred comparisons."""
    errors, freedom = [], []
    for steps in (np.array(run.step_times_us) for run in (base, new)):
        if len(steps) < 2:
            return None
        inflated = inflation(steps[:, None])
        errors.append(float(np.sqrt(steps.var(ddof=1) * inflated / len(steps))))
        freedom.append(max(len(steps) / inflated - 1, 1.0))
    low, high = 0.0, 1e3 * max(errors)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        chance = two_sided(middle, (errors[0], errors[1]), (freedom[0], freedom[1]))
        low, high = (middle, high) if chance > FALSE_ALARM_RATE else (low, middle)
    return high
