"""Finds outcomes of predictions: when a job ran without the priced fault, and how much shorter its steps were then.

same run      its history of steps goes on, and the accused ranks no longer take longer than their peers
next attempt  of the job, which runs without the accused host or device, or in which the ranks equal their peers
next job      of that name except for its number, on the same hosts, where triage does not find that cause on them
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.ledger.noise import noise_of
from kair_engine.results.ledger import Came, JobRun, LedgerEntry, WhyNotComparable
from kair_engine.triage.history.rows import StepHistory
from kair_engine.triage.history.slow import beside

FEWEST: Final = 20
"""Steps on either side: fewer allow no conclusion."""
MOST: Final = 200
"""Nearest steps on either side that are compared: over a longer time, a job changes for other reasons as well."""
GONE: Final = 0.2
"""A rank's excess counts as gone if at most this share of it is left."""
WITHIN: Final = 0.1
"""A prediction came true if it is off by at most this share, beyond the noise of both step times."""
NOISIEST: Final = 0.25
"""A prediction is not judged if the noise is more than this share of it."""
ALIKE: Final = 0.01
"""Relative difference that two runs of one program may have in the operations of a step."""
_SMOOTHED: Final = 9
"""Steps of a running median over a rank's excess."""
_MARGIN: Final = 25
"""Steps before and after recorded ones, which have no rows themselves."""
_NEAR: Final = 50
"""Steps before a change of sizes, on which a proposal is based."""
_SURELY: Final = 5.0
"""A rare fault must stay away for this many of its usual intervals: by chance that happens once in 150 times."""
_COLUMNS: Final = {"input_bound": "input", "input": "input", "garbage_collection": "gc", "contention": "delay"}
"""Causes that have a column in the history."""
_NUMBER: Final = re.compile(r"(?:[._-]?(?:\d+|v\d+|run|attempt))+$", re.IGNORECASE)


