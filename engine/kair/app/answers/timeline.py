"""The answer of `timeline`: what every rank did over time."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kair.app.question import Given
from kair_engine.errors import UsageError
from kair_engine.ranks import Rank
from kair_engine.results.timeline import TimelineResult

if TYPE_CHECKING:
    from kair_engine.results.whatif import Fix


def timeline(
    given: Given,
    *,
    around: Rank | None = None,
    operator: str | None = None,
    at: float | None = None,
    collectives: int = 2,
    whole: bool = False,
    begin: float | None = None,
    end: float | None = None,
    ranks: str | None = None,
    rows: int = 64,
    windows: int = 400,
    unfold: Sequence[Rank] = (),
    cursor: str | None = None,
    fix: Sequence[str] = (),
    scale: Sequence[str] = (),
) -> TimelineResult:
    """Return what every rank did over time around a delay, and keep the prepared step for the next question."""
    from kair_engine.views.timeline import View, asked_ranks, covers, step_to_show
    from kair_engine.views.timeline import timeline as draw
    from kair_engine.views.timeline_prepared import prepare

    trace = given.trace
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
    prepared = make() if given.cache is None else given.cache.of(step, make, lambda known: covers(known, view))
    if not fixes:
        return draw(trace, view, prepared)
    from kair_engine.views.timeline_replayed import replayed_step, timeline_with_fixes

    replayed = prepared.once(("fixed", fixes), partial(replayed_step, trace, prepared, fixes))
    return timeline_with_fixes(view, trace, prepared, replayed, texts)


def _fixes(fix: Sequence[str], scale: Sequence[str]) -> "tuple[Fix, ...]":
    if not fix and not scale:
        return ()
    from kair_engine.results.fixes import parse_fix, parse_scale

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
