"""`kair timeline`: what every rank did over time, around a delay."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from kair_engine.errors import UsageError
from kair_engine.results.timeline import TimelineResult
from kair_engine.trace.model import Trace
from kair_tui.cli.job import OneEntryCache
from kair_tui.cli.options import Option

if TYPE_CHECKING:
    from kair_engine.results.whatif import Fix

RENDERER = "kair_tui.render.timeline"


def run(
    trace: Trace,
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
    cache: OneEntryCache | None = None,
) -> TimelineResult:
    """Asks the engine. The step made ready stays in `cache` for the next question."""
    from kair_engine.views.timeline import View, asked_ranks, covers, step_to_show, timeline
    from kair_engine.views.timeline_prepared import prepare

    texts = (*fix, *scale)
    fixes = _fixes(fix, scale)
    view = View(
        rank=around,
        operator=operator,
        at_us=at,
        collectives=collectives,
        whole=whole or (bool(fixes) and begin is None and end is None),
        begin_us=begin,
        end_us=end,
        ranks=_range(ranks),
        rows=rows,
        windows=windows,
        unfold=tuple(unfold),
        cursor=_moment(cursor),
    )
    if trace.job.host_times is None:
        _require_within_step({"--at": at, "--from": begin, "--to": end, "--cursor": view.cursor and view.cursor[1]})
    step = step_to_show(trace)
    make = partial(prepare, trace, step, asked_ranks(view), view.ranks)
    prepared = make() if cache is None else cache.of(step, make, lambda known: covers(known, view))
    if not fixes:
        return timeline(trace, view, prepared)
    from kair_engine.views.timeline_replayed import replayed_step, timeline_with_fixes

    replayed = prepared.once(("fixed", fixes), partial(replayed_step, trace, prepared, fixes))
    return timeline_with_fixes(view, trace, prepared, replayed, texts)


def _fixes(fix: Sequence[str], scale: Sequence[str]) -> "tuple[Fix, ...]":
    if not fix and not scale:
        return ()
    from kair_engine.whatif.fixes import parse_fix, parse_scale

    return (*map(parse_fix, fix), *map(parse_scale, scale))


def _require_within_step(times: Mapping[str, float | None]) -> None:
    """Nothing of a step lies before it, unless hosts run ahead of their devices."""
    for option, us in times.items():
        if us is not None and us < 0:
            raise UsageError(f"{option} must be 0 or more, got {us:g}")


def _range(text: str | None) -> tuple[int, int] | None:
    """`0-63`, or `5` alone."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text.strip())
    if found is None:
        raise UsageError(f"--ranks {text!r} is no range of ranks", "use 0-63, or 5")
    return int(found[1]), int(found[2] or found[1])


def _moment(text: str | None) -> tuple[int, float] | None:
    """`3@1250.5`."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9})@(-?\d{1,15}(?:\.\d{1,9})?)", text.strip())
    if found is None:
        raise UsageError(f"--cursor {text!r} is no rank at a time", "use 3@1250.5")
    return int(found[1]), float(found[2])
