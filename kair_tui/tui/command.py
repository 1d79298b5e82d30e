"""`kair tui`: the investigation on the full screen."""

from typing import Annotated

from kair_tui.cli.options import PLAIN, Option
from kair_tui.cli.wanted import JobWanted
from kair_tui.render.terminal import ThemeChoice


def run(
    wanted: JobWanted,
    *,
    ascii_only: Annotated[bool, Option("--ascii", "Use ASCII characters only.")] = False,
    plain: Annotated[bool, Option("--plain", PLAIN)] = False,
    no_color: Annotated[bool, Option("--no-color", "Use no colour (also: NO_COLOR).")] = False,
    no_mouse: Annotated[bool, Option("--no-mouse", "Leave the mouse to the terminal.")] = False,
    theme: Annotated[
        ThemeChoice | None,
        Option("--theme", "Colours for a light or a dark terminal. Default: what $COLORFGBG says, else dark."),
    ] = None,
) -> int:
    """Show the screens until they are left, and return the exit status."""
    from kair_tui.tui.full_screen import show

    return show(wanted, ascii_only=ascii_only, plain=plain, no_color=no_color, mouse=not no_mouse, theme=theme)
