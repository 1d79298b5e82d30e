"""Header, status line and footer: where one is, what is under the cursor, and which keys do what.

Textual's `Footer` and `Tabs` make a widget for each key and scroll; these drop whole keys, and keep `esc ? q`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message

from kair_tui.render.terminal import Look
from kair_tui.tui.widgets.lines import Line, Piece

_MOST_KEYS = 8
_APART = 3
_PIECES_OF_KEY = 3
_BRAND = 2
"""Pieces of the path before its first crumb."""


class HeaderLine(Line):
    """The path of screens that led here on the left, what is open on the right."""

    class Chosen(Message):
        """A crumb was clicked: its place in the path."""

        def __init__(self, at: int) -> None:
            super().__init__()
            self.at = at

    def __init__(self, look: Look) -> None:
        super().__init__(look, id="header")
        self._crumbs: tuple[str, ...] = ()
        self._about = ""
        self._alarm = ""
        self._left_out = 0
        """Crumbs at the beginning for which there was no room."""

    def show(self, crumbs: tuple[str, ...], about: str, alarm: str = "") -> None:
        """Redraw where something changed."""
        if (crumbs, about, alarm) != (self._crumbs, self._about, self._alarm):
            self._crumbs, self._about, self._alarm = crumbs, about, alarm
            self.refresh()

    def fill(self) -> Style:
        """Return a bar across the screen."""
        return self.text_styles.bar

    def pieces(self, width: int) -> list[Piece]:
        """`kair  job › overview › rank 3        12 steps`.

        Where there is little room what is open goes first, then the path from its beginning on; where one is, and what
        must not be overlooked, stay.
        """
        styles, about = self.text_styles, self.safe(self._about)
        alarm: list[Piece] = [(f"  {self.safe(self._alarm)}", styles.bar_strong)] if self._alarm else []
        most = max(len(self._crumbs) - 1, 0)
        for left_out, right in [(0, [(about, styles.bar), *alarm]), *((at, alarm) for at in range(most + 1))]:
            path = self._path(left_out)
            gap = width - _length(path) - _length(right) - 1
            if gap > 0:
                break
        self._left_out = left_out
        return [*path, (" " * gap, styles.bar), *right, (" ", styles.bar)]

    def _path(self, left_out: int) -> list[Piece]:
        """Return the brand and the crumbs, a piece each, without so many of the first."""
        styles, glyphs = self.text_styles, self.look.glyphs
        crumbs = [self.safe(crumb) for crumb in self._crumbs[left_out:]]
        cut = f" {glyphs.ellipsis} {glyphs.crumb} " if left_out else " "
        path: list[Piece] = [(" kair ", styles.bar_strong), (cut, styles.bar)]
        path += [(f"{crumb} {glyphs.crumb} ", styles.bar) for crumb in crumbs[:-1]]
        return path + [(crumb, styles.bar_strong) for crumb in crumbs[-1:]]

    def on_click(self, event: events.Click) -> None:
        """Lead to the screen of the crumb under the mouse."""
        at = _piece_at(self._path(self._left_out), event.x)
        if at is not None and at >= _BRAND:
            self.post_message(self.Chosen(at - _BRAND + self._left_out))


class ScreensLine(Line):
    """The screens with their keys, the one in front lit: `1 overview 2 rank 3 blame ... 8 M F Q D`."""

    class Chosen(Message):
        """A screen was clicked."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, look: Look) -> None:
        super().__init__(look, id="screens")
        self._screens: tuple[tuple[str, str], ...] = ()
        self._front = ""

    def show(self, screens: Sequence[tuple[str, str]], front: str) -> None:
        """Keys and names, and the name of the screen in front; redraws where something changed."""
        if (tuple(screens), front) != (self._screens, self._front):
            self._screens, self._front = tuple(screens), front
            self.refresh()

    def fill(self) -> Style:
        """Return a bar across the screen."""
        return self.text_styles.bar

    def pieces(self, width: int) -> list[Piece]:
        """Return every key; the last ones without their names where there is no room for those."""
        pieces: list[Piece] = []
        for (key, name), is_named in zip(self._screens, self._named(width), strict=True):
            is_front = name == self._front
            style = self.text_styles.bar_strong if is_front else self.text_styles.bar
            pieces.append((f" {key}", self.text_styles.bar_strong))
            pieces.append((f" {name}" if is_named else "", style))
        return pieces

    def _named(self, width: int) -> list[bool]:
        """Of which screens there is room for the name; the one in front keeps its own as long as any has."""
        names = sorted(self._screens, key=lambda screen: screen[1] != self._front)
        named: set[str] = set()
        room = width - sum(len(f" {key}") for key, _ in self._screens)
        for _, name in names:
            if len(f" {name}") > room:
                break
            room -= len(f" {name}")
            named.add(name)
        return [name in named for _, name in self._screens]

    def on_click(self, event: events.Click) -> None:
        """Lead to the screen under the mouse."""
        at = _piece_at(self.pieces(self.size.width), event.x)
        if at is not None:
            self.post_message(self.Chosen(self._screens[at // 2][1]))


class StatusLine(Line):
    """What is under the cursor; a message takes its place until the cursor moves."""

    def __init__(self, look: Look) -> None:
        super().__init__(look, id="status")
        self._text = ""
        self._about = ""
        self._alarming = False
        self.is_message = False
        """Whether what it says is no description of what is under the cursor."""

    @property
    def text(self) -> str:
        """Return what it says now."""
        return self._text.strip()

    @property
    def about(self) -> str:
        """Return what is under the cursor."""
        return self._about

    def describe(self, text: str) -> None:
        """What is under the cursor; a message gives way only if that is something new."""
        if text != self._about:
            self._about, self.is_message = text, False
            self._show(text, alarm=False)

    def say(self, text: str, *, alarm: bool = False) -> None:
        """A message; without text what is under the cursor is seen again."""
        self.is_message = bool(text)
        self._show(text or self._about, alarm=alarm)

    def _show(self, text: str, *, alarm: bool) -> None:
        """Redraw only the part that differs."""
        shown = f" {self.safe(text)}"
        if (shown, alarm) == (self._text, self._alarming):
            return
        before, self._text = self._text, shown
        if alarm != self._alarming:
            self._alarming = alarm
            self.refresh()
            return
        width = max(len(before), len(shown))
        first, last = _difference(before.ljust(width), shown.ljust(width))
        self.refresh(Region(first, 0, last - first, 1))

    def fill(self) -> Style:
        """Return one bar with the footer."""
        return self.text_styles.status

    def pieces(self, width: int) -> list[Piece]:  # noqa: ARG002
        """Return the message."""
        return [(self._text, self.text_styles.status_alarm if self._alarming else self.text_styles.status)]


class FooterKey(NamedTuple):
    """A key, what it does, and whether it is shown even where there is little room."""

    key: str
    does: str
    stays: bool = False
    press: str = ""
    """What is pressed by a click, as Textual calls it."""


class FooterLine(Line):
    """The keys that matter here."""

    class Chosen(Message):
        """A key was clicked."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, look: Look) -> None:
        super().__init__(look, id="footer")
        self._keys: tuple[FooterKey, ...] = ()

    def show(self, keys: tuple[FooterKey, ...]) -> None:
        """Redraw where the keys changed."""
        if keys != self._keys:
            self._keys = keys
            self.refresh()

    def fill(self) -> Style:
        """Return a bar across the screen."""
        return self.text_styles.bar

    def pieces(self, width: int) -> list[Piece]:
        """Return the keys that there is room for."""
        pieces: list[Piece] = [(" ", self.text_styles.bar)]
        for key in self._shown(width):
            gap = " " * _APART if len(pieces) > 1 else ""
            pieces += [
                (gap, self.text_styles.bar),
                (key.key, self.text_styles.bar_strong),
                (f" {key.does}", self.text_styles.bar),
            ]
        return pieces

    def _shown(self, width: int) -> list[FooterKey]:
        """As many whole keys as there is room for; the last of those that need not stay go first."""
        keys = list(self._keys)
        while len(keys) > _MOST_KEYS or (len(keys) > 1 and _needed(keys) > width):
            keys.remove(next((key for key in reversed(keys) if not key.stays), keys[-1]))
        return keys

    def on_click(self, event: events.Click) -> None:
        """Press the key under the mouse."""
        at = _piece_at(self.pieces(self.size.width), event.x)
        if at is not None and at > 0:
            self.post_message(self.Chosen(self._shown(self.size.width)[(at - 1) // _PIECES_OF_KEY].press))


def _length(pieces: list[Piece]) -> int:
    return sum(cell_len(text) for text, _ in pieces)


def _piece_at(pieces: list[Piece], x: int) -> int | None:
    """Return which of the pieces of a line is in a column."""
    end = 0
    for at, (text, _) in enumerate(pieces):
        end += cell_len(text)
        if x < end:
            return at
    return None


def _needed(keys: list[FooterKey]) -> int:
    return 1 + sum(len(key.key) + 1 + len(key.does) for key in keys) + _APART * (len(keys) - 1)


def _difference(one: str, other: str) -> tuple[int, int]:
    """Return the first cell in which two texts of the same length differ, and one past the last."""
    if cell_len(one) != len(one) or cell_len(other) != len(other):
        return 0, max(cell_len(one), cell_len(other))
    differing = [index for index, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    return (differing[0], differing[-1] + 1) if differing else (0, 1)
