"""Blame paths as trees: who waited at the root, and below it, stop by stop, what it waited for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType

from kair_engine.results.blame import BlamePath, PathNode
from kair_tui.render.blame_paths import (
    MergedPath,
    end_of,
    hops_in_words,
    listed_stops,
    part_in_words,
    path_end,
    short_operator,
    stop_in_words,
    stop_name,
    stops,
)
from kair_tui.render.units import count, duration, percent, signed_duration, spans
from kair_tui.tui.widgets.lines import Piece, cut_in_the_middle, fitted
from kair_tui.tui.widgets.lists import Choices

TIME, LATE, SHARE = 9, 10, 9
"""Columns of the figures at the end of a line."""
WIDE: Final = 86
"""Width from which the first of them fits."""
_SHORTEST_NAME: Final = 12
_DEEPEST: Final = 4
"""Levels of indentation: deeper stops share one."""
_ON_TIME_US: Final = 0.5


@dataclass(frozen=True)
class _Line:
    """A path's symptom (depth 0), one of its stops, or the stops folded from `depth` on."""

    path: int
    depth: int = 0
    indent: int = 0
    hops: int = 0


class BlameTree(Choices[_Line]):
    """Paths one below the other, the first unfolded; only lines in view are rendered."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "open rank"),
        Binding("space", "fold", "fold"),
        Binding("left,h", "out", "fold, or to the root of the path", show=False),
        Binding("right,l", "into", "unfold, or to the next stop", show=False),
        Binding("z", "fold_all", "fold all", show=False),
    ]

    _paths: Sequence[MergedPath] = ()
    _waiting_us = 0.0
    _accused: frozenset[int] = frozenset()
    _ends_differ = _steps_differ = False
    _folded: frozenset[int] = frozenset()
    _whole: frozenset[int] = frozenset()
    """Paths with every stop shown."""

    # What is shown.

    def show_paths(self, paths: Sequence[MergedPath], waiting_us: float, empty: str = "") -> None:
        """Replace the paths; shares are of `waiting_us`. Without any, `empty` says why."""
        self._paths, self._waiting_us = paths, waiting_us
        # For a question about one root cause, all lead to it.
        self._ends_differ = len({end_of(one.path) for one in paths if one.part is None}) > 1
        self._steps_differ = len({step for one in paths for step in one.steps}) > 1
        self._folded, self._whole = frozenset(range(1, len(paths))), frozenset()
        self.show(self._all_lines(), empty)

    def accuse(self, ranks: frozenset[int]) -> None:
        """Set the ranks that triage accuses: only those are marked."""
        self._accused = ranks
        self.refresh()

    @property
    def merged(self) -> MergedPath | None:
        """Return the joined paths under the cursor."""
        return None if self.chosen is None else self._paths[self.chosen.path]

    @property
    def path(self) -> BlamePath | None:
        """Return the longest of them."""
        return None if self.merged is None else self.merged.path

    @property
    def node(self) -> PathNode | None:
        """Return the stop under the cursor; of folded stops the first."""
        return None if self.chosen is None else self._node(self.chosen)

    def _node(self, line: _Line) -> PathNode:
        path = self._paths[line.path].path
        return stops(path)[line.depth - 1] if line.depth else path.symptom

    def _lines_of(self, at: int) -> list[_Line]:
        """Return a path's lines from the symptom to its end, indented step by step."""
        if at in self._folded:
            return [_Line(at)]
        listed = listed_stops(self._paths[at].path, whole=at in self._whole)
        below = (_Line(at, place + 1, indent, hops) for indent, (place, hops) in enumerate(listed, 1))
        return [_Line(at), *below]

    def _all_lines(self) -> list[_Line]:
        return [line for at in range(len(self._paths)) for line in self._lines_of(at)]

    # Drawing.

    def line_of(self, item: _Line, width: int) -> list[Piece]:  # noqa: ARG002
        """Return a visible or hidden line."""
        figures = self._figures(item)
        # The last column is the scroll bar's, or blank.
        room = self.size.width - 1 - sum(len(text) for text, _ in figures)
        text = self._symptom(item.path, room) if item.depth == 0 else self._stop(item, room)
        strip = fitted(text, room, self.text_styles.base, self.look)
        return [*((segment.text, segment.style or self.text_styles.base) for segment in strip), *figures]

    def _symptom(self, at: int, room: int) -> list[Piece]:
        styles, glyphs, merged = self.text_styles, self.look.glyphs, self._paths[at]
        path = merged.path
        fold = glyphs.folded if at in self._folded else glyphs.unfolded
        who = f"rank {merged.ranks[0]}" if len(merged.ranks) == 1 else f"{count(len(merged.ranks))} ranks"
        when = self._when(merged)
        from_end = self._from_end(path) if self._ends_differ and at in self._folded else ("", "")
        left = room - len(f"{fold} {who} waited in {when}{from_end[0]}")
        name = self._cut(short_operator(path.symptom.operator), left // 2 if from_end[1] else left)
        pieces = [
            (f"{fold} ", styles.base),
            (who, styles.strong),
            (f" waited in {name}", styles.base),
            (when, styles.dim),
        ]
        if not from_end[1]:
            return pieces
        style = styles.alarm if path.chain[-1].rank in self._accused else styles.base
        return [*pieces, (from_end[0] + self._cut(from_end[1], left - len(name)), style)]

    def _when(self, merged: MergedPath) -> str:
        """Return when one path was waited at, or how often for joined ones."""
        dot = self.look.glyphs.dot
        if merged.count > 1:
            steps = f" in steps {spans(merged.steps, 2)}" if len(merged.steps) > 1 else ""
            return f" {dot} {count(merged.count)} times{steps}"
        step = f"step {merged.path.step} " if self._steps_differ else ""
        return f" {dot} {step}at {self.safe(duration(merged.path.symptom.start_us))}"

    def _from_end(self, path: BlamePath) -> tuple[str, str]:
        end = path.chain[-1]
        sign = f"{self.look.glyphs.alarm} " if end.rank in self._accused else ""
        return f"  {sign}rank {end.rank} ", stop_name(end, path)

    def _end(self, merged: MergedPath, room: int, indent: str) -> list[Piece]:
        """Return the loss at the origin; for a partial root cause, that part."""
        styles, glyphs, path = self.text_styles, self.look.glyphs, merged.path
        chain, node, part = stops(path), path.chain[-1], merged.part
        guide = indent + (glyphs.edge if node.role_in_path == "edge" and part is None else glyphs.last_branch)
        is_accused = (node.rank if part is None else part.rank) in self._accused
        sign = f"{glyphs.alarm} " if is_accused else ""
        if part is not None:
            what, why = part_in_words(part)
        else:
            before = chain[-2] if len(chain) > 1 else path.symptom
            lead = stop_in_words(before, node, is_first=len(chain) == 1, is_last=True)
            what, why = lead + stop_name(node, path), path_end(node, path)
        tail = f"  {self.safe(why)}"
        # The reason is most important: without room, the name is cut.
        name = self._cut(what, room - len(guide + sign + tail))
        style = styles.alarm if is_accused else styles.strong
        return [(guide, styles.dim), (f"{sign}{name}{tail}", style)]

    def _stop(self, line: _Line, room: int) -> list[Piece]:
        styles, glyphs, merged = self.text_styles, self.look.glyphs, self._paths[line.path]
        chain, node = stops(merged.path), self._node(line)
        indent = "  " + "   " * (min(line.indent, _DEEPEST) - 1)
        if line.hops:
            said = hops_in_words(chain[line.depth - 1 : line.depth - 1 + line.hops])
            return [(f"{indent}{glyphs.hops}  {self.safe(said)}", styles.dim)]
        if line.depth == len(chain):
            return self._end(merged, room, indent)
        before = chain[line.depth - 2] if line.depth > 1 else merged.path.symptom
        guide = indent + glyphs.last_branch
        lead = stop_in_words(before, node, is_first=line.depth == 1, is_last=False)
        name = self._cut(stop_name(node, merged.path), room - len(guide + lead))
        return [(guide, styles.dim), (lead, styles.base), (name, styles.base)]

    def _figures(self, line: _Line) -> list[Piece]:
        """Return its time, its lateness compared with peers, and for a symptom its share of all waiting."""
        styles, merged, node = self.text_styles, self._paths[line.path], self._node(line)
        # At the end the line itself shows the loss, and needs the room for it.
        if line.hops or node is merged.path.chain[-1]:
            return []
        share = percent(merged.waited_us / self._waiting_us) if self._waiting_us and not line.depth else ""
        late = signed_duration(node.lateness_us) if abs(node.lateness_us) >= _ON_TIME_US else "on time"
        cells = [(duration(node.duration_us), TIME, styles.base)] if self.size.width >= WIDE else []
        cells += [(late, LATE, styles.base), (share, SHARE, styles.base)]
        return [(f"{self.safe(text):>{columns}}", style) for text, columns, style in cells]

    def _cut(self, name: str, room: int) -> str:
        """Return a name that fits: the text after it matters more than its end."""
        return cut_in_the_middle(self.safe(name), max(room, _SHORTEST_NAME), self.look)

    # Folding.

    def action_fold(self) -> None:
        """Show folded stops; elsewhere fold the path under the cursor, or unfold it."""
        line = self.chosen
        if line is not None and line.hops:
            self._whole |= {line.path}
            self._fold_to(self._folded)
        elif line is not None:
            self._whole -= {line.path}
            self._fold_to(self._folded ^ {line.path})

    def action_fold_all(self) -> None:
        """Fold all paths, or unfold them if all are folded."""
        every = frozenset(range(len(self._paths)))
        self._fold_to(frozenset() if self._folded == every else every)

    def action_out(self) -> None:
        """Go from a stop to its path's root; from there fold."""
        line = self.chosen
        if line is not None and line.depth:
            self.move_to(self.items.index(_Line(line.path)))
        elif line is not None and line.path not in self._folded:
            self.action_fold()

    def action_into(self) -> None:
        """Unfold a path or the stops in its middle, then go along it."""
        line = self.chosen
        if line is not None and (line.path in self._folded or line.hops):
            self.action_fold()
        elif line is not None and line.depth < len(stops(self._paths[line.path].path)):
            self.move_to(self.at + 1)

    def _fold_to(self, folded: frozenset[int]) -> None:
        """Keep the cursor on its path, and on its stop if that is shown."""
        line, top = self.chosen, self.scroll_offset.y
        if line is None:
            return
        self._folded = folded
        self.show(self._all_lines())
        of_path = [at for at, other in enumerate(self.items) if other.path == line.path]
        self.at = next((at for at in of_path if self.items[at].depth == line.depth), of_path[0])
        self.scroll_to(y=top, animate=False)
        self.bring_into_view()
        self.post_moved()

    # What the cursor is on.

    def action_choose(self) -> None:
        """Open the rank's screen; on a folded path show its stops first."""
        line = self.chosen
        if line is not None and (line.path in self._folded or line.hops):
            self.action_fold()
        else:
            super().action_choose()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the line under the mouse; fold a path or open a stop where it already was."""
        event.prevent_default()
        at = self.item_at(event.y + self.scroll_offset.y)
        if at is not None and at != self.at:
            self.move_to(at)
        elif at is not None and self.items[at].depth == 0:
            self.action_fold()
        elif at is not None:
            self.action_choose()
