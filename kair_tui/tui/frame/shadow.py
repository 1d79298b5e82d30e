"""Sends the terminal only differences from what it shows.

Textual paints a whole screen when another one comes to the front, several times while its answers arrive, and restarts
the style of every piece: 25 to 108 kB a screen, half a second over a slow line. `Shadow` keeps the sent cells, and
`sparing` puts it between Textual and the terminal.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from rich.cells import get_character_cell_size

if TYPE_CHECKING:
    from textual.driver import Driver

_PAINTED: Final = re.compile(r"\x1b\[(\d+);(\d+)H|\x1b\[([\d;]*)m|([^\x00-\x1f\x7f-\x9f]+)|\n")
"""The elements of a painting: positions, styles, text, and line ends, which a position follows."""
_MARKS: Final = ("\x1b[?2026h", "\x1b[?2026l")
"""Textual's marks before and after a painting, if the terminal supports them."""
_PAINTS_NOTHING: Final = re.compile(r"(?:\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x07)*")
"""The clipboard, the title, the mouse's shape, the bell."""
_SMALL: Final = 2_000
"""Characters of a painting that is sent at once: a moved cursor, a changed line."""
_CALM_S: Final = 0.06
"""Delay of a larger one: a screen is painted up to eight times until it is laid out."""
_LONGEST_S: Final = 0.15
"""Total delay."""
_SAME_ROW_GAP: Final = 4
"""Equal cells between differing ones that are sent again: jumping over them takes as many bytes."""
_TEXT, _GROUND = "text", "zone"
_REVERSE: Final = "7"
_SEEN_ON_BLANKS: Final = frozenset({"4", _REVERSE, "9"})
"""Underline, reverse and strike-through."""
_FULL: Final = "█"
_OTHER_HALF: Final = {"▀": "▄", "▄": "▀"}
_RESET: Final = "\x1b[0m"
_EXTENDED: Final = {"2": 5, "5": 3}
"""Number of numbers of a colour, by the one after 38 or 48."""

Cell = tuple[str, str]
"""A cell's text, and its style as SGR numbers; the second cell of a wide character is empty."""


