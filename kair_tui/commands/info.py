"""`kair info`: what the recording holds."""

from dataclasses import replace
from typing import Annotated

from kair_engine.results.views import InfoResult
from kair_engine.trace.model import Trace, require_rank
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.info"


def run(
    trace: Trace,
    *,
    operators: Annotated[bool, Option("--operators", "Also list every operator and how often it ran.")] = False,
    only_rank: Annotated[
        int | None, Option("-r, --rank", "Of the table of ranks, only this one.", metavar="R", minimum=0)
    ] = None,
) -> InfoResult:
    """Asks the engine.

    Raises InputError where the steps of a captured job cannot be read, UsageError for a rank that left no trace.
    """
    from kair_engine.views.overview import info
    from kair_tui.cli.attempts import attempts_of
    from kair_tui.cli.identities import identities_of

    if only_rank is not None:
        require_rank(trace, only_rank)
    of_ranks = identities_of(trace.job)
    identities = tuple(of_ranks[rank] for rank in sorted(of_ranks) if only_rank in (None, rank))
    found = replace(info(trace, operators=operators), attempts=attempts_of(trace.job), identities=identities)
    if only_rank is None:
        return found
    return replace(found, by_rank=tuple(row for row in found.by_rank if row.rank == only_rank))
