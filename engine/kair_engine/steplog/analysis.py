"""Judges the steps of a job by its log: changes, periods, spikes, ranks, and what to record next."""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.results.steplog import ChangeKind, CoursePart, LogAttempt, LogChange, LogOfSteps, LogPeriod, LogSpike
from kair_engine.results.views import StepsResult, StepSummary
from kair_engine.steplog.changes import CHANCE, SMALLEST, Cut, Level, levels, smallest_found
from kair_engine.steplog.cleaning import SHORT as SHORT_LOG
from kair_engine.steplog.cleaning import Noise, noise_of, running_median, spikes, warm_up
from kair_engine.steplog.lines import StepLines
from kair_engine.steplog.next_recording import NOTHING, what_to_record
from kair_engine.steplog.periods import Found, normal_tail, periods
from kair_engine.steplog.ranks import accused, phase_of
from kair_engine.steplog.series import FEWEST, Attempt, series_of
from kair_engine.trace.model import short_warning

_MOST_SPIKES: Final = 10
_MOST_ATTEMPTS: Final = 20
"""The last ones are looked at."""
_MOST_TIMES: Final = 20_000
"""Times of a job that are judged, which takes 0.2 s."""
_FASTER: Final = 0.02
"""Of the step: nobody acts on steps that are faster by less."""
_PARTS: Final = 240
_HOUR_US: Final = 3.6e9
_SECOND_US: Final = 1e6
_SPIKE_SHARE: Final = 0.1
"""Of the step: a spike that is listed takes at least so much longer."""
_NEAR: Final = 11
_WARM_LEAST, _WARM_MOST, _WARM_PART = 20, 60, 10
"""A slower first piece that ends by step max(20, min(60, n/10)) is warm-up, too."""


@dataclass(frozen=True)
class Judged:
    """One attempt with what was found in it; places are those of its columns."""

    attempt: Attempt
    number: int
    noise: Noise
    warm: int
    """Steps of warm-up."""
    found: tuple[Found, ...]
    levels: tuple[Level, ...]
    cuts: tuple[Cut, ...]
    spikes: Ints
    usual: Floats
    """The logarithm of what is usual near each step."""
    y: Floats
    """The logarithms of its times."""
    world: int | None
    """Ranks of the job."""


def judge(lines: StepLines) -> LogOfSteps:
    """Return all that a log says of its job's steps."""
    series = series_of(lines)
    judged = [
        _judged(attempt, number, lines.world_size)
        for number, attempt in enumerate(series.attempts, 1)
        if len(attempt) >= FEWEST and number > len(series.attempts) - _MOST_ATTEMPTS
    ]
    changes = tuple(change for one in judged for change in _changes(one))
    changes = tuple(replace(one, phase=phase_of(lines, series, one)) for one in changes)
    listed = [spike for one in judged for spike in _spikes(one)]
    last = judged[-1] if judged else None
    found = LogOfSteps(
        format=lines.form.name,
        world_size=lines.world_size,
        attempts=tuple(_attempt(attempt, number, judged) for number, attempt in enumerate(series.attempts, 1)),
        changes=tuple(sorted(changes, key=_cost, reverse=True)),
        periods=tuple(sorted((p for one in judged for p in _periods(one)), key=lambda p: -p.share)),
        spikes=tuple(sorted(listed, key=lambda one: -one.share)[:_MOST_SPIKES]),
        spikes_in_all=len(listed),
        ranks=(),
        ranks_printed=len(lines.ranks),
        smallest_share=math.expm1(smallest_found(len(last.y) - last.warm, last.noise)) if last else 1.0,
        skipped=series.skipped,
        next=NOTHING,
        course=tuple(part for one in judged[-3:] for part in _course(one, len(judged[-3:]))),
        by_work=series.by_work,
    )
    recorded = what_to_record(found, lines.form.window, last.noise if last else None)
    return replace(found, ranks=accused(lines, series, found), next=recorded)


