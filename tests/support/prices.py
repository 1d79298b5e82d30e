"""Prices of scenarios, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import Floats
from kair_engine.results.whatif import Fix
from kair_engine.trace.model import Trace
from kair_engine.whatif.analysis import model_of
from kair_engine.whatif.model import Baseline
from kair_engine.whatif.prices import replay_error, step_errors


def delayed_error(trace: Trace) -> float:
    """How far the mean step replayed with all delays is off the measured one."""
    replayed = model_of(trace).replay([Baseline.DELAYED])
    return replay_error(replayed.times[0], replayed.measured)


@dataclass(frozen=True)
class StepPrices:
    """Times of every step, ns."""

    measured_ns: Floats
    replayed_ns: Floats
    undelayed_ns: Floats
    scenario_ns: Floats
    """(scenarios × steps)."""

    @property
    def replay_error(self) -> Floats:
        """Per step |replayed − measured| / measured."""
        return step_errors(self.replayed_ns, self.measured_ns)

    @property
    def saved_ns(self) -> Floats:
        """Per scenario the mean over steps of what it saves."""
        return np.asarray((self.replayed_ns - self.scenario_ns).mean(axis=1))


def price_steps(trace: Trace, scenarios: Sequence[Fix | Sequence[Fix]]) -> StepPrices:
    """Replays every chosen step once for each scenario: a fix, or several that are made together."""
    fixes = [(one,) if isinstance(one, Fix) else tuple(one) for one in scenarios]
    done = model_of(trace).replay([Baseline.RECORDED, Baseline.UNDELAYED, *fixes])
    return StepPrices(done.measured, done.times[0], done.times[1], done.times[2:])
