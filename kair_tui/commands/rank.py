"""`kair rank`: where one rank's step time goes, and how its operations complete beside its peers'."""

from typing import Annotated

from kair_engine.results.rank import RankProfileResult
from kair_engine.trace.model import Trace
from kair_tui.cli.options import RANK

RENDERER = "kair_tui.render.rank"


def run(
    trace: Trace,
    *,
    rank: Annotated[int, RANK],
) -> RankProfileResult:
    """Asks the engine."""
    from kair_engine.views.rank_profile import rank_profile

    return rank_profile(trace, rank=rank)
