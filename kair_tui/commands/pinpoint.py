"""`kair pinpoint`: stage 2, one rank's outlying operators."""

from typing import Annotated

import typer

from kair_engine.results.common import Method
from kair_engine.results.pinpoint import PinpointResult
from kair_engine.trace.model import Trace
from kair_tui.cli.shared_options import METHOD, RANK

RENDERER = "kair_tui.render.views.pinpoint"


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
    from kair_engine.pinpoint.analysis import pinpoint

    return pinpoint(trace, rank=rank, method=method, limit=limit)
