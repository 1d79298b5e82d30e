"""Where training steps begin and end, from marks of any profiler: ranges with numbers, ranges that repeat."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from kair_engine.readers.columns import Int64s
from kair_engine.readers.kineto.classify import NameClass, name_class_of
from kair_engine.trace.model import KairWarning
from kair_engine.trace.warning_texts import short_warning

OUTSIDE: Final = -1
_LATEST: Final = 1 << 61
_MOST_STEPS: Final = 1 << 31
_NUMBERED: Final = re.compile(r"^(?P<stem>.*?)[\s#:=_\-\[(]*(?P<number>\d{1,9})[\])]?\s*$", re.DOTALL)
_STEP_WORD: Final = re.compile(
    r"(?:^|[^a-z])(?:step|iteration|iter|batch|profilerstep|train)(?:[^a-z]|$)", re.IGNORECASE
)
# Ranges around the optimizer's own step are no training steps.
_NO_STEP: Final = re.compile(r"optimi[sz]er|zero_grad|epoch|warm.?up|valid|eval", re.IGNORECASE)
_COUNTS: Final = re.compile(r"[\d\[({]")
"""Where a name begins to say which of many it is, how many requests it serves, of what sizes."""
_COUNT: Final = re.compile(r"\d{1,9}")
_FEWEST_NAMED: Final = 2
_FEWEST: Final = 3
"""Ranges that tell steps: of a name that says it is a step, and of any other."""
_ROUNDED_NS: Final = 1_000
"""By so little ranges one after another may overlap: times are written in microseconds."""
_SPANS: Final = 0.5
"""Share of the work that lies in ranges that span iterations."""


@dataclass(frozen=True)
class Mark:
    """A range that may be a step: its name, begin and end in ns."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class Steps:
    """Steps by their begin, which do not overlap: number, begin and end in ns."""

    number: Int64s
    begin: Int64s
    end: Int64s
    inferred_from: str | None = None
    """The range that tells them, where they carry no numbers."""
    is_whole_recording: bool = False
    """True where nothing tells steps, and the whole recording stands for one."""

    def index_at(self, moments: Int64s) -> Int64s:
        """The index of the step whose window holds each moment, or OUTSIDE."""
        index = np.searchsorted(self.begin, moments, "right") - 1
        inside = (index >= 0) & (moments < self.end[np.maximum(index, 0)])
        if self.is_whole_recording:
            inside |= moments == self.end[0]
        return np.where(inside, index, OUTSIDE)

    def warnings(self, source: Path, mark: str) -> tuple[KairWarning, ...]:
        """What is said where steps are not marked; `mark` is how the recorder would have marked them."""
        if self.is_whole_recording:
            text = f"{source.name} marks no steps ({mark}); the whole recording counts as one step"
            return (short_warning("no_step_marks", text),)
        if self.inferred_from is not None:
            text = f"{source.name} numbers no steps ({mark}); its {len(self.number)} steps are told by "
            return (short_warning("steps_inferred", text + self.inferred_from),)
        return ()


def steps_of(windows: Iterable[tuple[int, int, int]], inferred_from: str | None = None) -> Steps:
    """Steps from (number, begin, end); of two with one number the longer, of two that overlap the earlier.

    Windows that are none are left out: those that end before they begin, or at times that no clock reads.
    """
    longest: dict[int, tuple[int, int]] = {}
    for number, begin, end in windows:
        if not -_LATEST < begin <= end < _LATEST or not 0 <= number < _MOST_STEPS:
            continue
        if number not in longest or end - begin > longest[number][1] - longest[number][0]:
            longest[number] = (begin, end)
    kept: list[tuple[int, int, int]] = []
    for number, (begin, end) in sorted(longest.items(), key=lambda item: item[1]):
        if not kept or begin >= kept[-1][2] - _ROUNDED_NS:
            kept.append((number, begin, end))
    columns = np.array(kept, np.int64).reshape(-1, 3)
    return Steps(columns[:, 0], columns[:, 1], columns[:, 2], inferred_from)


def one_step(extent: tuple[int, int]) -> Steps:
    """The whole recording as one step."""
    return Steps(np.array([0]), np.array([extent[0]]), np.array([extent[1]]), is_whole_recording=True)


