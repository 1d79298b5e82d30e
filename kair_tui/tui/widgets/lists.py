"""Lists to choose from: general ones, the findings of a triage, the jobs of the store."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Generic, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.strip import Strip

from kair_engine.results.store import ListedJob
from kair_engine.results.triage import Finding
from kair_tui.render.store import minute
from kair_tui.render.triage import facts, part_lines, sentences, title
from kair_tui.render.units import plural
from kair_tui.render.verdict import cause_text, hours_text, money_text, share_text
from kair_tui.render.warnings import WarningInWords
from kair_tui.tui.widgets.drawn import CursorMoved, RowCursor
from kair_tui.tui.widgets.lines import Paragraph, Piece, fitted
from kair_tui.tui.widgets.styles import verdict_style

_INDENT = "     "
_PAGE = 10
"""Items."""


Item = TypeVar("Item")
Lines = list[list[Piece]]


class Choices(RowCursor, Generic[Item], can_focus=True):
    """One-line items, one of them under the cursor; only those in view are rendered."""

    DEFAULT_CSS = "Choices { height: 1fr; overflow-x: hidden; overflow-y: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "open")]
    LIT: ClassVar[bool] = False
    """Whether the cursor is visible without the focus."""

    class Moved(CursorMoved):
        """The cursor is on another item."""

    class Chosen(Moved):
        """Enter was pressed, or the item was clicked."""

    items: tuple[Item, ...] = ()
    _empty = ""

    def line_of(self, item: Item, width: int) -> list[Piece]:
        """Return an item's line."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """Return the number of items."""
        return len(self.items)

    def post_moved(self) -> None:
        """Report that the cursor is on another item, or on other lines of it."""
        self.post_message(self.Moved())

    @property
    def chosen(self) -> Item | None:
        """Return the item under the cursor."""
        return self.items[self.at] if self.items else None

    def show(self, items: Sequence[Item], empty: str = "") -> None:
        """Replace the items; the cursor goes to the first. `empty` is shown without items."""
        self.items, self.at, self._empty = tuple(items), 0, empty
        self.lay_out()
        self.scroll_home(animate=False)
        self.refresh()

    def lay_out(self) -> None:
        """Set the scrollable size."""
        self.virtual_size = Size(self.scrollable_content_region.width, len(self.items))

    def on_resize(self) -> None:
        """Keep the cursor in view."""
        self.lay_out()
        self.bring_into_view()

    def drawn(self, line: int, width: int) -> tuple[list[Piece], bool]:
        """Return a line's content, and whether the cursor is on it."""
        if line >= len(self.items):
            said = self.safe(self._empty) if not self.items and not line else ""
            return [(f"  {said}", self.text_styles.dim)], False
        return self.line_of(self.items[line], width), line == self.at

    def render_line(self, y: int) -> Strip:
        """Return one visible line."""
        styles, width = self.text_styles, self.scrollable_content_region.width
        pieces, is_cursor = self.drawn(y + self.scroll_offset.y, width)
        if is_cursor and (self.has_focus or self.LIT):
            # In ordinary colours: a culprit's, reversed, would be a block of red.
            pieces = [(text, styles.strong if style.bold else styles.base) for text, style in pieces]
            return fitted(pieces, width, styles.base, self.look).apply_style(styles.cursor)
        return fitted(pieces, width, styles.base, self.look)

    def action_choose(self) -> None:
        """Choose the item under the cursor."""
        if self.items:
            self.post_message(self.Chosen())

    def item_at(self, line: int) -> int | None:
        """Return the item on a line."""
        return line if line < len(self.items) else None

    def on_click(self, event: events.Click) -> None:
        """Choose the item under the mouse."""
        if (item := self.item_at(event.y + self.scroll_offset.y)) is not None:
            self.move_to(item)
            self.action_choose()


