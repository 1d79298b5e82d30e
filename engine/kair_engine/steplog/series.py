"""Makes the times of steps out of a log's lines: attempts, epochs, several processes, averages turned round."""

from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.steplog.lines import StepLines

MOST_STEPS: Final = 1_000_000
"""Analysed of an attempt: the last ones of a longer one."""
_MEMORY: Final = 0.7
"""tqdm's average keeps this part of itself with each step."""
_OF_EPOCH: Final = 0.98
"""A bar that was this full was at its end: the next one is the next epoch, and no restart."""
_SEVERAL: Final = 1.7
"""Lines of a step number, from which on several processes print."""
_TOLERANCE: Final = 3
"""Several processes may be apart by so many lines without having been started again."""
_APART: Final = 1 << 42
"""Between the keys of ranks: more steps than any job has."""
_LEVELS: Final = 8
"""Steps of more sizes than these are divided by their size; of fewer each size has its own level."""
_CHUNKS: Final = 20
_FEWEST_STAMPS: Final = 5


@dataclass(frozen=True)
class Attempt:
    """The steps of one start of the job, in their order: equally long columns."""

    step: Ints
    seconds: Floats
    every: int
    """Steps from a line to the next."""
    is_absolute: bool = True
    """Whether `seconds` are seconds; else they are in no unit."""

    def __len__(self) -> int:
        """Return how many steps have a time."""
        return len(self.step)


@dataclass(frozen=True)
class Series:
    """All attempts of a log, and what was done to its lines."""

    attempts: tuple[Attempt, ...]
    attempt_of: Ints
    """By line of the log its place in `attempts`; -1 for lines that were left out."""
    step_of: Ints
    """By line of the log: the step's number, counted on from epoch to epoch."""
    skipped: int
    """Lines of steps that loss scaling skipped."""
    processes: int
    """How many print each step."""
    by_work: bool
    """Whether times were divided by the steps' sizes."""


def series_of(lines: StepLines) -> Series:
    """Return the attempts of a log."""
    of_line, step_of = np.full(len(lines.step), -1), np.zeros(len(lines.step), np.int64)
    lines, places = _chosen(lines)
    attempt, step = np.zeros(len(lines.step), np.int64), lines.step.copy()
    seconds = np.full(len(step), np.nan)
    several = len(step) > _SEVERAL * len(np.unique((lines.rank + 1) * _APART + step % _APART))
    for rank in np.unique(lines.rank).tolist():
        own = np.flatnonzero(lines.rank == rank)
        attempt[own], step[own] = _attempts(lines, own, tolerant=several)
        for number in np.unique(attempt[own]).tolist():
            rows = own[attempt[own] == number]
            seconds[rows] = _times(lines, rows, step[rows])
    seconds, by_work = _by_work(seconds, lines.work)
    usable = np.isfinite(seconds) & (seconds > 0)
    # A skipped step runs no optimizer: it is compared with its like alone, and where there are no others.
    of_one_kind = usable & ~lines.skipped
    usable = of_one_kind if of_one_kind.sum() >= FEWEST else usable & lines.skipped if lines.skipped.any() else usable
    is_absolute, scale = lines.form.is_absolute, 1.0
    if not is_absolute and (known := _scale(lines, attempt, step, seconds)) is not None:
        is_absolute, scale = True, known
    numbers, number = np.unique(attempt[usable], return_inverse=True)
    made = tuple(
        _attempt(np.flatnonzero(usable & (attempt == one)), step, seconds * scale, is_absolute=is_absolute)
        for one in numbers.tolist()
    )
    of_line[places[usable]], step_of[places] = number.reshape(-1), step
    processes = max(len(np.unique(lines.rank)), round(len(step) / max(len(np.unique(step)), 1)) if several else 1)
    return Series(made, of_line, step_of, int((lines.skipped & ~usable).sum()), processes, by_work)