@dataclass(frozen=True)
class JobHistory:
    """The histories of steps of a captured job, by attempt in order of time; and its hosts and devices in each."""

    attempts: Mapping[str, StepHistory]
    hosts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By attempt; unknown ones are absent."""
    devices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """UUIDs, by attempt."""


def outcomes(
    entries: Sequence[LedgerEntry], histories: Mapping[str, JobHistory], runs: Sequence[JobRun]
) -> tuple[LedgerEntry, ...]:
    """Return the entries with their outcomes, by the `histories` of jobs (by name) and the triaged `runs`.

    Settled outcomes stay, unless something better is known now.
    """
    looked = [one if is_settled(one) else _looked_at(one, entries, histories, runs) for one in entries]
    return tuple(_unless_together(one, looked) for one in looked)


def is_settled(one: LedgerEntry) -> bool:
    """Return whether more steps would change nothing."""
    return one.came != "open" and (one.without != "same_run" or one.steps_without >= MOST)


def _looked_at(
    one: LedgerEntry, entries: Sequence[LedgerEntry], histories: Mapping[str, JobHistory], runs: Sequence[JobRun]
) -> LedgerEntry:
    history = histories.get(one.job)
    if history is not None:
        own = history.attempts.get(one.run)
        if own is not None and (compared := _in_same_run(one, own, entries)) is not None:
            return compared
        if own is not None and (compared := _in_next_attempt(one, own, history)) is not None:
            return compared
    return _in_next_job(one, runs) or one


@dataclass(frozen=True)
class _Course:
    """The excess of an entry over the steps of a history."""

    over_us: Floats
    """(steps): time beyond peers; for a cost of all ranks, the time itself."""
    base_us: float
    """Before it began."""
    excess_us: float
    """While it lasted."""
    first: int
    """Index of its first step."""


def _shown(one: LedgerEntry, history: StepHistory, over: Floats) -> _Course | None:
    begin = one.begin
    within = (history.steps >= begin) & (history.steps <= one.last_step)
    if np.count_nonzero(within) < _SMOOTHED:
        near = np.searchsorted(history.steps, (begin, one.last_step))
        at = np.arange(len(over))
        within = (at >= near[0] - _MARGIN) & (at <= near[1] + _MARGIN)
    if not within.any():
        return None
    before = history.steps < begin
    base = float(np.median(over[before])) if one.since is not None and np.count_nonzero(before) >= _SMOOTHED else 0.0
    level = over[within]
    if one.pattern == "intermittent":
        base = float(np.median(over))
        level = level[level - base > (level.max() - base) / 2]
    excess = float(np.median(level)) - base if len(level) else 0.0
    is_shown = excess > 0 and (one.pattern == "intermittent" or excess >= GONE * one.predicted_us)
    return _Course(over, base, excess, int(np.flatnonzero(within)[0])) if is_shown else None


def _followed(one: LedgerEntry, history: StepHistory, entries: Sequence[LedgerEntry]) -> Iterator[Floats]:
    """Yield (steps): series that show whether the fault is still present.

    A column for the cause has less noise than a rank's whole time, and precedes it.
    """
    column = _COLUMNS.get(one.about)
    if not one.ranks:
        yield from () if column is None else (np.asarray(history.us[column].mean(axis=1)),)
        return
    places = np.searchsorted(history.ranks, one.ranks)
    if (places == len(history.ranks)).any() or (history.ranks[places] != one.ranks).any():
        return
    same = {rank for other in entries if (other.job, other.run) == (one.job, one.run) for rank in other.ranks}
    slow = np.isin(history.ranks, [*same])
    for values in (*(() if column is None else (history.us[column],)), history.own):
        yield beside(history, values, tuple(places.tolist()), slow)


def _in_same_run(one: LedgerEntry, history: StepHistory, entries: Sequence[LedgerEntry]) -> LedgerEntry | None:
    """Return the entry with its outcome in its own run; None if it goes on, or the history does not show it."""
    if one.kind == "proposal":
        return _carried_out(one, history, entries)
    courses = (_shown(one, history, over) for over in _followed(one, history, entries))
    course = next((course for course in courses if course is not None), None)
    if course is None:
        return None
    found = (
        _last_of_rare(one, course, history) if one.pattern == "intermittent" else _first_without(one, course, history)
    )
    if found is None:
        return None
    had, lacks, spread = found
    one = replace(one, without="same_run", without_run=None, from_step=int(history.steps[lacks[0]]))
    return _compared(one, (history, had), (history, lacks), spread=spread)


_Sides = tuple[Ints, Ints, bool]
"""Indices of steps with the fault, and of those after its end, until it returns; and whether its price is spread over
the former, not all of which have it."""


def _first_without(one: LedgerEntry, course: _Course, history: StepHistory) -> _Sides | None:
    smooth = _smoothed(course.over_us)
    gone = smooth <= course.base_us + course.excess_us / 2
    gone[: course.first] = False
    last = int(np.searchsorted(history.steps, one.last_step, side="right"))
    edge = _SMOOTHED // 2
    for begin, end in _stretches(gone):
        after = np.arange(max(begin + edge, last), end - (edge if end < len(gone) else 0))
        had = np.arange(course.first, max(begin - edge, course.first))
        had = had[~gone[had]]
        spread = begin < last
        if spread:
            had = np.arange(course.first, last)
        if len(after) < FEWEST or not len(had):
            continue
        if np.median(course.over_us[after]) - course.base_us <= GONE * course.excess_us:
            return had, after, spread
    return None


def _last_of_rare(one: LedgerEntry, course: _Course, history: StepHistory) -> _Sides | None:
    """Return the sides of a rare fault that stayed away much longer than usual."""
    hits = np.flatnonzero(course.over_us - course.base_us > course.excess_us / 2)
    hits = hits[hits >= course.first]
    if len(hits) < 2:
        return None
    last = int(np.searchsorted(history.steps, one.last_step, side="right"))
    for at, hit in enumerate(hits.tolist()):
        upto = int(hits[at + 1]) if at + 1 < len(hits) else len(course.over_us)
        usual = (hit - course.first + 1) / (at + 1)
        begin = max(hit + 1, last)
        if upto - begin >= max(FEWEST, _SURELY * usual):
            # Its price is spread over all steps before.
            return np.arange(hit + 1), np.arange(begin, upto), True
    return None


def _smoothed(values: Floats) -> Floats:
    width = min(_SMOOTHED, len(values))
    padded = np.pad(values, (width // 2, width - 1 - width // 2), mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1))


def _stretches(holds: Bools) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each run of steps for which it holds."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], holds.astype(np.int8), [0]))))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _carried_out(one: LedgerEntry, history: StepHistory, entries: Sequence[LedgerEntry]) -> LedgerEntry | None:
    """Return a proposal of other sizes with its outcome: the steps since ranks last began to use these."""
    newer = (other for other in entries if (other.kind, other.job, other.sizes) == (one.kind, one.job, one.sizes))
    if len(one.sizes) != len(history.ranks) or any((other.number or 0) > (one.number or 0) for other in newer):
        return None
    holds = (history.us["samples"] == np.array(one.sizes)).all(axis=1)
    began = [stretch for stretch in _stretches(holds) if stretch[0] > 0]
    if not began:
        return None
    begin, end = began[-1]
    before = history.us["samples"][begin - 1]
    alike = (history.us["samples"] == before).all(axis=1)
    one = replace(one, without="same_run", without_run=None, from_step=int(history.steps[begin]))
    if before.sum() != sum(one.sizes):
        return _not_comparable(one, "other_samples")
    had = np.flatnonzero(alike[:begin])[-_NEAR:]
    return _compared(one, (history, had), (history, np.arange(begin, end)), sized=True)


def _in_next_attempt(one: LedgerEntry, own: StepHistory, of: JobHistory) -> LedgerEntry | None:
    names = list(of.attempts)
    had = _had(one, own)
    for name in names[names.index(one.run) + 1 :]:
        history = of.attempts[name]
        if len(history.steps) < FEWEST or not _is_without(one, own, name, of):
            continue
        one = replace(one, without="next_attempt", without_run=name, from_step=None)
        if len(history.ranks) != len(own.ranks):
            return _not_comparable(one, "other_world_size")
        lacks = np.arange(len(history.steps))
        return _compared(one, (own, had), (history, lacks), sized=one.kind == "proposal")
    return None


def _had(one: LedgerEntry, own: StepHistory) -> Ints:
    """Return the indices of its own attempt's steps with the fault: until it ended."""
    had = np.flatnonzero(own.steps >= one.begin)
    return had if one.kind == "finding" and len(had) else np.arange(len(own.steps))


