"""`kair frequency`: the time-frequency view."""

from typing import Annotated

import typer

from kair_engine.results.frequency import FrequencyResult
from kair_engine.trace.model import Trace

RENDERER = "kair_tui.render.views.frequency"


def run(
    trace: Trace,
    *,
    operator: Annotated[
        str | None, typer.Option("--operator", metavar="NAME", help="The operator to count; else all.")
    ] = None,
    phase: Annotated[
        str | None, typer.Option("--phase", metavar="NAME", help="The phase to count: forward, backward, ...")
    ] = None,
    windows: Annotated[
        int, typer.Option("--windows", metavar="N", help="Windows of time.", min=1, show_default=True)
    ] = 100,
) -> FrequencyResult:
    """Asks the engine."""
    from kair_engine.views.frequency import frequency

    return frequency(trace, operator=operator, phase=phase, windows=windows)
