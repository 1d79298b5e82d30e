"""The map of who was late when: its cells, how dark each is, and the darkest of a block of them."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.frozen import dataclass

LATE: Final = (0.02, 0.05, 0.15, 0.4)
"""Of the step: lateness from which a cell of the map is one level darker."""


@dataclass(frozen=True)
class Lateness:
    """The map."""

    ranks: Ints
    """Ascending."""
    steps: Ints
    """Ascending."""
    late_us: Floats
    """(ranks × steps): 0 where a rank was not late, or has no such step."""
    step_us: float
    """The median step, which levels are shares of; at least a nanosecond."""
    sampled: bool = True
    """Whether it is of the steps whose operations are recorded; else of all that the history of steps has."""

    def levels(self, values_us: Floats) -> Ints:
        """How dark each is: how many of LATE it reaches."""
        return np.searchsorted(np.array(LATE) * self.step_us, values_us, side="right")

    def worst(self, ranks: Sequence[int], steps: Sequence[int]) -> tuple[int, int, float]:
        """Return the rank and the step, positions among `ranks` and `steps` of the map, that was latest, and how late
        in µs.

        `ranks` and `steps` are positions, at least one of each.
        """
        part = self.late_us[np.ix_(ranks, steps)]
        row, column = np.unravel_index(int(np.argmax(part)), part.shape)
        return ranks[int(row)], steps[int(column)], float(part[row, column])


def darkest(late: Lateness, rows: Sequence[Sequence[int]], columns: Sequence[range]) -> Ints:
    """(rows × columns): the level of the latest cell of each block.

    `rows` holds positions of ranks for each line, `columns` a stretch of positions of steps; none of them is empty.
    """
    if not rows or not columns:
        return np.zeros((len(rows), len(columns)), dtype=np.int64)
    levels = late.levels(np.maximum.reduceat(late.late_us, [one.start for one in columns], axis=1))
    order = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
    return np.asarray(np.maximum.reduceat(levels[order], starts, axis=0))
