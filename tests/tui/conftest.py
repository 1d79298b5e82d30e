"""What tests of screens share."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import RenderableType
from support.screen_text import drawings
from textual import app, pilot
from textual._compositor import Compositor
from textual._context import active_app
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.screen import Screen


@pytest.fixture(autouse=True, scope="session")
def _styles_are_parsed_once() -> Iterator[None]:
    """Every program that starts parses the same style sheets, twice: a tenth of what it takes to open a job."""
    parse = Stylesheet._parse_rules
    known: dict[tuple[object, ...], list[RuleSet]] = {}

    def remembering(self: Stylesheet, css: str, **where: Any) -> list[RuleSet]:  # noqa: ANN401
        asked = (css, *where.items(), *self._variables.items())
        if asked not in known:
            known[asked] = parse(self, css, **where)
        return known[asked]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", remembering)
        yield


@pytest.fixture(autouse=True, scope="session")
def _idle_is_when_nothing_waits_to_run() -> Iterator[None]:
    """Textual waits after every key for 40 ms in which the process takes no time: two thirds of these tests' time.

    Here what waits to run is run, what follows from it is laid out, as Textual's clock would do every 17 ms, and what
    waits then is run. A program that never comes to rest is left after as long as Textual would.
    """

    async def until_idle(min_sleep: float = 0, max_sleep: float = 1) -> None:  # noqa: ARG001
        loop = asyncio.get_running_loop()
        end = loop.time() + max_sleep
        for lays_out in (True, True, False):
            await asyncio.sleep(0)
            while loop._ready and loop.time() < end:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            running = active_app.get()
            if lays_out and running.screen_stack:
                running.screen._on_timer_update()

    with pytest.MonkeyPatch.context() as patch:
        for module in (app, pilot):
            patch.setattr(module, "wait_for_idle", until_idle)
        yield


@pytest.fixture(autouse=True)
def _nothing_is_painted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts what would be drawn at once, and leaves it out as there is no terminal: a sixth of these tests' time.

    A test looks at a screen by having all of it drawn (`screen_text`). One that asks what is drawn when says
    `usefixtures("painted")`.
    """
    draw, painted = Compositor.render_update, "painted" in request.fixturenames

    def only_whole(
        self: Compositor, full: bool = False, screen_stack: list[Screen] | None = None, simplify: bool = False
    ) -> RenderableType | None:
        next(drawings)
        if full or painted:
            return draw(self, full=full, screen_stack=screen_stack, simplify=simplify)
        self._dirty_regions.clear()
        return None

    monkeypatch.setattr(Compositor, "render_update", only_whole)


@pytest.fixture
def painted() -> None:
    """Every change is drawn as soon as it is for a terminal."""
