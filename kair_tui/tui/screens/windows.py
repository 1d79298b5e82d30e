"""The windows screen: S of each window of sampled steps over time, and the ranks responsible."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size

from kair.app.question import Question
from kair_engine.results.windows import PricedWindow, WindowsResult
from kair_tui.render.answer import GAP
from kair_tui.render.warnings import warnings_in_words
from kair_tui.render.watch import PRICED, high_in_words, price_text, slowdowns_over_time
from kair_tui.tui.frame.screen import Export
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.widgets.lines import Heading, Paragraph, Paragraphs
from kair_tui.tui.widgets.table import Table

_LOW: Final = 30
"""Lines below which the parts stand close together."""
_BESIDE: Final = 10
"""Columns of pointer, rank and scroll bar."""
_FIGURE: Final = 6
"""Characters of an S_w."""


class Windows(Table[PricedWindow]):
    """Windows, the last one first, each leading to its what-if analysis."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "what if, of these steps")]


class Slowdowns(Table[int]):
    """Ranks, each leading to its own screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "open rank")]


class WindowsScreen(ViewScreen):
    """The prices of `kair watch --whatif`."""

    DEFAULT_CSS = """
    WindowsScreen #about { margin: 1 0; }
    WindowsScreen #windows { height: 1fr; margin-bottom: 1; }
    WindowsScreen #ranks { height: auto; min-height: 3; max-height: 50%; }
    WindowsScreen.-low #about, WindowsScreen.-low #windows { margin: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "app.focus_next", "next part")]
    FIELDS = tuple(column.key for column in PRICED if column.key)
    SORTS = ("first_step", "slowdown")
    LARGEST_FIRST = frozenset({"slowdown"})
    FIRST, ROWS = "#windows", "window"

    _found = WindowsResult(())

    def commands(self) -> Sequence[str]:
        """Return a line for each window."""
        questions = (Question.of("whatif", _steps(one)) for one in self._found.windows)
        return [self.session.command(one) for one in questions]

    def exports(self) -> Sequence[Export]:
        """Return nothing, because several questions are shown."""
        return []

    def questions(self) -> Mapping[str, Question]:
        """Return the windows."""
        return {"windows": self.session.question("windows")}

    def body(self) -> ComposeResult:
        """Yield windows down, then ranks down and windows to the right."""
        yield Paragraphs(self.look, id="about")
        yield Heading(self.look, "windows", of="windows")
        self._windows = Windows(self.look, PRICED, id="windows")
        yield self._windows
        yield Heading(self.look, "S_w over time", of="ranks")
        self._ranks = Slowdowns(self.look, slowdowns_over_time(()), id="ranks")
        yield self._ranks

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401, ARG002 - there is one question
        """Hand the answer to its widgets."""
        self._found = found = result
        is_high = any(one.is_high for one in found.windows)
        said = [Paragraph(high_in_words(found.windows), "alarm" if is_high else "strong")]
        said += [Paragraph(f"warning: {one.message}", "dim") for one in warnings_in_words(found.warnings)]
        self.query_one("#about", Paragraphs).show(*said)
        self._windows.show(found.windows[::-1], empty="nothing was sampled yet")
        self._show_ranks()

    def room(self, size: Size) -> dict[str, bool]:
        """Return whether parts stand close together because there are few lines."""
        return {**super().room(size), "-low": size.height < _LOW}

    def make_room(self) -> None:
        """Show as many windows of S_w as fit."""
        self._show_ranks()

    def on_table_moved(self, message: Table.Moved) -> None:
        """End S_w over time with the window under the cursor."""
        if message.table is self._windows:
            self._show_ranks()

    def _show_ranks(self) -> None:
        """Show ranks down, and windows to the right: the one under the cursor is the last."""
        windows, chosen = self._found.windows, self._windows.chosen
        until = windows[: windows.index(chosen) + 1] if chosen in windows else windows
        widest = max((len(column.title) for column in slowdowns_over_time(until)), default=0) + GAP
        fit = max((self.size.width - _BESIDE) // max(widest, _FIGURE + GAP), 1)
        shown = until[-fit:]
        self._ranks.show([*shown[-1].by_rank] if shown else [], columns=slowdowns_over_time(shown))
        left_out = f"the last {len(shown)} of {len(until)}" if len(shown) < len(until) else ""
        self.heading("ranks").say([(left_out, None)])

    def on_table_ordered(self, message: Table.Ordered) -> None:
        """Say how many windows there are."""
        if message.table is self._windows:
            self.heading("windows").say([(self._windows.counted(), None)])

    def on_table_chosen(self, message: Table.Chosen) -> None:
        """Go from a window to the what-if screen of its steps, from a rank to its own."""
        if message.table is self._windows and (window := self._windows.chosen) is not None:
            self.narrow(_steps(window))
            self.kair.go_to_screen("whatif")
        elif message.table is self._ranks and (rank := self._ranks.chosen) is not None:
            self.kair.go_to_rank(rank)

    @property
    def rank(self) -> int | None:
        """Return the rank, or the slowest one in the window."""
        if self._ranks.has_focus:
            return self._ranks.chosen
        return None if (window := self._windows.chosen) is None else next(iter(window.by_rank), None)

    def about_cursor(self) -> str:
        """Describe the thing under the cursor."""
        if self._ranks.has_focus:
            return "" if (rank := self._ranks.chosen) is None else f"rank {rank}"
        return "" if (window := self._windows.chosen) is None else price_text(window)


def _steps(window: PricedWindow) -> tuple[int, ...]:
    return tuple(range(window.first_step, window.last_step + 1))
