"""Holds the job's steps over time, which evidence is compared with, and the job's own measurements as evidence."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.evidence.series import Series
from kair_engine.frozen import dataclass
from kair_engine.trace.measures import EvidenceSource
from kair_engine.trace.model import NOT_RECORDED, StepTimes

STEPS: Final = EvidenceSource("steps", "capture", "host", bound_s=0.0)
"""Measurements that ranks take in each of their steps: complete, except for missing steps."""


@dataclass(frozen=True)
class Course:
    """Steps over time; matrices are (steps × ranks)."""

    ranks: Ints
    steps: Ints
    begin_ns: Ints
    """(steps,) begin of the earliest rank, Unix."""
    end_ns: Ints
    """(steps,) end of the latest rank, Unix."""
    own_us: Floats | None
    """Step time without waiting for other ranks; None if not known."""
    step_us: float
    """Median step time."""
    spent: tuple[tuple[int, Series], ...] = ()
    """Time that each rank measured within its steps, as counters."""

    def onset_ns(self, step: int) -> int | None:
        """Return when a step began; None if the step is not known."""
        at = np.flatnonzero(self.steps == step)
        return int(self.begin_ns[at[0]]) if len(at) else None


def course_of(
    rank: Ints, step: Ints, begin_ns: Ints, length_ns: Ints, *, own_us: Floats | None, spent_us: Mapping[str, Floats]
) -> Course | None:
    """Return the course of rows, one per rank and step; None if there are no rows.

    `spent_us` maps a measure (in seconds) to what each step spent, NaN where it was not measured.
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
    rows = []
    for at, number in enumerate(ranks.tolist()):
        of = np.flatnonzero(column == at)
        of = of[np.argsort(begin_ns[of], kind="stable")]
        rows += [(number, one) for one in _spent(begin_ns[of], length_ns[of], {k: v[of] for k, v in spent_us.items()})]
    return Course(ranks, steps, begin, end, own, float(np.median(length_ns)) / 1e3, tuple(rows))


def course_of_times(times: StepTimes) -> Course | None:
    """Return the course of a recording's steps: without own times, with the operating system's measurements."""
    columns = {
        "process_run_delay": times.delay_ns,
        "process_cpu_time": times.cpu_ns,
    }
    spent = {}
    for name, column in columns.items():
        if column:
            values = np.array(column, np.float64)
            spent[name] = np.where(values == NOT_RECORDED, np.nan, values / 1e3)
    rank, step, begin, length = (
        np.array(one, np.int64) for one in (times.rank, times.step, times.begin_ns, times.duration_ns)
    )
    return course_of(rank, step, begin, length, own_us=None, spent_us=spent)


def _spent(begin_ns: Ints, length_ns: Ints, spent_us: Mapping[str, Floats]) -> list[Series]:
    """Return what each step spent; measures that no step has are left out."""
    found = []
    for name, values in spent_us.items():
        if np.isnan(values).all() or not len(begin_ns):
            continue
        spent = np.nan_to_num(values) / 1e6
        found.append(Series(name, "rank", None, None, STEPS, "rank", begin_ns, spent, length_ns=length_ns))
    return found
