"""`kair info`: what the recording holds."""

from kair_engine.model import Trace
from kair_engine.results import InfoResult

RENDERER = "kair_tui.render.info"


def run(trace: Trace) -> InfoResult:
    """Asks the engine."""
    from kair_engine.overview import info

    return info(trace)
