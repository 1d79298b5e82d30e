"""`kair shell`: runs the same commands on a job that stays open."""

import sys
from typing import Annotated

from kair_tui.cli.options import PLAIN, Option, Presentation
from kair_tui.cli.output import is_terminal, stdin_text
from kair_tui.cli.wanted import JobWanted


def run(
    wanted: JobWanted,
    *,
    commands: Annotated[
        str | None, Option("-c, --commands", "Run these commands, separated by ; and exit.", metavar="TEXT")
    ] = None,
    allow_shell: Annotated[
        bool, Option("--allow-shell", "Let a batch use the system's shell (! and |), as a person at a prompt may.")
    ] = False,
    ascii_only: Annotated[bool, Option("--ascii", "Use ASCII characters only.")] = False,
    plain: Annotated[bool, Option("--plain", PLAIN)] = False,
    no_color: Annotated[bool, Option("--no-color", "Use no colour (also: NO_COLOR, TERM=dumb).")] = False,
    quiet: Annotated[bool, Option("-q, --quiet", "Show no notes, warnings or progress.")] = False,
) -> int:
    """Read commands from a terminal, `-c` or stdin, and return the exit status."""
    presentation = Presentation(ascii=ascii_only, plain=plain, no_color=no_color, quiet=quiet)
    if commands is None and is_terminal(sys.stdin) and is_terminal(sys.stdout):
        from kair_tui.shell.prompt import converse

        return converse(wanted, presentation)
    from kair_tui.shell.batch import run_batch

    text = commands if commands is not None else stdin_text("kair shell -c 'COMMAND; COMMAND'")
    return run_batch(text, wanted, presentation, allow_shell=allow_shell)