class Shadow:
    """The terminal's content: unknown cells are absent."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, Cell]] = {}
        self._painted: dict[int, dict[int, Cell]] = {}
        """Painted but not yet sent."""
        self._cursor: tuple[int, int] | None = None
        """Cursor position after the last unsent painting."""
        self._cursor_sent: tuple[int, int] | None = None

    def forget(self) -> None:
        """Assume unknown content: later paintings are sent whole."""
        self._rows, self._painted, self._cursor, self._cursor_sent = {}, {}, None, None

    def paint(self, data: str) -> bool:
        """Add a painting over unsent ones; return False if `data` is no painting."""
        painted = _parsed(data)
        if painted is None:
            return False
        cells, self._cursor = painted
        for y, row in cells.items():
            self._painted.setdefault(y, {}).update(row)
        return True

    def difference(self) -> str:
        """Return the text that makes the terminal show the paintings, and assume it is sent."""
        sent = "".join(_sent(self._differing()))
        cursor, self._painted, self._cursor = self._cursor, {}, None
        if cursor is None or (not sent and cursor == self._cursor_sent):
            return ""
        self._cursor_sent = cursor
        return f"{sent}\x1b[{cursor[0]};{cursor[1]}H"

    def _differing(self) -> "Iterator[_Run]":
        for y, new in sorted(self._painted.items()):
            old = self._rows.setdefault(y, {})
            differing = {x for x, cell in new.items() if old.get(x) != cell}
            # Both halves of a wide character are sent: one without the other would be blank.
            halves = {x - 1 for x in differing if not new[x][0]} | {x + 1 for x in differing if _is_half(new, x + 1)}
            yield from _runs(y, sorted(differing | halves), new)
            old.update(new)


class Outlet:
    """Forwards a program's output: for successive paintings only the last one's differences."""

    def __init__(self) -> None:
        self._shadow = Shadow()
        self._marks = False
        """Whether the terminal supports marks of a painting's begin and end."""
        self._timer: asyncio.TimerHandle | None = None
        self._latest_s = 0.0
        """When held output is sent at the latest."""

    def forget(self) -> None:
        """Assume unknown content."""
        self._shadow.forget()

    def write(self, data: str, send: Callable[[str], None]) -> None:
        """Send `data`, or its differences; a large painting waits a moment for one that replaces it."""
        if data in _MARKS:
            self._marks = True
        elif not self._shadow.paint(data):
            self._send_held(send)
            if not _PAINTS_NOTHING.fullmatch(data):
                self._shadow.forget()
            send(data)
        elif self._timer is None and len(data) <= _SMALL:
            self._send_held(send)
        else:
            self._hold(send)

    def _hold(self, send: Callable[[str], None]) -> None:
        now = monotonic()
        if self._timer is None:
            self._latest_s = now + _LONGEST_S
        else:
            self._timer.cancel()
        wait_s = max(min(_CALM_S, self._latest_s - now), 0.0)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._send_held, send)

    def _send_held(self, send: Callable[[str], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if held := self._shadow.difference():
            send(f"{_MARKS[0]}{held}{_MARKS[1]}" if self._marks else held)


def _is_half(row: dict[int, Cell], x: int) -> bool:
    """Return whether this is the second half of a wide character."""
    return x in row and not row[x][0]


@dataclass
class _Run:
    """Adjacent cells that are sent together."""

    y: int
    x: int
    cells: list[Cell]


def _runs(y: int, differing: list[int], new: dict[int, Cell]) -> Iterator[_Run]:
    """Yield the differing cells of a row, with those between them that are cheaper to send than to skip."""
    run: _Run | None = None
    for x in differing:
        if run is not None:
            end = run.x + len(run.cells)
            between = [new.get(one) for one in range(end, x)]
            if len(between) <= _SAME_ROW_GAP and _change_no_style(run.cells, between):
                run.cells += [new[one] for one in range(end, x + 1)]
                continue
            yield run
        run = _Run(y, x, [new[x]])
    if run is not None:
        yield run


def _change_no_style(before: list[Cell], between: list[Cell | None]) -> bool:
    """Return whether cells can be sent in the style of the previous ones, which blanks adopt."""
    style = next((cell[1] for cell in reversed(before) if cell[0] != " "), before[-1][1])
    return all(cell is not None and not _cheapest(style, cell)[0] for cell in between)


def _sent(runs: Iterator[_Run]) -> Iterator[str]:
    """Yield the runs for a terminal: each style once per sequence of cells with it."""
    style, y, x = "", 0, 0
    for run in runs:
        yield f"\x1b[{run.x - x}C" if run.y == y else f"\x1b[{run.y};{run.x}H"
        for cell in run.cells:
            if cell[1] == style:
                yield cell[0]
                continue
            change, text, style = _cheapest(style, cell)
            yield change + text
        y, x = run.y, run.x + len(run.cells)
    if style:
        yield _RESET


def _parsed(data: str) -> tuple[dict[int, dict[int, Cell]], tuple[int, int]] | None:
    """Return the painted cells by row and column from 1 on, and the final cursor; None for anything else."""
    rows: dict[int, dict[int, Cell]] = {}
    y = x = read = 0
    style = ""
    for found in _PAINTED.finditer(data):
        if found.start() != read:
            return None
        read = found.end()
        row, column, numbers, text = found.groups()
        if text is not None:
            if not y:
                return None
            x = _put(rows.setdefault(y, {}), x, text, style)
        elif row is not None:
            y, x = int(row), int(column)
        elif numbers is not None:
            style = _style(_attributes(numbers))
        else:
            y = 0
    return (rows, (y, x)) if y and read == len(data) else None


def _put(row: dict[int, Cell], x: int, text: str, style: str) -> int:
    """Write `text` into a row from column `x` on, and return the column after it."""
    if text.isascii():
        blank = _seen(" ", style)
        cells = [blank if character == " " else (character, style) for character in text]
        row.update(zip(range(x, x + len(text)), cells, strict=True))
        return x + len(text)
    for character in text:
        width = get_character_cell_size(character)
        if width == 0 and x - 1 in row:
            row[x - 1] = (row[x - 1][0] + character, style)
            continue
        row[x] = _seen(character, style)
        if width == 2:
            row[x + 1] = ("", style)
        x += width
    return x


@lru_cache(4096)
def _seen(character: str, style: str) -> Cell:
    """Return a cell with the visible part of its style: no text colour on a blank, no background of a full block."""
    attributes = _attributes(style)
    if character == " " and not attributes.keys() & _SEEN_ON_BLANKS:
        return character, attributes.get(_GROUND, "")
    if character == _FULL and _REVERSE not in attributes:
        return character, _style({name: value for name, value in attributes.items() if name != _GROUND})
    return character, style


@lru_cache(16384)
def _cheapest(before: str, cell: Cell) -> tuple[str, str, str]:
    """Return the change to a style in which a cell looks as wanted, its character, and that style.

    A blank keeps the text's colour, and a full block the background. If that takes fewer bytes, a half block is sent as
    the other half in exchanged colours, and a full block as a blank on a background of its colour.
    """
    character, wanted = cell[0], _attributes(cell[1])
    had = _attributes(before)
    ways = [(character, wanted)]
    if character == " " and not (had.keys() | wanted.keys()) & _SEEN_ON_BLANKS and (wanted or _GROUND not in had):
        ways = [(character, {**had, **wanted})]
    elif character == _FULL:
        ways = [(character, {**wanted, _GROUND: had[_GROUND]} if _GROUND in had else wanted), *_as_blank(had, wanted)]
    elif character in _OTHER_HALF and wanted.keys() == {_TEXT, _GROUND} and all(map(_is_extended, wanted.values())):
        turned = {_TEXT: f"3{wanted[_GROUND][1:]}", _GROUND: f"4{wanted[_TEXT][1:]}"}
        ways.append((_OTHER_HALF[character], turned))
    changes = [(_change(had, attributes), text, _style(attributes)) for text, attributes in ways]
    return min(changes, key=lambda way: len(way[0]) + len(way[1].encode()))


def _as_blank(had: dict[str, str], wanted: dict[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield a blank on ground of a full block's colour: one byte of a cell in place of three."""
    if wanted.keys() == {_TEXT} and _is_extended(wanted[_TEXT]):
        unseen = {name: value for name, value in had.items() if name not in _SEEN_ON_BLANKS}
        yield " ", {**unseen, _GROUND: f"4{wanted[_TEXT][1:]}"}


def _change(had: dict[str, str], wanted: dict[str, str]) -> str:
    """Return the change from one style to another: differing colours and additions, else the whole style."""
    if had == wanted:
        return ""
    if had.keys() <= wanted.keys():
        return f"\x1b[{';'.join(value for name, value in wanted.items() if had.get(name) != value)}m"
    return f"\x1b[{';'.join(['0', *wanted.values()]) if wanted else '0'}m"


def _style(attributes: dict[str, str]) -> str:
    """Return the numbers that set them, in one order."""
    return ";".join(value for _, value in sorted(attributes.items()))


def _is_extended(colour: str) -> bool:
    """Return whether a colour uses 38 or 48, so that it can be a background as well as a text colour."""
    return colour.startswith(("38;", "48;"))


@lru_cache(4096)
def _attributes(style: str) -> dict[str, str]:
    """Return the attributes of a style by name, each as its numbers."""
    numbers = style.split(";") if style else []
    found: dict[str, str] = {}
    at = 0
    while at < len(numbers):
        number = int(numbers[at] or 0)
        if not number:
            found.clear()
            at += 1
            continue
        length = _EXTENDED.get(numbers[at + 1], 1) if number in (38, 48) and at + 1 < len(numbers) else 1
        is_text = 30 <= number <= 39 or 90 <= number <= 97
        is_ground = 40 <= number <= 49 or 100 <= number <= 107
        name = _TEXT if is_text else _GROUND if is_ground else str(number)
        found[name] = _short(numbers[at : at + length])
        at += length
    return found


_STEPS: Final = {"0": 0, "95": 1, "135": 2, "175": 3, "215": 4, "255": 5}
"""The steps of red, green and blue among the 256 colours, each with its number."""
_GREYS: Final = {str(8 + 10 * step): 232 + step for step in range(24)}


def _short(numbers: list[str]) -> str:
    """Return a colour's numbers, the shorter ones of the 256 colours if it is one of them: `38;5;67`."""
    layer, *of = numbers
    if of[:1] != ["2"] or len(of) != 4:
        return ";".join(numbers)
    red, green, blue = of[1:]
    if red == green == blue and red in _GREYS:
        return f"{layer};5;{_GREYS[red]}"
    if {red, green, blue} <= _STEPS.keys():
        return f"{layer};5;{16 + 36 * _STEPS[red] + 6 * _STEPS[green] + _STEPS[blue]}"
    return ";".join(numbers)


def sparing(base: "type[Driver]", outlet: Outlet) -> "type[Driver]":
    """Return a driver that is `base`, but writes through `outlet`."""

    def write(self: "Driver", data: str) -> None:
        outlet.write(data, partial(base.write, self))

    return cast("type[Driver]", type(f"Sparing{base.__name__}", (base,), {"write": write}))
