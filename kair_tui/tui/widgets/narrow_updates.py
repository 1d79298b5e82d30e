"""Sends of a line only what changed.

Textual draws a changed region from the left edge of its widget on: 1177 bytes instead of 37 for the last two columns of
a line of 80 coloured cells, which is felt over SSH.

What is overridden is private, and pyproject.toml pins the version that has it: no public method hears which columns
are to be drawn. `Widget.render_lines` and `Strip.render` do not, and a driver of one's own (`App.driver_class`) sees
nothing but finished sequences. The module can go, with the line of `screen.py` that uses it, once
`ChopsUpdate.render_segments` (textual/_compositor.py, in 8.2.8) crops at both ends: where it has
`strip.crop(0, min(end, x2) - x)` after `move_to(x, y)`, it needs `strip.crop(max(x1 - x, 0), min(end, x2) - x)` after
`move_to(max(x, x1), y)`. With these two expressions the same bytes are sent as with this module, but for a line feed
between two spans. Reported as Textualize/textual#5625, and closed there without the change.
"""

from rich.console import Console
from rich.control import Control
from textual._compositor import ChopsUpdate, Compositor


class NarrowUpdate(ChopsUpdate):
    """The changed spans of lines, cut at both ends."""

    def render_segments(self, console: Console) -> str:
        """The sequences to write."""
        sequences = []
        for y, first, last in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                start, stop = max(x, first), min(end, last)
                if strip is not None and start < stop:
                    sequences.append(Control.move_to(start, y).segment.text)
                    sequences.append(strip.crop(start - x, stop - x).render(console))
        return "".join(sequences)


class NarrowCompositor(Compositor):
    """Textual's, with smaller updates."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """What changed since the last."""
        update = super().render_partial_update()
        return None if update is None else NarrowUpdate(update.chops, update.spans, update.chop_ends)