def _chosen(lines: StepLines) -> tuple[StepLines, Ints]:
    """Return the lines of the bar that has most steps, files in the order of their numbers; and where those were."""
    keep = np.ones(len(lines.step), bool)
    if lines.form.unit in ("tqdm", "keras") and len(lines.step):
        totals, at = np.unique(lines.total, return_inverse=True)
        if len(totals) > 1:
            distinct = [len(np.unique(lines.step[at == one])) for one in range(len(totals))]
            keep = at.reshape(-1) == int(np.argmax(distinct))
    places = np.flatnonzero(keep)
    places = places[_order_of_files(lines.file[places], lines.step[places], lines.rank[places])]
    columns = ("file", "step", "value", "rank", "skipped", "work", "total", "stamp_s", "elapsed_s")
    return replace(lines, **{name: getattr(lines, name)[places] for name in columns}), places


def _order_of_files(file: Ints, step: Ints, rank: Ints) -> Ints:
    """Files whose numbers do not overlap are read in the order of these: parts of one log."""
    files = np.unique(file).tolist()
    spans = [(step[file == one].min(), step[file == one].max(), one) for one in files]
    ordered = sorted(spans)
    apart = all(before[1] < after[0] for before, after in pairwise(ordered))
    if len(files) < 2 or not apart or len(np.unique(rank)) > 1:
        return np.arange(len(file))
    place = {one: at for at, (_, _, one) in enumerate(ordered)}
    return np.argsort([place[one] for one in file.tolist()], kind="stable")


def _attempts(lines: StepLines, rows: Ints, *, tolerant: bool) -> tuple[Ints, Ints]:
    """Return (the attempt of each line, its step counted on from epoch to epoch) of one process's lines."""
    step, total = lines.step[rows], lines.total[rows]
    ahead = np.maximum.accumulate(step) if tolerant else step
    forward = np.diff(step)
    spacing = int(np.median(forward[forward > 0])) if np.any(forward > 0) else 1
    back = np.zeros(len(step), bool)
    if not tolerant:
        back[1:] = forward < 0
        begins: Ints = np.flatnonzero(back)
    else:
        begins = _begins(step, _TOLERANCE * spacing)
    offset = np.zeros(len(step), np.int64)
    attempt = np.zeros(len(step), np.int64)
    for begin in begins.tolist():
        before = int(ahead[begin - 1])
        at_end = total[begin - 1] > 0 and before >= _OF_EPOCH * total[begin - 1]
        starts_anew = step[begin] <= 2 * spacing
        if lines.form.by_epoch and starts_anew and (at_end or total[begin - 1] < 0):
            offset[begin:] += max(before, int(total[begin - 1]))
        else:
            attempt[begin:] += 1
            offset[begin:] = 0
    return attempt, step + offset


def _begins(step: Ints, tolerance: int) -> Ints:
    found, ahead = [], int(step[0])
    for at, number in enumerate(step.tolist()):
        if number < ahead - tolerance:
            found.append(at)
            ahead = number
        ahead = max(ahead, number)
    return np.array(found, np.int64)


def _times(lines: StepLines, rows: Ints, step: Ints) -> Floats:
    """Time per step of each line of one attempt of one process; NaN where a line alone does not say it."""
    form, value = lines.form, lines.value[rows]
    positive = np.where(value > 0, value, np.nan)
    if form.unit == "tqdm":
        return _of_bar(positive, step, lines.elapsed_s[rows])
    if form.unit == "wall":
        return _difference(value, step)
    if form.window == "since_start":
        first = int(step[0])
        begin = 0 if len(step) < 2 or first <= int(step[1]) - first else 2 * first - int(step[1])
        done = (step - begin).astype(float)
        if form.unit == "keras":
            done = lines.step[rows].astype(float)
        whole = done * (1 / positive if form.unit == "per_s" else positive)
        times = _difference(whole, step)
        times[:1] = whole[:1] / np.maximum(done[:1], 1)
        if form.unit == "keras":  # each epoch's bar counts from its own begin
            fresh = np.flatnonzero(np.diff(lines.step[rows], prepend=0) < 0)
            times[fresh] = positive[fresh]
        return times
    if form.unit == "per_s":
        return 1 / positive
    return positive * (1e-3 if form.unit == "ms" else 1.0)


