"""The screens of a job. This list is all that the program knows of them; each is imported when it is first shown.

A screen is a class in a module of its own, derived from `ViewScreen` (view.py, whose docstring says what to write), and
an entry here: its number key, its name (what crumbs and bookmarks call it), a title for help, and where the class is.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kair_tui.screens.view import ViewScreen


@dataclass(frozen=True)
class ScreenEntry:
    """One screen."""

    key: str
    name: str
    title: str
    of: str
    """`module:Class` below this package."""
    about_rank: bool = False
    """True where it shows one rank: it is opened for the one under the cursor."""

    def load(self) -> "type[ViewScreen]":
        """Its class."""
        module, _, name = self.of.partition(":")
        screen: type[ViewScreen] = getattr(import_module(f"kair_tui.screens.{module}"), name)
        return screen


SCREENS: Final = (
    ScreenEntry("1", "overview", "every rank, every step, and what was found", "overview:OverviewScreen"),
    ScreenEntry("5", "whatif", "what stragglers cost, and what fixes save", "whatif:WhatifScreen"),
)


def find_screen(name: str) -> ScreenEntry | None:
    """The screen of that name."""
    return next((entry for entry in SCREENS if entry.name == name), None)
