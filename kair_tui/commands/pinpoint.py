"""`kair pinpoint`: stage 2, which finds one rank's outlying operators."""

from typing import Annotated

from kair.app.question import Question
from kair_engine.results import Method, StepClock
from kair_tui.cli.options import CLOCK, METHOD, RANK, Option

RENDERER = "kair_tui.render.pinpoint"


def run(
    *,
    rank: Annotated[int, RANK],
    method: Annotated[Method, METHOD] = "robust",
    clock: Annotated[StepClock, CLOCK] = "rank",
    limit: Annotated[int, Option("--limit", "Show at most this many outliers.", metavar="N", minimum=1)] = 50,
) -> Question:
    """Return the question."""
    return Question.of("pinpoint", **locals())
