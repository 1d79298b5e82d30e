"""`kair info`: what the recording holds."""

from typing import Annotated

import typer

from kair_engine.results.info import InfoResult
from kair_engine.trace.model import Trace

RENDERER = "kair_tui.render.views.info"


def run(
    trace: Trace,
    *,
    operators: Annotated[bool, typer.Option("--operators", help="Every operator and how often it ran too.")] = False,
) -> InfoResult:
    """Asks the engine."""
    from kair_engine.views.overview import info

    return info(trace, operators=operators)
