"""`kair frequency`: the time-frequency view."""

from typing import Annotated

from kair.app.question import Question
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.frequency"


def run(
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
    only_rank: Annotated[
        int | None, Option("-r, --rank", "Show only this rank's windows; its peers are still all other ranks.", "R", 0)
    ] = None,
) -> Question:
    """Return the question."""
    return Question.of("frequency", **locals())
