"""`kair ledger`: compares what was predicted for the store's jobs with what came true."""

from typing import Annotated

from kair.app.question import Question
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.ledger"


def run(
    *,
    job: Annotated[str | None, Option("--job", "Only predictions about this job.", metavar="NAME")] = None,
) -> Question:
    """Return the question."""
    return Question.of("ledger", **locals())
