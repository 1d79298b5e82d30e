"""`kair timeline`: what every rank did over time, around a delay."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kair.app.question import Answer, Question
from kair_tui.cli.options import PERFETTO, Option

if TYPE_CHECKING:
    from kair_tui.cli.asking import Asker

RENDERER = "kair_tui.render.timeline"


def run(
    *,
    around: Annotated[
        int | None,
        Option(
            "--around, -r, --rank", "The rank whose delay is in the middle. Default: the longest waited for.", "R", 0
        ),
    ] = None,
    operator: Annotated[
        str | None, Option("--operator", "Its operation whose name contains this, the latest of them.", metavar="NAME")
    ] = None,
    at: Annotated[
        float | None,
        Option("--at", "Its operation at this time of its step, in µs as pinpoint and blame have it.", "US"),
    ] = None,
    collectives: Annotated[
        int, Option("--collectives", "Collectives before and after it that are in view.", metavar="N", minimum=0)
    ] = 2,
    whole: Annotated[bool, Option("--whole", "The whole step in view.")] = False,
    begin: Annotated[
        float | None, Option("--from", "Where the view begins, in µs from the step's earliest begin.", "US")
    ] = None,
    end: Annotated[float | None, Option("--to", "Where it ends.", metavar="US")] = None,
    ranks: Annotated[str | None, Option("--ranks", "Only these ranks: 0-63.", metavar="A-B")] = None,
    rows: Annotated[
        int, Option("--rows", "At most so many rows; each stands for several ranks, the worst shown.", "N", 1)
    ] = 64,
    windows: Annotated[int, Option("--windows", "The number of time windows.", metavar="N", minimum=1)] = 400,
    unfold: Annotated[
        Sequence[int], Option("--unfold", "A rank whose threads and streams are shown. Can be repeated.", "R", 0)
    ] = (),
    cursor: Annotated[
        str | None, Option("--cursor", "What runs on a rank at a time: 3@1250.5, in µs as --from.", metavar="R@US")
    ] = None,
    fix: Annotated[
        Sequence[str],
        Option(
            "--fix",
            "Draw the same step below as replayed with this fixed, as `kair whatif` takes it: rank=3+kind=compute. "
            "Can be repeated. The whole step is in view, unless --from or --to is given.",
            metavar="FIX",
        ),
    ] = (),
    scale: Annotated[
        Sequence[str],
        Option("--scale", "The same with other durations: op='flash*':0.5. Can be repeated.", metavar="WHAT:FACTOR"),
    ] = (),
    perfetto: Annotated[Path | None, PERFETTO] = None,
) -> Question:
    """Return the question; the file of `perfetto` is written once it is answered."""
    return Question.of("timeline", **{name: value for name, value in locals().items() if name != "perfetto"})


def finish(asker: "Asker", _: Answer, own: Mapping[str, Any]) -> None:
    """Write the file that was asked for. Raises UsageError or UnwritableError where that cannot be done."""
    if own["perfetto"] is not None:
        from kair.app.acts.files import export_timeline

        export_timeline(asker.trace, own["perfetto"])
