"""One rank drawn in text: bars with their mark, the curve in its band, and what the figures say beside them."""

from dataclasses import replace

import pytest
from support.cli_samples import answering, kair, rank

from kair_engine.results.rank import CurveDistance, CurvePoint
from kair_tui.render.drawing import bar, draw
from kair_tui.render.rank import rank_headline


def test_a_bar_is_as_long_as_its_value_and_marked_where_the_other_lies() -> None:
    assert bar(50, None, 100, 8, ascii_only=False) == "████"
    assert bar(55, None, 100, 8, ascii_only=False) == "████▍"
    assert bar(50, 25, 100, 8, ascii_only=False) == "██┃█"
    assert bar(50, 75, 100, 8, ascii_only=True) == "####  |"
    assert bar(0, 100, 100, 8, ascii_only=True) == "       |"
    assert bar(200, 0, 100, 8, ascii_only=True) == "|#######"
    assert bar(0, 0, 0, 8, ascii_only=True) == ""


def points(own: list[float], low: list[float], median: list[float], high: list[float]) -> list[CurvePoint]:
    columns = enumerate(zip(own, low, median, high, strict=True), 1)
    return [CurvePoint(10.0 * at, one, a, b, c, c) for at, (one, a, b, c) in columns]


LATE = points(
    own=[0, 0, 0, 0, 0.5, 0.5, 1, 1],
    low=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.9, 1],
    median=[0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 1, 1],
    high=[0.3, 0.5, 0.8, 0.9, 0.9, 1, 1, 1],
)
FARTHEST = CurveDistance(0, 0.6, 40.0, 0.0, 0.9)


def test_a_late_curve_lies_below_the_band_of_its_peers() -> None:
    picture = draw(LATE, FARTHEST, width=16, height=6, ascii_only=True)
    assert [row.rstrip() for row in picture.rows] == [
        "       .|...:***",
        "     ...|::::*",
        "    ..::|:..*",
        "  .::::.|***",
        " :::... |*",
        "*********",
    ]


def test_in_unicode_the_curve_is_drawn_in_dots() -> None:
    picture = draw(LATE, FARTHEST, width=16, height=6, ascii_only=False)
    assert [row.rstrip() for row in picture.rows] == [
        "       ░┃░░░▒⢰⠉⠉",
        "     ░░░┃▒▒▒⢀⠇",
        "    ░░▒▒┃▒░░⡜",
        "  ░▒▒▒▒░┃⢰⠉⠉",
        " ▒▒▒░░░ ⢀⠇",
        "⣀⣀⣀⣀⣀⣀⣀⣀⠜",
    ]


def test_a_rank_alone_has_a_curve_and_no_band() -> None:
    alone = [CurvePoint(point.time_us, point.completed, None, None, None, None) for point in LATE]
    picture = draw(alone, None, width=8, height=4, ascii_only=True)
    assert {layer for row in picture.layers for layer in row} == {"", "rank"}
    assert picture.distance_at is None


def test_every_sign_says_what_it_stands_for() -> None:
    picture = draw(LATE, FARTHEST, width=30, height=8, ascii_only=True)
    signs = {"band": ".", "median": ":", "distance": "|", "rank": "*", "": " "}
    assert [[signs[layer] for layer in row] for row in picture.layers] == [list(row) for row in picture.rows]


@pytest.mark.parametrize("ascii_only", [False, True])
def test_kair_rank_shows_parts_curve_and_distance(monkeypatch: pytest.MonkeyPatch, ascii_only: bool) -> None:
    with answering(monkeypatch):
        text = kair("rank", "--rank", "1", *(["--ascii"] if ascii_only else [])).out
    lines = text.splitlines()
    assert lines[0] == (
        "rank 1 takes 100 ms a step, its role 99.0 ms; most above its role's median is input: 30.0 ms, +27.0 ms"
    )
    table = {line.split("  ")[0]: line.split() for line in lines[4:10]}
    assert list(table) == ["compute", "exposed communication", "waiting", "input", "host", "rest"]
    assert table["input"][1:9] == ["30.0", "ms", "3.00", "ms", "+27.0", "ms", "30.0", "%"]
    assert "largest distance 50.0 % from rank 0 at 50.0 ms: 25.0 % completed, 75.0 % there" in text
    assert text.isascii() == ascii_only


def test_a_rank_alone_is_shown_without_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    known = rank()
    alone = replace(
        known,
        peers=0,
        typical_step_time_us=None,
        parts=tuple(replace(part, typical_us=None) for part in known.parts),
        curve=tuple(CurvePoint(p.time_us, p.completed, None, None, None, None) for p in known.curve),
        farthest=None,
        mean_distance=None,
    )
    with answering(monkeypatch, {"rank": alone}):
        text = kair("rank", "--rank", "1").out
    assert text.splitlines()[0] == "rank 1 takes 100 ms a step; most of it is compute, 60.0 ms"
    assert "distance" not in text
    assert "median" not in text


def test_a_rank_like_its_peers_stands_out_in_nothing() -> None:
    known = rank()
    alike = replace(known, parts=tuple(replace(part, typical_us=part.own_us - 900) for part in known.parts))
    assert rank_headline(alike).endswith("; no part of it is 1 % of the step above its role's median")
