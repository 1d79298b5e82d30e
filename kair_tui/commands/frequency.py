"""`kair frequency`: the time-frequency view."""

from typing import Annotated

import typer

from kair_engine.model import Trace
from kair_engine.results import FrequencyResult

RENDERER = "kair_tui.render.frequency"


def run(
    trace: Trace,
    *,
    operator: Annotated[
        str | None, typer.Option("--operator", metavar="NAME", help="The operator to count; else all.")
    ] = None,
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="NAME", help="The stage to count: forward, backward, ...")
    ] = None,
    windows: Annotated[
        int, typer.Option("--windows", metavar="N", help="Windows of time.", min=1, show_default=True)
    ] = 100,
) -> FrequencyResult:
    """Asks the engine."""
    from kair_engine.frequency import frequency

    return frequency(trace, operator=operator, stage=stage, windows=windows)
