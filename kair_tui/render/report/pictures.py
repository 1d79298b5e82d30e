"""Pictures of a report: a step's GPU-time, every rank's score, a rank's completion among its peers, shares of jobs."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import ceil
from typing import Final
from xml.etree.ElementTree import Element, fromstring, tostring

from kair_engine.results.rank import RankProfileResult
from kair_engine.results.step_bar import BarPart, StepBar
from kair_engine.results.store import ShareOfJobs
from kair_engine.results.timeline import FixedTimeline, TimelineResult
from kair_engine.results.triage import RankedRank
from kair_tui.render.answer import PageOptions
from kair_tui.render.bar import drawn, in_one_line, legend_lines
from kair_tui.render.drawing import RAMP, draw_shares, level, signs, stretches
from kair_tui.render.drawing import draw as draw_in_signs
from kair_tui.render.report.content import Picture, draw, path, svg
from kair_tui.render.text import clean
from kair_tui.render.timeline_drawing import fixed_in_words, recorded_in_words, timeline_headline
from kair_tui.render.units import count, duration, percent, plural, ratio, score

_WIDTH: Final = 400
"""Width in units, of which a phone shows one as about a pixel: text is readable there."""
_MARGIN: Final = 44
_HEIGHT, _TOP, _FOOT = 200, 8, 22
_LINE: Final = 13
"""Height of a line of text in units: the distance of numbers next to rows."""
_MOST_CELLS: Final = 4096
_SIGNS_WIDE, _SIGNS_HIGH = 64, 9
_TIMELINE_WIDE: Final = 100
"""Width of a timeline in characters."""
_BAR: Final = 26
"""Height of a step's bar in units."""
_TONES: Final[Mapping[BarPart, str]] = {
    "compute": "of-fine-part",
    "bubble": "of-bubble",
    "communication": "of-peers-part",
    "stragglers": "of-alarm-part",
    "job_wide": "of-open-part",
    "other": "of-other",
}


def step_bar(bar: StepBar) -> Picture:
    """Return the GPU-time of a step: one bar, and the meaning of its parts below."""
    parts = drawn(bar, _SIGNS_WIDE, ascii_only=False)
    foot = _BAR + 6
    picture = svg(_WIDTH, foot + _LINE * len(parts), f"where the step goes: {in_one_line(bar)}")
    x = 0.0
    for number, one in enumerate(parts):
        width, y = one.tenths / 1000 * _WIDTH, foot + number * _LINE
        cell = draw(picture, "rect", x=x, y=0, width=width, height=_BAR, class_=f"part {_TONES[one.part]}")
        draw(cell, "title", f"{one.name} {percent(one.tenths / 1000)}")
        draw(picture, "rect", x=0, y=y, width=_LINE - 3, height=_LINE - 3, class_=f"part {_TONES[one.part]}")
        draw(picture, "text", f"{one.name} {percent(one.tenths / 1000)}", x=_LINE + 4, y=y + _LINE - 4)
        x += width
    caption = f"Of {duration(bar.step_time_us)} a step and rank, the mean over ranks and {plural(bar.steps, 'step')}."
    signs_of_it = "".join(one.sign * one.cells for one in parts)
    return Picture(picture, (signs_of_it, *legend_lines(bar, _SIGNS_WIDE, ascii_only=False)), caption)


def score_grid(ranking: Sequence[RankedRank]) -> Picture:
    """Return a cell for every rank, darker for a higher score; accused ranks have a frame.

    Several hosts have a row each.
    """
    ranks = sorted(ranking, key=lambda row: row.rank)
    grid = _by_host(ranks) or _in_order(ranks)
    peak = max(0.0, *(row.score for row in ranks))
    before = _MARGIN if not grid.of_hosts else max(len(label) for label, _ in grid.rows) * _SIGN + 12
    size = min((_WIDTH - before) / grid.columns, max(_HIGHEST_GRID / len(grid.rows), _SMALLEST_CELL))
    labelled = ceil(_LINE / size)
    picture = svg(_WIDTH, round(len(grid.rows) * size) + 4, f"scores of {plural(len(ranks), 'rank')}")
    for number, (label, groups) in enumerate(grid.rows):
        y = number * size + 2
        if number % labelled == 0:
            draw(picture, "text", label, x=before - 6, y=y + size / 2 + 4, text_anchor="end")
        for column, group in enumerate(groups):
            _cell(picture, group, (before + column * size, y, size), peak)
    caption = f"The score of every rank, {grid.caption}. The darkest is {score(peak)}; accused ranks have a frame."
    return Picture(picture, _grid_in_signs(grid, peak), caption)


_SIGN: Final = 6.5
"""Width of a character of a host's name, in units."""
FAR: Final = 2.0
"""Healthy ranks reached at most 0.97; slow ones 30 and more."""
_HIGHEST_GRID: Final = 640
_SMALLEST_CELL: Final = 4
_LONGEST_HOST: Final = 18


