"""`kair frequency`: the time-frequency view."""

from typing import Annotated

from kair_engine.results.views import FrequencyResult
from kair_engine.trace.model import Trace
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.frequency"


def run(
    trace: Trace,
    *,
    operator: Annotated[
        str | None, Option("--operator", "The operator, or annotated scope, to count. Default: all.", metavar="NAME")
    ] = None,
    phase: Annotated[
        str | None, Option("--phase", "The phase to count: forward, backward, ...", metavar="NAME")
    ] = None,
    scope: Annotated[
        str | None,
        Option("--scope", "Only what runs within this annotated scope, such as Optimizer.step.", metavar="NAME"),
    ] = None,
    windows: Annotated[int, Option("--windows", "The number of time windows.", metavar="N", minimum=1)] = 100,
) -> FrequencyResult:
    """Asks the engine."""
    from kair_engine.views.frequency import frequency

    return frequency(trace, operator=operator, phase=phase, scope=scope, windows=windows)
