"""Prices faults: step times with some operations replaced by their peers' ideal [W §3], of any recording."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.frozen import dataclass
from kair_engine.results.fix import Fix
from kair_engine.trace.model import Trace
from kair_engine.whatif.inexact_replay import step_errors
from kair_engine.whatif.model import Baseline, Counterfactual
from kair_engine.whatif.operators.batches import Batch, batches, beside

if TYPE_CHECKING:
    from kair_engine.whatif.operators.steady.batch import SteadyBatch


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
        return step_errors(self.replayed_ns, self.measured_ns)


def price_steps(trace: Trace, scenarios: Sequence[Fix | Sequence[Fix]]) -> StepPrices:
    """Replays every chosen step once for each scenario: a fix, or several that are made together."""
    fixes = [(one,) if isinstance(one, Fix) else tuple(one) for one in scenarios]
    excess: dict[int, float] = dict.fromkeys(trace.job.ranks, 0.0)

    def look(batch: "Batch | SteadyBatch") -> None:
        for rank, nanoseconds in batch.excess_ns():
            excess[rank] += nanoseconds / len(trace.steps)

    asked: list[Counterfactual] = [Baseline.RECORDED, Baseline.UNDELAYED, *fixes]
    measured, replayed = replayed_steps(batches(trace, len(asked)), asked, look)
    return StepPrices(trace.steps, measured, replayed[0], replayed[1], replayed[2:], excess)


def replayed_steps(
    of: Iterable["Batch | SteadyBatch"],
    asked: list[Counterfactual],
    look: Callable[["Batch | SteadyBatch"], None] | None = None,
    more: Callable[[Floats], Sequence[Counterfactual]] | None = None,
) -> tuple[Floats, Floats]:
    """(each step's time as recorded, (counterfactuals × steps) replayed), ns; batches are looked at in passing.

    Once the first was looked at, `more` may say what else to ask, given its steps' times: that is appended to `asked`.
    """
    results, carried = [], None
    for batch in of:
        carried, times = batch.times(asked, carried)
        if look is not None:
            look(batch)
        if more is not None:
            besides = [one for one in dict.fromkeys(more(times[0])) if one not in asked]
            if besides:
                carried, times = beside((carried, times), batch.times(besides, None))
                asked += besides
            more = None
        results.append(times)
        del batch  # or it is still there while the next one is made
    measured, replayed = (np.concatenate(times) for times in zip(*results, strict=True))
    return measured, replayed.T
