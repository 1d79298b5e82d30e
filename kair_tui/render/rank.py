"""One rank for people: the parts of its step compared with its role's, and its completion curve in its peers' band."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kair_engine.results import SMALLEST_SHARE
from kair_engine.results.rank import CurveDistance, PartOfStep, RankProfileResult, SubgraphTime
from kair_tui.render.answer import DIM, Column
from kair_tui.render.delays import ON_DEVICES, lead_in_words
from kair_tui.render.drawing import bar, draw, mark_sign, signs
from kair_tui.render.text import short_name
from kair_tui.render.units import (
    duration,
    mean_of,
    or_dash,
    percent,
    plural,
    signed_duration,
    significant,
    whole_percent,
)
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

NAMES: Final = {"communication": "exposed communication"}
"""Names that say more than the engine's word."""
_BAR = 24
_SUBGRAPHS_SHOWN = 14
_WIDEST, _HEIGHT = 100, 12
_MARGIN = 7
_LABELS: Final = {0: "100 %", _HEIGHT // 2: "50 %", _HEIGHT - 1: "0 %"}


def part_name(row: PartOfStep) -> str:
    """Return a part's name."""
    return NAMES.get(row.part, row.part)


def difference_us(row: PartOfStep) -> float | None:
    """Return the excess over the role's median."""
    return None if row.typical_us is None else row.own_us - row.typical_us


def distance_text(farthest: CurveDistance) -> str:
    """Return where the curve is farthest from a peer's."""
    return (
        f"largest distance {percent(farthest.distance)} from rank {farthest.peer} at {duration(farthest.time_us)}: "
        f"{percent(farthest.completed)} completed, {percent(farthest.peer_completed)} there"
    )


def rank_headline(result: RankProfileResult) -> str:
    """Return the rank's step time, and what stands out in it."""
    role = "" if result.typical_step_time_us is None else f", its role's {duration(result.typical_step_time_us)}"
    where = f" ({ON_DEVICES})" if result.timed_on == "device" else ""
    return f"rank {result.rank}: {outstanding(result)}; its step takes {duration(result.step_time_us)}{where}{role}"


def outstanding(result: RankProfileResult) -> str:
    """Return the part that is most above its role's median; without peers, the largest."""
    if result.typical_step_time_us is None:
        largest = max(result.parts, key=lambda row: row.own_us)
        return f"the longest part of its step is {part_name(largest)}, {duration(largest.own_us)}"
    most = max(result.parts, key=lambda row: difference_us(row) or 0.0)
    if (difference_us(most) or 0.0) < SMALLEST_SHARE * result.step_time_us:
        return f"no part of its step is slower than its role's median by {whole_percent(SMALLEST_SHARE)} of the step"
    longer = duration(difference_us(most) or 0.0)
    return f"{part_name(most)} takes {duration(most.own_us)} a step, {longer} more than its role's median"


def difference_text(row: PartOfStep) -> str:
    """Return the excess over the role's median in words."""
    return or_dash(difference_us(row), signed_duration)


COLUMNS = (
    Column[PartOfStep]("part", "part of the step", part_name, align="left", weight=9),
    Column[PartOfStep]("own_us", "per step", lambda row: duration(row.own_us), weight=9),
    Column[PartOfStep]("typical_us", "role", lambda row: or_dash(row.typical_us, duration), weight=8),
    Column[PartOfStep]("", "difference", difference_text, weight=7),
    Column[PartOfStep]("share", "of step", lambda row: percent(row.share), weight=5),
)


_SUBGRAPHS = (
    Column[SubgraphTime]("subgraph", "phase or scope", lambda row: short_name(row.subgraph), align="left", weight=9),
    Column[SubgraphTime]("calls", "per step", lambda row: significant(row.calls), weight=4),
    Column[SubgraphTime]("own_us", "self time", lambda row: duration(row.own_us), weight=8),
    Column[SubgraphTime]("typical_us", "its role", lambda row: or_dash(row.typical_us, duration), weight=8),
    Column[SubgraphTime]("span_us", "within it", lambda row: or_dash(row.span_us, duration), weight=6),
    Column[SubgraphTime](
        "typical_span_us", "its role within", lambda row: or_dash(row.typical_span_us, duration), weight=5
    ),
)


def _body(result: RankProfileResult, page: Page) -> None:
    if result.bar is not None:
        page.step_bar(result.bar)
        page.line()
    page.table(_with_bars(result, page), result.parts)
    page.line()
    if (ahead := lead_in_words(result)) is not None:
        page.line(ahead)
        page.line()
    if result.subgraphs:
        page.table(_SUBGRAPHS, result.subgraphs, limit=_SUBGRAPHS_SHOWN)
        page.line()
    _curve(result, page)
    page.line()
    host = f" on {result.host}" if result.host else ""
    page.line(
        f"rank {result.rank}{host}, role {result.role} ({plural(result.peers, 'peer')}); {mean_of(result.steps)}", DIM
    )
    if result.peers:
        page.line("differences are this rank's own time; kair triage has the price, in time of the job", DIM)


def _with_bars(result: RankProfileResult, page: Page) -> tuple[Column[PartOfStep], ...]:
    peak = max(max(row.own_us, row.typical_us or 0.0) for row in result.parts)
    draw_bar: Callable[[PartOfStep], str] = lambda row: bar(  # noqa: E731
        row.own_us, row.typical_us, peak, _BAR, ascii_only=page.options.ascii_only
    )
    title = (
        ""
        if result.typical_step_time_us is None
        else f"{mark_sign(ascii_only=page.options.ascii_only)} its role's median"
    )
    return (*COLUMNS, Column[PartOfStep]("", title, draw_bar, align="left", weight=6))


def _curve(result: RankProfileResult, page: Page) -> None:
    width = max(min(_WIDEST, page.options.width - _MARGIN), 20)
    ascii_only = page.options.ascii_only
    picture = draw(result.curve, result.farthest, width=width, height=_HEIGHT, ascii_only=ascii_only)
    on_device = "" if result.timed_on == "host" else ", those on the device"
    page.line(f"operations completed over the step{on_device}")
    for number, row in enumerate(picture.rows):
        page.line(f"{_LABELS.get(number, ''):>5} {row.rstrip()}")
    page.line(axis(result, picture.distance_at, width), indent=6)
    drawn_with = signs(ascii_only=ascii_only)
    legend = f"{drawn_with.rank or '⡠⠊'} rank {result.rank}"
    if result.farthest is None:
        page.line(legend, DIM)
        return
    page.line(f"{legend}   {drawn_with.median} its peers' median   {drawn_with.band} 10-90 % of them", DIM)
    page.line(f"{drawn_with.distance} {distance_text(result.farthest)}")


def axis(result: RankProfileResult, at: int | None, width: int) -> str:
    """Return the line under a curve of that width: 0, the time of the largest distance, and the end."""
    end = duration(result.curve[-1].time_us)
    line = "0".ljust(width - len(end)) + end
    if at is None or result.farthest is None:
        return line
    middle = duration(result.farthest.time_us)
    start = min(max(at - len(middle) // 2, 2), width - len(end) - len(middle) - 1)
    return f"{line[:start]}{middle}{line[start + len(middle) :]}" if start >= 2 else line


VIEW = View[RankProfileResult, PartOfStep](
    main="parts",
    columns=COLUMNS,
    headline=rank_headline,
    body=_body,
    records=(("parts", "part"), ("subgraphs", "subgraph"), ("curve", "point")),
)
