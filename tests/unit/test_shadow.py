"""What the full screen leaves out of what it sends is never missed: a terminal shows the same without it."""

import asyncio
import random
import re

import pytest
from rich.cells import cell_len

from kair_tui.tui.frame.shadow import Outlet, Shadow

TOKEN = re.compile(
    r"\x1b\[(?P<y>\d+);(?P<x>\d+)H|\x1b\[(?P<right>\d+)C|\x1b\[(?P<style>[\d;]*)m|(?P<text>[^\x1b\n]+)|\n"
)
STYLES = (
    "",
    "1",
    "2;38;2;9;9;9;48;2;0;0;1",
    "38;2;9;9;9;48;2;0;0;1",
    "1;38;2;9;8;9;48;2;0;0;1",
    "7;38;5;3;48;5;4",
    "4;31;42",
    "39;49",
    "38;2;9;8;9;48;2;1;1;1",
    "38;2;1;1;1;48;2;9;8;9",
    "90;101",
)
TEXTS = ("rank 77", "   ", "wide 漢字", "東京東京a", "█▓▚ │", "▀▀▄", "██", " ", "a b  c   d", "x")
HEIGHT = 5


def sent(shadow: Shadow, data: str) -> str:
    """What is sent of a painting."""
    assert shadow.paint(data)
    return shadow.difference()


class Screen:
    """A terminal that knows what the full screen sends; each cell is a text and what can be seen of its style."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], tuple[str, frozenset[tuple[str, str]]]] = {}
        self.y = self.x = 1
        self.style: dict[str, str] = {}

    def take(self, data: str) -> None:
        for token in TOKEN.finditer(data):
            if token["y"]:
                self.y, self.x = int(token["y"]), int(token["x"])
            elif token["right"]:
                self.x += int(token["right"])
            elif token["style"] is not None:
                self._set(token["style"].split(";"))
            else:
                for character in token["text"] or "":
                    self._put(character)

    def _put(self, character: str) -> None:
        width = cell_len(character)
        # One half of a wide character cannot stand alone.
        for half, other in ((self.x, self.x - 1), (self.x + width, self.x + width)):
            if self.cells.get((self.y, half), (" ",))[0] == "":
                self.cells[self.y, other] = (" ", self.cells[self.y, other][1])
        style = dict(self.style)
        if character == " " and not style.keys() & {"4", "7"}:
            style = {name: value for name, value in style.items() if name == "ground"}
        if character == "█":
            style.pop("ground", None)
            if style.keys() == {"text"} and style["text"].startswith("38;"):  # looks as a blank on that ground does
                character, style = " ", {"ground": f"4{style['text'][1:]}"}
        if character == "▄" and all(style.get(name, "").startswith(("38;", "48;")) for name in ("text", "ground")):
            character, text, ground = "▀", style["text"], style["ground"]
            style |= {"text": f"3{ground[1:]}", "ground": f"4{text[1:]}"}
        seen = frozenset((name, value) for name, value in style.items() if value not in ("39", "49"))
        self.cells[self.y, self.x] = (character, seen)
        if width == 2:
            self.cells[self.y, self.x + 1] = ("", seen)
        self.x += width

    def _set(self, numbers: list[str]) -> None:
        while numbers:
            first = numbers.pop(0)
            if first in ("", "0"):
                self.style = {}
            elif first in ("38", "48"):
                count = 4 if numbers[0] == "2" else 2
                self.style["text" if first == "38" else "ground"] = ";".join([first, *numbers[:count]])
                del numbers[:count]
            elif (first[0] in "349" and len(first) == 2) or first[:2] == "10":
                self.style["text" if first[0] in "39" else "ground"] = first
            else:
                self.style[first] = first


def painting(dice: random.Random) -> str:
    """As Textual paints: where to, pieces that each begin and end their style, and the cursor's place at the end."""
    lines = []
    for y in sorted(dice.sample(range(1, HEIGHT + 1), dice.randint(1, HEIGHT))):
        x = dice.randint(1, 3)
        pieces = [(dice.choice(STYLES), dice.choice(TEXTS)) for _ in range(dice.randint(1, 5))]
        drawn = "".join(f"\x1b[{style}m{text}\x1b[0m" if style else text for style, text in pieces)
        lines.append(f"\x1b[{y};{x}H{drawn}")
    return "\n".join(lines) + "\x1b[1;1H"


@pytest.mark.parametrize("seed", range(20))
def test_a_terminal_shows_the_same_as_if_all_were_sent(seed: int) -> None:
    dice = random.Random(seed)
    shadow, whole, spared = Shadow(), Screen(), Screen()
    for _ in range(30):
        data = painting(dice)
        whole.take(data)
        spared.take(sent(shadow, data))
        assert spared.cells == whole.cells


