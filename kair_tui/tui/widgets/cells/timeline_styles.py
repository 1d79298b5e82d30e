"""Styles of a timeline's bars and marks: a colour for each kind where the terminal has them."""

from functools import cache
from typing import Final

from rich.style import Style

from kair_engine.results.timeline import TimelineKind
from kair_tui.render.drawing.timeline import Ink
from kair_tui.render.terminal import Look
from kair_tui.tui.widgets.styles import styles_of

_DARK: Final[dict[TimelineKind, str]] = {
    "compute": "#4d7ba6",
    "communication": "#6ba477",
    "waiting": "#8a7240",
    "input": "#9a79b5",
    "host": "#c98a55",
    "rest": "#5a626e",
    "unknown": "#7b838f",
    "operation": "#587a86",
    "synchronisation": "#6d6f93",
}
_LIGHT: Final[dict[TimelineKind, str]] = {
    "compute": "#5b8dbd",
    "communication": "#5f9e6d",
    "waiting": "#dcb964",
    "input": "#a57fc0",
    "host": "#cc7a38",
    "rest": "#a4abb4",
    "unknown": "#8d949d",
    "operation": "#84a5b3",
    "synchronisation": "#a29fc4",
}
_SIXTEEN: Final[dict[TimelineKind, str]] = {
    "compute": "blue",
    "communication": "green",
    "waiting": "yellow",
    "input": "magenta",
    "host": "cyan",
}


@cache
def bar_style(look: Look, front: Ink, back: TimelineKind) -> Style:
    """Of a cell with that in front of that."""
    styles = styles_of(look)
    colours = _colours(look)
    behind = Style(bgcolor=colours[back]) if back in colours else Style()
    if front in colours:
        return styles.base + Style(color=colours[front]) + behind
    if front in ("rest", "unknown", "operation", "synchronisation"):
        return styles.dim + behind
    return (styles.base if front == "nothing" else styles.strong) + behind


def _colours(look: Look) -> dict[TimelineKind, str]:
    if look.colours == "none":
        return {}
    if look.colours == "16":
        return _SIXTEEN
    return _LIGHT if look.light else _DARK
