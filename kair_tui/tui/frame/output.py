"""A screen of text: a command's output, the help, the commands of a view.

The help of `?` is made from bound keys, screens and the registry, so that it is never out of date.
"""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.dom import DOMNode

from kair_engine.errors import KairError
from kair_tui.cli.registry import COMMANDS
from kair_tui.tui.filtering import EXAMPLES, parse_filter
from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.screen_registry import SCREENS
from kair_tui.tui.widgets.lines import Paragraph, Piece, TextPage
from kair_tui.tui.widgets.styles import styles_of


class OutputScreen(BaseScreen):
    """Scrolls through lines; the first can be a heading."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("slash", "filter", "filter", key_display="/")]

    def __init__(self, title: str, lines: Sequence[Piece], commands: Sequence[str] = ()) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._commands = commands
        self._filter = self._written = ""

    @classmethod
    def of_text(cls, look_of: BaseScreen, title: str, text: str, commands: Sequence[str] = ()) -> "OutputScreen":
        """Return a screen of plain text."""
        base = styles_of(look_of.look).base
        return cls(title, [(line, base) for line in text.rstrip("\n").split("\n")], commands)

    @classmethod
    def of_markdown(cls, look_of: BaseScreen, title: str, text: str, commands: Sequence[str] = ()) -> "OutputScreen":
        """Return a screen of rendered Markdown; `y` copies the source."""
        from kair_tui.tui.frame.markdown import drawn  # few look at any

        page = cls(title, drawn(text, max(look_of.size.width - _SIDES, _NARROWEST), look_of.look), commands)
        page._written = text
        return page

    @property
    def crumb(self) -> str:
        """Return the title."""
        return self._title

    def body(self) -> ComposeResult:
        """Yield the text."""
        yield TextPage(self.look)

    def on_mount(self) -> None:
        """Fill the page."""
        self.query_one(TextPage).show(self._lines)

    def commands(self) -> Sequence[str]:
        """Return the command whose output it is."""
        return self._commands

    def copied(self) -> str:
        """Return the text; of Markdown the source."""
        return self._written or self.query_one(TextPage).text

    async def action_filter(self) -> None:
        """Ask which lines to keep."""
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


_KEY_WIDTH = 18
_SIDES = 3
"""Columns that the text page leaves free, including its scroll bar."""
_NARROWEST = 40


def show_help(screen: BaseScreen) -> None:
    """Open the help over `screen`, about its keys."""
    screen.app.push_screen(OutputScreen("help", help_lines(screen)))


def help_lines(screen: BaseScreen) -> list[Piece]:
    """Return the thing under the cursor, the keys here, and figures; then screens, keys everywhere, commands, filters.

    Lines are wrapped to the screen.
    """
    width = max(screen.size.width - _SIDES, _NARROWEST)
    styles = styles_of(screen.look)
    everywhere = {binding.action for binding in BaseScreen.BINDINGS if isinstance(binding, Binding)}
    here: dict[str, dict[str, None]] = {}
    common: dict[str, dict[str, None]] = {}
    for key, active in screen.active_bindings.items():
        binding = active.binding
        if not _is_ours(active.node, binding) or binding.action.startswith("go("):
            continue
        of = common if binding.action in everywhere else here
        of.setdefault(binding.description, {})[binding.key_display or key] = None
    lines: list[Piece] = []

    def section(title: str, rows: list[tuple[str, str]]) -> None:
        if rows:
            lines.extend([("", styles.base)] if lines else [])
            lines.append((title, styles.title))
            for key, does in rows:
                described = Paragraph(does, "base", f"  {key:<{_KEY_WIDTH - 1}} ")
                lines.extend(described.lines(width, screen.look))

    section(f"under the cursor: {screen.crumb}", list(screen.figures_under_cursor()))
    section(f"keys on {screen.crumb}", [(", ".join(keys), does) for does, keys in here.items()])
    section("what the figures are", list(screen.figures()))
    section("screens", [(entry.key, f"{entry.name}: {entry.title}") for entry in SCREENS])
    section("keys everywhere", [(", ".join(keys), does) for does, keys in common.items()])
    section("commands (type : first)", [(entry.name, entry.summary) for entry in COMMANDS if entry.is_single])
    section("filter (type / first)", list(EXAMPLES))
    return lines


def _is_ours(node: DOMNode, binding: Binding) -> bool:
    """Return whether Kair bound the key, rather than Textual."""
    ours = [kind for kind in type(node).__mro__ if kind.__module__.startswith("kair_tui")]
    bound = (one for kind in ours for one in vars(kind).get("BINDINGS", ()))
    return any(isinstance(one, Binding) and one.action == binding.action for one in bound)
