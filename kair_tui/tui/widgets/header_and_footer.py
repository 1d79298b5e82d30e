"""Header, status line and footer: the place, the thing under the cursor, and the keys.

Textual's `Footer` and `Tabs` make a widget per key and scroll; these drop whole keys, and keep `esc ? q`.
"""

from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.style import Style
from textual.geometry import Region

from kair_tui.tui.widgets.lines import Line, Piece

_MOST_KEYS = 8
_APART = 3


class BarLine(Line):
    """A bar across the screen; clickable pieces carry their action in their style."""

    shown: Any = ()

    def on_mount(self) -> None:
        """Draw clickable text like all else."""
        self.auto_links = False

    def show(self, *shown: object) -> None:
        """Redraw if something changed."""
        if shown != self.shown:
            self.shown = shown
            self.refresh()

    def fill(self) -> Style:
        """Return the style of the bar."""
        return self.text_styles.bar


def _doing(action: str) -> Style:
    return Style(meta={"@click": f"screen.{action}"})


class HeaderLine(BarLine):
    """The path of screens on the left, the open job on the right."""

    shown: Any = ((), "", "")

    def pieces(self, width: int) -> list[Piece]:
        """Return `kair  job › overview › rank 3        12 steps`.

        If space is short the job is dropped first, then the path from its begin; the current place and alerts stay.
        """
        styles, (crumbs, about, alarming) = self.text_styles, self.shown
        alarm: list[Piece] = [(f"  {self.safe(alarming)}", styles.bar_strong)] if alarming else []
        most = max(len(crumbs) - 1, 0)
        for left_out, right in [
            (0, [(self.safe(about), styles.bar), *alarm]),
            *((at, alarm) for at in range(most + 1)),
        ]:
            path = self._path(left_out)
            gap = width - _length(path) - _length(right) - 1
            if gap > 0:
                break
        return [*path, (" " * gap, styles.bar), *right, (" ", styles.bar)]

    def _path(self, left_out: int) -> list[Piece]:
        """Return the brand and the crumbs, each a link to its screen, without the first `left_out`."""
        styles, glyphs = self.text_styles, self.look.glyphs
        cut = f" {glyphs.ellipsis} {glyphs.crumb} " if left_out else " "
        path: list[Piece] = [(" kair ", styles.bar_strong), (cut, styles.bar)]
        crumbs = list(enumerate(self.shown[0]))[left_out:]
        for at, crumb in crumbs:
            is_last = at == crumbs[-1][0]
            text = self.safe(crumb) if is_last else f"{self.safe(crumb)} {glyphs.crumb} "
            path.append((text, (styles.bar_strong if is_last else styles.bar) + _doing(f"go_to_crumb({at})")))
        return path


class ScreensLine(BarLine):
    """The screens with their keys, the current one highlighted: `1 overview 2 rank 3 blame ... 8 M F Q D`."""

    shown: Any = ((), "")

    def pieces(self, width: int) -> list[Piece]:
        """Return every key; the last ones without names if these do not fit."""
        pieces: list[Piece] = []
        screens, front = self.shown
        for (key, name), is_named in zip(screens, self._named(width), strict=True):
            style, lead = (
                self.text_styles.bar_strong if name == front else self.text_styles.bar,
                _doing(f"go({name!r})"),
            )
            pieces.append((f" {key}", self.text_styles.bar_strong + lead))
            pieces.append((f" {name}" if is_named else "", style + lead))
        return pieces

    def _named(self, width: int) -> list[bool]:
        """Return which screens show a name; the current one keeps its own as long as any does."""
        screens, front = self.shown
        names = sorted(screens, key=lambda screen: screen[1] != front)
        named: set[str] = set()
        room = width - sum(len(f" {key}") for key, _ in screens)
        for _, name in names:
            if len(f" {name}") > room:
                break
            room -= len(f" {name}")
            named.add(name)
        return [name in named for _, name in screens]


class StatusLine(Line):
    """Describes the thing under the cursor; a message replaces it until the cursor moves."""

    _text = ""
    _about = ""
    _alarming = False
    is_message = False
    """Whether the text is a message instead of a description."""

    @property
    def text(self) -> str:
        """Return the current text."""
        return self._text.strip()

    @property
    def about(self) -> str:
        """Return the description of the thing under the cursor."""
        return self._about

    def describe(self, text: str) -> None:
        """Show the thing under the cursor; a message yields only to something new."""
        if text != self._about:
            self._about, self.is_message = text, False
            self._show(text, alarm=False)

    def say(self, text: str, *, alarm: bool = False) -> None:
        """Show a message; without text the description is shown again."""
        self.is_message = bool(text)
        self._show(text or self._about, alarm=alarm)

    def _show(self, text: str, *, alarm: bool) -> None:
        """Redraw only the differing part."""
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
    """A key, its action, and whether it stays if space is short."""

    key: str
    does: str
    stays: bool = False
    press: str = ""
    """The key pressed by a click, in Textual's terms."""


class FooterLine(BarLine):
    """The keys that matter here."""

    def pieces(self, width: int) -> list[Piece]:
        """Return the keys that fit."""
        pieces: list[Piece] = [(" ", self.text_styles.bar)]
        for key in self._shown(width):
            gap = " " * _APART if len(pieces) > 1 else ""
            press = _doing(f"press({key.press!r})")
            pieces += [
                (gap, self.text_styles.bar + press),
                (key.key, self.text_styles.bar_strong + press),
                (f" {key.does}", self.text_styles.bar + press),
            ]
        return pieces

    def _shown(self, width: int) -> list[FooterKey]:
        """Return as many whole keys as fit; dispensable ones are dropped from the end."""
        keys: list[FooterKey] = list(self.shown)
        while len(keys) > _MOST_KEYS or (len(keys) > 1 and _needed(keys) > width):
            keys.remove(next((key for key in reversed(keys) if not key.stays), keys[-1]))
        return keys


def _length(pieces: list[Piece]) -> int:
    return sum(cell_len(text) for text, _ in pieces)


def _needed(keys: list[FooterKey]) -> int:
    return 1 + sum(len(key.key) + 1 + len(key.does) for key in keys) + _APART * (len(keys) - 1)


def _difference(one: str, other: str) -> tuple[int, int]:
    """Return the first differing cell of two texts of equal length, and one past the last."""
    if cell_len(one) != len(one) or cell_len(other) != len(other):
        return 0, max(cell_len(one), cell_len(other))
    differing = [index for index, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    return (differing[0], differing[-1] + 1) if differing else (0, 1)