@dataclass(frozen=True)
class _Grid:
    """Rows of cells, each for one or several neighbouring ranks, and the rows' labels."""

    rows: tuple[tuple[str, tuple[tuple[RankedRank, ...], ...]], ...]
    caption: str
    of_hosts: bool

    @property
    def columns(self) -> int:
        """The length of the longest row."""
        return max(len(groups) for _, groups in self.rows)


def _by_host(ranks: Sequence[RankedRank]) -> _Grid | None:
    """Return a row for every host, in the order of their first ranks; None if a host is unknown, or the only one."""
    hosts: dict[str, list[RankedRank]] = {}
    for row in ranks:
        hosts.setdefault(row.host or "", []).append(row)
    if "" in hosts or len(hosts) < 2 or len(ranks) > _MOST_CELLS:
        return None
    rows = tuple((_host_label(host), tuple((row,) for row in of)) for host, of in hosts.items())
    return _Grid(rows, "a row for each host, its ranks from left to right", of_hosts=True)


def _host_label(host: str) -> str:
    """Return the end of a long name: names of hosts differ there."""
    return host if len(host) <= _LONGEST_HOST else f"…{host[1 - _LONGEST_HOST :]}"


def _in_order(ranks: Sequence[RankedRank]) -> _Grid:
    """Return ranks in order, as a square; very many share cells with neighbours."""
    groups = [tuple(ranks[at] for at in part) for part in stretches(len(ranks), _MOST_CELLS)]
    columns = _columns(len(groups))
    starts = range(0, len(groups), columns)
    each = "" if len(groups) == len(ranks) else f"; a cell is the highest of up to {count(len(groups[0]))} neighbours"
    caption = f"rank {ranks[0].rank} at the top left, {columns} in a row{each}"
    rows = tuple((str(groups[at][0].rank), tuple(groups[at : at + columns])) for at in starts)
    return _Grid(rows, caption, of_hosts=False)


def _columns(cells: int) -> int:
    return next((columns for columns in (8, 16, 32) if cells <= columns * columns), 64)


def _cell(picture: Element, group: Sequence[RankedRank], place: tuple[float, float, float], peak: float) -> None:
    """Draw a cell at `place` (x, y, size)."""
    x, y, size = place
    worst = max(group, key=lambda row: row.score)
    flagged = [row for row in group if row.flagged]
    gap = min(size / 10, 2)
    tone = f"heat h{level(worst.score, peak, len(RAMP))}" + (" accused" if flagged else "")
    cell = draw(picture, "rect", x=x, y=y, width=size - gap, height=size - gap, class_=tone)
    host = f" on {worst.host}" if worst.host else ""
    draw(cell, "title", f"rank {worst.rank}{host}: score {score(worst.score)}{', accused' if flagged else ''}")
    if size > 30:
        draw(picture, "text", str(worst.rank), x=x + 4, y=y + 13, class_="small")
        draw(picture, "text", score(worst.score), x=x + 4, y=y + size - gap - 6, class_="small")


def _grid_in_signs(grid: _Grid, peak: float) -> tuple[str, ...]:
    width = max(6, *(len(label) for label, _ in grid.rows))
    return tuple(
        f"{label:>{width}} |"
        + "".join(RAMP[level(max(row.score for row in group), peak, len(RAMP))] for group in groups).ljust(
            grid.columns if grid.of_hosts else 0
        )
        + "|"
        for label, groups in grid.rows
    )


TIMELINE: Final = "timeline"
FIXED: Final = "fixed"
_SVG: Final = "http://www.w3.org/2000/svg"


def around_delay(result: TimelineResult) -> Picture:
    """Return every rank's activity around the delay, as `kair timeline -o svg` and as a terminal draw it."""
    return _timeline(result, timeline_headline(result), TIMELINE)


def before_and_after(result: TimelineResult, fixed: FixedTimeline) -> Picture:
    """Return the same step as recorded and with fixes, one above the other."""
    return _timeline(result, f"Step {result.step}, {recorded_in_words(fixed)}; {fixed_in_words(fixed)}.", FIXED)


def _timeline(result: TimelineResult, caption: str, name: str) -> Picture:
    from kair_tui.render.page import Page
    from kair_tui.render.timeline import VIEW
    from kair_tui.render.timeline import svg as drawing

    root = fromstring(drawing(result))
    for one in root.iter():
        one.tag = one.tag.removeprefix(f"{{{_SVG}}}")  # HTML needs no namespace
    root.set("role", "img")
    root.set("aria-label", clean(caption))
    page = Page(PageOptions(width=_TIMELINE_WIDE, color=False, ascii_only=False))
    VIEW.body(result, page)
    # The rows, those with fixes if any, and the meaning of the characters.
    drawn = page.getvalue().split("\n\n")[: 2 if result.fixed is None else 3]
    return Picture(root, tuple("\n\n".join(drawn).splitlines()), caption, name)


def document(picture: Picture) -> str:
    """Return a picture as a standalone SVG file."""
    root = deepcopy(picture.svg)
    root.set("xmlns", _SVG)
    return tostring(root, encoding="unicode") + "\n"


