"""`--plain`, for screen readers: nothing is drawn, and an item is a line."""

import re

import pytest
from rich.segment import Segment
from support.cli_samples import kair
from support.places import SAMPLES
from support.screen_text import answered, opened, played, screen_lines, until
from textual.color import Color

from kair_tui.render.terminal import Look
from kair_tui.tui.frame.app import WithoutDrawings

SLOW = str(SAMPLES / "slow_operator")
DRAWN = re.compile("[\u2500-\u25ff\u2800-\u28ff]")

pytestmark = pytest.mark.usefixtures("own_places")


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


def test_what_is_drawn_all_the_same_is_sent_as_blanks() -> None:
    sent = WithoutDrawings().apply([Segment("█▓ rank 2 ▲ slow │")], Color(0, 0, 0))
    assert [segment.text for segment in sent] == ["   rank 2   slow  "]
