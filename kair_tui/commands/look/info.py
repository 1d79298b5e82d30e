"""`kair info`: what the recording holds."""

from typing import Annotated

from kair_engine.results.info import InfoResult
from kair_engine.trace.model import Trace
from kair_tui.cli.parameters import Option

RENDERER = "kair_tui.render.views.info"


def run(
    trace: Trace,
    *,
    operators: Annotated[bool, Option("--operators", "Also list every operator and how often it ran.")] = False,
) -> InfoResult:
    """Asks the engine."""
    from kair_engine.views.overview import info

    return info(trace, operators=operators)
