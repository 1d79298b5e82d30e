"""`kair tui`: the investigation on the full screen."""

from typing import Annotated

import typer

from kair_tui.cli.job_source import JobWanted
from kair_tui.render.terminal import ThemeChoice


def run(
    wanted: JobWanted,
    *,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Nothing but ASCII.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colour (also NO_COLOR).")] = False,
    no_mouse: Annotated[bool, typer.Option("--no-mouse", help="Leave the mouse to the terminal.")] = False,
    theme: Annotated[
        ThemeChoice | None,
        typer.Option("--theme", help="For a light or a dark terminal; else what $COLORFGBG tells, else dark."),
    ] = None,
) -> int:
    """Shows the screens until they are left, and returns the exit status."""
    from kair_tui.tui.full_screen import show

    return show(wanted, ascii_only=ascii_only, no_color=no_color, mouse=not no_mouse, theme=theme)
