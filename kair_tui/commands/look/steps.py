"""`kair steps`: the time of every step on every rank."""

from kair_engine.results.steps import StepsResult
from kair_engine.trace.model import Trace

RENDERER = "kair_tui.render.views.steps"


def run(trace: Trace) -> StepsResult:
    """Asks the engine."""
    from kair_engine.views.overview import steps

    return steps(trace)
