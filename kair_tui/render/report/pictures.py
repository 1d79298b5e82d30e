"""Pictures of a report: every rank's score, a rank's completion among its peers, and the distribution of S."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Final
from xml.etree.ElementTree import Element

from kair_engine.results.rank import RankProfileResult
from kair_engine.results.store import ShareOfJobs
from kair_engine.results.triage import RankedRank
from kair_tui.render.drawing import RAMP, draw_shares, level, signs, stretches
from kair_tui.render.drawing import draw as draw_in_signs
from kair_tui.render.report.content import Picture, draw, path, svg
from kair_tui.render.units import count, duration, percent, plural, ratio, score

_WIDTH: Final = 400
"""Units across, of which a phone shows one in about a pixel: what is written is readable on it."""
_MARGIN: Final = 44
_HEIGHT, _TOP, _FOOT = 200, 8, 22
_LINE: Final = 13
"""Units that a line of text takes: so far apart are the numbers beside the rows."""
_MOST_CELLS: Final = 4096
_SIGNS_WIDE, _SIGNS_HIGH = 64, 9


def score_grid(ranking: Sequence[RankedRank]) -> Picture:
    """A cell for every rank, the darker the higher its score; those that are accused have a frame."""
    ranks = sorted(ranking, key=lambda row: row.rank)
    groups = [[ranks[at] for at in part] for part in stretches(len(ranks), _MOST_CELLS)]
    peak = max(0.0, *(row.score for row in ranks))
    columns = _columns(len(groups))
    size = (_WIDTH - _MARGIN) / columns
    rows, labelled = -(-len(groups) // columns), ceil(_LINE / size)
    picture = svg(_WIDTH, round(rows * size) + 4, f"scores of {plural(len(ranks), 'rank')}")
    for at, group in enumerate(groups):
        x, y = _MARGIN + at % columns * size, at // columns * size + 2
        if at % (columns * labelled) == 0:
            draw(picture, "text", str(group[0].rank), x=_MARGIN - 6, y=y + size / 2 + 4, text_anchor="end")
        _cell(picture, group, (x, y, size), peak)
    each = "" if len(groups) == len(ranks) else f"; a cell is the highest of up to {count(len(groups[0]))} neighbours"
    caption = (
        f"The score of every rank, rank {ranks[0].rank} at the top left, {columns} in a row{each}. The darkest is "
        f"{score(peak)}; accused ranks have a frame."
    )
    return Picture(picture, _grid_in_signs(groups, peak, columns), caption)


def _columns(cells: int) -> int:
    return next((columns for columns in (8, 16, 32) if cells <= columns * columns), 64)


def _cell(picture: Element, group: Sequence[RankedRank], place: tuple[float, float, float], peak: float) -> None:
    """At (x, y), so large."""
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


def _grid_in_signs(groups: Sequence[Sequence[RankedRank]], peak: float, columns: int) -> tuple[str, ...]:
    cells = "".join(RAMP[level(max(row.score for row in group), peak, len(RAMP))] for group in groups)
    starts = range(0, len(cells), columns)
    return tuple(f"{groups[at][0].rank:>6} |{cells[at : at + columns]}|" for at in starts)


def completion(profile: RankProfileResult) -> Picture:
    """How the rank's operations complete over the step, among its peers, and the largest K–S distance."""
    end = profile.curve[-1].time_us
    picture = svg(_WIDTH, _HEIGHT, f"completion of rank {profile.rank}'s operations beside its peers'")
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
    drawn = draw_in_signs(profile.curve, profile.farthest, width=_SIGNS_WIDE, height=_SIGNS_HIGH, ascii_only=False)
    used = signs(ascii_only=False)
    legend = f"⡠⠊ rank {profile.rank}   {used.median} median of peers   {used.band} 10-90 % of them"
    return Picture(picture, (*_labelled(drawn.rows, "0", duration(end)), legend), caption)


def shares(points: Sequence[ShareOfJobs]) -> Picture:
    """The distribution function of S over jobs."""
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
    return Picture(picture, _labelled(rows, ratio(begin), ratio(end)), "Share of jobs whose S is that or less.")


Scale = Callable[[float], float]


def _axes(picture: Element, end: float, label: Callable[[float], str], *, begin: float) -> tuple[Scale, Scale]:
    """Draws shares upwards and `begin` to `end` to the right; where values lie."""
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
    """A curve in signs with what its edges stand for."""
    labels = {0: "100 %", len(rows) // 2: "50 %", len(rows) - 1: "0 %"}
    below = f"      {first}{last:>{_SIGNS_WIDE - len(first)}}"
    return (*(f"{labels.get(at, ''):>5} {row.rstrip()}" for at, row in enumerate(rows)), below)
