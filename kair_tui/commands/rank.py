"""`kair rank`: how one rank's step time is spent, and how its operations complete compared with its peers'."""

from typing import Annotated

from kair.app.question import Question
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.rank"


def run(
    *,
    rank: Annotated[
        int | None,
        Option("-r, --rank", "The rank to look at. Default: the first of localize's ranking.", metavar="R", minimum=0),
    ] = None,
) -> Question:
    """Return the question."""
    return Question.of("rank", **locals())
