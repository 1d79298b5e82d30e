"""`kair whatif`: how fast the job would be without its stragglers, and what each part costs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kair_engine.errors import UsageError
from kair_engine.results.whatif import WhatifResult
from kair_engine.trace.model import Trace
from kair_tui.cli.kept import Kept

RENDERER = "kair_tui.render.views.whatif"


def run(
    trace: Trace,
    *,
    fix: Annotated[
        list[str] | None,
        typer.Option("--fix", help="Price this: rank=16, host=…, stage=…, op='ncclDev*', kind=input; repeatable."),
    ] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option("--scale", help="Price other durations: op='flash*':0.5 is twice as fast; repeatable."),
    ] = None,
    gpu_cost: Annotated[
        float | None,
        typer.Option("--gpu-cost", min=0.0, help="What a GPU costs per hour: fixes priced in money."),
    ] = None,
    only_fixes: Annotated[
        bool,
        typer.Option("--only-fixes", help="Price the fixes and nothing else: quicker on large jobs."),
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option("--timeline", metavar="FILE", help="Also write both timelines, recorded and ideal, for Perfetto."),
    ] = None,
    kept: Kept | None = None,
) -> WhatifResult:
    """Asks the engine. The job's model stays with `kept` for the next question."""
    from kair_engine.whatif.analysis import price_fixes, whatif_of, write_timeline
    from kair_engine.whatif.fixes import parse_fix, parse_scale
    from kair_engine.whatif.models import model_of

    fixes = [*map(parse_fix, fix or ()), *map(parse_scale, scale or ())]
    if only_fixes and not fixes:
        raise UsageError("there is no fix to price", "name one: --fix rank=3, or --scale op='flash*':0.5")
    model = model_of(trace) if kept is None else kept.of(trace.steps, lambda: model_of(trace, keep=True))
    result = (price_fixes if only_fixes else whatif_of)(model, fixes, gpu_cost=gpu_cost)
    if timeline is not None:
        write_timeline(model, timeline)
    return _as_typed(result, [*(fix or ()), *(scale or ())])


def _as_typed(result: WhatifResult, texts: Sequence[str]) -> WhatifResult:
    """Fixes go by what was typed; their price together has a name of its own."""
    typed = [replace(price, fix=text) for price, text in zip(result.fixes, texts, strict=False)]
    return replace(result, fixes=(*typed, *result.fixes[len(typed) :]))
