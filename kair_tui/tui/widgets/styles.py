"""The few styles of all screens: one colour for alarm, one tone for secondary text.

Also a scroll bar whose thumb is a character, so that it needs no colour and one column.
"""

from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, ClassVar, Final

from rich.color import Color
from rich.segment import Segment, Segments
from rich.style import Style
from textual.scrollbar import ScrollBar, ScrollBarRender

from kair_engine.results.triage import Verdict
from kair_tui.render.terminal import UNICODE, Glyphs, Look

if TYPE_CHECKING:
    from textual.theme import Theme


@dataclass(frozen=True)
class TextStyles:
    """A style for each purpose, complete with its background."""

    base: Style
    dim: Style
    strong: Style
    alarm: Style
    notice: Style
    """For costs without a culprit."""
    title: Style
    """The heading of a part of the screen."""
    bar: Style
    """The first and the last line of the screen."""
    bar_strong: Style
    status: Style
    status_alarm: Style
    cursor: Style
    """Added to the thing under the cursor."""
    levels: tuple[Style, ...]
    """A cell of the grid, from ordinary to far out."""


@dataclass(frozen=True)
class _Palette:
    background: str
    text: str
    dim: str
    alarm: str
    bar: str
    levels: tuple[str, str, str, str, str]


_DARK: Final = _Palette(
    "#121212",
    "#d7d7d7",
    "#878787",
    "#ff5f5f",
    "#262626",
    ("#626262", "#9e9e9e", "#d7af5f", "#d7875f", "#ff875f"),
)
"""Colours of many cells are of the 256, whose codes are half as long: `Shadow` sends them so."""
_LIGHT: Final = _Palette(
    "#ffffff",
    "#262626",
    "#6c6c6c",
    "#d70000",
    "#eeeeee",
    ("#a8a8a8", "#6c6c6c", "#875f00", "#af5f00", "#d70000"),
)


@cache
def styles_of(look: Look) -> TextStyles:
    """Return the styles for the terminal's capabilities."""
    if look.colours in ("none", "16"):
        return _ansi(coloured=look.colours == "16")
    palette = _LIGHT if look.light else _DARK
    base = Style(color=palette.text, bgcolor=palette.background)
    bar = Style(color=palette.dim, bgcolor=palette.bar)
    return TextStyles(
        base=base,
        dim=base + Style(color=palette.dim),
        strong=base + Style(bold=True),
        alarm=base + Style(color=palette.alarm, bold=True),
        notice=base + Style(color=palette.levels[2], bold=True),
        title=base + Style(color=palette.dim, bold=True),
        bar=bar,
        bar_strong=bar + Style(color=palette.text, bold=True),
        status=bar + Style(color=palette.text),
        status_alarm=bar + Style(color=palette.alarm, bold=True),
        cursor=Style(reverse=True),
        levels=tuple(base + Style(color=colour) for colour in palette.levels),
    )


def _ansi(*, coloured: bool) -> TextStyles:
    """Return the terminal's own colours, or none: then weight, and always characters, distinguish things."""
    base = Style(color="default", bgcolor="default")
    dim, bold = base + Style(dim=True), base + Style(bold=True)
    shades = ("", "yellow", "yellow", "red") if coloured else ("", "", "bold", "bold")
    return TextStyles(
        base=base,
        dim=dim,
        strong=bold,
        alarm=bold + Style(color="red" if coloured else None),
        notice=bold + Style(color="yellow" if coloured else None),
        title=dim + Style(bold=True),
        bar=dim,
        bar_strong=bold,
        status=base,
        status_alarm=bold + Style(color="red" if coloured else None),
        cursor=Style(reverse=True),
        levels=(dim, *(base + Style.parse(shade) for shade in shades)),
    )


def verdict_style(verdict: Verdict) -> str:
    """Return the style's name for the verdict's sentence."""
    return {"straggler": "alarm", "job_wide": "notice"}.get(verdict, "strong")


def theme_of(look: Look) -> "Theme":
    """Return Textual's theme of the same colours, for its own widgets."""
    from textual.theme import BUILTIN_THEMES, Theme

    if look.colours in ("none", "16"):
        return replace(BUILTIN_THEMES["ansi-light" if look.light else "ansi-dark"], name="kair")
    palette = _LIGHT if look.light else _DARK
    return Theme(
        "kair",
        primary=palette.text,
        foreground=palette.text,
        background=palette.background,
        surface=palette.background,
        panel=palette.bar,
        boost=palette.bar,
        dark=not look.light,
    )


class PlainScrollBar(ScrollBarRender):
    """Draws Textual's scroll bars."""

    glyphs: ClassVar[Glyphs] = UNICODE

    @classmethod
    def render_bar(  # noqa: PLR0917 - the signature is Textual's
        cls,
        size: int = 25,
        virtual_size: float = 50,
        window_size: float = 20,
        position: float = 0,
        thickness: int = 1,
        vertical: bool = True,
        back_color: Color = Color.default(),  # noqa: B008 - a constant
        bar_color: Color = Color.default(),  # noqa: B008 - a constant
    ) -> Segments:
        """Return the track and a proportional thumb. A click on the track turns a page."""
        glyphs = cls.glyphs
        track, thumb = (glyphs.vertical, glyphs.thumb) if vertical else (glyphs.horizontal, glyphs.thumb_horizontal)
        style = Style(color=bar_color, bgcolor=back_color)
        length = min(size, max(1, ceil(size * window_size / virtual_size))) if window_size else 0
        start = round((size - length) * position / max(virtual_size - window_size, 1))
        before = Segment(track, style + Style(dim=True, meta={"@mouse.down": "scroll_up"}))
        after = Segment(track, style + Style(dim=True, meta={"@mouse.down": "scroll_down"}))
        grabbed = Segment(thumb, style + Style(meta={"@mouse.down": "grab"}))
        bar = [before] * start + [grabbed] * length + [after] * (size - start - length)
        if vertical:
            return Segments([Segment(one.text * thickness, one.style) for one in bar], new_lines=True)
        return Segments([*bar, Segment.line()] * thickness)


def draw_scroll_bars_with(glyphs: Glyphs) -> None:
    """Apply to all later scroll bars."""
    PlainScrollBar.glyphs = glyphs
    ScrollBar.renderer = PlainScrollBar