def changes_of(step: Ints, seconds: Floats) -> list[LogChange]:
    """Return where the steps of a job, one time each, became longer or shorter: changes and drifts.

    Of very many, means of several steps are judged, as logs print them.
    """
    every = -(-len(step) // _MOST_TIMES)
    if len(step) < FEWEST:
        return []
    whole = len(step) // every * every
    means = seconds[:whole].reshape(-1, every).mean(axis=1)
    return _changes(_judged(Attempt(step[every - 1 : whole : every], means, every), 1, None))


def _judged(attempt: Attempt, number: int, world: int | None) -> Judged:
    y = np.log(attempt.seconds)
    warm = warm_up(y, noise_of(y))
    rest = y[warm:]
    place = np.rint((attempt.step[warm:] - attempt.step[0]) / attempt.every).astype(np.int64)
    found, clean = periods(rest, place) if len(rest) >= SHORT_LOG else ([], rest)
    noise = noise_of(clean)
    where, clean = spikes(clean, noise) if len(rest) >= SHORT_LOG else (np.zeros(0, np.int64), clean)
    noise = noise_of(clean)
    pieces, cuts = levels(clean, noise, clean != rest)
    warm_too = 0
    latest = max(_WARM_LEAST, min(_WARM_MOST, len(y) // _WARM_PART))
    while len(pieces) > 1 and pieces[0].height > pieces[1].height and pieces[0].end + warm <= latest:
        warm_too = pieces[0].end
        pieces, cuts = pieces[1:], cuts[1:]
    moved = warm + warm_too
    return Judged(
        attempt,
        number,
        noise,
        moved,
        tuple(replace(one, at=one.at + warm) for one in found),
        tuple(Level(max(one.begin + warm, moved), one.end + warm, one.height) for one in pieces),
        tuple(replace(one, at=one.at + warm, least=one.least + warm, most=one.most + warm) for one in cuts),
        where + warm,
        np.concatenate((y[:warm], running_median(clean, _NEAR))) if len(clean) else y,
        y,
        world,
    )


def _changes(one: Judged) -> list[LogChange]:
    """Return the pieces that are slower than what was usual until then; and those after which steps are faster."""
    made: list[LogChange] = []
    if not one.levels:
        return made
    usual = one.levels[0].height
    for at, level in enumerate(one.levels[1:], 1):
        cut = one.cuts[at - 1]
        if level.height > usual + SMALLEST:
            kind: ChangeKind = "slower" if cut.is_moment else "drift"
            made.append(_change(one, kind, at, usual))
            continue
        if level.height < usual - SMALLEST:
            if not cut.is_moment:
                made.append(_change(one, "drift", at, usual))
            elif at == 1:
                made.append(_change(one, "slow_start", 0, level.height))
            else:
                made.append(_change(one, "faster", at, usual))
        usual = level.height  # which may creep
    return _joined_drifts([change for change in made if not -_FASTER < change.share < 0])


def _joined_drifts(made: list[LogChange]) -> list[LogChange]:
    """Pieces that follow each other while times drift are one drift."""
    joined: list[LogChange] = []
    for one in made:
        last = joined[-1] if joined else None
        if last is not None and last.kind == one.kind == "drift" and last.until is not None:
            steps = last.steps + one.steps
            share = (last.share * last.steps + one.share * one.steps) / steps
            extra = None
            if last.extra_us_per_step is not None and one.extra_us_per_step is not None:
                extra = (last.extra_us_per_step * last.steps + one.extra_us_per_step * one.steps) / steps
            hours = None if last.gpu_hours is None or one.gpu_hours is None else last.gpu_hours + one.gpu_hours
            joined[-1] = replace(
                last,
                until=one.until,
                until_range=one.until_range,
                steps=steps,
                share=share,
                extra_us_per_step=extra,
                gpu_hours=hours,
                p_value=min(last.p_value, one.p_value),
            )
        else:
            joined.append(one)
    return joined


def _change(one: Judged, kind: ChangeKind, at: int, usual: float) -> LogChange:
    attempt, level = one.attempt, one.levels[at]
    lasts = kind == "faster" or at == len(one.cuts)
    begin, end = level.begin, len(one.y) if lasts else level.end
    count = int(attempt.step[end - 1] - attempt.step[begin]) + attempt.every
    share = math.expm1(level.height - usual)
    usual_us = math.exp(usual) * _SECOND_US if attempt.is_absolute else None
    extra = None if usual_us is None else usual_us * share
    return LogChange(
        kind=kind,
        attempt=one.number,
        since=_first_of(attempt, begin),
        since_range=_range(attempt, one.cuts[at - 1]) if at else (_first_of(attempt, begin),) * 2,
        until=None if lasts else int(attempt.step[end - 1]),
        until_range=None if lasts else _range(attempt, one.cuts[at], 1),
        steps=count,
        p_value=float(one.cuts[max(at - 1, 0)].p_value),
        share=share,
        usual_us=usual_us,
        extra_us_per_step=extra,
        gpu_hours=_hours(extra, count, one.world),
        independent_only=len(one.y) < SHORT_LOG,
    )


def _first_of(attempt: Attempt, place: int) -> int:
    """Return the first step of a line: a mean over several is of those since the line before."""
    return int(attempt.step[place]) - attempt.every + 1


def _range(attempt: Attempt, cut: Cut, before: int = 0) -> tuple[int, int]:
    """Return the steps that may be the first of the new level; or so many `before` it."""
    return _first_of(attempt, cut.least) - before, int(attempt.step[min(cut.most, len(attempt) - 1)]) - before


def _hours(extra_us: float | None, steps: float, world: int | None) -> float | None:
    return None if extra_us is None or world is None else extra_us * steps * world / _HOUR_US


def _cost(one: LogChange) -> float:
    return one.share * one.steps


def _periods(one: Judged) -> list[LogPeriod]:
    attempt, made = one.attempt, []
    middle = math.exp(float(np.median(one.y)))
    for found in one.found:
        at = found.at
        longer = [other.at for other in one.found if other.extra > found.extra]
        alone = np.setdiff1d(at, np.concatenate(longer)) if longer else at
        alone = alone if len(alone) else at
        extra = float(np.mean(attempt.seconds[alone] - np.exp(one.usual[alone])))
        extra_us = extra * _SECOND_US if attempt.is_absolute else None
        every = found.length * attempt.every
        made.append(
            LogPeriod(
                attempt=one.number,
                every=every,
                first=int(attempt.step[at[0]]),
                repeats=len(at),
                shown=found.shown,
                p_value=found.p_value,
                share=extra / (middle * found.length),
                extra_us=None if extra_us is None else extra_us * attempt.every,
                extra_us_per_step=None if extra_us is None else extra_us / found.length,
                gpu_hours=_hours(extra_us, len(at) * attempt.every, one.world),
            )
        )
    return made


def _spikes(one: Judged) -> list[LogSpike]:
    attempt, made = one.attempt, []
    for at in one.spikes.tolist():
        off = float(one.y[at] - one.usual[at])
        share = math.expm1(off)
        p_value = min(len(one.y) * normal_tail(off / one.noise.of_step), 1.0)
        if share < _SPIKE_SHARE or p_value > CHANCE:
            continue
        extra = float(math.exp(one.usual[at]) * share * _SECOND_US * attempt.every) if attempt.is_absolute else None
        step = int(attempt.step[at])
        made.append(LogSpike(one.number, step, p_value, share, extra, _hours(extra, 1, one.world)))
    return made


def _attempt(attempt: Attempt, number: int, judged: list[Judged]) -> LogAttempt:
    known = next((one for one in judged if one.number == number), None)
    middle = float(np.median(attempt.seconds)) * _SECOND_US if attempt.is_absolute else None
    return LogAttempt(
        number=number,
        first_step=int(attempt.step[0]),
        last_step=int(attempt.step[-1]),
        lines=len(attempt),
        steps_per_line=attempt.every,
        step_us=middle,
        noise=known.noise.of_step if known else 0.0,
        warm_up_steps=known.warm * attempt.every if known else 0,
    )


def _course(one: Judged, attempts: int) -> list[CoursePart]:
    """Its steps for drawing, in as many parts as there is room for."""
    size = max(math.ceil(len(one.y) * attempts / _PARTS), 1)
    middle = float(np.median(one.y))
    made = []
    for begin in range(0, len(one.y), size):
        part = np.exp(one.y[begin : begin + size] - middle)
        first, last = (int(one.attempt.step[at]) for at in (begin, min(begin + size, len(one.y)) - 1))
        made.append(CoursePart(one.number, first, last, float(np.median(part)), float(part.max())))
    return made


_NO_RANK: Final = Rank(-1)
"""Of a step whose slowest rank is not known."""
_MOST_ROWS: Final = 100_000
"""Steps that are listed, the last ones."""


def steps_of(lines: StepLines) -> StepsResult:
    """Return every step of the last attempt, those marked that a change, a period or a spike makes longer."""
    series = series_of(lines)
    if not series.attempts:
        return StepsResult((), (), 0.0, ())
    attempt = series.attempts[-1]
    slow = _slow(_judged(attempt, 1, None)) if len(attempt) >= FEWEST else np.zeros(len(attempt), bool)
    took = (attempt.seconds * _SECOND_US).tolist()[-_MOST_ROWS:]
    steps, marked = attempt.step.tolist()[-_MOST_ROWS:], slow.tolist()[-_MOST_ROWS:]
    rows = tuple(
        StepSummary(step, series.processes, us, us, _NO_RANK, complete=True, slow=is_slow)
        for step, us, is_slow in zip(steps, took, marked, strict=True)
    )
    warnings = []
    if not attempt.is_absolute:
        text = "the log says how steps compare and not how long they took: times are in no unit"
        warnings.append(short_warning("log_times", text))
    if len(attempt) > len(rows) or len(series.attempts) > 1:
        text = f"the last {len(rows)} steps of the last of {len(series.attempts)} attempts are listed"
        warnings.append(short_warning("last_steps", text))
    return StepsResult(rows, (), float(np.mean(took)), tuple(warnings))


def _slow(one: Judged) -> Bools:
    """Which steps are in a slower part, a period or a spike."""
    slow = np.zeros(len(one.y), bool)
    slow[one.spikes] = True
    for found in one.found:
        slow[found.at] = True
    for change in _changes(one):
        if change.share > 0:
            until = one.attempt.step[-1] if change.until is None else change.until
            slow |= (one.attempt.step >= change.since) & (one.attempt.step <= until)
    return slow
