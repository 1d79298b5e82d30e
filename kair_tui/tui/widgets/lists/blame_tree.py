"""Blame paths as trees: who waited at the root, and under it stop by stop what it waited for, to the culprit."""

from collections.abc import Sequence
from typing import ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kair_engine.results.blame import BlamePath, PathNode
from kair_tui.render.terminal import Look
from kair_tui.render.text import clean, short_name
from kair_tui.render.units import duration, percent, signed_duration
from kair_tui.render.views.blame import stops, verdict
from kair_tui.render.views.blame_paths import stop_name
from kair_tui.tui.widgets.focus import RefreshedByFocus
from kair_tui.tui.widgets.lines.line import Piece, fitted
from kair_tui.tui.widgets.styles import styles_of

TIME, LATE, SHARE = 9, 10, 9
"""Columns of the figures at the end of a line."""
WIDE: Final = 100
"""From here on there is room for the first of them."""
_SHORTEST_NAME = 12


class BlameTree(ScrollView, RefreshedByFocus, can_focus=True):
    """Paths under each other, the first unfolded; only lines in view are made into text."""

    DEFAULT_CSS = "BlameTree { height: 1fr; overflow-x: hidden; overflow-y: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup,ctrl+u", "page(-1)", "page up", show=False),
        Binding("pagedown,ctrl+d", "page(1)", "page down", show=False),
        Binding("home", "move(-1000000)", "first", show=False),
        Binding("end,G", "move(1000000)", "last", show=False),
        Binding("enter", "open", "open rank"),
        Binding("space", "fold", "fold"),
        Binding("left,h", "out", "fold, or to the root of the path", show=False),
        Binding("right,l", "into", "unfold, or to the next stop", show=False),
        Binding("z", "fold_all", "fold all", show=False),
    ]

    class Moved(Message):
        """The cursor is on another line."""

    class Opened(Message):
        """Enter was pressed on a stop of that rank."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    def __init__(self, look: Look, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._look = look
        self._paths: Sequence[BlamePath] = ()
        self._waiting_us = 0.0
        self._empty = ""
        self._ends_differ = self._steps_differ = False
        self._folded: set[int] = set()
        self._lines: list[tuple[int, int]] = []
        """(path, how far below its symptom) of every line that is not folded away."""
        self.at = 0

    # What is shown.

    def show(self, paths: Sequence[BlamePath], waiting_us: float, empty: str = "") -> None:
        """Replaces the paths; shares are of `waiting_us`. Without any, `empty` says why."""
        self._paths, self._waiting_us, self._empty, self.at = paths, waiting_us, empty, 0
        self._ends_differ = len({(path.chain[-1].rank, path.chain[-1].operator) for path in paths}) > 1
        self._steps_differ = len({path.step for path in paths}) > 1
        self._folded = set(range(1, len(paths)))
        self._lay_out()
        self.scroll_to(y=0, animate=False)

    @property
    def path(self) -> BlamePath | None:
        """The path under the cursor."""
        return self._paths[self._lines[self.at][0]] if self._lines else None

    @property
    def node(self) -> PathNode | None:
        """The stop under the cursor."""
        return self._node(*self._lines[self.at]) if self._lines else None

    def _node(self, path: int, depth: int) -> PathNode:
        return stops(self._paths[path])[depth - 1] if depth else self._paths[path].symptom

    def _lay_out(self) -> None:
        self._lines = [
            (at, depth)
            for at, path in enumerate(self._paths)
            for depth in range(1 if at in self._folded else len(stops(path)) + 1)
        ]
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines))
        self.refresh()

    # Drawing.

    def render_line(self, y: int) -> Strip:
        """One line of what is in view."""
        styles, width = styles_of(self._look), self.scrollable_content_region.width
        at = y + self.scroll_offset.y
        if at >= len(self._lines):
            said = self._safe(self._empty) if not self._lines and y == 0 else ""
            return fitted([(f"  {said}", styles.dim)], width, styles.base, self._look)
        pieces = self._line(*self._lines[at])
        if self.has_focus and at == self.at:
            pieces = [(text, styles.base + styles.cursor) for text, _ in pieces]
        return fitted(pieces, width, pieces[-1][1], self._look)

    def _line(self, at: int, depth: int) -> list[Piece]:
        path, figures = self._paths[at], self._figures(at, depth)
        # The last column is the scroll bar's, or blank.
        room = self.size.width - 1 - sum(len(text) for text, _ in figures)
        text = self._symptom(at, path, room) if depth == 0 else self._stop(path, depth, room)
        strip = fitted(text, room, styles_of(self._look).base, self._look)
        pieces = [(segment.text, segment.style or styles_of(self._look).base) for segment in strip]
        return [*pieces, *figures]

    def _symptom(self, at: int, path: BlamePath, room: int) -> list[Piece]:
        styles, glyphs, node = styles_of(self._look), self._look.glyphs, path.symptom
        fold = glyphs.folded if at in self._folded else glyphs.unfolded
        end = path.chain[-1]
        step = f"step {path.step} " if self._steps_differ else ""
        when = f" {glyphs.dot} {step}at {self._safe(duration(node.start_us))}"
        who = f"rank {node.rank}"
        blamed = f"  {glyphs.alarm} rank {end.rank} " if self._ends_differ and at in self._folded else ""
        left = room - len(f"{fold} {who} waited in {when}{blamed}")
        name = self._cut(short_name(node.operator), left // 2 if blamed else left)
        pieces = [
            (f"{fold} ", styles.base),
            (who, styles.strong),
            (f" waited in {name}", styles.base),
            (when, styles.dim),
        ]
        if blamed:
            blamed += self._cut(stop_name(end, path), left - len(name))
        return [*pieces, (blamed, styles.base)]

    def _stop(self, path: BlamePath, depth: int, room: int) -> list[Piece]:
        styles, glyphs, chain = styles_of(self._look), self._look.glyphs, stops(path)
        node, before = chain[depth - 1], chain[depth - 2] if depth > 1 else path.symptom
        is_last, is_edge = depth == len(chain), node.role_in_path == "edge"
        guide = "  " + "   " * (depth - 1) + (glyphs.edge if is_edge else glyphs.last_branch)
        who = f"rank {node.rank} "
        tail = f"  {node.kind}" if not is_last else f"  {glyphs.alarm} {verdict(node, path)}"
        name = self._cut(stop_name(node, path), room - len(guide + who + tail))
        style = styles.alarm if is_last else styles.base
        crossed = styles.strong if node.rank != before.rank else style
        return [(guide, styles.dim), (who, crossed), (name, style), (tail, style if is_last else styles.dim)]

    def _figures(self, at: int, depth: int) -> list[Piece]:
        """How long, how much later than its peers, and the path's part of all waiting."""
        styles, path, node = styles_of(self._look), self._paths[at], self._node(at, depth)
        style = styles.alarm if node is path.chain[-1] else styles.base
        took = path.waited_us if depth == 0 else node.duration_us
        share = percent(path.waited_us / self._waiting_us) if self._waiting_us else ""
        cells = [(duration(took), TIME, styles.base)] if self.size.width >= WIDE else []
        cells += [
            (signed_duration(node.lateness_us), LATE, style),
            (share, SHARE, styles.dim if depth else styles.base),
        ]
        return [(f"{self._safe(text):>{columns}}", style) for text, columns, style in cells]

    def _cut(self, name: str, room: int) -> str:
        """A name as it fits: what follows it says more than its end."""
        name, most = self._safe(name), max(room, _SHORTEST_NAME)
        return name if len(name) <= most else name[: most - 1] + self._look.glyphs.ellipsis

    def _safe(self, text: str) -> str:
        return clean(text, ascii_only=self._look.ascii_only)

    # The cursor.

    def on_resize(self) -> None:
        """The cursor stays in view."""
        self._bring_into_view()

    def action_move(self, by: int) -> None:
        """Moves the cursor by so many lines."""
        self.move_to(self.at + by)

    def action_page(self, by: int) -> None:
        """By so many screens."""
        self.move_to(self.at + by * max(self.scrollable_content_region.height - 1, 1))

    def move_to(self, at: int) -> None:
        """Puts the cursor on a line, or the nearest there is; redraws the two lines that change."""
        at = min(max(at, 0), len(self._lines) - 1)
        if at < 0 or at == self.at:
            return
        before, self.at = self.at, at
        self.refresh_line(before)
        self.refresh_line(at)
        self._bring_into_view()
        self.post_message(self.Moved())

    def _bring_into_view(self) -> None:
        top, height = self.scroll_offset.y, max(self.scrollable_content_region.height, 1)
        if self.at < top:
            self.scroll_to(y=self.at, animate=False)
        elif self.at >= top + height:
            self.scroll_to(y=self.at - height + 1, animate=False)

    # Folding.

    def action_fold(self) -> None:
        """Folds the path under the cursor, or unfolds it."""
        if self._lines:
            path = self._lines[self.at][0]
            self._fold_to(self._folded ^ {path})

    def action_fold_all(self) -> None:
        """Folds all paths, or unfolds them where all are folded."""
        if self._lines:
            every = set(range(len(self._paths)))
            self._fold_to(set() if self._folded == every else every)

    def action_out(self) -> None:
        """From a stop to its path's root; from there folds."""
        if not self._lines:
            return
        path, depth = self._lines[self.at]
        if depth:
            self.move_to(self.at - depth)
        elif path not in self._folded:
            self.action_fold()

    def action_into(self) -> None:
        """Unfolds a path, then goes along it."""
        if not self._lines:
            return
        path, depth = self._lines[self.at]
        if path in self._folded:
            self.action_fold()
        elif depth < len(stops(self._paths[path])):
            self.move_to(self.at + 1)

    def _fold_to(self, folded: set[int]) -> None:
        """The cursor stays with its path."""
        path, depth = self._lines[self.at]
        self._folded = folded
        self._lay_out()
        self.at = self._lines.index((path, 0 if path in folded else depth))
        self._bring_into_view()
        self.post_message(self.Moved())

    # What the cursor is on.

    def action_open(self) -> None:
        """Asks for the rank's screen; on a folded path shows its stops first."""
        if not self._lines:
            return
        if self._lines[self.at][0] in self._folded:
            self.action_fold()
        elif self.node is not None:
            self.post_message(self.Opened(self.node.rank))

    def on_click(self, event: events.Click) -> None:
        """Moves the cursor to the line under the mouse; folds a path or opens a stop where it already was."""
        at = event.y + self.scroll_offset.y
        if at >= len(self._lines):
            return
        if at != self.at:
            self.move_to(at)
        elif self._lines[at][1] == 0:
            self.action_fold()
        else:
            self.action_open()
