"""Text in Markdown without markup, links or mentions."""

import re
from collections.abc import Sequence
from typing import Final

from kair_tui.render.text import clean

_MARKS: Final = re.compile(r"([\\`*_{}\[\]<>#|~&!$^])")
_LINKS: Final = re.compile(r"(?i)(://|www\.|mailto:|@|#(?=\d))")
"""Texts that trackers turn into links and mentions without any markup."""


def fence(lines: Sequence[str]) -> str:
    """Return a fence of backticks longer than any run of them in the lines."""
    longest = max((len(run) for line in lines for run in re.findall("`+", clean(line))), default=0)
    return "`" * max(3, longest + 1)


def code_text(line: str) -> str:
    """Return a command as code, whatever backticks it contains."""
    text = clean(line)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {text} {ticks}" if longest else f"`{text}`"


def safe_text(text: str) -> str:
    """Return `text` with everything escaped that Markdown or a tracker interprets."""
    escaped = _MARKS.sub(r"\\\1", clean(text))
    # An empty comment is invisible, and splits a link or a mention.
    return _LINKS.sub(lambda found: f"{found[0][0]}<!-- -->{found[0][1:]}", escaped)


def at_begin(text: str) -> str:
    """Return `text` for the begin of a line: no list, quotation or rule."""
    return re.sub(r"^(\d+)([.)])|^([-+=])", lambda found: f"{found[1] or ''}\\{found[2] or found[3]}", text)
