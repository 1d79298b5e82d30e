"""A scroll bar whose thumb is a sign of its own, so that it needs no colour and one column."""

from math import ceil
from typing import ClassVar

from rich.color import Color
from rich.segment import Segment, Segments
from rich.style import Style
from textual.scrollbar import ScrollBar, ScrollBarRender

from kair_tui.render.terminal import UNICODE, Glyphs


class PlainScrollBar(ScrollBarRender):
    """What Textual's scroll bars are drawn with."""

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
        """The track and, in proportion, the thumb. A click on the track turns a page."""
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
    """For all scroll bars from now on."""
    PlainScrollBar.glyphs = glyphs
    ScrollBar.renderer = PlainScrollBar
