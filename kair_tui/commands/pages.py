"""Finds Kair's documents, which are installed with it: `kair help formats` shows docs/formats.md."""

import re
from pathlib import Path
from typing import Final

from kair_engine.errors import UsageError

_INSTALLED: Final = Path(__file__).parents[1] / "docs"
_IN_CHECKOUT: Final = Path(__file__).parents[2] / "docs"
_HEADING: Final = re.compile(r"^(#+) (.+)$")
_FENCE: Final = "```"


def names() -> list[str]:
    """Return the pages' names without `.md`, such as `formats` and `methods/triage`."""
    folder = _folder()
    return sorted(page.relative_to(folder).with_suffix("").as_posix() for page in folder.rglob("*.md"))


def page_named(typed: str) -> str | None:
    """Return a page's Markdown, or one section's (`formats#nsight-systems`); None if no page has that name.

    `docs/formats.md`, as messages call it, is the same page. Raises UsageError for a section that the page lacks.
    """
    name, _, section = typed.partition("#")
    name = name.removeprefix("docs/").removesuffix(".md")
    if name not in names():
        return None
    text = (_folder() / f"{name}.md").read_text(encoding="utf-8")
    return _section(text, section, name) if section else text


def _folder() -> Path:
    return _INSTALLED if _INSTALLED.is_dir() else _IN_CHECKOUT


def anchor(title: str) -> str:
    """Return the fragment with which links address a heading of this title, as GitHub builds it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _section(text: str, section: str, name: str) -> str:
    """Return a heading and all text below it, up to the next heading of its level. Raises UsageError."""
    kept: list[str] = []
    level, is_code, titles = 0, False, list[str]()
    for line in text.splitlines(keepends=True):
        is_code ^= line.startswith(_FENCE)
        heading = None if is_code else _HEADING.match(line.rstrip("\n"))
        if heading is not None:
            titles.append(anchor(heading[2]))
            if kept and len(heading[1]) <= level:
                break
            if not kept and titles[-1] == section:
                level = len(heading[1])
        if level:
            kept.append(line)
    if not kept:
        raise UsageError(f"docs/{name}.md has no section {section!r}", f"its sections: {', '.join(titles)}")
    return "".join(kept)
