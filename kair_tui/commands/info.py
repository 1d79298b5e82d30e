"""`kair info`: shows what the recording holds."""

from typing import Annotated

from kair.app.question import Question
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.info"


def run(
    *,
    operators: Annotated[bool, Option("--operators", "Also list every operator and how often it ran.")] = False,
    only_rank: Annotated[
        int | None, Option("-r, --rank", "Show only this rank in the table of ranks.", metavar="R", minimum=0)
    ] = None,
) -> Question:
    """Return the question."""
    return Question.of("info", **locals())
