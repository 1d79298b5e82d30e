"""What a fault costs: step times with some operations replaced by their peers' ideal [W §3], for any recording."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.trace.model import Trace
from kair_engine.whatif.fixes import Fix
from kair_engine.whatif.operators.batches import batches


@dataclass(frozen=True)
class StepPrices:
    """Step times in ns: the median over ranks, or the slowest's where no collective makes the others wait."""

    steps: tuple[int, ...]
    measured_ns: Floats
    replayed_ns: Floats
    """With nothing changed."""
    undelayed_ns: Floats
    """Without the delays that no edge explains, all else as recorded."""
    scenario_ns: Floats
    """(scenarios × steps). NaN for steps whose operations wait for one another in a circle."""
    excess_ns: dict[int, float]
    """Per rank, of the mean step, by how much its operations exceed their peers' ideal in sum: at most so much longer
    is a step in which only this rank is as recorded."""

    @property
    def replay_error(self) -> Floats:
        """Per step |replayed − measured| / measured."""
        return np.asarray(np.abs(self.replayed_ns - self.measured_ns) / np.maximum(self.measured_ns, 1.0))

    @property
    def saved_ns(self) -> Floats:
        """Per scenario the mean over steps of what it saves; NaN where no step could be replayed."""
        known = ~np.isnan(self.replayed_ns)
        if not known.any():
            return np.full(len(self.scenario_ns), np.nan)
        return np.asarray((self.replayed_ns - self.scenario_ns)[:, known].mean(axis=1))


def price_steps(trace: Trace, scenarios: Sequence[Fix | Sequence[Fix]]) -> StepPrices:
    """Replays every chosen step once for each scenario: a fix, or several that are made together."""
    fixes = [(one,) if isinstance(one, Fix) else tuple(one) for one in scenarios]
    results, carried = [], None
    excess: dict[int, float] = dict.fromkeys(trace.job.ranks, 0.0)
    asked = [(), None, *fixes]
    for batch in batches(trace, len(asked)):
        carried, times = batch.times(asked, carried)
        results.append(times)
        for rank, nanoseconds in batch.excess_ns():
            excess[rank] += nanoseconds / len(trace.steps)
        del batch  # or it is still there while the next one is made
    measured, replayed = (np.concatenate(of) for of in zip(*results, strict=True))
    return StepPrices(trace.steps, measured, replayed[:, 0], replayed[:, 1], replayed[:, 2:].T, excess)
