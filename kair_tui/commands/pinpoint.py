"""`kair pinpoint`: stage 2, one rank's outlying operators."""

from typing import Annotated

from kair_engine.results import Method, StepClock
from kair_engine.results.pinpoint import PinpointResult
from kair_engine.trace.model import Trace
from kair_tui.cli.options import CLOCK, METHOD, RANK, Option, require_paper

RENDERER = "kair_tui.render.pinpoint"


def run(
    trace: Trace,
    *,
    rank: Annotated[int, RANK],
    method: Annotated[Method, METHOD] = "robust",
    clock: Annotated[StepClock, CLOCK] = "rank",
    limit: Annotated[int, Option("--limit", "Show at most this many outliers.", metavar="N", minimum=1)] = 50,
) -> PinpointResult:
    """Asks the engine."""
    from kair_engine.pinpoint import pinpoint

    require_paper(method, clock)

    return pinpoint(trace, rank=rank, method=method, limit=limit, clock=clock)
