"""The help of `?`: made from the keys that are bound, the screens and the registry, so never out of date."""

from textual.binding import Binding
from textual.dom import DOMNode

from kair_tui.cli.registry import COMMANDS
from kair_tui.tui.filtering import EXAMPLES
from kair_tui.tui.frame.output import OutputScreen
from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.screen_registry import SCREENS
from kair_tui.tui.widgets.lines.line import Piece
from kair_tui.tui.widgets.styles import styles_of

_KEY_WIDTH = 18


def show_help(screen: BaseScreen) -> None:
    """Opens the help over `screen`, about its keys."""
    screen.app.push_screen(OutputScreen("help", help_lines(screen)))


def help_lines(screen: BaseScreen) -> list[Piece]:
    """The screens, the keys here, the keys everywhere, the commands and what a filter understands."""
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
            lines.extend((f"  {key:<{_KEY_WIDTH}}{does}", styles.base) for key, does in rows)

    section("screens", [(entry.key, f"{entry.name}: {entry.title}") for entry in SCREENS])
    section(f"keys on {screen.crumb}", [(", ".join(keys), does) for does, keys in here.items()])
    section("keys everywhere", [(", ".join(keys), does) for does, keys in common.items()])
    section("commands (type : first)", [(entry.name, entry.summary) for entry in COMMANDS if entry.is_single])
    section("filter (type / first)", list(EXAMPLES))
    return lines


def _is_ours(node: DOMNode, binding: Binding) -> bool:
    """Whether Kair bound the key, rather than Textual."""
    ours = [kind for kind in type(node).__mro__ if kind.__module__.startswith("kair_tui")]
    bound = (one for kind in ours for one in vars(kind).get("BINDINGS", ()))
    return any(isinstance(one, Binding) and one.action == binding.action for one in bound)
