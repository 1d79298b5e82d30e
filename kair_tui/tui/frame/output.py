"""A screen of text: what a command printed, the help, the commands behind a view."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from kair_engine.errors import KairError
from kair_tui.tui.filtering import parse_filter
from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.widgets.lines.line import Piece
from kair_tui.tui.widgets.lines.text_page import TextPage
from kair_tui.tui.widgets.styles import styles_of


class OutputScreen(BaseScreen):
    """Scrolls through lines; the first can be a heading."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("slash", "filter", "filter", key_display="/")]

    def __init__(self, title: str, lines: Sequence[Piece], commands: Sequence[str] = ()) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._commands = commands
        self._filter = ""

    @classmethod
    def of_text(cls, look_of: BaseScreen, title: str, text: str, commands: Sequence[str] = ()) -> "OutputScreen":
        """A screen of plain text."""
        base = styles_of(look_of.look).base
        return cls(title, [(line, base) for line in text.rstrip("\n").split("\n")], commands)

    @property
    def crumb(self) -> str:
        """What it is."""
        return self._title

    def body(self) -> ComposeResult:
        """The text."""
        yield TextPage(self.look)

    def on_mount(self) -> None:
        """Fills the page."""
        super().on_mount()
        self.query_one(TextPage).show(self._lines)

    def commands(self) -> Sequence[str]:
        """The command whose output it is."""
        return self._commands

    def copied(self) -> str:
        """The text."""
        return self.query_one(TextPage).text

    async def action_filter(self) -> None:
        """Asks which lines to keep."""
        await self.ask_for("filter", self._keep, value=self._filter)

    def _keep(self, text: str) -> None:
        try:
            wanted, wrong = parse_filter(text, ("line",)), None
        except KairError as error:
            wanted, wrong = parse_filter("", ("line",)), error
        self._filter = text
        kept = [piece for piece in self._lines if wanted.matches({"line": piece[0]})]
        self.query_one(TextPage).show(kept)
        if wrong is not None:
            self.say(f"no filter: {wrong}", alarm=True)
            return
        self.say(f"{len(kept)} of {len(self._lines)} lines {self.look.glyphs.dot} filter {text}" if text else "")