class LongChoices(Choices[Item]):
    """Items of several lines, possibly more than fit: the cursor scrolls within one."""

    _lines: Sequence[list[Piece]] = ()
    _tops: Sequence[int] = (0,)
    _width = -1

    def lines_of(self, item: Item, width: int) -> Lines:
        """Return an item's lines at a width."""
        raise NotImplementedError

    def show(self, items: Sequence[Item], empty: str = "") -> None:
        """Replace the items; the cursor goes to the first."""
        self._lines, self._tops, self._width = (), (0,), -1
        super().show(items, empty)

    def bring_into_view(self) -> None:
        """Keep the reader's position, even within an item."""

    def lay_out(self) -> None:
        """Make lines for a new width."""
        width = self.scrollable_content_region.width
        if width == self._width or not width:
            return
        drawn = [self.lines_of(item, width) for item in self.items]
        self._width, self._lines = width, [line for lines in drawn for line in lines]
        self._tops = [0, *accumulate(map(len, drawn))]
        self.virtual_size = Size(width, len(self._lines))

    def drawn(self, line: int, width: int) -> tuple[list[Piece], bool]:  # noqa: ARG002
        """Return a line's content, and whether it is the first of the item under the cursor."""
        return (self._lines[line], line == self._tops[self.at]) if line < len(self._lines) else ([], False)

    def item_at(self, line: int) -> int | None:
        """Return the item on a line."""
        return bisect_right(self._tops, line) - 1 if line < len(self._lines) else None

    def action_move(self, by: int) -> None:
        """Move the cursor by `by` items; within an item beyond the view first by lines."""
        if not self._read_on(by, by):
            self.move_to(min(max(self.at + by, 0), len(self.items) - 1), at_end=by < 0)

    def action_page(self, by: int) -> None:
        """Turn a page of an item beyond the view; else move the cursor by ten items."""
        if not self._read_on(by, by * max(self._room - 1, 1)):
            self.move_to(min(max(self.at + by * _PAGE, 0), len(self.items) - 1), at_end=by < 0)

    def action_edge(self, by: int) -> None:
        """Go to the first line of the first item, or the last line of the last."""
        self.move_to(0 if by < 0 else len(self.items) - 1)
        if self._is_laid_out:
            self._scroll_lines_to(0 if by < 0 else self._end(self.at) - self._room)
            self.post_moved()

    def move_to(self, at: int, *, at_end: bool = False) -> None:
        """Put the cursor on an item and bring it into view; of a taller one its begin, or its end."""
        if not self.items or at == self.at:
            return
        before, self.at = self.at, at
        if self._is_laid_out:
            for item in (before, at):
                self.refresh_line(self._tops[item])
            top, height = self._tops[at], self._tops[at + 1] - self._tops[at]
            if height > self._room:
                self._scroll_lines_to(self._end(at) - self._room if at_end else top)
            else:
                self.scroll_to_region(Region(0, top, 1, height), animate=False)
        self.post_moved()

    # Lines of an item that is taller than the list.

    @property
    def _room(self) -> int:
        """Return the number of visible lines."""
        return self.scrollable_content_region.height

    @property
    def _is_laid_out(self) -> bool:
        """Whether there are lines: a list hidden in a small terminal has none."""
        return bool(self.items) and len(self._tops) > len(self.items) and self._room > 0

    @property
    def lines_in_view(self) -> tuple[int, int, int] | None:
        """Return the first and last visible line, from 1 on, and the number of lines of a too tall item under the
        cursor.

        None if the item is completely visible.
        """
        if not self._is_laid_out:
            return None
        top, end = self._tops[self.at], self._end(self.at)
        if end - top <= self._room:
            return None
        first = min(max(self.scroll_offset.y, top), end - 1)
        return first - top + 1, max(min(self.scroll_offset.y + self._room, end), first + 1) - top, end - top

    def _end(self, item: int) -> int:
        """Return one past its last line, without separators."""
        end = self._tops[item + 1]
        while end > self._tops[item] + 1 and not self._lines[end - 1]:
            end -= 1
        return end

    def _read_on(self, by: int, lines: int) -> bool:
        """Scroll within the item under the cursor if more of it lies in that direction; return whether it does."""
        if not self._is_laid_out or not by:
            return False
        top, end, offset = self._tops[self.at], self._end(self.at), self.scroll_offset.y
        if not top < offset + self._room or not offset < end:
            return False  # The wheel scrolled it out of view.
        last = end - self._room
        if (offset >= last) if by > 0 else (offset <= top):
            return False
        self._scroll_lines_to(min(offset + lines, last) if by > 0 else max(offset + lines, top))
        self.post_moved()
        return True

    def _scroll_lines_to(self, line: int) -> None:
        self.scroll_to(y=max(line, 0), animate=False, immediate=True)


