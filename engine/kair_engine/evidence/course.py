"""The job's steps over time, as evidence is held against them; and what the job itself measured, as evidence."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.evidence.series import Series
from kair_engine.frozen import dataclass
from kair_engine.trace.measures import EvidenceSource
from kair_engine.trace.model import NOT_TOLD, StepTimes

STEPS: Final = EvidenceSource("steps", "capture", "host", bound_s=0.0)
"""What ranks told of each of their steps: no sampling, no gap but where a step is missing."""


@dataclass(frozen=True)
class Course:
    """Steps that ranks have in common; matrices are (steps × ranks)."""

    ranks: Ints
    steps: Ints
    begin_ns: Ints
    """(steps,) of the earliest rank, Unix."""
    end_ns: Ints
    """(steps,) of the latest rank, Unix."""
    own_us: Floats | None
    """Without what was waited for other ranks; None where that is not known."""
    step_us: float
    """The median step."""
    spent: tuple[tuple[int, Series], ...] = ()
    """What each rank told that its steps spent, as counters."""

    def onset_ns(self, step: int) -> int | None:
        """When a step began; None for one that is not known."""
        at = np.flatnonzero(self.steps == step)
        return int(self.begin_ns[at[0]]) if len(at) else None


def course_of(
    rank: Ints, step: Ints, begin_ns: Ints, length_ns: Ints, *, own_us: Floats | None, spent_us: Mapping[str, Floats]
) -> Course | None:
    """Of rows, one for each rank and step; `spent_us` by the name of a measure in seconds, NaN where it is not told.

    Return None where no step is known of any rank.
    """
    if not len(rank):
        return None
    ranks, steps = np.unique(rank), np.unique(step)
    row, column = np.searchsorted(steps, step), np.searchsorted(ranks, rank)
    begin = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(begin, row, begin_ns)
    end = np.zeros(len(steps), np.int64)
    np.maximum.at(end, row, begin_ns + length_ns)
    own = None
    if own_us is not None:
        own = np.full((len(steps), len(ranks)), np.nan)
        own[row, column] = own_us
    told = []
    for at, number in enumerate(ranks.tolist()):
        of = np.flatnonzero(column == at)
        of = of[np.argsort(begin_ns[of], kind="stable")]
        told += [(number, one) for one in _spent(begin_ns[of], length_ns[of], {k: v[of] for k, v in spent_us.items()})]
    return Course(ranks, steps, begin, end, own, float(np.median(length_ns)) / 1e3, tuple(told))


def course_of_times(times: StepTimes) -> Course | None:
    """Of a recording's steps, whose own times are not known, with what the system measured in them."""
    columns = {
        "process_run_delay": times.delay_ns,
        "process_cpu_time": times.cpu_ns,
    }
    spent = {}
    for name, column in columns.items():
        if column:
            values = np.array(column, np.float64)
            spent[name] = np.where(values == NOT_TOLD, np.nan, values / 1e3)
    rank, step, begin, length = (
        np.array(one, np.int64) for one in (times.rank, times.step, times.begin_ns, times.duration_ns)
    )
    return course_of(rank, step, begin, length, own_us=None, spent_us=spent)


def _spent(begin_ns: Ints, length_ns: Ints, spent_us: Mapping[str, Floats]) -> list[Series]:
    """Return what each step spent; a measure that no step tells is none."""
    found = []
    for name, values in spent_us.items():
        if np.isnan(values).all() or not len(begin_ns):
            continue
        spent = np.nan_to_num(values) / 1e6
        found.append(Series(name, "rank", None, None, STEPS, "rank", begin_ns, spent, length_ns=length_ns))
    return found
