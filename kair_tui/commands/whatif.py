"""`kair whatif`: how fast the job would be without its stragglers, and what each part costs."""

from pathlib import Path
from typing import Annotated

import typer

from kair_engine.results.whatif import WhatifResult
from kair_engine.trace.model import Trace

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
) -> WhatifResult:
    """Asks the engine."""
    from kair_engine.whatif.analysis import whatif, write_timeline
    from kair_engine.whatif.fixes import parse_fix, parse_scale

    fixes = [*map(parse_fix, fix or ()), *map(parse_scale, scale or ())]
    if only_fixes:
        from kair_engine.whatif.only_fixes import whatif_of_fixes  # loads both models

        result = whatif_of_fixes(trace, fixes, gpu_cost=gpu_cost)
    else:
        result = whatif(trace, fixes, gpu_cost=gpu_cost)
    if timeline is not None:
        write_timeline(trace, timeline)
    return result
