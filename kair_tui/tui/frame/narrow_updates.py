"""Sends of a line only what changed.

Textual draws a changed region from the left edge of its widget on: a kilobyte for one cell of a grid, which is felt
over SSH. What is overridden here is not public; pyproject.toml pins the version that has it.
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
