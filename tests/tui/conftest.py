"""What tests of screens share."""

from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import RenderableType
from support.screen_text import drawings
from textual._compositor import Compositor
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
