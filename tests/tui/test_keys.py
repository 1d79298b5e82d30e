"""Keys: the bar that names the screens, and letters that mean the same wherever one is."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from support.places import SAMPLES
from support.screen_text import answered, opened, played, screen_lines, until
from textual.binding import Binding
from textual.dom import DOMNode

from kair_tui.render.terminal import Look
from kair_tui.tui import screens, widgets
from kair_tui.tui.frame.screen import BaseScreen
from kair_tui.tui.frame.view import FilteredScreen, ViewScreen
from kair_tui.tui.screen_registry import SCREENS
from kair_tui.tui.widgets.header_and_footer import ScreensLine

SLOW = str(SAMPLES / "slow_operator")
ONE_MEANING = {
    "N": ("note",),
    "w": ("who waited",),
    "W": ("whole",),
    "v": ("by ", "with fixes"),
    "c": ("choose operator",),
    "x": ("one by one",),
    "F": ("how often", "frequency"),
    "n": ("next",),
    "p": ("before",),
    "a": ("all", "approve"),
    "dollar_sign": ("cost",),
    "H": ("late",),
    "C": ("cancel", "ask again"),
}
"""Words of which one stands in what each key is said to do, on every screen."""


def bound() -> Iterator[tuple[str, Binding]]:
    """Every key of every screen and widget, with where it is bound."""
    modules = [
        import_module(f"{package.__name__}.{file.stem}")
        for package in (screens, widgets)
        for file in sorted(Path(str(package.__file__)).parent.glob("[a-z]*.py"))
    ]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    for kind in sorted(kinds | {BaseScreen, FilteredScreen, ViewScreen}, key=lambda kind: kind.__name__):
        if issubclass(kind, DOMNode) and kind.__module__.startswith("kair_tui"):
            for binding in vars(kind).get("BINDINGS", ()):
                for key in binding.key.split(","):
                    yield f"{kind.__name__} {key}", Binding(key, binding.action, binding.description)


def test_a_letter_means_the_same_wherever_one_is() -> None:
    found = {where: binding for where, binding in bound() if binding.key in ONE_MEANING}
    assert len(found) > len(ONE_MEANING)
    others = {
        where: binding.description
        for where, binding in found.items()
        if not any(word in binding.description for word in ONE_MEANING[binding.key])
    }
    assert others == {}


def test_no_key_of_a_part_hides_that_of_a_screen() -> None:
    of_screens = {entry.key for entry in SCREENS}
    hidden = [
        where
        for where, binding in bound()
        if binding.key in of_screens and not binding.action.startswith("go(") and "frequency" not in binding.action
    ]
    assert hidden == []


@pytest.mark.parametrize("width", [60, 80, 107, 112, 160])
@pytest.mark.parametrize("front", ["", "overview", "matrix"])
def test_the_bar_has_every_key_in_one_line(width: int, front: str) -> None:
    bar = ScreensLine(Look())
    bar.show([(entry.key, entry.name) for entry in SCREENS], front)
    text = "".join(text for text, _ in bar.pieces(width))
    assert len(text) <= width
    words = text.split()
    assert [word for word in words if word in {entry.key for entry in SCREENS}] == [entry.key for entry in SCREENS]
    assert not front or front in words


@pytest.mark.slow
@pytest.mark.usefixtures("own_places")
@played
async def test_at_80_columns_the_first_six_are_named_and_a_click_leads_there() -> None:
    async with opened(SLOW) as (app, pilot):
        bar = screen_lines(app)[1]
        assert all(f"{entry.key} {entry.name}" in bar for entry in SCREENS[:6])
        await pilot.click("#screens", offset=(bar.index("blame"), 0))
        await until(pilot, lambda: answered(app) and "blame" in screen_lines(app)[0])
