"""Text in Markdown: nothing in it is a mark or a link, and it calls nobody."""

import re
from collections.abc import Sequence
from typing import Final

from kair_tui.render.text import clean

_MARKS: Final = re.compile(r"([\\`*_{}\[\]<>#|~&!$^])")
_LINKS: Final = re.compile(r"(?i)(://|www\.|mailto:|@|#(?=\d))")
"""What trackers make links and messages to people of, without any mark."""


def fence(lines: Sequence[str]) -> str:
    """Return backticks that fence lines in, more than any of them has in a row."""
    longest = max((len(run) for line in lines for run in re.findall("`+", clean(line))), default=0)
    return "`" * max(3, longest + 1)


def code_text(line: str) -> str:
    """Return a command as code, whatever backticks are in it."""
    text = clean(line)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {text} {ticks}" if longest else f"`{text}`"


def safe_text(text: str) -> str:
    """`text` with nothing in it that Markdown or a tracker takes for more."""
    escaped = _MARKS.sub(r"\\\1", clean(text))
    # An empty comment is seen by nobody, and parts what would be a link or somebody's name.
    return _LINKS.sub(lambda found: f"{found[0][0]}<!-- -->{found[0][1:]}", escaped)


def at_begin(text: str) -> str:
    """`text` where a line begins with it: no list, quotation or rule."""
    return re.sub(r"^(\d+)([.)])|^([-+=])", lambda found: f"{found[1] or ''}\\{found[2] or found[3]}", text)
