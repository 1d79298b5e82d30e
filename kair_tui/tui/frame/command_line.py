"""The command line of `:`: runs a `kair` command in place, about the job that is open."""

from functools import partial

from kair_tui.cli.failures import explained
from kair_tui.cli.registry import COMMANDS
from kair_tui.tui.frame.output import OutputScreen
from kair_tui.tui.frame.screen import BaseScreen

_SIDES = 3
"""Columns that the page of text leaves free, its scroll bar's among them."""


async def ask_command(screen: BaseScreen) -> None:
    """Asks for the line."""
    names = [entry.name for entry in COMMANDS if entry.needs != "screen"]
    await screen.ask_for(
        ":", partial(run_command, screen), suggestions=[*reversed(screen.kair.typed), *names], history=screen.kair.typed
    )


def run_command(screen: BaseScreen, line: str) -> None:
    """Runs the line in a thread; its output opens over the screen, an error is one line on it."""
    if not line.strip():
        return
    screen.kair.typed.append(line)
    screen.say(f"running kair {line.strip().removeprefix('kair ')} {screen.look.glyphs.ellipsis}")
    screen.kair.in_thread(screen, partial(_run, screen, line), group="command")


def _run(screen: BaseScreen, line: str) -> None:
    """In the thread."""
    from kair_tui.render.page_options import PageOptions
    from kair_tui.tui.command_runner import run_line

    try:
        look = PageOptions(width=max(screen.size.width - _SIDES, 40), ascii_only=screen.look.ascii_only)
        printed = run_line(line, screen.kair.session, look, screen.kair.wanted.store)
    except Exception as error:
        text, hint, _ = explained(error)
        message = f"kair: error: {text}" + (f" ({hint})" if hint else "")
        screen.app.call_from_thread(screen.say, message, alarm=True)
        return
    screen.app.call_from_thread(_show, screen, line, printed.text, printed.command)


def _show(screen: BaseScreen, line: str, text: str, command: str) -> None:
    screen.say("")
    title = line.strip().removeprefix("kair ")
    screen.app.push_screen(OutputScreen.of_text(screen, title, text, (command,)))
    screen.record(command)
