"""`kair blame`: stage 3, from waiting back to its root causes."""

from typing import Annotated

import typer

from kair_engine.results.blame import BlameResult
from kair_engine.results.common import Method
from kair_engine.trace.model import Trace
from kair_tui.cli.shared_options import METHOD

RENDERER = "kair_tui.render.views.blame"


def run(
    trace: Trace,
    *,
    rank: Annotated[
        int | None,
        typer.Option("--rank", "-r", metavar="R", help="Only what this rank is blamed for.", min=0),
    ] = None,
    operator: Annotated[
        str | None, typer.Option("--operator", metavar="NAME", help="Only operators whose name contains this.")
    ] = None,
    method: Annotated[Method, METHOD] = "robust",
    limit: Annotated[
        int,
        typer.Option("--limit", metavar="N", help="At most this many paths.", min=1, show_default=True),
    ] = 20,
) -> BlameResult:
    """Asks the engine."""
    from kair_engine.blame.analysis import blame

    return blame(trace, rank=rank, operator=operator, method=method, limit=limit)
