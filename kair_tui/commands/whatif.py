"""`kair whatif`: how fast the job would be without its stragglers, and what each part costs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from kair_engine.results.whatif import WhatifResult
from kair_engine.trace.model import Trace
from kair_tui.cli.parameters import Option

RENDERER = "kair_tui.render.views.whatif"


def run(
    trace: Trace,
    *,
    fix: Annotated[
        Sequence[str],
        Option(
            "--fix",
            "Price a fix: rank=16, host=NAME, stage=3, op='ncclDev*' or kind=input. Can be repeated.",
            metavar="FIX",
        ),
    ] = (),
    scale: Annotated[
        Sequence[str],
        Option(
            "--scale",
            "Price other durations: op='flash*':0.5 makes them half as long. Can be repeated.",
            metavar="WHAT:FACTOR",
        ),
    ] = (),
    gpu_cost: Annotated[
        float | None,
        Option(
            "--gpu-cost", "The price of a GPU hour; fixes are then priced in money too.", metavar="PRICE", minimum=0
        ),
    ] = None,
    only_fixes: Annotated[
        bool, Option("--only-fixes", "Price the fixes and nothing else: faster on large jobs.")
    ] = False,
    timeline: Annotated[
        Path | None,
        Option("--timeline", "Also write both timelines, recorded and ideal, for Perfetto.", metavar="FILE"),
    ] = None,
) -> WhatifResult:
    """Asks the engine."""
    from kair_engine.whatif.analysis import whatif, write_timeline
    from kair_engine.whatif.fixes import parse_fix, parse_scale

    fixes = [*map(parse_fix, fix), *map(parse_scale, scale)]
    if only_fixes:
        from kair_engine.whatif.only_fixes import whatif_of_fixes  # loads both models

        result = whatif_of_fixes(trace, fixes, gpu_cost=gpu_cost)
    else:
        result = whatif(trace, fixes, gpu_cost=gpu_cost)
    if timeline is not None:
        write_timeline(trace, timeline)
    return result
