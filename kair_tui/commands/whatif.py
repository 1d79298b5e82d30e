"""`kair whatif`: how fast the job would be without its stragglers, and what each part costs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from kair_engine.errors import UsageError
from kair_engine.results.whatif import WhatifResult
from kair_engine.trace.model import Trace
from kair_tui.cli.job import OneEntryCache
from kair_tui.cli.options import Option
from kair_tui.render.whatif import WhatifInWords, whatif_in_words

RENDERER = "kair_tui.render.whatif"


def run(
    trace: Trace,
    *,
    fix: Annotated[
        Sequence[str],
        Option(
            "--fix",
            "Price a fix: rank=16, host=NAME, stage=3, op='ncclDev*', scope='Optimizer.step*' or kind=input. "
            "Can be repeated.",
            metavar="FIX",
        ),
    ] = (),
    scale: Annotated[
        Sequence[str],
        Option(
            "--scale",
            "Price other durations: op='flash*':0.5 makes them half as long, kind=compute:even as long as in the mean "
            "of ranks and steps. Can be repeated.",
            metavar="WHAT:FACTOR",
        ),
    ] = (),
    of_rank: Annotated[
        int | None, Option("-r, --rank", "Price a rank: the same as --fix rank=R.", metavar="R", minimum=0)
    ] = None,
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
    cache: OneEntryCache | None = None,
) -> WhatifInWords:
    """Asks the engine. The job's model, and what it told, stay in `cache` for the next question."""
    from kair_engine.whatif.analysis import (
        Questions,
        leads,
        model_asked_of,
        price_fixes,
        whatif_of,
        with_absorbed,
        write_timeline,
    )
    from kair_engine.whatif.fixes import parse_fix, parse_scale

    if of_rank is not None:
        fix = (*fix, f"rank={of_rank}")
    fixes = [*map(parse_fix, fix), *map(parse_scale, scale)]
    if only_fixes and not fixes:
        raise UsageError("there is no fix to price", "name one: --fix rank=3, or --scale op='flash*':0.5")
    named = {rank for one in fixes for rank in one.ranks or ()}.intersection(trace.job.ranks)
    if cache is None:
        model = model_asked_of(trace, named=named)
        result = (price_fixes if only_fixes else whatif_of)(model, fixes, gpu_cost=gpu_cost)
    else:
        asked = cache.of(
            trace.steps,
            lambda: Questions(model_asked_of(trace, keep=True, named=named)),
            lambda known: named <= {*known.model.job.ranks},
        )
        model = asked.model
        result = (partial(price_fixes, model) if only_fixes else asked.whatif)(fixes, gpu_cost=gpu_cost)
    if timeline is not None:
        write_timeline(model, timeline)
    result = with_absorbed(_as_typed(result, [*fix, *scale]), fixes, trace.job, lambda: leads(trace))
    return whatif_in_words(result)


def _as_typed(result: WhatifResult, texts: Sequence[str]) -> WhatifResult:
    """Fixes go by what was typed; their price together has a name of its own."""
    typed = [replace(price, fix=text) for price, text in zip(result.fixes, texts, strict=False)]
    return replace(result, fixes=(*typed, *result.fixes[len(typed) :]))
