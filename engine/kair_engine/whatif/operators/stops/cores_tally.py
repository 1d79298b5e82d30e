"""Adds up what was measured of ranks' threads over several batches of steps."""

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.frozen import dataclass
from kair_engine.results.whatif import LackOfCores
from kair_engine.timeline.processor_time import UNTOLD_SHARE
from kair_engine.whatif.operators.stops.measured import MeasuredStops

_READY, _COMPUTED, _LOST, _COMMUNICATION, _THROTTLED, _HALTED, _HELPED, _TOLD, _STEPS = range(9)
"""Columns of the sums."""


@dataclass
class CoresTally:
    """Sums per rank."""

    of_rank: dict[int, Floats] = field(default_factory=dict)

    def add(self, measured: MeasuredStops, lost_ns: Floats, ranks: Sequence[Ints]) -> None:
        """Adds a batch; per step `ranks` are those that it has."""
        told = measured.told.astype(float)
        columns = np.stack(
            [
                measured.delay_ns,
                measured.cpu_ns,
                lost_ns,
                measured.communication_delay_ns,
                measured.throttled,
                measured.halted,
                measured.helpers_cpu_ns,
                told,
                np.ones(len(told)),
            ],
            axis=1,
        )
        first = 0
        for of_step in ranks:
            mine = columns[first : first + len(of_step)]
            first += len(of_step)
            for rank, row in zip(of_step.tolist(), mine, strict=True):
                self.of_rank[rank] = self.of_rank.get(rank, 0.0) + row

    def result(self) -> LackOfCores | None:
        """Per step that was measured; None where that are too few of some rank's."""
        rows = [row for _, row in sorted(self.of_rank.items())]
        if not rows or any(row[_TOLD] < (1 - UNTOLD_SHARE) * row[_STEPS] for row in rows):
            return None

        def by_rank(column: int) -> dict[int, float]:
            return {rank: float(row[column] / row[_TOLD]) / 1e3 for rank, row in sorted(self.of_rank.items())}

        return LackOfCores(
            ready_by_rank_us=by_rank(_READY),
            computed_by_rank_us=by_rank(_COMPUTED),
            lost_by_rank_us=by_rank(_LOST),
            communication_by_rank_us=by_rank(_COMMUNICATION),
            helpers_by_rank_us=by_rank(_HELPED),
            throttled=float(np.mean([row[_THROTTLED] / row[_TOLD] for row in rows])),
            halted=float(np.mean([row[_HALTED] / row[_TOLD] for row in rows])),
        )
