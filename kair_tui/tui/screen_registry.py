"""The single list of the screens of a job; each is imported when first shown.

A screen is a class in its own module, derived from `ViewScreen` (see its module frame/view.py), and an entry here: its
key, its name (in crumbs and bookmarks), a title for help, and its class.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kair_engine.trace.model import Job


@dataclass(frozen=True)
class ScreenEntry:
    """One screen."""

    key: str
    name: str
    title: str
    of: str
    """`module:Class` below `kair_tui.tui.screens`."""
    about_rank: bool = False
    """Whether it shows one rank: it is opened for the one under the cursor."""
    about_moment: bool = False
    """Whether it shows a moment: it is opened for the operation under the cursor."""
    needs_job: bool = True
    """Whether it needs an open job."""
    needs_coordinator: bool = False
    """Whether it needs a coordinator, present or past."""

    def load(self) -> Any:  # noqa: ANN401 - the frame knows its type, and imports this list
        """Return its class, constructed from a session and a place if it needs a job, else without arguments."""
        module, _, name = self.of.partition(":")
        return getattr(import_module(f"kair_tui.tui.screens.{module}"), name)


SCREENS: Final = (
    ScreenEntry("1", "overview", "every rank, every step, and what was found", "overview:OverviewScreen"),
    ScreenEntry("2", "rank", "one rank: its step, its curve, its outliers", "rank:RankScreen", about_rank=True),
    ScreenEntry("3", "blame", "whom ranks waited for, and what made it late", "blame:BlameScreen"),
    ScreenEntry("4", "timeline", "every rank over time, around a delay", "timeline:TimelineScreen", about_moment=True),
    ScreenEntry("5", "whatif", "what stragglers cost, and what fixes save", "whatif:WhatifScreen"),
    ScreenEntry("6", "operators", "where time goes: types and operators, by rank", "operators:OperatorsScreen"),
    ScreenEntry("7", "collectives", "bandwidth of groups and links, overlap, TFLOP/s", "collectives:CollectivesScreen"),
    ScreenEntry("8", "jobs", "the jobs of the store, each with its last verdict", "jobs:JobsScreen", needs_job=False),
    ScreenEntry(
        "M", "mitigation", "a job under kair mitigate: sizes, proposals", "mitigation:MitigationScreen", needs_job=False
    ),
    ScreenEntry("F", "frequency", "how often an operator ran, over time, by rank", "frequency:FrequencyScreen"),
    ScreenEntry("Q", "query", "SQL over the job's tables, to type, see and save", "query:QueryScreen"),
    ScreenEntry("P", "windows", "S of each window of sampled steps, over time", "windows:WindowsScreen"),
    ScreenEntry(
        "K",
        "confirm",
        "what delays of the running job prove, with the keys to begin and stop them",
        "confirm:ConfirmScreen",
        needs_coordinator=True,
    ),
    ScreenEntry("D", "matrix", "how far every two ranks' curves lie apart", "matrix:MatrixScreen"),
)
"""Frequent ones have numbers; the bar at the top names them in this order."""


def screens_of(job: "Job | None") -> list[ScreenEntry]:
    """Return the screens that apply to the open job."""
    from kair.app.investigate import is_captured

    if job is None:
        return [entry for entry in SCREENS if not entry.needs_job]
    return [entry for entry in SCREENS if not entry.needs_coordinator or is_captured(job)]


def find_screen(name: str) -> ScreenEntry | None:
    """Return the screen of that name."""
    return next((entry for entry in SCREENS if entry.name == name), None)
