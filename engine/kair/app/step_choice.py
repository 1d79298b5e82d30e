"""The grammar of `--step`: which steps of a job a question is about."""

import re
from collections.abc import Iterable, Sequence

from kair_engine.errors import UsageError
from kair_engine.frozen import dataclass
from kair_engine.ranks import runs

_PART = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


@dataclass(frozen=True)
class StepChoice:
    """Holds a choice of steps: `all`, `last`, or ranges of step numbers, both ends included."""

    ranges: tuple[tuple[int, int], ...] = ()
    last: bool = False

    def among(self, steps: Sequence[int]) -> tuple[int, ...] | None:
        """Return the chosen ones of `steps`, or None for all. A single number is kept even if it is not among them.

        Raises UsageError for a range without any step.
        """
        if self.last:
            return tuple(steps[-1:])
        if not self.ranges:
            return None
        return tuple(sorted({step for low, high in self.ranges for step in _within(low, high, steps)}))


def parse_steps(text: str) -> StepChoice:
    """Parse `40`, `40-60`, `40,45,50-52`, `last` or `all`. Raises UsageError for anything else."""
    wanted = text.strip().lower()
    if wanted in ("all", "last"):
        return StepChoice(last=wanted == "last")
    return StepChoice(tuple(_range(part.strip(), text) for part in wanted.split(",")))


def step_text(steps: Sequence[int]) -> str:
    """Return step numbers in the same grammar: `40,45,50-52`."""
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs(steps))


def _range(part: str, whole: str) -> tuple[int, int]:
    match = _PART.fullmatch(part)
    if match is None:
        raise UsageError(f"--step {whole!r} is not a choice of steps", "use 40, 40-60, 40,45,50-52, last or all")
    low = int(match[1])
    high = int(match[2] or match[1])
    if high < low:
        raise UsageError(f"--step {part}: the range runs backwards", f"use {high}-{low}")
    return low, high


def _within(low: int, high: int, steps: Sequence[int]) -> Iterable[int]:
    if low == high:
        return (low,)
    inside = [step for step in steps if low <= step <= high]
    if not inside:
        known = f"{steps[0]}-{steps[-1]}" if steps else "none"
        raise UsageError(f"no step of {low}-{high} is among the complete steps of this job ({known})")
    return inside
