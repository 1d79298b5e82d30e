"""Capabilities of the terminal, and the characters that are drawn on it, each with its ASCII counterpart."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from kair_engine.errors import UsageError
from kair_tui.render.text import clean, plain_text, speaks_unicode

Colours = Literal["none", "16", "256", "truecolor"]
ThemeChoice = Literal["light", "dark"]

SMALLEST_WIDTH: Final = 60
SMALLEST_HEIGHT: Final = 20

_NO_TERMINAL: Final = "the same answers come from kair triage, kair localize, kair blame …; kair --help lists them"
_UNSUPPORTED_TERMINALS: Final = ("", "dumb", "unknown")
_COERCED: Final = "C.UTF-8"
"""Python's own value of $LC_CTYPE in the C locale (PEP 538)."""
_LIGHT_BACKGROUNDS: Final = ("7", "15")


@dataclass(frozen=True)
class Glyphs:
    """Every character of the screens that is no text."""

    levels: str = "·░▒▓█"
    """A cell of the grid, from ordinary to far out."""
    bars: str = "▁▂▃▄▅▆▇█"
    full: str = "█"
    empty: str = "░"
    alarm: str = "▲"
    weak_alarm: str = "△"
    crumb: str = "›"
    dot: str = "·"
    bullet: str = "•"
    recording: str = "●"
    pointer: str = "▸"
    ellipsis: str = "…"
    dash: str = "–"
    vertical: str = "│"
    thumb: str = "┃"
    horizontal: str = "─"
    thumb_horizontal: str = "━"
    cross: str = "┼"
    branch: str = "├─ "
    last_branch: str = "└─ "
    trunk: str = "│  "
    edge: str = "└┄ "
    """A branch to a delay between two operations."""
    hops: str = "⋮"
    """Folded stops of a path."""
    folded: str = "▸"
    unfolded: str = "▾"
    ascending: str = "↑"
    descending: str = "↓"


UNICODE: Final = Glyphs()
ASCII: Final = Glyphs(
    levels=".:+*#",
    bars="_.-=+*%#",
    full="#",
    empty=".",
    alarm="!",
    weak_alarm="v",
    crumb=">",
    dot="|",
    bullet="*",
    recording="o",
    pointer=">",
    ellipsis="~",
    dash="-",
    vertical="|",
    thumb="#",
    horizontal="-",
    thumb_horizontal="#",
    cross="+",
    branch="|- ",
    last_branch="`- ",
    trunk="|  ",
    edge="`~ ",
    hops=":",
    folded="+",
    unfolded="-",
    ascending="^",
    descending="v",
)
PLAIN: Final = replace(UNICODE, levels=" ░▒▓█")
"""For screen readers: drawings use characters that no sentence has, and are replaced by blanks."""
PLAIN_ASCII: Final = replace(
    ASCII, dot=";", **{name: signs for name, signs in vars(PLAIN).items() if plain_text(signs) != signs}
)


@dataclass(frozen=True)
class Look:
    """What may be sent to the terminal."""

    ascii_only: bool = False
    plain: bool = False
    """For a screen reader: nothing is drawn, and each rank has a line."""
    colours: Colours = "truecolor"
    light: bool = False

    @property
    def draws_ascii(self) -> bool:
        """Whether pictures are drawn in ASCII; never for a screen reader, where they must be recognisable to be left
        out.
        """
        return self.ascii_only and not self.plain

    @property
    def glyphs(self) -> Glyphs:
        """The characters to draw with."""
        if self.plain:
            return PLAIN_ASCII if self.ascii_only else PLAIN
        return ASCII if self.ascii_only else UNICODE

    def safe(self, text: str) -> str:
        """Return `text` made safe for the terminal."""
        return clean(plain_text(text, instead=" ") if self.plain else text, ascii_only=self.ascii_only)


def refuse_no_terminal(environment: Mapping[str, str]) -> None:
    """Raise UsageError if a full screen cannot be drawn: a missing terminal, or an incapable one."""
    for stream, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if not os.isatty(stream):
            raise UsageError(f"kair-tui needs a terminal, and {name} is not one", _NO_TERMINAL)
    kind = environment.get("TERM", "")
    if kind in _UNSUPPORTED_TERMINALS:
        raise UsageError(f"kair-tui needs a terminal that moves its cursor (TERM is {kind or 'not set'})", _NO_TERMINAL)


def look_of(
    environment: Mapping[str, str],
    *,
    ascii_only: bool = False,
    plain: bool = False,
    no_color: bool = False,
    theme: ThemeChoice | None = None,
) -> Look:
    """Return what the options and the environment permit together."""
    return Look(
        ascii_only=ascii_only or not (_locale_is_utf8(environment) and speaks_unicode(sys.stdout)),
        plain=plain,
        colours="none" if no_color or environment.get("NO_COLOR") else _colours(environment),
        light=theme == "light" if theme else _has_light_background(environment),
    )


def _colours(environment: Mapping[str, str]) -> Colours:
    """Return the terminal's colours, according to terminfo and $COLORTERM."""
    kind = environment.get("TERM", "")
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit") or kind.endswith("-direct"):
        return "truecolor"
    if "256color" in kind or kind in ("xterm-kitty", "alacritty", "xterm-ghostty"):
        return "256"
    return "none" if kind.startswith("vt") or kind.endswith("-mono") else "16"


def _locale_is_utf8(environment: Mapping[str, str]) -> bool:
    """Return whether the terminal expects UTF-8: in the C locale Python writes it nevertheless."""
    names = ["LC_ALL", "LC_CTYPE", "LANG"]
    if sys.flags.utf8_mode and environment.get("LC_CTYPE") == _COERCED:
        names.remove("LC_CTYPE")
    named = next((value for name in names if (value := environment.get(name))), "")
    return "utf" in named.lower()


def _has_light_background(environment: Mapping[str, str]) -> bool:
    """Return whether $COLORFGBG (`foreground;background`, set by some terminals) has a light background."""
    return environment.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT_BACKGROUNDS