def test_what_is_shown_already_is_not_sent_again() -> None:
    data = painting(random.Random(0))
    shadow = Shadow()
    assert sent(shadow, data)
    assert sent(shadow, data) == ""
    shadow.forget()
    assert sent(shadow, data) == sent(Shadow(), data)


def test_of_a_line_only_the_words_that_differ_are_sent_and_a_style_once() -> None:
    shadow, dim = Shadow(), "38;2;1;1;1;48;2;0;0;1"
    sent(shadow, f"\x1b[1;1H\x1b[{dim}mrank 1 is slow\x1b[0m\x1b[1;1H")
    pieces = "".join(f"\x1b[{dim}m{text}\x1b[0m" for text in ("rank ", "77", "is slow"))
    assert sent(shadow, f"\x1b[1;1H{pieces}\x1b[1;1H") == f"\x1b[1;6H\x1b[{dim}m77\x1b[0m\x1b[1;1H"


def test_a_bar_of_one_colour_takes_a_byte_a_cell() -> None:
    bar = f"\x1b[38;2;1;2;3;48;2;0;0;0m{'█' * 100}\x1b[0m"
    assert sent(Shadow(), f"\x1b[1;1H{bar}\x1b[1;1H") == f"\x1b[1;1H\x1b[48;2;1;2;3m{' ' * 100}\x1b[0m\x1b[1;1H"


@pytest.mark.parametrize(
    ("colour", "number"),
    [("95;135;175", 67), ("0;0;0", 16), ("255;255;255", 231), ("98;98;98", 241), ("8;8;8", 232), ("95;95;95", 59)],
)
def test_a_colour_of_the_256_is_sent_by_its_number(colour: str, number: int) -> None:
    data = f"\x1b[1;1H\x1b[38;2;{colour};48;2;{colour}ma\x1b[0m\x1b[1;1H"
    assert sent(Shadow(), data) == f"\x1b[1;1H\x1b[38;5;{number};48;5;{number}ma\x1b[0m\x1b[1;1H"


def test_words_over_blanks_are_sent_with_the_blanks_between_them() -> None:
    shadow = Shadow()
    sent(shadow, f"\x1b[1;1H\x1b[48;2;0;0;0m{' ' * 40}\x1b[0m\x1b[1;1H")
    assert "others wait 9 ms" in sent(shadow, "\x1b[1;1H\x1b[38;2;1;1;1;48;2;0;0;0mothers wait 9 ms\x1b[0m\x1b[1;1H")


@pytest.mark.parametrize("data", ["\x1b[?1049h", "\x1b[2J", "\x1b[1;1Htext\x1b[K\x1b[1;1H", "\x1b[1;1Ha\tb\x1b[1;1H"])
def test_what_may_change_the_screen_in_another_way_is_sent_and_nothing_is_taken_as_shown(data: str) -> None:
    written: list[str] = []
    outlet, shown = Outlet(), "\x1b[1;1Htext\x1b[1;1H"
    for one in (shown, data, shown):
        outlet.write(one, written.append)
    assert written == [shown, data, shown]


@pytest.mark.parametrize("data", ["\x1b]52;c;dGV4dA==\x07", "\x1b]22;default\x1b\\", "\x07"])
def test_the_clipboard_and_the_bell_leave_the_screen_as_it_is(data: str) -> None:
    written: list[str] = []
    outlet, shown = Outlet(), "\x1b[1;1Htext\x1b[1;1H"
    for one in (shown, data, shown):
        outlet.write(one, written.append)
    assert written == [shown, data]


def whole_screen(letter: str) -> str:
    """A large painting."""
    return "\n".join(f"\x1b[{y};1H{letter * 200}" for y in range(1, 25)) + "\x1b[1;1H"


def test_of_paintings_over_one_another_the_last_is_sent_and_what_comes_behind_them_stays_behind() -> None:
    written: list[str] = []
    outlet = Outlet()

    async def painted() -> None:
        for letter in "abc":
            outlet.write("\x1b[?2026h", written.append)
            outlet.write(whole_screen(letter), written.append)
            outlet.write("\x1b[?2026l", written.append)
        assert written == []
        outlet.write("\x1b[?1049l", written.append)
        outlet.write("\x1b[?25h", written.append)

    asyncio.run(painted())
    first, *rest = written
    assert first.startswith("\x1b[?2026h")
    assert first.endswith("\x1b[?2026l")
    assert first.count("c") == 200 * 24
    assert "a" not in first
    assert rest == ["\x1b[?1049l", "\x1b[?25h"]


def test_a_large_painting_is_sent_though_nothing_follows() -> None:
    written: list[str] = []
    outlet = Outlet()

    async def painted() -> None:
        done = asyncio.Event()

        def send(data: str) -> None:
            written.append(data)
            done.set()

        outlet.write(whole_screen("a"), send)
        await done.wait()

    asyncio.run(painted())
    assert written[0].count("a") == 200 * 24
