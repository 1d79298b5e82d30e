"""`kair blame`: stage 3, which follows waiting back to its root causes."""

from typing import Annotated

from kair.app.question import Question
from kair_engine.results import Method, StepClock
from kair_tui.cli.options import CLOCK, METHOD, Option

RENDERER = "kair_tui.render.blame"


def run(
    *,
    rank: Annotated[
        int | None, Option("-r, --rank", "Show only what this rank is blamed for.", metavar="R", minimum=0)
    ] = None,
    operator: Annotated[
        str | None, Option("--operator", "Only operators whose name contains this.", metavar="NAME")
    ] = None,
    method: Annotated[Method, METHOD] = "robust",
    clock: Annotated[StepClock, CLOCK] = "rank",
    limit: Annotated[int, Option("--limit", "Show at most this many paths.", metavar="N", minimum=1)] = 20,
) -> Question:
    """Return the question."""
    return Question.of("blame", **locals())
