"""`kair rank`: where one rank's step time goes, and how its operations complete beside its peers'."""

from typing import Annotated

from kair.app.question import Question
from kair_tui.cli.options import RANK

RENDERER = "kair_tui.render.rank"


def run(
    *,
    rank: Annotated[int, RANK],
) -> Question:
    """Return the question."""
    return Question.of("rank", **locals())
