"""`kair timeline` as a picture: SVG that stands by itself, and what a line can ask for wrongly."""

from dataclasses import replace
from xml.etree import ElementTree as Xml

import pytest
from support.cli_samples import HOSTILE, kair, timeline
from support.places import SAMPLES

from kair_tui.render.timeline import svg
from kair_tui.render.timeline_drawing import IN_ASCII, IN_COLOURS, draw_rows

pytestmark = pytest.mark.usefixtures("own_places")

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_a_bar_with_its_times_for_every_stretch() -> None:
    root = Xml.fromstring(svg(timeline()))
    titles = [bar.findtext(f"{SVG}title") for bar in root.iter(f"{SVG}rect")]
    assert "0: waiting 30.0 µs to 70.0 µs" in titles
    assert "1 of 1-3: compute 10.0 µs to 70.0 µs" in titles
    line = root.find(f"{SVG}polyline")
    assert line is not None
    # From who waited, to the right until the last one came, down to that one and back to its delay.
    places = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert places[0][0] < places[1][0] == places[2][0] > places[3][0]
    assert places[1][1] < places[2][1]


def test_names_cannot_break_the_picture() -> None:
    text = svg(timeline(HOSTILE))
    assert Xml.fromstring(text).tag == f"{SVG}svg"
    assert "\x1b" not in text


def test_o_svg_writes_it_and_takes_no_fields() -> None:
    written = kair("timeline", str(SAMPLES / "slow_operator"), "--rows", "2", "-o", "svg", "--ascii")
    assert Xml.fromstring(written.out).tag == f"{SVG}svg"
    assert written.out.isascii()
    assert kair("timeline", "-o", "svg", "--fields", "rank").status == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ranks", "a-b"), "no range of ranks"),
        (("--cursor", "3"), "no rank at a time"),
        (("--rows", "0"), "1 or more"),
    ],
)
def test_a_line_that_makes_no_sense_is_wrong_usage(arguments: tuple[str, ...], says: str) -> None:
    outcome = kair("timeline", str(SAMPLES / "slow_operator"), *arguments)
    assert outcome.status == 2
    assert says in outcome.err


def test_two_ranks_share_a_line_as_halves_of_its_cells() -> None:
    lines = draw_rows(replace(timeline(), path=()), 10, IN_COLOURS, two_a_line=True)
    assert [line.rows for line in lines] == [(0, 1), (2,)]
    # Rank 0 waits in the upper half while rank 1 computes in the lower.
    assert "▀▀▀" in [run.text for run in lines[0].runs if (run.front, run.back) == ("waiting", "compute")]
    alone = draw_rows(timeline(), 10, IN_ASCII, two_a_line=True)
    assert [line.rows for line in alone] == [(0,), (1,), (2,)]
    assert all(run.text.isascii() for line in alone for run in line.runs)
