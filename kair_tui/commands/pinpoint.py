"""`kair pinpoint`: stage 2, one rank's outlying operators."""

from typing import Annotated

import typer

from kair_engine.model import Trace
from kair_engine.results import Method, PinpointResult
from kair_tui.commands.declarations import METHOD, RANK

RENDERER = "kair_tui.render.pinpoint"


def run(
    trace: Trace,
    *,
    rank: Annotated[int, RANK],
    method: Annotated[Method, METHOD] = "robust",
    limit: Annotated[
        int,
        typer.Option("--limit", metavar="N", help="At most this many outliers.", min=1, show_default=True),
    ] = 50,
) -> PinpointResult:
    """Asks the engine."""
    from kair_engine.stages.pinpoint import pinpoint

    return pinpoint(trace, rank=rank, method=method, limit=limit)
