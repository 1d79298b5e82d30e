"""`kair whatif`: computes how fast the job would be without its stragglers, and what each part costs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kair.app.question import Answer, Question
from kair_engine.results.money import GpuCost
from kair_engine.results.whatif import WhatifResult
from kair_tui.cli.options import GPU_COST, Option
from kair_tui.render.whatif import whatif_in_words

if TYPE_CHECKING:
    from kair_tui.cli.asking import Asker

RENDERER = "kair_tui.render.whatif"


def run(
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
            "Price other durations: op='flash*':0.5 makes them half as long, kind=compute:even as long as the mean "
            "of ranks and steps. Can be repeated.",
            metavar="WHAT:FACTOR",
        ),
    ] = (),
    of_rank: Annotated[
        int | None, Option("-r, --rank", "Price a rank: the same as --fix rank=R.", metavar="R", minimum=0)
    ] = None,
    gpu_cost: Annotated[GpuCost | None, GPU_COST] = None,
    only_fixes: Annotated[
        bool, Option("--only-fixes", "Price the fixes and nothing else: faster on large jobs.")
    ] = False,
    remedy: Annotated[
        Sequence[str],
        Option(
            "--remedy",
            "Price a published remedy: zb-h1, zb-2p, zb-cpu, reschedule, larger-microbatches, redealt-microbatches or "
            "partial-collectives. Can be repeated.",
            metavar="NAME",
        ),
    ] = (),
    timeline: Annotated[
        Path | None,
        Option(
            "--perfetto, --timeline",
            "Also write both timelines, recorded and ideal, for ui.perfetto.dev.",
            metavar="FILE",
        ),
    ] = None,
) -> Question:
    """Return the question; `timeline` is written once it is answered."""
    return Question.of("whatif", **{name: value for name, value in locals().items() if name != "timeline"})


def finish(asker: "Asker", answer: Answer, own: Mapping[str, Any]) -> None:
    """Write the requested timelines. Raises UsageError or UnwritableError if that is impossible."""
    if own["timeline"] is not None:
        from kair.app.acts.files import write_timelines

        fixes = {name: own[name] for name in ("fix", "scale", "of_rank")}
        write_timelines(asker.session.given(answer.question), own["timeline"], **fixes)


def in_words(answer: Answer) -> WhatifResult:
    """Return the result as text for people."""
    return whatif_in_words(answer.result)
