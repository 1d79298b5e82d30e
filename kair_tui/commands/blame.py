"""`kair blame`: stage 3, from waiting back to its root causes."""

from typing import Annotated

from kair_engine.results import Method, StepClock
from kair_engine.results.blame import BlameResult
from kair_engine.trace.model import Trace
from kair_tui.cli.options import CLOCK, METHOD, Option, require_paper

RENDERER = "kair_tui.render.blame"


def run(
    trace: Trace,
    *,
    rank: Annotated[
        int | None, Option("-r, --rank", "Only what this rank is blamed for.", metavar="R", minimum=0)
    ] = None,
    operator: Annotated[
        str | None, Option("--operator", "Only operators whose name contains this.", metavar="NAME")
    ] = None,
    method: Annotated[Method, METHOD] = "robust",
    clock: Annotated[StepClock, CLOCK] = "rank",
    limit: Annotated[int, Option("--limit", "Show at most this many paths.", metavar="N", minimum=1)] = 20,
) -> BlameResult:
    """Asks the engine."""
    from kair_engine.blame.analysis import blame

    require_paper(method, clock)

    return blame(trace, rank=rank, operator=operator, method=method, limit=limit, clock=clock)