def _is_without(one: LedgerEntry, own: StepHistory, name: str, of: JobHistory) -> bool:
    """Return whether an attempt lacks everything accused; for a proposed restart, whether it was approved."""
    if one.kind == "proposal":
        return one.about == "kill_restart" and one.decision == "approved"
    for accused, where in ((one.devices, of.devices), (one.hosts, of.hosts)):
        # Names count only if spelt alike, as its own attempt shows.
        if accused and where.get(one.run, frozenset()) >= set(accused) and (there := where.get(name)):
            if not there & set(accused):
                return True
            break
    if one.pattern == "intermittent":
        return False
    # The last of the series is all of the ranks' own time.
    before, after = (list(_followed(one, history, ()))[-1:] for history in (own, of.attempts[name]))
    if not before or not after or (course := _shown(one, own, before[0])) is None:
        return False
    return bool(np.median(after[0]) <= GONE * course.excess_us)


def _in_next_job(one: LedgerEntry, runs: Sequence[JobRun]) -> LedgerEntry | None:
    own = next((run for run in runs if (run.job, run.run) == (one.job, one.run)), None)
    if own is None or one.kind == "proposal" or not (hosts := _hosts(own)):
        return None
    first = None
    for run in sorted(runs, key=lambda run: run.at):
        is_attempt = run.job == own.job and (run.run == own.run or run.run.startswith("attempt "))
        is_later = run.at > own.at and stem(run.job) == stem(own.job) and not is_attempt
        if not is_later or _hosts(run) != hosts or _has(run, one):
            continue
        there = replace(one, without="next_job", without_run=run.job, from_step=None)
        why = _why_not(own, run)
        if why is None:
            name = f"{run.job}, {run.run}" if run.job == one.job else run.job
            saved, noise = own.step_time_us - run.step_time_us, math.hypot(own.noise_us or 0.0, run.noise_us or 0.0)
            return _judged(replace(there, without_run=name), saved, 2 * noise, (own.steps, run.steps))
        first = first or _not_comparable(there, why)
    return first


