"""`kair triage`: the whole investigation."""

from kair_engine.model import Trace
from kair_engine.results import TriageResult

RENDERER = "kair_tui.render.triage"


def run(trace: Trace) -> TriageResult:
    """Asks the engine."""
    from kair_engine.triage import triage

    return triage(trace)
