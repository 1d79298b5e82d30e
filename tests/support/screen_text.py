"""What is on a screen as lines of text, and the kept pictures that it is compared with.

`KAIR_UPDATE_SNAPSHOTS=1 pytest tests/tui/...` writes the pictures anew; look at the difference before keeping it.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from importlib.metadata import version
from itertools import count
from typing import Any, ParamSpec, TypeVar

from rich.console import Console
from support.patience import PATIENCE_S
from support.places import ROOT
from textual.color import TRANSPARENT
from textual.pilot import Pilot
from textual.renderables.background_screen import BackgroundScreen
from textual.widgets import Input

from kair_tui.cli.wanted import JobWanted
from kair_tui.render.terminal import Look
from kair_tui.tui.frame.app import KairApp
from kair_tui.tui.frame.view import ViewScreen

SNAPSHOTS = ROOT / "tests" / "tui" / "snapshots"
DRAWN_BY = "8.2.8"
"""Textual's release that drew the pictures: layout and scroll bars change in details with each."""
_PAUSES = 3
"""After as many in which something was drawn, what is on the screen is read."""
drawings = count()
"""A number for each time that the program drew something: `tui/conftest.py` takes them."""

Arguments = ParamSpec("Arguments")
Shown = TypeVar("Shown", bound=ViewScreen)


def played(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """A test that is a coroutine, for pytest."""

    @wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def screen_lines(app: KairApp) -> list[str]:
    """The screen's lines as they are drawn, trailing blanks left out."""
    # What a dialog draws of the screen behind it, with no tint: the whole screen, read without Textual's private parts.
    segments = Console(width=app.size.width).render(BackgroundScreen(app.screen, TRANSPARENT))
    lines = "".join(segment.text for segment in segments).split("\n")[:-1]
    return [line.rstrip() for line in lines]


def screen_text(app: KairApp) -> str:
    """The same in one piece."""
    return "\n".join(screen_lines(app)) + "\n"


def assert_says(app: KairApp, *texts: str) -> None:
    """Whether all of them are on the screen."""
    shown = screen_text(app)
    assert [text for text in texts if text not in shown] == [], shown


def front(app: KairApp, kind: type[Shown]) -> Shown:
    """The screen in front, which is of that kind."""
    screen = app.screen
    assert isinstance(screen, kind)
    return screen


def assert_snapshot(app: KairApp, name: str) -> None:
    """Compares the screen with `snapshots/<name>.txt`; with another release than `DRAWN_BY` only its words."""
    file = SNAPSHOTS / f"{name}.txt"
    shown = screen_text(app)
    if os.environ.get("KAIR_UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    if version("textual") != DRAWN_BY:
        assert sorted(shown.split()) == sorted(file.read_text(encoding="utf-8").split())
        return
    assert shown == file.read_text(encoding="utf-8"), f"{name} differs; KAIR_UPDATE_SNAPSHOTS=1 writes it anew"


@asynccontextmanager
async def opened(
    job: str, *, size: tuple[int, int] = (80, 24), look: Look | None = None, step: str = "all"
) -> AsyncIterator[tuple[KairApp, Pilot[int]]]:
    """The program with a job open and every question of its first screen answered."""
    app = KairApp(JobWanted(job, step), look or Look())
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: answered(app))
        yield app, pilot


async def go(app: KairApp, pilot: Pilot[int], *keys: str, to: type[Shown] = ViewScreen) -> Shown:  # type: ignore[assignment]
    """Presses keys, and waits for a screen of that kind with all its answers."""
    await pilot.press(*keys)
    await until(pilot, lambda: isinstance(app.screen, to) and answered(app))
    return front(app, to)


async def type_line(pilot: Pilot[int], key: str, text: str) -> None:
    """Presses the key of a line to type into, and enters a text there at once: each key by itself takes 60 ms here."""
    await pilot.press(key)
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")


def answered(app: KairApp) -> bool:
    """Whether the screen in front shows all that it asked for."""
    screen = app.screen
    return isinstance(screen, ViewScreen) and bool(screen.shown) and not screen.waiting


async def until(pilot: Pilot[int], holds: Callable[[], bool]) -> None:
    """Lets the program go on until something holds, and what follows from it is drawn."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"that never came:\n{screen_text(pilot.app)}"
        # What waits for all widgets to have heard everything costs more than what is waited for.
        await asyncio.sleep(0.01)
    await _drawn(pilot)


async def _drawn(pilot: Pilot[int]) -> None:
    """Until nothing more is drawn: what an answer changes can change the layout, one message later.

    Or until two looks in a row show the same, where something is drawn at all times. A look costs as much as all that
    the program itself does for a key.
    """
    before, number, pauses = None, next(drawings), 0
    while True:
        await pilot.pause()
        number, last, pauses = next(drawings), number, pauses + 1
        if number == last + 1:
            return
        if pauses > _PAUSES:
            shown = screen_text(pilot.app)
            if shown == before:
                return
            before = shown
