"""The ticket on a screen of its own: drawn as it reads, for the finding under the cursor."""

import pytest
from support.places import SAMPLES
from support.screen_text import answered, opened, played, screen_lines, screen_text, until

from kair_tui.render.terminal import ASCII, Look
from kair_tui.tui.frame.markdown import drawn
from kair_tui.tui.frame.output import OutputScreen
from kair_tui.tui.widgets.lines import TextPage

SLOW = str(SAMPLES / "slow_operator")

pytestmark = pytest.mark.usefixtures("own_places")


@pytest.mark.slow
@played
async def test_a_key_opens_it_without_marks_and_y_copies_it_with_them() -> None:
    async with opened(SLOW, size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: answered(app))
        await pilot.press("T")
        await until(pilot, lambda: isinstance(app.screen, OutputScreen))
        lines = screen_lines(app)
        assert any(line.startswith(" [kair] rank 2 on node0: compute") for line in lines)
        assert not any(mark in screen_text(app) for mark in ("##", "**", "`", chr(92)))
        page = app.screen.query_one(TextPage)
        assert page.virtual_size.width <= page.size.width
        assert app.framed.copied().startswith("# ")


@pytest.mark.slow
@played
async def test_it_is_of_the_finding_under_the_cursor() -> None:
    async with opened(str(SAMPLES / "busy_host"), size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: answered(app))
        await pilot.press("tab", "tab")
        await until(pilot, lambda: getattr(app.screen, "finding_number", None) == 1)
        await pilot.press("T")
        await until(pilot, lambda: isinstance(app.screen, OutputScreen))
        assert app.framed.crumb == "ticket --finding 1"


def test_lists_headings_and_pictures_are_drawn_within_the_width() -> None:
    text = "# A\n\nfirst *second*\nthird\n\n1. one `code`\n2. two\n\n- sign\n  - within\n\n![a picture](<x.svg>)\n"
    lines = [line for line, _ in drawn(text, 40, Look(ascii_only=True))]
    bullet = ASCII.bullet
    listed = ["1. one code", "2. two", f"{bullet} sign", f"  {bullet} within"]
    assert lines == ["A", "", "first second third", "", *listed, "", "a picture"]
    assert all(len(line) <= 40 for line, _ in drawn("- " + "word " * 50, 40, Look()))
