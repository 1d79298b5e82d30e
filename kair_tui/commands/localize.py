"""`kair localize`: stage 1, a score for every rank."""

from typing import Annotated

import typer

from kair_engine.results.common import Method
from kair_engine.results.localize import GroupBy, LocalizeResult
from kair_engine.trace.model import Trace
from kair_tui.cli.shared_options import METHOD

RENDERER = "kair_tui.render.views.localize"


def run(
    trace: Trace,
    *,
    method: Annotated[Method, METHOD] = "robust",
    whole_run: Annotated[
        bool,
        typer.Option("--whole-run", help="Paper method: windows over the whole recording, not per step."),
    ] = False,
    normalized: Annotated[
        bool, typer.Option("--normalized", help="Paper method: cumulative shares instead of raw counts.")
    ] = False,
    by: Annotated[
        GroupBy, typer.Option("--by", help="Sum the scores up by host or role too.", show_default=True)
    ] = "rank",
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Paper method: the distance of every two ranks too.")
    ] = False,
) -> LocalizeResult:
    """Asks the engine."""
    from kair_engine.localize.analysis import localize

    return localize(trace, method=method, whole_run=whole_run, normalized=normalized, by=by, matrix=matrix)
