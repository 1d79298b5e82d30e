"""`kair operators`: shows how long operators ran, by type, on all ranks."""

from typing import Annotated

from kair.app.question import Question
from kair_engine.results.views import OperatorType
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.operators"


def run(
    *,
    operator: Annotated[
        str | None, Option("--operator", "Only operators whose name contains this.", metavar="NAME")
    ] = None,
    type: Annotated[OperatorType | None, Option("--type", "Only operators of this type.")] = None,  # noqa: A002
    by_rank: Annotated[bool, Option("--by-rank", "Also show what each rank spent on each.")] = False,
    limit: Annotated[int, Option("--limit", "List at most this many operators.", metavar="N", minimum=1)] = 40,
) -> Question:
    """Return the question."""
    return Question.of("operators", **locals())
