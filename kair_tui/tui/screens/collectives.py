"""The collectives screen: bandwidth of groups and links compared with their siblings, and ranks' rates."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from kair.app.question import Question
from kair_engine.results.collectives import CollectivesResult, GroupTransfers, RankRates
from kair_tui.render.collectives import (
    COLUMNS,
    RANK_COLUMNS,
    collectives_headline,
    group_name,
    group_text,
    overlap_text,
    products_text,
    rank_text,
)
from kair_tui.render.units import mean_step, plural
from kair_tui.render.warnings import warnings_in_words
from kair_tui.tui.frame.view import ViewScreen
from kair_tui.tui.widgets.lines import Heading, Paragraph, Paragraphs
from kair_tui.tui.widgets.table import Table

MOST_GROUPS: Final = 1000
"""Listed groups: slow ones first, then the most time-consuming."""


class Groups(Table[GroupTransfers]):
    """Groups and links, each of which leads to its ranks."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "its ranks")]


class Ranks(Table[RankRates]):
    """Ranks, each of which leads to its own screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "open rank")]


class CollectivesScreen(ViewScreen):
    """What `kair collectives` knows."""

    DEFAULT_CSS = """
    CollectivesScreen #about { margin: 1 0; }
    CollectivesScreen #groups { height: 2fr; margin-bottom: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "app.focus_next", "next part")]
    FIELDS = tuple(column.key for column in COLUMNS if column.key)
    SORTS = ("slow", "bus_gb_per_s", "ratio", "transfer_us", "message_bytes", "calls", "group")
    LARGEST_FIRST = frozenset({"slow", "transfer_us", "message_bytes", "calls"})
    FIRST, ROWS = "#groups", "group"

    _result: CollectivesResult | None = None
    _of: GroupTransfers | None = None
    """The group whose ranks are listed; None for all ranks."""

    def questions(self) -> Mapping[str, Question]:
        """Return all groups, and every rank."""
        return {"collectives": self.session.question("collectives", by_rank=True, limit=MOST_GROUPS)}

    def body(self) -> ComposeResult:
        """Yield widgets from groups and links to single ranks."""
        look = self.look
        yield Paragraphs(look, id="about")
        yield Heading(look, "groups and links", of="groups")
        self._groups = Groups(look, COLUMNS, id="groups")
        yield self._groups
        yield Heading(look, "ranks", of="ranks")
        self._ranks = Ranks(look, RANK_COLUMNS, id="ranks")
        yield self._ranks

    # What is shown.

    def show(self, name: str, result: Any) -> None:  # noqa: ANN401, ARG002 - there is one question
        """Hand the answer to its widgets."""
        self._result = result
        said = [Paragraph(collectives_headline(result), "strong")]
        said += [Paragraph(text) for text in (overlap_text(result), products_text(result.products))]
        said += [Paragraph(f"warning: {one.message}", "dim") for one in warnings_in_words(result.warnings)]
        self.query_one("#about", Paragraphs).show(*said)
        self._groups.show(result.groups, empty="no transfers between recorded ranks")
        self._list_ranks()

    def _list_ranks(self) -> None:
        if self._result is None:
            return
        of = self._of
        self._ranks.show([row for row in self._result.by_rank if of is None or row.rank in of.ranks])
        step = mean_step(self._result.step_time_us, self._result.steps)
        self.heading("ranks").say([] if of is None else [(group_name(of), None)], [(f"{step} ", None)])

    def on_table_ordered(self, message: Table.Ordered) -> None:
        """Show their number."""
        result, table = self._result, self._groups
        if result is None or message.table is not table:
            return
        compared = f"{plural(result.compared, 'comparison')} " if result.compared else ""
        self.heading("groups").say([(table.counted(result.total_groups), None)], [(compared, None)])

    def on_table_chosen(self, message: Table.Chosen) -> None:
        """Go from a group to its ranks, or to all again; from a rank to its own screen."""
        if message.table is self._groups and (group := self._groups.chosen) is not None:
            self._of = None if self._of == group else group
            self._list_ranks()
            self._ranks.focus()
        elif message.table is self._ranks and (row := self._ranks.chosen) is not None:
            self.kair.go_to_rank(row.rank)

    # What is under the cursor.

    @property
    def rank(self) -> int | None:
        """Return the rank, or the group's first."""
        if self._ranks.has_focus:
            return None if (row := self._ranks.chosen) is None else row.rank
        return None if (group := self._groups.chosen) is None else group.ranks[0]

    def about_cursor(self) -> str:
        """Describe the thing under the focused part's cursor."""
        if self._ranks.has_focus:
            return "" if (row := self._ranks.chosen) is None else rank_text(row)
        return "" if (group := self._groups.chosen) is None else group_text(group)

    def copied(self) -> str:
        """Return the sum, the group under the cursor, and the command."""
        said = [] if self._result is None else [collectives_headline(self._result), overlap_text(self._result)]
        group = self._groups.chosen
        if group is not None:
            said.append(group_text(group))
        return "\n".join([*said, *self.commands()])
