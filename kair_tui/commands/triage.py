"""`kair triage`: the whole investigation."""

from typing import Annotated

import typer

from kair_engine.model import Trace
from kair_engine.results import TriageResult

RENDERER = "kair_tui.render.triage"


def run(
    trace: Trace,
    *,
    gpu_cost: Annotated[
        float | None,
        typer.Option("--gpu-cost", min=0.0, help="What a GPU costs per hour: findings priced in money."),
    ] = None,
) -> TriageResult:
    """Asks the engine."""
    from kair_engine.triage import triage

    return triage(trace, gpu_cost=gpu_cost)
