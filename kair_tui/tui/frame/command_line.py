"""The command line of `:`: runs a `kair` command in place, about the job that is open."""

from functools import partial
from typing import TYPE_CHECKING

from kair_tui.cli.arguments.steps import parse_steps
from kair_tui.cli.failures import ExitCode, explained
from kair_tui.render.page_options import PageOptions
from kair_tui.tui.frame.completing import HELPS, LEAVES, completed
from kair_tui.tui.frame.output import OutputScreen
from kair_tui.tui.frame.screen import BaseScreen, Program
from kair_tui.tui.frame.view import ViewScreen

if TYPE_CHECKING:
    from textual.app import App

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
    from kair_tui.shell.runner import run_line

    try:
        state, session = kair.shell_state, kair.session
        if session is not None:
            state.hold(session.source, session.trace, session.steps)
        outcome = run_line(line, state)
        text = outcome.write(look)
    except Exception as error:
        app.call_from_thread(_complain, kair, error)
        return
    notes = "".join(f"{note}\n" for note in outcome.notes) if outcome.for_people else ""
    shown = f"{text}\n{notes}" if notes else text
    app.call_from_thread(_show, app, kair, asked_on, line, text=shown, command=outcome.command)


def _complain(kair: Program, error: Exception) -> None:
    text, hint, status = explained(error)
    if status == ExitCode.FAILED:
        kair.defects.append(error)
    kair.framed.say(f"kair: error: {text}" + (f" ({hint})" if hint else ""), alarm=True)


def _show(app: "App[object]", kair: Program, asked_on: BaseScreen, line: str, *, text: str, command: str) -> None:
    """Over the screen that it was asked on; where one has gone on since, it waits, and takes no key."""
    kair.worked.append(line)
    if not text:  # a name or a focus: there is nothing to read
        kair.framed.say(command)
        _narrow(kair)
        return
    title = line.removeprefix("kair ")
    kair.framed.record(command)

    def page() -> OutputScreen:
        return OutputScreen.of_text(kair.framed, title, text, (command,))

    if kair.framed is asked_on and not asked_on.is_typing:
        asked_on.say("")
        app.push_screen(page())
        return
    kair.answers[title] = page
    for oldest in [*kair.answers][:-_KEPT]:
        del kair.answers[oldest]
    kair.framed.say(f"kair {title} has answered: ctrl+p opens it")


def _narrow(kair: Program) -> None:
    """Narrows the screen to the steps that `use step` put into focus."""
    session, screen = kair.session, kair.framed
    if session is None or not isinstance(screen, ViewScreen):
        return
    chosen = parse_steps(kair.shell_state.steps).among(session.trace.job.steps)
    if chosen != session.steps:
        screen.narrow(chosen)
