"""One rank drawn in text: bars with their mark, the curve in its band, and what the figures say beside them."""

from dataclasses import replace

import pytest
from support.cli_samples import answering, kair, rank
from support.kept_cases import assert_kept

from kair_engine.results.rank import CurveDistance, CurvePoint
from kair_tui.render.drawing import bar, draw

BARS = [(50, None, 100), (55, None, 100), (50, 25, 100), (50, 75, 100), (0, 100, 100), (200, 0, 100), (0, 0, 0)]


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


def test_bars_are_marked_where_the_other_lies_and_a_late_curve_lies_below_the_band_of_its_peers() -> None:
    alone = [CurvePoint(point.time_us, point.completed, None, None, None, None) for point in LATE]
    assert draw(alone, None, width=8, height=4, ascii_only=True).distance_at is None
    drawn = {}
    for look, ascii_only in (("Unicode", False), ("ASCII", True)):
        drawn[f"bars in {look}"] = [bar(*one, 8, ascii_only=ascii_only) for one in BARS]
        drawn[f"late in {look}"] = [*draw(LATE, FARTHEST, width=16, height=6, ascii_only=ascii_only).rows]
        drawn[f"alone in {look}"] = [*draw(alone, None, width=8, height=4, ascii_only=ascii_only).rows]
    assert_kept("curves", drawn)


def test_every_sign_says_what_it_stands_for() -> None:
    picture = draw(LATE, FARTHEST, width=30, height=8, ascii_only=True)
    signs = {"band": ".", "median": ":", "distance": "|", "rank": "*", "": " "}
    assert [[signs[layer] for layer in row] for row in picture.layers] == [list(row) for row in picture.rows]


def test_kair_rank_shows_parts_curve_and_distance(monkeypatch: pytest.MonkeyPatch) -> None:
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
    alike = replace(known, parts=tuple(replace(part, typical_us=part.own_us - 900) for part in known.parts))
    shown = {}
    for name, one in (("beside its peers", known), ("alone", alone), ("like its peers", alike)):
        with answering(monkeypatch, {"rank": one}):
            shown |= {f"{name}{look}": kair("rank", "--rank", "1", *look.split()).out for look in ("", " --ascii")}
    assert all(shown[name].isascii() for name in shown if name.endswith("--ascii"))
    assert_kept("rank_pages", {name: text.split("\n") for name, text in shown.items()})