def differs(profile: RankProfileResult) -> bool:
    """Return whether the rank's curve is informative: clearly outside its peers' band over the step.

    Its mean distance from the band of 10 to 90 % of the peers must be FAR times the band's mean width, which no healthy
    rank reached. Without peers there is nothing to see.
    """
    points = [
        (point.completed, point.peers_low, point.peers_high)
        for point in profile.curve
        if point.peers_low is not None and point.peers_high is not None
    ]
    outside = sum(max(low - own, own - high, 0.0) for own, low, high in points)
    return outside > FAR * sum(high - low for _, low, high in points)


def completion(profile: RankProfileResult) -> Picture:
    """Return how the rank's operations complete over the step, among its peers, and the largest K–S distance."""
    end = profile.curve[-1].time_us
    picture = svg(_WIDTH, _HEIGHT, f"completion of rank {profile.rank}'s operations compared with its peers'")
    x, y = _axes(picture, end, duration, begin=0.0)
    peers = [(x(point.time_us), point) for point in profile.curve if point.peers_low is not None]
    if peers:
        high = [(x(0), y(0)), *((at, y(point.peers_high or 0.0)) for at, point in peers)]
        low = [(at, y(point.peers_low or 0.0)) for at, point in reversed(peers)]
        draw(picture, "path", d=path([*high, *low], closed=True), class_="band")
        median = [(x(0), y(0)), *((at, y(point.peers_median or 0.0)) for at, point in peers)]
        draw(picture, "path", d=path(median), class_="median")
    own = [(x(0), y(0)), *((x(point.time_us), y(point.completed)) for point in profile.curve)]
    draw(picture, "path", d=path(own), class_="own")
    where = " on the device" if profile.timed_on == "device" else ""
    caption = f"Share of the step's operations{where} that had completed: rank {profile.rank} (solid)"
    if farthest := profile.farthest:
        at = x(farthest.time_us)
        draw(picture, "line", x1=at, x2=at, y1=y(farthest.completed), y2=y(farthest.peer_completed), class_="distance")
        caption += (
            f", the median of its peers (dashed) and 10–90 % of them (band). Upright: the largest Kolmogorov–Smirnov "
            f"distance, {percent(farthest.distance)} from rank {farthest.peer} after {duration(farthest.time_us)}."
        )
    in_signs = draw_in_signs(profile.curve, profile.farthest, width=_SIGNS_WIDE, height=_SIGNS_HIGH, ascii_only=False)
    used = signs(ascii_only=False)
    legend = f"⡠⠊ rank {profile.rank}   {used.median} median of peers   {used.band} 10-90 % of them"
    return Picture(picture, (*_labelled(in_signs.rows, "0", duration(end)), legend), caption)


def shares(points: Sequence[ShareOfJobs]) -> Picture:
    """Return the distribution function of S over jobs."""
    begin, end = min(1.0, points[0].slowdown), points[-1].slowdown
    picture = svg(_WIDTH, _HEIGHT, "distribution of the slowdown S over jobs")
    x, y = _axes(picture, end, ratio, begin=begin)
    outline, before = [(x(begin), y(0))], 0.0
    for point in points:
        outline += [(x(point.slowdown), y(before)), (x(point.slowdown), y(point.share))]
        before = point.share
    draw(picture, "path", d=path(outline), class_="own")
    steps = [(point.slowdown, point.share) for point in points]
    rows = draw_shares(steps, begin=begin, width=_SIGNS_WIDE, height=_SIGNS_HIGH, ascii_only=False)
    return Picture(picture, _labelled(rows, ratio(begin), ratio(end)), "Share of jobs with this S or less.")


Scale = Callable[[float], float]


def _axes(picture: Element, end: float, label: Callable[[float], str], *, begin: float) -> tuple[Scale, Scale]:
    """Draw axes with shares upwards and `begin` to `end` to the right; return the scales."""
    span, bottom = max(end - begin, 1e-9), _HEIGHT - _FOOT

    def x(value: float) -> float:
        return _MARGIN + (value - begin) / span * (_WIDTH - _MARGIN - 4)

    def y(share: float) -> float:
        return _TOP + (1 - share) * (bottom - _TOP)

    for share in (0.0, 0.5, 1.0):
        draw(picture, "line", x1=_MARGIN, x2=_WIDTH - 4, y1=y(share), y2=y(share), class_="axis")
        draw(picture, "text", percent(share, 0), x=_MARGIN - 6, y=y(share) + 4, text_anchor="end")
    for value, anchor in ((begin, "start"), ((begin + end) / 2, "middle"), (end, "end")):
        draw(picture, "text", label(value), x=x(value), y=_HEIGHT - 6, text_anchor=anchor)
    return x, y


def _labelled(rows: Sequence[str], first: str, last: str) -> tuple[str, ...]:
    """Return a curve in characters with labelled edges."""
    labels = {0: "100 %", len(rows) // 2: "50 %", len(rows) - 1: "0 %"}
    below = f"      {first}{last:>{_SIGNS_WIDE - len(first)}}"
    return (*(f"{labels.get(at, ''):>5} {row.rstrip()}" for at, row in enumerate(rows)), below)
