"""The operators screen: where the time of all ranks goes, by type and operator, and how ranks differ in each."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size

from kair.app.question import Question
from kair_engine.results.views import OperatorsResult, OperatorTime, OperatorType, TypeTime
from kair_tui.render.operators import COLUMNS, TYPE_COLUMNS, most_text, operator_text, operators_headline, type_name
from kair_tui.render.units import duration, mean_step, percent
from kair_tui.render.warnings import warnings_in_words
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.session import Place
from kair_tui.tui.widgets.heat import RankStrip
from kair_tui.tui.widgets.lines import Heading, Paragraph, Paragraphs
from kair_tui.tui.widgets.table import Table

MOST_OPERATORS: Final = 100
"""Listed operators, with the time of each of thousands of ranks."""
_LOW: Final = 25
_TYPES_IF_LOW: Final = 5


class Types(Table[TypeTime]):
    """Types, each of which leads to its operators."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "its operators")]


class Operators(Table[OperatorTime]):
    """Operators, each of which leads to the rank that spends most on it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "rank with most"),
        Binding("F", "screen.frequency", "how often"),
    ]


class OperatorsScreen(ViewScreen):
    """What `kair operators` knows."""

    DEFAULT_CSS = """
    OperatorsScreen #about { margin: 1 0; }
    OperatorsScreen.-low #about { margin: 0; }
    OperatorsScreen #types { margin-bottom: 1; }
    OperatorsScreen.-low #types { margin-bottom: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "app.focus_next", "next part")]
    FIELDS = tuple(column.key for column in COLUMNS if column.key)
    SORTS = ("total_us", "max_us", "median_us", "calls", "operator", "type", "max_rank")
    LARGEST_FIRST = frozenset({"total_us", "max_us", "median_us", "calls"})
    FIRST, ROWS = "#operators", "operator"

    _result: OperatorsResult | None = None
    _only: OperatorType | None = None
    """The type whose operators are listed; None for all."""

    def questions(self) -> Mapping[str, Question]:
        """Return all operators, with every rank's time."""
        return {"operators": self.session.question("operators", by_rank=True, limit=MOST_OPERATORS)}

    def body(self) -> ComposeResult:
        """Yield widgets from all of the time to one operator on every rank."""
        look = self.look
        yield Paragraphs(look, id="about")
        yield Heading(look, "types", of="types")
        self._types = Types(look, TYPE_COLUMNS, id="types")
        yield self._types
        yield Heading(look, "operators", of="operators")
        self._operators = Operators(look, COLUMNS, id="operators")
        yield self._operators
        yield Heading(look, "across ranks", of="strip")
        yield RankStrip(look, id="strip")

    def room(self, size: Size) -> dict[str, bool]:
        """Return whether the screen is low."""
        return {**super().room(size), "-low": size.height < _LOW}

    def make_room(self) -> None:
        """Leave a small screen to the operators."""
        rows = self._types.total
        self._types.styles.height = 1 + (min(rows, _TYPES_IF_LOW) if self.has_class("-low") else rows)

    # What is shown.

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401, ARG002 - there is one question
        """Hand the answer to its widgets."""
        self._result = result
        said = [Paragraph(operators_headline(result), "strong")]
        said += [Paragraph(f"warning: {one.message}", "dim") for one in warnings_in_words(result.warnings)]
        self.query_one("#about", Paragraphs).show(*said)
        legend = f"per step and rank; {mean_step(result.step_time_us, len(result.steps))} "
        self.heading("types").say([], [(legend, None)])
        self._types.show(result.by_type)
        self.make_room()
        self._list_operators()

    def _list_operators(self) -> None:
        if self._result is not None:
            rows = [row for row in self._result.operators if self._only in (None, row.type)]
            self._operators.show(rows, empty="none among those that take longest")

    def on_table_ordered(self, message: Table.Ordered) -> None:
        """Show their number."""
        result, table = self._result, self._operators
        if result is None or message.table is not table:
            return
        of_type = "" if self._only is None else f"  only {self._only.replace('_', ' ')}"
        self.heading("operators").say([(f"{table.counted(result.total_operators)}{of_type}", None)])

    def on_table_moved(self, message: Table.Moved) -> None:
        """Show the operator under the cursor on every rank."""
        if message.table is not self._operators:
            return
        row, result = self._operators.chosen, self._result
        strip, heading = self.query_one(RankStrip), self.heading("strip")
        if row is None or result is None:
            strip.show((), (), 0.0)
            heading.say([])
            return
        strip.show(result.ranks, row.by_rank_us, row.median_us)
        heading.say([(f"{operator_text(row)}, {type_name(row)}", None)], [(f"{most_text(row)} ", None)])

    def on_table_chosen(self, message: Table.Chosen) -> None:
        """Go from a type to its operators, or back to all; from an operator to the rank that spends most on it."""
        if message.table is self._types and (chosen := self._types.chosen) is not None:
            self._only = None if self._only == chosen.type else chosen.type
            self._list_operators()
            self._operators.focus()
        elif message.table is self._operators and (row := self._operators.chosen) is not None:
            self.kair.go_to_rank(row.max_rank)

    # What is under the cursor.

    @property
    def rank(self) -> int | None:
        """Return the rank that spends most on it."""
        row = self._types.chosen if self._types.has_focus else self._operators.chosen
        return None if row is None else row.max_rank

    @property
    def moment(self) -> Place:
        """Return the operator on the rank that spends most on it."""
        row = self._operators.chosen
        return super().moment if row is None else Place("timeline", row.max_rank, row.operator)

    def about_cursor(self) -> str:
        """Describe the thing under the focused part's cursor."""
        row: TypeTime | OperatorTime | None = self._types.chosen if self._types.has_focus else self._operators.chosen
        if row is None:
            return ""
        name = "" if isinstance(row, TypeTime) else row.operator or ""
        share = f"{duration(row.total_us)}, {percent(row.share)} of all time"
        return self.dotted(type_name(row), most_text(row), share, name)

    def action_frequency(self) -> None:
        """Show how often the operator under the cursor ran on each rank."""
        row = self._operators.chosen
        if row is None or row.operator is None:
            self.say("no operator is named here")
        else:
            self.kair.go(Place("frequency", rank=row.max_rank, operator=row.operator))

    def copied(self) -> str:
        """Return the sum, the operator under the cursor, and the command."""
        said = [] if self._result is None else [operators_headline(self._result)]
        row = self._operators.chosen
        if row is not None:
            said.append(f"{row.operator or type_name(row)}: {duration(row.total_us)}, {most_text(row)}")
        return "\n".join([*said, *self.commands()])
