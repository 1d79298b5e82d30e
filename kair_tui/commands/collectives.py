"""`kair collectives`: bandwidth of groups and links, compared with their siblings; overlap; TFLOP/s of matmuls."""

from typing import Annotated

from kair.app.question import Question
from kair_engine.results.collectives import CollectiveKind
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.collectives"


def run(
    *,
    group: Annotated[
        str | None,
        Option("--group", "Only process groups whose name or list of ranks contains this.", metavar="PATTERN"),
    ] = None,
    kind: Annotated[CollectiveKind | None, Option("--kind", "Only collectives of this kind.")] = None,
    rank: Annotated[
        int | None, Option("-r, --rank", "Only groups and links to which this rank belongs.", metavar="R", minimum=0)
    ] = None,
    by_rank: Annotated[bool, Option("--by-rank", "Also show what each rank reaches.")] = False,
    limit: Annotated[int, Option("--limit", "List at most this many groups, and shapes.", metavar="N", minimum=1)] = 40,
) -> Question:
    """Return the question."""
    return Question.of("collectives", **locals())
