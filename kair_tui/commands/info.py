"""`kair info`: what the recording holds."""

from typing import Annotated

import typer

from kair_engine.model import Trace
from kair_engine.results import InfoResult

RENDERER = "kair_tui.render.info"


def run(
    trace: Trace,
    *,
    operators: Annotated[bool, typer.Option("--operators", help="Every operator and how often it ran too.")] = False,
) -> InfoResult:
    """Asks the engine."""
    from kair_engine.overview import info

    return info(trace, operators=operators)
