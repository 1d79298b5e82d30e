"""Compares ranks by what each of them prints of its own phases before the first collective of a step.

The time of a whole step is the same on all ranks, since they wait for each other: it names nobody. In phases with
collectives the culprit looks fastest, since the others wait in them. What is left is loading data and the forward pass.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.steplog import Contrast, LogChange, LogOfSteps, LogRank
from kair_engine.stats import student_t_tail
from kair_engine.steplog.cleaning import NORMAL
from kair_engine.steplog.lines import Phases, StepLines
from kair_engine.steplog.series import Series

_BEFORE: Final = re.compile(r"(?i)data|load|input|batch|fetch|forward|fwd")
"""Phases that end before ranks wait for each other."""
_WITHIN: Final = re.compile(r"(?i)back|bwd|step|optim|reduce|comm|sync|grad|all.?gather|wait|most|least|total|/")
_CHANCE: Final = 0.01
_OF_CHANGE: Final = 0.3
"""A rank takes at least this part of what the job's steps take longer."""
_OF_STEP: Final = 0.01
_FEWEST_RANKS, _FEWEST_STANDING = 3, 8
_FEWEST_STEPS: Final = 4
_STANDS_OUT: Final = 8.0
"""Times the spread of the others, of a rank that is slower all the time: programs of ranks may differ."""
_FREEDOM: Final = 30
_TINY: Final = 1e-12
_MOST_CELLS: Final = 20_000_000
_HALF: Final = 0.5
_SECOND_US: Final = 1e6


@dataclass(frozen=True)
class _Table:
    """One phase of one attempt: a row for each rank, a column for each step, seconds; NaN where nothing is printed."""

    name: str
    ranks: Ints
    step: Ints
    seconds: Floats


@dataclass(frozen=True)
class _Against:
    """What the steps in which a rank may be late are compared with, and what the job's steps take longer there."""

    contrast: Contrast
    inside: Bools
    outside: Bools
    price_us: float
    since: int | None = None


def accused(lines: StepLines, series: Series, found: LogOfSteps) -> tuple[LogRank, ...]:
    """Return the ranks that their own lines set apart, each once, the costliest first."""
    if not found.attempts or not lines.ranks_are_sure:
        return ()
    rows: dict[Rank, LogRank] = {}
    for table in _tables(lines, series, found):
        for one in _of_table(table, found):
            if one.rank not in rows or one.excess_us > rows[one.rank].excess_us:
                rows[one.rank] = one
    return tuple(sorted(rows.values(), key=lambda one: -one.excess_us))


def _tables(lines: StepLines, series: Series, found: LogOfSteps) -> Iterator[_Table]:
    attempt = found.attempts[-1].number - 1
    phases = lines.phases
    known = phases.rank if np.any(phases.rank >= 0) else lines.rank[phases.line] if len(phases.line) else phases.rank
    for code, name in enumerate(phases.name):
        if _BEFORE.search(name) and not _WITHIN.search(name):
            chosen = (phases.code == code) & (known >= 0)
            rows = (phases.line[chosen], known[chosen], phases.seconds[chosen])
            yield from _table(name, rows, series, attempt)
    if lines.form.is_own and lines.form.each_rank:
        chosen = lines.rank >= 0
        unit = 1e-3 if lines.form.unit == "ms" else 1.0
        rows = (np.flatnonzero(chosen), lines.rank[chosen], lines.value[chosen] * unit)
        yield from _table("time", rows, series, attempt)


def _table(name: str, rows: tuple[Ints, Ints, Floats], series: Series, attempt: int) -> Iterator[_Table]:
    """Yield the table of one phase, given line, rank and seconds of each time; none where too few ranks or steps have
    it.
    """
    line, rank, seconds = rows
    of_attempt = series.attempt_of[line] == attempt
    line, rank, seconds = line[of_attempt], rank[of_attempt], seconds[of_attempt]
    ranks, row = np.unique(rank, return_inverse=True)
    steps, column = np.unique(series.step_of[line], return_inverse=True)
    if len(ranks) < _FEWEST_RANKS or len(steps) < 2 * _FEWEST_STEPS or len(ranks) * len(steps) > _MOST_CELLS:
        return
    table = np.full((len(ranks), len(steps)), np.nan)
    table[row.reshape(-1), column.reshape(-1)] = seconds
    whole = np.all(np.isfinite(table), axis=0)
    if whole.sum() >= 2 * _FEWEST_STEPS:
        yield _Table(name, ranks, steps[whole], table[:, whole])


