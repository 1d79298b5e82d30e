"""`kair info`: what the recording holds."""

from typing import Annotated

from kair_engine.results.views import InfoResult
from kair_engine.trace.model import Trace
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.info"


def run(
    trace: Trace,
    *,
    operators: Annotated[bool, Option("--operators", "Also list every operator and how often it ran.")] = False,
) -> InfoResult:
    """Asks the engine."""
    from kair_engine.views.overview import info

    return info(trace, operators=operators)
