"""`kair rank`: shows how one rank spends its steps, and how its operations compare with its peers'."""

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