def _of_table(table: _Table, found: LogOfSteps) -> Iterator[LogRank]:
    """Yield what its contrasts show: since each change, at each period, at spikes, and all the time."""
    last = found.attempts[-1].number
    excess = table.seconds - np.median(table.seconds, axis=0)
    step_us = found.attempts[-1].step_us
    for change in found.changes:
        if change.attempt == last and change.kind in ("slower", "drift") and change.extra_us_per_step:
            inside = (table.step >= change.since) & (table.step <= (change.until or table.step[-1]))
            before = table.step < change.since
            against = _Against("past", inside, before, change.extra_us_per_step, change.since)
            yield from _set_apart(table, excess, against)
    for period in found.periods:
        if period.attempt == last and period.extra_us:
            inside = table.step % period.every == period.first % period.every
            yield from _set_apart(table, excess, _Against("place", inside, ~inside, period.extra_us))
    spikes = [one for one in found.spikes if one.attempt == last and one.extra_us]
    if len(spikes) >= _FEWEST_STEPS:
        inside = np.isin(table.step, [one.step for one in spikes])
        usual = float(np.median([one.extra_us or 0.0 for one in spikes]))
        yield from _set_apart(table, excess, _Against("moment", inside, ~inside, usual))
    if len(table.ranks) >= _FEWEST_STANDING and step_us is not None:
        yield from _standing(table, excess, step_us)


def _set_apart(table: _Table, excess: Floats, against: _Against) -> Iterator[LogRank]:
    """Ranks that are later than their peers in some steps, and not as much so in others."""
    inside, outside = against.inside, against.outside
    few = min(int(inside.sum()), int(outside.sum()))
    if few < (2 if against.contrast == "place" else _FEWEST_STEPS):
        return
    late = np.median(excess[:, inside], axis=1) - np.median(excess[:, outside], axis=1)
    late -= np.median(late)
    yield from _beyond(table, late, _error(excess, 1 / inside.sum() + 1 / outside.sum()), against)


def _error(excess: Floats, share: float) -> Floats:
    """How far medians of ranks' excess may be off, by noise from step to step."""
    own = np.median(np.abs(np.diff(excess, axis=1)), axis=1) / NORMAL / np.sqrt(2)
    return np.asarray(own * np.sqrt(np.pi / 2 * share))


def _beyond(table: _Table, late: Floats, error: Floats, against: _Against) -> Iterator[LogRank]:
    spread = float(np.median(np.abs(late))) / NORMAL
    freedom = max(len(late) - 2, min(len(table.step), _FREEDOM))
    for at in np.flatnonzero(late > 0).tolist():
        z = float(late[at] / max(np.hypot(error[at], spread), _TINY))
        p_value = min(len(late) * student_t_tail(z, freedom), 1.0)
        excess_us = float(late[at]) * _SECOND_US
        share = excess_us / against.price_us
        if p_value <= _CHANCE and share >= _OF_CHANGE:
            rank = Rank(int(table.ranks[at]))
            yield LogRank(rank, table.name, against.contrast, excess_us, share, against.since, p_value)


def _standing(table: _Table, excess: Floats, step_us: float) -> Iterator[LogRank]:
    """Yield a rank that is later than all others in nearly every step, where these are alike."""
    middle = np.median(excess, axis=1)
    error = _error(excess, 1 / len(table.step))
    every = np.ones(len(table.step), bool)
    against = _Against("peers", every, every, step_us * _OF_STEP / _OF_CHANGE)
    for one in _beyond(table, middle - np.median(middle), error, against):
        at = int(np.flatnonzero(table.ranks == one.rank)[0])
        others = np.delete(middle, at)
        if middle[at] - others.max() > _STANDS_OUT * max(float(np.std(others)), float(error[at])):
            yield replace(one, share_of_change=None)


def phase_of(lines: StepLines, series: Series, change: LogChange) -> str | None:
    """Return the phase that grew by half of a change and more, the most special one; None where none did."""
    phases, extra = lines.phases, change.extra_us_per_step
    if extra is None or not len(phases.line):
        return None
    step = series.step_of[phases.line]
    own = series.attempt_of[phases.line] == change.attempt - 1
    now = own & (step >= change.since) & (step <= (change.until or step.max()))
    grown = [
        (usual, name)
        for name, usual, by in _growth(phases, now, own & (step < change.since))
        if by * _SECOND_US >= _HALF * extra > 0 and name not in ("step", "time")
    ]
    return min(grown)[1] if grown else None


def _growth(phases: Phases, now: Bools, before: Bools) -> Iterator[tuple[str, float, float]]:
    for code, name in enumerate(phases.name):
        of_phase = phases.code == code
        there, then = phases.seconds[of_phase & now], phases.seconds[of_phase & before]
        if len(there) and len(then):
            usual = float(np.median(then))
            yield name, usual, float(np.median(there)) - usual
