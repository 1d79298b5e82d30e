"""Stage 1 for people: every rank's score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kair_engine.causes import CAUSES
from kair_engine.ranks import Rank
from kair_engine.results.localize import (
    GroupScore,
    JobPattern,
    LinkScore,
    LocalizeResult,
    OperatorScore,
    RankScore,
)
from kair_tui.render.answer import ALARM, DIM, Cell, Column, Styled
from kair_tui.render.changes import against_in_words
from kair_tui.render.drawing import RAMP, RAMP_ASCII, heat_row, stretches
from kair_tui.render.text import short_name
from kair_tui.render.units import (
    count,
    duration,
    durations,
    mean_step,
    or_dash,
    p_value,
    percent,
    plural,
    score,
    signed_duration,
    spans,
)
from kair_tui.render.view import View

if TYPE_CHECKING:
    from kair_tui.render.page import Page

RANKS_SHOWN = 64


def flag(flagged: bool) -> Cell:
    """Return the flag column: a character and a word, so that it needs no colour."""
    return Styled("▲ slow", ALARM) if flagged else ""


def _flag(row: RankScore) -> Cell:
    return flag(row.flagged) if row.compared else Styled("▲ not compared" if row.flagged else "not compared", ALARM)


def _headline(result: LocalizeResult) -> str:
    flagged = [row for row in result.scores if row.flagged]
    among = plural(len(result.scores), "rank")
    if not result.scores:
        return "nothing to score: no rank has an operation in the chosen steps"
    top = max(result.scores, key=lambda row: row.score)
    if result.method == "paper":
        return (
            f"rank {top.rank} has the highest score of {among}, {score(top.score)} "
            "(paper: a ranking, no verdict is drawn from it)"
        )
    if not flagged:
        return f"no rank stands out of {among}; the highest score is rank {top.rank}'s, {score(top.score)}"
    names = spans(tuple(row.rank for row in flagged))
    noun, verb = ("rank", "stands") if len(flagged) == 1 else ("ranks", "stand")
    first = flagged[0]
    figures = f"rank {first.rank} scores {score(first.score)}, {_reason(first)}"
    doubtful = spans(tuple(row.rank for row in flagged if not row.compared))
    doubt = f"; rank {doubtful} could not be compared with its peers" if doubtful else ""
    return f"{noun} {names} {verb} out of {among}: {figures}{doubt}"


_DELAYS_STAND_OUT: Final = 1.0
"""A rank with a lower score is within its peers' usual differences: its delays accuse it."""


def _reason(row: RankScore) -> str:
    """Return what stands out: the excess in every step, else the number of delays."""
    if row.large_delays and row.score < _DELAYS_STAND_OUT:
        return f"{plural(row.large_delays, 'large delay')}, p {p_value(row.p_value)}"
    if not row.excess_us:
        return f"p {p_value(row.p_value)}"
    name, excess = max(row.excess_us.items(), key=lambda item: item[1])
    return f"{signed_duration(excess)} of {name} per step, p {p_value(row.p_value)}"


def _largest_excess(row: RankScore) -> str:
    """Return the two most important classes."""
    largest = sorted(row.excess_us.items(), key=lambda item: -abs(item[1]))[:2]
    return ", ".join(f"{name} {signed_duration(us)}" for name, us in largest if us) or "–"


def _every_excess(row: RankScore) -> str:
    return ", ".join(f"{name} {signed_duration(us)}" for name, us in row.excess_us.items())


def figures_in_words(row: JobPattern) -> str:
    """Return a pattern's figures with units: shares and a correlation, or the stages' compute."""
    if row.cause == "stage_imbalance":
        return ", ".join(f"{stage} {duration(us)}" for stage, us in row.figures.items())
    if row.cause == "position_imbalance":
        last = len(row.figures) - 1
        return f"positions 0 to {last}{f' of {row.group}' if row.group else ''}: {durations(row.figures.values())}"
    return ", ".join(_FIGURES[name](value) for name, value in row.figures.items())


_FIGURES: Final[Mapping[str, Callable[[float], str]]] = {
    "correlation": lambda value: f"correlation {value:.2f}",
    "variation": lambda value: f"varies by {percent(value)}",
    "delays": lambda value: plural(round(value), "delay"),
    "rate": lambda value: f"in {percent(value, 2)} of ranks' steps",
    "ranks": lambda value: f"{plural(round(value), 'rank')} took turns",
    "steps": lambda value: f"in {plural(round(value), 'step')}",
    "every": lambda value: f"every {plural(round(value), 'step')}" if value else "at irregular intervals",
}


COLUMNS = (
    Column[RankScore]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[RankScore]("host", "host", lambda row: row.host or "–", align="left", weight=3),
    Column[RankScore]("role", "role", lambda row: row.role, align="left", weight=2),
    Column[RankScore]("score", "score", lambda row: score(row.score), weight=9),
    Column[RankScore]("p_value", "p", lambda row: p_value(row.p_value), weight=6),
    Column[RankScore]("large_delays", "delays", lambda row: or_dash(row.large_delays), weight=5),
    Column[RankScore]("flagged", "flag", _flag, align="left", weight=8),
    Column[RankScore]("excess_us", "excess per step", _largest_excess, align="left", weight=4, full=_every_excess),
)