@dataclass(frozen=True)
class ListedFinding:
    """A finding with its number, or another text."""

    number: int
    finding: Finding | None
    text: str = ""


class Findings(LongChoices[ListedFinding]):
    """The costliest first; then delays that cost nothing, and caveats."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "open rank")]

    def show_findings(
        self,
        findings: tuple[tuple[int, Finding], ...],
        warnings: tuple[WarningInWords, ...],
        context: Sequence[str] = (),
    ) -> None:
        """Show findings with their numbers in the triage, then the lines of `context` and the warnings."""
        listed = [ListedFinding(number, finding) for number, finding in findings]
        plain = [*context, *(f"warning: {warning.message}" for warning in warnings)]
        self.show([*listed, *(ListedFinding(0, None, text) for text in plain)])

    @property
    def finding(self) -> Finding | None:
        """Return the finding under the cursor."""
        return self.chosen.finding if self.chosen else None

    def lines_of(self, item: ListedFinding, width: int) -> Lines:
        """Return a finding with its evidence, or a text."""
        finding, glyphs = item.finding, self.look.glyphs
        if finding is None:
            note = Paragraph(item.text, "dim", " ")
            return [[piece] for piece in note.lines(width - 1, self.look)]
        sign, style = (glyphs.alarm, "alarm") if finding.ranks else (glyphs.weak_alarm, "notice")
        head = Paragraph(title(finding), style, f" {item.number} {sign} ")
        rest = [Paragraph(fact, "base", _INDENT) for fact in facts(finding)]
        # The suggestion stands below the cost: the evidence may be longer than the screen.
        if finding.suggestion:
            rest.append(Paragraph(f"suggestion: {finding.suggestion}", "base", _INDENT))
        rest += [Paragraph(line, "base", _INDENT) for line in part_lines(finding)]
        rest += [Paragraph(sentence, "dim", f"{_INDENT}{glyphs.bullet} ") for sentence in sentences(finding)]
        return [[line] for one in (head, *rest) for line in one.lines(width - 1, self.look)] + [[]]


_WIDEST_NAME = 40


class JobList(LongChoices[ListedJob]):
    """Two lines for each job."""

    _name_width = 0

    def show(self, items: Sequence[ListedJob], empty: str = "") -> None:
        """Replace the jobs; their verdicts are aligned."""
        self._name_width = min(max((len(job.name) for job in items), default=0), _WIDEST_NAME) + 2
        super().show(items, empty)

    def lines_of(self, item: ListedJob, width: int) -> Lines:  # noqa: ARG002
        """Return its verdict, then its cost and its contents."""
        styles, glyphs = self.text_styles, self.look.glyphs
        sign = {"straggler": glyphs.alarm, "job_wide": glyphs.weak_alarm}.get(item.last_verdict or "", " ")
        style = styles.dim if item.last_verdict is None else getattr(styles, verdict_style(item.last_verdict))
        verdict = item.last_summary or "not triaged yet"
        ranks = plural(item.ranks, "rank") if item.ranks == item.world_size else f"{item.ranks}/{item.world_size} ranks"
        about = [
            self._cost(item),
            "in use" if item.in_use else "",
            ranks,
            plural(item.steps, "step"),
            f"imported {minute(item.imported_at)} UTC",
            item.source,
        ]
        name = f"{self.safe(item.name):<{self._name_width}} "
        return [
            [
                (f" {sign} ", style),
                (name, styles.strong),
                (self.safe(verdict), style if sign != " " or item.last_verdict is None else styles.base),
            ],
            [(_INDENT, styles.dim), (self.safe(f" {glyphs.dot} ".join(part for part in about if part)), styles.dim)],
        ]

    def _cost(self, job: ListedJob) -> str:
        """Return waste, GPU-hours and their price, aligned as in `kair jobs`."""
        if job.waste is None:
            return ""
        price = "" if job.cost_per_day is None else f", {money_text(job)}"
        hours = f"{hours_text(job.gpu_hours_per_day):>8} GPU-hours{price} a day"
        cause = "" if job.cause is None else f": {cause_text(job.cause)}"
        return f"{share_text(job.waste):>6} waste,{hours}{cause}"