def _difference(whole: Floats, step: Ints) -> Floats:
    apart = np.diff(step).astype(float)
    gone = np.diff(whole)
    times = np.divide(gone, apart, out=np.full(len(gone), np.nan), where=(apart > 0) & (gone > 0))
    return np.concatenate(([np.nan], times))


def _of_bar(rate: Floats, step: Ints, elapsed: Floats) -> Floats:
    """tqdm's average with memory turned round, where each step has a line; else elapsed seconds over steps."""
    fresh = np.concatenate(([True], np.diff(step) > 0))
    times = np.full(len(step), np.nan)
    rows = np.flatnonzero(fresh & np.isfinite(rate))
    apart = np.diff(step[rows])
    if len(rows) < 2:
        return times
    if np.mean(apart == 1) < 0.9:  # nearly every step
        rows = np.flatnonzero(fresh)
        times[rows] = _difference(elapsed[rows], step[rows])
        return times
    averaged = rate[rows] * (1 - _MEMORY ** np.arange(1, len(rows) + 1))
    times[rows[1:]] = np.diff(averaged, prepend=0)[1:] / (1 - _MEMORY) + averaged[:-1]
    times[rows[0]] = rate[rows[0]]
    # A step of which the average says less than nothing was rounded: its neighbours are as long.
    times[times <= 0] = np.nan
    return times


def _by_work(seconds: Floats, work: Floats) -> tuple[Floats, bool]:
    """Return times as if all steps were of one size: where sizes are printed and differ."""
    known = np.isfinite(work) & (work > 0)
    if not len(work) or not np.all(known) or np.ptp(work) == 0:
        return seconds, False
    sizes, at = np.unique(work, return_inverse=True)
    if len(sizes) > _LEVELS:
        return seconds * (np.median(work) / work), True
    level = np.array([np.nanmedian(np.append(seconds[at.reshape(-1) == one], np.nan)) for one in range(len(sizes))])
    return seconds * (level[int(at.reshape(-1)[-1])] / level[at.reshape(-1)]), True


def _scale(lines: StepLines, attempt: Ints, step: Ints, ratio: Floats) -> float | None:
    """Return what makes seconds of times that are known but for a factor: by the stamps of lines.

    None without these.
    """
    factors: list[float] = []
    for number in np.unique(attempt).tolist():
        rows = np.flatnonzero((attempt == number) & np.isfinite(lines.stamp_s) & np.isfinite(ratio))
        rows = rows[np.concatenate(([True], np.diff(step[rows]) > 0))] if len(rows) else rows
        if len(rows) <= _FEWEST_STAMPS:
            continue
        apart = np.diff(step[rows])
        took, printed = np.diff(lines.stamp_s[rows]), ratio[rows[1:]] * apart
        parts = np.array_split(np.arange(len(apart)), min(_CHUNKS, len(apart)))
        sums = [(float(took[part].sum()), float(printed[part].sum())) for part in parts]
        factors += [seconds / relative for seconds, relative in sums if seconds > 0 and relative > 0]
    return float(np.median(factors)) if factors else None


def _attempt(rows: Ints, step: Ints, seconds: Floats, *, is_absolute: bool) -> Attempt:
    """One attempt; of several lines of a step the median."""
    rows = rows[np.argsort(step[rows], kind="stable")]
    numbers, first, count = np.unique(step[rows], return_index=True, return_counts=True)
    times = seconds[rows][first]
    for at in np.flatnonzero(count > 1).tolist() if count.max(initial=1) > 1 else ():
        times[at] = np.median(seconds[rows[first[at] : first[at] + count[at]]])
    numbers, times = numbers[-MOST_STEPS:], times[-MOST_STEPS:]
    every = int(np.median(np.diff(numbers))) if len(numbers) > 1 else 1
    return Attempt(numbers, times, max(every, 1), is_absolute)


FEWEST: Final = 12
"""Steps of an attempt, below which nothing is looked for."""
