"""`kair steps`: the time of every step on every rank."""

from kair_engine.model import Trace
from kair_engine.results import StepsResult

RENDERER = "kair_tui.render.steps"


def run(trace: Trace) -> StepsResult:
    """Asks the engine."""
    from kair_engine.overview import steps

    return steps(trace)
