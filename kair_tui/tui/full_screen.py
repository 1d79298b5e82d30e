"""`kair-tui`: the checks before the full screen, and the clean-up after it."""

import asyncio
import os
import select
import signal
import sys
from threading import Thread
from typing import TYPE_CHECKING, Final

from kair.app.step_choice import parse_steps
from kair_tui.cli.failures import report, traceback_of
from kair_tui.cli.output import say_lines
from kair_tui.cli.wanted import JobWanted
from kair_tui.render.terminal import ThemeChoice, look_of, refuse_no_terminal

if TYPE_CHECKING:
    from kair_tui.tui.frame.app import KairApp

# Read by Textual on import: nothing on a screen moves by itself.
_STILL: Final = {"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0"}
_BY_SIGNAL: Final = 128
"""Added by shells to the number of the signal that ended a program."""
_HUNG_UP: Final = 129
_HANG_UP: Final = () if sys.platform == "win32" else (signal.SIGHUP,)
_COLOUR_SYSTEMS: Final = {"none": "standard", "16": "standard", "256": "256", "truecolor": "truecolor"}


def main() -> int:
    """Run `kair-tui`, which is `kair tui`; return the exit status."""
    from kair_tui.cli.main import main as kair

    return kair(["tui", *sys.argv[1:]])


def show(
    wanted: JobWanted, *, ascii_only: bool, plain: bool, no_color: bool, mouse: bool, theme: ThemeChoice | None
) -> int:
    """Show the job until the user leaves, and return the exit status.

    Raises UsageError without a terminal, or for an invalid choice of steps.
    """
    parse_steps(wanted.step)
    refuse_no_terminal(os.environ)
    look = look_of(os.environ, ascii_only=ascii_only, plain=plain, no_color=no_color, theme=theme)
    os.environ.update(_STILL)
    os.environ["TEXTUAL_COLOR_SYSTEM"] = _COLOUR_SYSTEMS[look.colours]

    from kair_tui.tui.frame.app import KairApp

    Thread(target=_end_with_the_terminal, daemon=True).start()
    app = KairApp(wanted, look)
    return asyncio.run(_run(app, mouse))


async def _run(app: "KairApp", mouse: bool) -> int:
    if sys.platform != "win32":
        # A resize has to end the wait for a key: Python runs Textual's handler in the main thread once that is awake,
        # and a signal that another thread gets, or that comes just before the wait, wakes nobody. What this one calls
        # does not matter, and Textual puts its own in its place: the loop still hears the signal.
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, lambda: None)
    _end_when_asked(app)
    status = await app.run_async(mouse=mouse)
    if app.failure is not None:
        if app.is_busy:
            _leave(report(app.failure, debug=app.wanted.debug, ascii_only=app.look.ascii_only))
        raise app.failure
    if app.wanted.debug:
        say_lines("".join(map(traceback_of, app.defects)))
    if app.is_busy:
        _leave(status or 0)
    return status if status is not None else app.return_code or 0


def _end_when_asked(app: "KairApp") -> None:
    """Make terminating signals restore the terminal; a second one ends the program at once.

    An ignored signal (`nohup`) stays ignored.
    """
    loop = asyncio.get_running_loop()

    def leave(number: int) -> None:
        loop.remove_signal_handler(number)
        app.exit(_BY_SIGNAL + number)

    for number in (signal.SIGTERM, *_HANG_UP):
        if sys.platform != "win32" and signal.getsignal(number) is signal.SIG_DFL:
            loop.add_signal_handler(number, leave, number)


def _end_with_the_terminal() -> None:
    """End the process when its terminal is gone, like its signal, if that is not ignored.

    Textual would read the end of the input again and again, and use a whole core.
    """
    poll = getattr(select, "poll", None)
    if poll is None:
        return
    hang_up = poll()
    hang_up.register(sys.stdin.fileno(), 0)
    if any(event & select.POLLHUP for _, event in hang_up.poll()):
        os._exit(_HUNG_UP)


def _leave(status: int) -> None:
    """End the process although an analysis runs in a thread, for which the interpreter would wait.

    Its output appears whole or not at all (recording/cache.py), so that nothing is left half done; the processes that
    parse for it end with this one.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
