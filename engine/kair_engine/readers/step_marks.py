"""Where training steps begin and end, from marks of any profiler: ranges with numbers, ranges that repeat."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from kair_engine.readers.columns import Int64s
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
        if not kept or begin >= kept[-1][2]:
            kept.append((number, begin, end))
    columns = np.array(kept, np.int64).reshape(-1, 3)
    return Steps(columns[:, 0], columns[:, 1], columns[:, 2], inferred_from)


def one_step(extent: tuple[int, int]) -> Steps:
    """The whole recording as one step."""
    return Steps(np.array([0]), np.array([extent[0]]), np.array([extent[1]]), is_whole_recording=True)


def marked_steps(marks: Sequence[Mark]) -> Steps | None:
    """The steps that ranges tell: those with numbers (`step 12`), else one that repeats (`train_step`).

    Of several families the one that names a step, then the one that covers most time. None where no family of at
    least two ranges, one after another, is there.
    """
    families: dict[str, list[tuple[int | None, Mark]]] = {}
    for mark in marks:
        if (named := _stem_and_number(mark.name)) is not None:
            families.setdefault(named[0], []).append((named[1], mark))
    candidates = [found for stem, some in families.items() if (found := _family(stem, some)) is not None]
    return max(candidates, key=_worth, default=None)


@lru_cache(1 << 14)  # a recording has few names, and each of them many times
def _stem_and_number(name: str) -> tuple[str, int | None] | None:
    """Of a range that may be a step what its name begins with, and the number it ends with; None of another."""
    numbered = _NUMBERED.match(name)
    stem = numbered["stem"] if numbered else name
    if _NO_STEP.search(stem) or (stem and not _STEP_WORD.search(stem)):
        return None
    return stem, int(numbered["number"]) if numbered else None


def _family(stem: str, some: list[tuple[int | None, Mark]]) -> Steps | None:
    numbers = [number for number, _ in some]
    ascending = all(number is not None for number in numbers) and len(set(numbers)) == len(numbers)
    ordered = sorted(some, key=lambda one: one[1].begin)
    windows = [
        (number if ascending and number is not None else at, mark.begin, mark.end)
        for at, (number, mark) in enumerate(ordered)
    ]
    found = steps_of(windows, None if ascending else stem)
    # A single range is a step only where it carries a number.
    return found if len(found.number) >= (1 if ascending else 2) else None


def _worth(steps: Steps) -> tuple[bool, int]:
    return steps.inferred_from is None, int((steps.end - steps.begin).sum())
