"""The command line of `:`: runs a `kair` command in place, about the job that is open."""

from functools import partial

from kair_tui.cli.failures import explained
from kair_tui.cli.registry import COMMANDS
from kair_tui.cli.step_choice import parse_steps
from kair_tui.tui.frame.output import OutputScreen
from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.frame.view import ViewScreen

_SIDES = 3
"""Columns that the page of text leaves free, its scroll bar's among them."""


async def ask_command(screen: BaseScreen) -> None:
    """Asks for the line."""
    names = [entry.name for entry in COMMANDS if not entry.stands_alone]
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
    from kair_tui.shell.runner import run_line

    try:
        desk, session = screen.kair.desk, screen.kair.session
        if session is not None:
            desk.hold(session.source, session.trace, session.steps)
        outcome = run_line(line, desk)
        text = outcome.write(PageOptions(width=max(screen.size.width - _SIDES, 40), ascii_only=screen.look.ascii_only))
    except Exception as error:
        message, hint, _ = explained(error)
        alarm = f"kair: error: {message}" + (f" ({hint})" if hint else "")
        screen.app.call_from_thread(screen.say, alarm, alarm=True)
        return
    notes = "".join(f"{note}\n" for note in outcome.notes) if outcome.for_people else ""
    screen.app.call_from_thread(_show, screen, line, f"{text}\n{notes}" if notes else text, outcome.command)


def _show(screen: BaseScreen, line: str, text: str, command: str) -> None:
    screen.say("")
    if not text:  # a name or a focus: there is nothing to read
        screen.say(command)
        _narrow(screen)
        return
    title = line.strip().removeprefix("kair ")
    screen.app.push_screen(OutputScreen.of_text(screen, title, text, (command,)))
    screen.record(command)


def _narrow(screen: BaseScreen) -> None:
    """Narrows the screen to the steps that `use step` put into focus."""
    session, steps = screen.kair.session, screen.kair.desk.steps
    if session is None or not isinstance(screen, ViewScreen):
        return
    chosen = parse_steps(steps).among(session.trace.job.steps)
    if chosen != session.steps:
        screen.narrow(chosen)
