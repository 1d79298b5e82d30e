"""What tests of screens share."""

import pytest
from rich.console import RenderableType
from textual._compositor import Compositor
from textual.screen import Screen


@pytest.fixture(autouse=True)
def _nothing_is_painted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out what would be drawn at once for a terminal that is not there: a sixth of these tests' time.

    A test looks at a screen by having all of it drawn (`screen_text`). One that asks what is drawn when says
    `usefixtures("painted")`.
    """
    draw = Compositor.render_update

    def only_whole(
        self: Compositor, full: bool = False, screen_stack: list[Screen] | None = None, simplify: bool = False
    ) -> RenderableType | None:
        if full:
            return draw(self, full=True, screen_stack=screen_stack, simplify=simplify)
        self._dirty_regions.clear()
        return None

    if "painted" not in request.fixturenames:
        monkeypatch.setattr(Compositor, "render_update", only_whole)


@pytest.fixture
def painted() -> None:
    """Every change is drawn as soon as it is for a terminal."""
