"""`kair frequency`: the time-frequency view."""

from dataclasses import replace
from typing import Annotated

from kair_engine.results.views import FrequencyResult
from kair_engine.trace.model import Trace, require_rank
from kair_tui.cli.options import Option

RENDERER = "kair_tui.render.frequency"


def run(
    trace: Trace,
    *,
    operator: Annotated[
        str | None, Option("--operator", "The operator, or annotated scope, to count. Default: all.", metavar="NAME")
    ] = None,
    phase: Annotated[
        str | None, Option("--phase", "The phase to count: forward, backward, ...", metavar="NAME")
    ] = None,
    scope: Annotated[
        str | None,
        Option("--scope", "Only what runs within this annotated scope, such as Optimizer.step.", metavar="NAME"),
    ] = None,
    windows: Annotated[int, Option("--windows", "The number of time windows.", metavar="N", minimum=1)] = 100,
    only_rank: Annotated[
        int | None, Option("-r, --rank", "Only this rank's windows; its peers are all others still.", "R", 0)
    ] = None,
) -> FrequencyResult:
    """Asks the engine. Raises UsageError for a rank that left no trace."""
    from kair_engine.views.frequency import frequency

    if only_rank is None:
        return frequency(trace, operator=operator, phase=phase, scope=scope, windows=windows)
    require_rank(trace, only_rank)
    found = frequency(trace, operator=operator, phase=phase, scope=scope, windows=windows)
    return replace(
        found,
        counts=tuple(row for row in found.counts if row.rank == only_rank),
        degraded=tuple(row for row in found.degraded if row.rank == only_rank),
    )
