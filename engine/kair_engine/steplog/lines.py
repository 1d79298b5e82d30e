"""The lines of steps of one job's log, as columns of numbers: what reading makes and analysis takes."""

from dataclasses import field
from pathlib import Path

import numpy as np

from kair_engine.arrays import Bools, Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank
from kair_engine.steplog.formats import StepFormat


@dataclass(frozen=True)
class Phases:
    """Times of phases of steps: equally long columns."""

    name: tuple[str, ...] = ()
    """What the numbers in `code` stand for."""
    code: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    line: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """The place of the step's line."""
    rank: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """-1 where it is not printed."""
    seconds: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class StepLines:
    """The lines of steps of one job's log, in the order in which they were read: equally long columns."""

    form: StepFormat
    source: tuple[Path, ...]
    file: Ints
    """Which of `source` it is from."""
    step: Ints
    value: Floats
    """As printed; `times_of` makes times of it."""
    rank: Ints
    """-1 where nothing says it."""
    skipped: Bools
    """Whether loss scaling skipped the step."""
    work: Floats
    """How many samples or tokens the step had; NaN where that is not printed."""
    total: Ints
    """Where a bar or an epoch ends; -1 where that is not printed."""
    stamp_s: Floats
    """When it was printed; NaN where that is not known."""
    elapsed_s: Floats
    """Of bars: since they began; NaN elsewhere."""
    phases: Phases = field(default_factory=Phases)
    world_size: int | None = None
    dropped: int = 0
    """Lines before these, which are more than are kept."""
    ranks_are_sure: bool = True

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Return the ranks that print lines or phases of their own."""
        printed = np.union1d(self.rank, self.phases.rank)
        return tuple(map(Rank, printed[printed >= 0].tolist()))