def stem(job: str) -> str:
    """Return a job's name without the number of its run: `gpt` for `gpt-2026-11-02` and `gpt_run12`."""
    return _NUMBER.sub("", job) or job


def _hosts(run: JobRun) -> frozenset[str]:
    """Return the run's hosts; empty if one of them is unknown."""
    hosts = [one.host for one in run.ranks]
    return frozenset() if None in hosts else frozenset(host for host in hosts if host is not None)


def _has(run: JobRun, one: LedgerEntry) -> bool:
    """Return whether triage found the same cause in that run."""
    found = run.causes.get(one.about)
    return found is not None and (not one.hosts or not found or not set(found).isdisjoint(one.hosts))


def _why_not(own: JobRun, run: JobRun) -> WhyNotComparable | None:
    if run.world_size != own.world_size:
        return "other_world_size"
    if None not in (own.framework, run.framework) and own.framework != run.framework:
        return "other_framework"
    if own.samples is not None and run.samples is not None and own.samples != run.samples:
        return "other_samples"
    if own.operations is not None and run.operations is not None:
        if abs(own.operations - run.operations) > ALIKE * own.operations:
            return "other_work"
    elif own.samples is None or run.samples is None:
        return "other_work"  # nothing shows that it is the same
    return "few_steps" if own.noise_us is None or run.noise_us is None else None


_Side = tuple[StepHistory, Ints]
"""A history, and the indices of some of its steps."""


def _compared(
    one: LedgerEntry, with_it: _Side, without_it: _Side, *, sized: bool = False, spread: bool = False
) -> LedgerEntry:
    """Return the entry with the nearest steps of both sides compared, among steps in which ranks take as many samples.

    `sized`: only the total of samples has to be equal. `spread`: the price is spread over the steps with the fault, so
    all of these and their mean count.
    """
    (before, had), (after, lacks) = with_it, without_it
    had = had if spread else had[-MOST:]
    usual = np.median(before.us["samples"][had], axis=0)
    if sized:
        alike = after.us["samples"][lacks].sum(axis=1) == usual.sum()
    else:
        had = had[(before.us["samples"][had] == usual).all(axis=1)]
        alike = (after.us["samples"][lacks] == usual).all(axis=1)
    enough, lacks = len(lacks) >= FEWEST, lacks[alike][:MOST]
    if min(len(had), len(lacks)) < FEWEST:
        return _not_comparable(one, "other_samples" if enough and len(lacks) < FEWEST else "few_steps")
    middle = np.mean if spread else np.median
    sides = [np.median(of.us["step"], axis=1)[at] for of, at in ((before, had), (after, lacks))]
    noise = math.hypot(*(noise_of(side, middle) or 0.0 for side in sides))
    saved = float(middle(sides[0])) - float(middle(sides[1]))
    return _judged(one, saved, 2 * noise, (len(had), len(lacks)))


def _judged(one: LedgerEntry, saved_us: float, noise_us: float, steps: tuple[int, int]) -> LedgerEntry:
    off = saved_us - one.predicted_us
    came: Came = "came_true" if abs(off) <= WITHIN * one.predicted_us + noise_us else "more" if off > 0 else "less"
    noisy = noise_us > NOISIEST * one.predicted_us
    return replace(
        one,
        came="not_comparable" if noisy else came,
        why="noisy" if noisy else None,
        actual_us=saved_us,
        noise_us=noise_us,
        ratio=saved_us / one.predicted_us if one.predicted_us > 0 and not noisy else None,
        steps_with=steps[0],
        steps_without=steps[1],
    )


def _not_comparable(one: LedgerEntry, why: WhyNotComparable) -> LedgerEntry:
    return replace(one, came="not_comparable", why=why)


def _unless_together(one: LedgerEntry, entries: Sequence[LedgerEntry]) -> LedgerEntry:
    """Merge an entry with another of the same run that ended at the same time: each saved what both did."""
    if not one.has_come or one.without != "same_run" or one.from_step is None:
        return one
    for other in entries:
        is_other = other is not one and (other.job, other.run) == (one.job, one.run) and other.kind == one.kind
        if is_other and other.from_step is not None and abs(other.from_step - one.from_step) <= FEWEST:
            return replace(one, came="not_comparable", why="together", ratio=None)
    return one
