"""`kair compare`: what changed between two runs."""

from typing import Annotated

from kair.app.question import Question
from kair_tui.cli.completion import job_names
from kair_tui.cli.options import Argument, Option

RENDERER = "kair_tui.render.compare"


def run(
    *,
    base: Annotated[str, Argument("The run before: a job of the store, or a path.", offers=job_names)],
    new: Annotated[str, Argument("The run after: a job of the store, or a path.", offers=job_names)],
    step: Annotated[
        str, Option("--step", "The steps of NEW to compare: 40, 40-60, 40,45,50-52, last or all.", metavar="STEPS")
    ] = "all",
    base_step: Annotated[
        str, Option("--base-step", "The steps of BASE to compare; the same forms.", metavar="STEPS")
    ] = "all",
) -> Question:
    """Return the question."""
    return Question.of("compare", **locals())
