"""`kair timeline`: draws what every rank did over time, around a delay."""

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
            "--around, -r, --rank",
            "The rank whose delay is in the middle. Default: the one waited for longest.",
            "R",
            0,
        ),
    ] = None,
    operator: Annotated[
        str | None, Option("--operator", "The rank's latest operation whose name contains this.", metavar="NAME")
    ] = None,
    at: Annotated[
        float | None,
        Option("--at", "The rank's operation at this time in its step, in µs, as pinpoint and blame print it.", "US"),
    ] = None,
    collectives: Annotated[
        int,
        Option("--collectives", "How many collectives before and after the delay are shown.", metavar="N", minimum=0),
    ] = 2,
    whole: Annotated[bool, Option("--whole", "Show the whole step.")] = False,
    begin: Annotated[
        float | None, Option("--from", "Where the view begins, in µs from the earliest start of the step.", "US")
    ] = None,
    end: Annotated[float | None, Option("--to", "Where the view ends.", metavar="US")] = None,
    ranks: Annotated[str | None, Option("--ranks", "Only these ranks: 0-63.", metavar="A-B")] = None,
    rows: Annotated[
        int, Option("--rows", "The most rows; a row may stand for several ranks and shows the worst.", "N", 1)
    ] = 64,
    windows: Annotated[int, Option("--windows", "The number of time windows.", metavar="N", minimum=1)] = 400,
    unfold: Annotated[
        Sequence[int], Option("--unfold", "A rank whose threads and streams are shown. Can be repeated.", "R", 0)
    ] = (),
    cursor: Annotated[
        str | None,
        Option("--cursor", "Show what runs on a rank at this time: 3@1250.5, in µs as for --from.", metavar="R@US"),
    ] = None,
    fix: Annotated[
        Sequence[str],
        Option(
            "--fix",
            "Also draw the step as replayed with this fix, written as for `kair whatif`: rank=3+kind=compute. "
            "Can be repeated. The whole step is shown unless --from or --to is given.",
            metavar="FIX",
        ),
    ] = (),
    scale: Annotated[
        Sequence[str],
        Option("--scale", "The same with other durations: op='flash*':0.5. Can be repeated.", metavar="WHAT:FACTOR"),
    ] = (),
    perfetto: Annotated[Path | None, PERFETTO] = None,
) -> Question:
    """Return the question; `perfetto` is written once it is answered."""
    return Question.of("timeline", **{name: value for name, value in locals().items() if name != "perfetto"})


def finish(asker: "Asker", _: Answer, own: Mapping[str, Any]) -> None:
    """Write the requested file. Raises UsageError or UnwritableError if that is impossible."""
    if own["perfetto"] is not None:
        from kair.app.acts.files import export_timeline

        export_timeline(asker.trace, own["perfetto"])
