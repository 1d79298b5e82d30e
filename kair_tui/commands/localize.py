"""`kair localize`: stage 1, which scores every rank."""

from typing import Annotated

from kair.app.question import Question
from kair_engine.results import Method, StepClock
from kair_engine.results.localize import GroupBy
from kair_tui.cli.options import CLOCK, METHOD, ONLY_RANK, Option

RENDERER = "kair_tui.render.localize"


def run(
    *,
    method: Annotated[Method, METHOD] = "robust",
    clock: Annotated[StepClock, CLOCK] = "rank",
    whole_run: Annotated[
        bool, Option("--whole-run", "Paper method: windows over the whole recording, not per step.")
    ] = False,
    normalized: Annotated[
        bool, Option("--normalized", "Paper method: cumulative shares instead of raw counts.")
    ] = False,
    by: Annotated[GroupBy, Option("--by", "Also add up the scores of each host or role.")] = "rank",
    matrix: Annotated[bool, Option("--matrix", "Paper method: also the distance between every two ranks.")] = False,
    only_rank: Annotated[int | None, ONLY_RANK] = None,
) -> Question:
    """Return the question."""
    return Question.of("localize", **locals())
