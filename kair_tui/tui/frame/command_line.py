"""The command line of `:`: runs a `kair` command in place, about the job that is open."""

from functools import partial
from typing import TYPE_CHECKING

from kair_tui.cli.failures import ExitCode, explained
from kair_tui.render.page_options import PageOptions
from kair_tui.tui.frame.completing import HELPS, LEAVES, completed
from kair_tui.tui.frame.output import OutputScreen
from kair_tui.tui.frame.screen import BaseScreen, Program

if TYPE_CHECKING:
    from textual.app import App

    from kair_tui.tui.command_runner import Printed

_SIDES = 3
"""Columns that the page of text leaves free, its scroll bar's among them."""
_KEPT = 9
"""Answers that came late, and wait to be looked at."""


async def ask_command(screen: BaseScreen, begun: str = "") -> None:
    """Asks for the line, which may have begun already."""

    def complete(line: str) -> str | None:
        kair = screen.kair
        return completed(line, kair.worked, kair.session, getattr(screen, "rank", None))

    await screen.ask_for(":", partial(run_command, screen), value=begun, complete=complete, history=screen.kair.typed)


def run_command(screen: BaseScreen, line: str) -> None:
    """Runs the line in a thread; its output opens over the screen, an error is one line on it."""
    said = line.strip().lstrip(":")
    if said in LEAVES:
        screen.action_quit_kair()
    elif said in HELPS:
        screen.call_later(screen.action_help)
    elif said:
        screen.kair.typed.append(said)
        screen.say(f"running kair {said.removeprefix('kair ')} {screen.look.glyphs.ellipsis}")
        # Not the screen's own work: it goes on where that is left, and must not ask that for anything then.
        look = PageOptions(width=max(screen.size.width - _SIDES, 40), ascii_only=screen.look.ascii_only)
        work = partial(_run, screen.app, screen.kair, screen, said, look)
        screen.kair.in_thread(screen.app, work, group="command")


def _run(app: "App[object]", kair: Program, asked_on: BaseScreen, line: str, look: PageOptions) -> None:
    """In the thread."""
    from kair_tui.tui.command_runner import run_line

    try:
        printed = run_line(line, kair.session, look, kair.wanted.store)
    except Exception as error:
        app.call_from_thread(_complain, kair, error)
        return
    app.call_from_thread(_show, app, kair, asked_on, line, printed)


def _complain(kair: Program, error: Exception) -> None:
    text, hint, status = explained(error)
    if status == ExitCode.FAILED:
        kair.defects.append(error)
    kair.framed.say(f"kair: error: {text}" + (f" ({hint})" if hint else ""), alarm=True)


def _show(app: "App[object]", kair: Program, asked_on: BaseScreen, line: str, printed: "Printed") -> None:
    """Over the screen that it was asked on; where one has gone on since, it waits, and takes no key."""
    title = line.removeprefix("kair ")
    kair.worked.append(line)
    kair.framed.record(printed.command)

    def page() -> OutputScreen:
        return OutputScreen.of_text(kair.framed, title, printed.text, (printed.command,))

    if kair.framed is asked_on and not asked_on.is_typing:
        asked_on.say("")
        app.push_screen(page())
        return
    kair.answers[title] = page
    for oldest in [*kair.answers][:-_KEPT]:
        del kair.answers[oldest]
    kair.framed.say(f"kair {title} has answered: ctrl+p opens it")