_GROUPS = (
    Column[GroupScore]("group", "group", lambda row: row.group, align="left", weight=9),
    Column[GroupScore]("ranks", "ranks", lambda row: spans(row.ranks), align="left", weight=5),
    Column[GroupScore]("mean_score", "mean score", lambda row: score(row.mean_score), weight=8),
    Column[GroupScore]("max_score", "highest", lambda row: score(row.max_score), weight=8),
    Column[GroupScore]("flagged", "flagged", lambda row: str(row.flagged), weight=8),
)


_PATTERNS = (
    Column[JobPattern]("cause", "job-wide cause", lambda row: CAUSES[row.cause].words, align="left", weight=9),
    Column[JobPattern]("ranks", "ranks", lambda row: spans(row.ranks), align="left", weight=4),
    Column[JobPattern]("steps", "steps", lambda row: spans(row.steps), align="left", weight=3),
    Column[JobPattern]("lost_us", "beyond mean/step", lambda row: duration(row.lost_us), weight=8),
    Column[JobPattern]("figures", "figures", figures_in_words, align="left", weight=7),
)

_LINKS = (
    Column[LinkScore]("group", "slow process group", lambda row: row.group, align="left", weight=9),
    Column[LinkScore]("ranks", "ranks", lambda row: spans(row.ranks), align="left", weight=6),
    Column[LinkScore]("operator", "operator", lambda row: short_name(row.operator), align="left", weight=4),
    Column[LinkScore]("own_us", "self time/step", lambda row: duration(row.own_us), weight=8),
    Column[LinkScore]("siblings", "siblings", lambda row: count(row.siblings), weight=5),
    Column[LinkScore]("expected_us", "their median", lambda row: duration(row.expected_us), weight=8),
    Column[LinkScore]("p_value", "p", lambda row: p_value(row.p_value), weight=7),
)

_OPERATORS = (
    Column[OperatorScore]("rank", "rank", lambda row: str(row.rank), weight=9),
    Column[OperatorScore](
        "operator",
        "slow operator",
        lambda row: short_name(row.operator),
        align="left",
        weight=9,
        full=lambda row: row.operator,
    ),
    Column[OperatorScore]("excess_us", "excess per step", lambda row: signed_duration(row.excess_us), weight=8),
    Column[OperatorScore]("p_value", "p", lambda row: p_value(row.p_value), weight=7),
)


def _body(result: LocalizeResult, page: Page) -> None:
    tables: tuple[tuple[tuple[Column[Any], ...], Sequence[Any]], ...] = (
        (_GROUPS, result.groups),
        (_LINKS, result.slow_links),
        (_PATTERNS, result.patterns),
        (_OPERATORS, result.slow_operators),
    )
    for columns, rows in tables:
        if rows:
            page.table(columns, rows, limit=RANKS_SHOWN)
            page.line()
    page.table(COLUMNS, result.scores, limit=RANKS_SHOWN)
    if result.step_time_us is not None:
        page.line()
        page.line(mean_step(result.step_time_us, result.steps))
        page.line("an excess is the rank's own time; kair triage has the price, in time of the job", DIM)
    if result.against_baseline is not None:
        page.line()
        page.lines_of(against_in_words(result.against_baseline))
    if result.matrix is not None:
        page.line()
        _distances(result.matrix, sorted(row.rank for row in result.scores), page)


FIGURES_OF = 16
"""Ranks whose distances fit on a line as figures; more are shaded."""
_MATRIX_MARGIN, _MATRIX_ROWS = 14, 64


def _distances(matrix: tuple[tuple[float, ...], ...], ranks: list[Rank], page: Page) -> None:
    """Write the pairwise K–S distances, in rank order: as figures, or for many ranks as shades that fit the line."""
    page.line("Kolmogorov–Smirnov distance of every two ranks, in rank order")
    largest = max(map(max, matrix), default=0.0)
    digits = distance_digits(largest)
    if len(matrix) <= FIGURES_OF:
        for row in matrix:
            page.line("".join(f"{distance:10.{digits}f}" for distance in row))
        return
    width = min(len(matrix), max(page.options.width - _MATRIX_MARGIN, 10))
    for rows in stretches(len(matrix), min(width, _MATRIX_ROWS)):
        # The maximum, because a mean would hide a distant one.
        worst = [max(matrix[row][other] for row in rows) for other in range(len(matrix))]
        drawn = heat_row(worst, largest, width, ascii_only=page.options.ascii_only, together=max)
        page.line(f"{spans(tuple(ranks[rows.start : rows.stop]), 1):<{_MATRIX_MARGIN - 2}}|{drawn}|")
    together = f"; a glyph is the farthest of {len(matrix) / width:.1f} ranks" if width < len(matrix) else ""
    ramp = RAMP_ASCII if page.options.ascii_only else RAMP
    page.line(f"|{ramp}| from 0 to {largest:.{digits}f}{together}; figures: --json", DIM)


def distance_digits(largest: float) -> int:
    """Return the decimals of K–S distances, which are shares of one, or counts of operators."""
    return 4 if largest <= 1 else 1


VIEW = View[LocalizeResult, RankScore](
    main="scores",
    columns=COLUMNS,
    headline=_headline,
    body=_body,
    records=(
        ("scores", "score"),
        ("groups", "group"),
        ("slow_links", "link"),
        ("slow_operators", "operator"),
        ("patterns", "pattern"),
    ),
)