def marked_steps(marks: Sequence[Mark], work: Int64s) -> Steps | None:
    """The steps that ranges of one thread tell: those with numbers (`step 12`), else one that spans each iteration.

    `work` are the moments at which something was called, launched or run, in order. A range spans iterations where more
    than half of that lies in it: `train_step`, a server's `execute_context_0(0)_generation_8(8)`. None where no range
    does.
    """
    found = max(_numbered(marks), key=_time, default=None)
    return _spanning(marks, work) if found is None else found


def _numbered(marks: Sequence[Mark]) -> Iterator[Steps]:
    """The steps of each name that says it is one and gives every range another number."""
    families: dict[str, list[tuple[int | None, Mark]]] = {}
    for mark in marks:
        if (named := _stem_and_number(mark.name)) is not None:
            families.setdefault(named[0], []).append((named[1], mark))
    for some in families.values():
        numbers = {number for number, _ in some}
        if None not in numbers and len(numbers) == len(some):
            found = steps_of((number, mark.begin, mark.end) for number, mark in some if number is not None)
            if len(found.number):
                yield found


@lru_cache(1 << 14)  # a recording has few names, and each of them many times
def _stem_and_number(name: str) -> tuple[str, int | None] | None:
    """Of a range that may be a step what its name begins with, and the number it ends with; None of another."""
    numbered = _NUMBERED.match(name)
    stem = numbered["stem"] if numbered else name
    if _NO_STEP.search(stem) or (stem and not _STEP_WORD.search(stem)):
        return None
    return stem, int(numbered["number"]) if numbered else None


def _time(steps: Steps) -> int:
    return int((steps.end - steps.begin).sum())


def _spanning(marks: Sequence[Mark], work: Int64s) -> Steps | None:
    """The steps of the ranges, alike but for what their names count, that most of the work lies in.

    Of several with as much in them those that name a step, then the outermost.
    """
    families: dict[str, list[Mark]] = {}
    for mark in marks:
        if (stem := _stem(mark.name)) is not None:
            families.setdefault(stem, []).append(mark)
    best: tuple[tuple[bool, float, int, int], Steps] | None = None
    for stem, some in families.items():
        windows = _outermost(some)
        names_a_step = bool(_STEP_WORD.search(stem))
        if len(windows) < (_FEWEST_NAMED if names_a_step else _FEWEST):
            continue
        begin, end = np.array([(one.begin, one.end) for one in windows], np.int64).T.copy()
        within = np.searchsorted(work, end) - np.searchsorted(work, begin)
        share = float(within.sum()) / max(len(work), 1)
        worth = (names_a_step, round(share, 1), -len(windows), int((end - begin).sum()))
        if share > _SPANS and (best is None or worth > best[0]):
            best = worth, _one_after_another(stem.strip(), begin, end)
    return None if best is None else best[1]


@lru_cache(1 << 14)
def _stem(name: str) -> str | None:
    """What is the same in the names of all iterations; None of a range that is a part of one."""
    if _NO_STEP.search(name) or name_class_of(name) not in (NameClass.PLAIN, NameClass.STEP):
        return None
    return name[:1] + _COUNTS.split(name[1:], maxsplit=1)[0]


def _outermost(some: list[Mark]) -> list[Mark]:
    """The ranges in none of the others, in order; those that are counted from the start in each iteration as one."""
    windows: list[Mark] = []
    for mark in sorted(some, key=lambda one: (one.begin, -one.end)):
        if not windows or mark.end > windows[-1].end:
            windows.append(mark)
    numbers = [int(found[0]) if (found := _COUNT.search(one.name)) else -1 for one in windows]
    firsts = [at for at, number in enumerate(numbers) if number == min(numbers)]
    apart = {later - sooner for sooner, later in pairwise(firsts)}
    if len(apart) != 1 or apart == {1}:
        return windows
    (each,) = apart
    whole = [range(first, first + each) for first in firsts if first + each <= len(windows)]
    if any(numbers[at] >= numbers[at + 1] for of in whole for at in of[:-1]):
        return windows
    return [Mark(windows[of[0]].name, windows[of[0]].begin, windows[of[-1]].end) for of in whole]


def _one_after_another(stem: str, begin: Int64s, end: Int64s) -> Steps:
    """What runs between two ranges belongs to the step of the first, unless it takes longer than a step."""
    until = np.append(begin[1:], end[-1])
    end = np.where(until - end <= np.median(end - begin), until, end)
    return Steps(np.arange(len(begin)), begin, end, stem)
