"""`--plain`, for screen readers: nothing is drawn, and an item is a line."""

import re

import pytest
from rich.segment import Segment
from support.cli_samples import kair
from support.places import SAMPLES
from support.screen_text import answered, opened, played, screen_lines, until
from textual.color import Color

from kair_tui.render.terminal import Look
from kair_tui.tui.frame.app import KairApp, WithoutDrawings

SLOW = str(SAMPLES / "slow_operator")
DRAWN = re.compile("[\u2500-\u25ff\u2800-\u28ff]")

pytestmark = pytest.mark.usefixtures("own_places")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["triage", "blame", "rank --rank 2", "whatif", "timeline --around 2", "localize", "blame -o tree", "steps"]
)
def test_a_command_draws_nothing(words: str) -> None:
    command, *options = words.split()
    usual, plain = (kair(command, SLOW, *options, *more) for more in ((), ("--plain",)))
    assert plain.status == usual.status == 0
    assert DRAWN.search(usual.out)
    assert not DRAWN.search(plain.out)
    assert kair(command, SLOW, *options, "--plain", "--ascii").out.isascii()


@pytest.mark.slow
def test_a_row_is_a_line_with_the_names_of_its_figures_and_a_part_of_the_step_is_one() -> None:
    lines = kair("triage", SLOW, "--plain").out.splitlines()
    assert any(re.fullmatch(r"rank 2; host node0; .*score 45\.188; .*flag +slow", line) for line in lines)
    assert sum(line.startswith("rank ") and "; score " in line for line in lines) == 4
    at = next(at for at, line in enumerate(lines) if line.startswith("useful compute "))
    assert [line.rpartition(" ")[2] for line in lines[at : at + 4]] == ["%"] * 4


@pytest.mark.slow
@played
async def test_on_the_full_screen_every_rank_has_a_line() -> None:
    async with opened(SLOW, size=(80, 24), look=Look(plain=True)) as (app, pilot):
        await until(pilot, lambda: answered(app))
        rows = [re.fullmatch(r".{8}(\d) [· ]+\d+\.\d+ *", line) for line in screen_lines(app)]
        assert [row[1] for row in rows if row] == ["0", "1", "2", "3"]
        assert any(isinstance(one, WithoutDrawings) for one in app.get_line_filters())


def sent_lines(app: KairApp) -> list[str]:
    """The screen's lines as the terminal is sent them."""
    lines = []
    for line in screen_lines(app):
        sent = [Segment(line)]
        for one in app.get_line_filters():
            sent = one.apply(sent, Color(0, 0, 0))
        lines.append("".join(segment.text for segment in sent).rstrip())
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("key", ["", "enter", "3", "4", "5", "6", "7", "D", "F", "H"])
@played
async def test_no_screen_sends_bars_in_ascii_either(key: str) -> None:
    async with opened(SLOW, size=(100, 34), look=Look(plain=True, ascii_only=True)) as (app, pilot):
        if key:
            await pilot.press(key)
            await until(pilot, lambda: answered(app))
        lines = sent_lines(app)
        assert "\n".join(lines).isascii()
        # A bar is a sign several times; names hold two colons, lines of text no more than an ellipsis.
        assert [line for line in lines if re.search(r"([^\w\s])(?: ?\1){3}", line)] == []
        assert any("slow_operator" in line for line in lines)


def test_a_shell_answers_as_its_commands_do() -> None:
    said = kair("shell", SLOW, "--plain", "--ascii", "-c", "localize; triage")
    alone = [kair(command, SLOW, "--plain", "--ascii").out for command in ("localize", "triage")]
    assert (said.status, said.out) == (0, "".join(alone))


def test_what_is_drawn_all_the_same_is_sent_as_blanks() -> None:
    text = [Segment("█▓ rank 2 ▲ slow │ ·")]
    for ascii_only, sent in ((False, "   rank 2   slow   ·"), (True, "   rank 2   slow    ")):
        shown = WithoutDrawings(ascii_only=ascii_only).apply(text, Color(0, 0, 0))
        assert [segment.text for segment in shown] == [sent]
