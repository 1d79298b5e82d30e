"""The base of screens with rows: a filter, and an order."""

from typing import ClassVar

from textual.binding import Binding, BindingType

from kair_engine.errors import KairError
from kair_tui.tui.filtering import Filter, parse_filter
from kair_tui.tui.frame.screen import BaseScreen


class FilteredScreen(BaseScreen):
    """Rows that can be filtered by FIELDS and sorted by SORTS; without them the keys are not offered."""

    FIELDS: ClassVar[tuple[str, ...]] = ()
    SORTS: ClassVar[tuple[str, ...]] = ()
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "sort", "sort"),
        Binding("S", "reverse", "sort the other way", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.filter = ""
        """As it was typed."""
        self._typed = ""
        """The same where it was wrong, to be mended."""
        self._sort: tuple[str, bool] | None = None

    def filter_by(self, wanted: Filter) -> str:
        """Shows what `wanted` lets through, and returns how much that is: `3 of 128 ranks`."""
        raise NotImplementedError

    def sort_by(self, name: str, descending: bool) -> None:
        """Orders what it shows by one of SORTS."""
        raise NotImplementedError

    def apply_filter_and_order(self) -> None:
        """Applies filter and order to rows that are new."""
        if self.filter:
            self._apply_filter(self.filter)
        if self._sort is not None:
            self.sort_by(*self._sort)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that have nothing to act on are not offered."""
        if action == "back" and self.filter:
            return True
        if action == "filter":
            return bool(self.FIELDS)
        if action in ("sort", "reverse"):
            return bool(self.SORTS)
        return super().check_action(action, parameters)

    async def action_filter(self) -> None:
        """Asks for a filter."""
        await self.ask_for("filter", self._apply_filter, value=self._typed)

    def action_back(self) -> None:
        """First a filter goes, which says why there is so little on the screen."""
        if self.filter:
            self._apply_filter("")
        else:
            super().action_back()

    def _apply_filter(self, text: str) -> None:
        """Applies it; one that is wrong leaves none, rather than the rows of another."""
        self._typed = text
        try:
            wanted, wrong = parse_filter(text, self.FIELDS), None
        except KairError as error:
            wanted, wrong = parse_filter("", self.FIELDS), error
        said = self.filter_by(wanted)
        self.filter = wanted.text.strip()
        if wrong is not None:
            self.say(f"no filter: {wrong}" + (f" ({wrong.hint})" if wrong.hint else ""), alarm=True)
        else:
            self.say(f"{said} {self.look.glyphs.dot} filter {text}" if self.filter else "")
        self.show_header()
        self.refresh_bindings()

    def action_sort(self) -> None:
        """By the next of SORTS."""
        at = -1 if self._sort is None else self.SORTS.index(self._sort[0])
        self._sort_by(self.SORTS[(at + 1) % len(self.SORTS)], False)

    def action_reverse(self) -> None:
        """The other way round."""
        name, descending = self._sort or (self.SORTS[0], False)
        self._sort_by(name, not descending)

    def _sort_by(self, name: str, descending: bool) -> None:
        self._sort = (name, descending)
        self.sort_by(name, descending)
        self.say(f"sorted by {name}" + (", reversed" if descending else ""))
