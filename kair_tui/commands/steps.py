"""`kair steps`: shows the time of every step on every rank."""

from typing import Annotated

from kair.app.question import Question
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.steps"


def run(
    *,
    scopes: Annotated[
        bool,
        Option(
            "--scopes",
            "For a captured job, also show each part of the step on each rank, and since when one is longer.",
        ),
    ] = False,
    attempt: Annotated[
        int | None,
        Option("--attempt", "With --scopes: which attempt of the job. Default: the last.", metavar="N", minimum=1),
    ] = None,
    only_rank: Annotated[int | None, Option("-r, --rank", "Only this rank's steps.", metavar="R", minimum=0)] = None,
) -> Question:
    """Return the question."""
    return Question.of("steps", **locals())
