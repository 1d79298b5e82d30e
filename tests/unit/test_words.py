"""Words that users never read: messages, help and documents say the same in plain English."""

import ast
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("kair_tui", "engine", "capture/kair_capture", "mitigate/kair_mitigate")
DESCRIBED = (
    *(
        f"engine/kair_engine/{room}"
        for room in (
            "blame",
            "comparison",
            "confirm",
            "evidence",
            "export",
            "forecast",
            "ledger",
            "localize",
            "probe",
            "readers",
            "recording",
            "results",
            "sensitivity",
            "store",
            "timeline",
            "trace",
            "triage",
            "views",
            "whatif",
        )
    ),
    "engine/kair",
    "capture",
    *(f"kair_tui/{room}" for room in ("cli", "commands", "render", "shell", "tui")),
    "mitigate",
)
"""Rooms whose docstrings and comments are plain English too."""
PAGES = (*ROOT.glob("README.md"), *sorted((ROOT / "docs").glob("*.md")))
UNREAD = re.compile(
    r"\b(?:tells?|told|beside|held against|laid to|imposed|innocents?|of then|is none)\b", re.IGNORECASE
)
"""Words of translated English: "shows", "reported", "next to", "compared with", "healthy" are read at once."""


@cache
def texts(module: Path) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return the line and the text of every docstring, and of every other string with a blank in it.

    Docstrings are all strings that stand alone: also those of constants and fields.
    """
    alone, others, stands_alone = [], [], set[int]()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr):  # comes before what it is of
            stands_alone.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in stands_alone:
                alone.append((node.lineno, node.value))
            elif " " in node.value.strip():
                others.append((node.lineno, node.value))
    return alone, others


def descriptions(module: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring, and of every comment that can have such a word."""
    lines = module.read_text(encoding="utf-8").splitlines()
    # To find where comments begin takes longer than all else, and few lines have such a word after a "#".
    if any(unread(line.partition("#")[2]) for line in lines):
        with module.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.COMMENT:
                    yield token.start[0], token.string
    yield from texts(module)[0]


def unread(text: str) -> list[str]:
    """Return the words of a text that users never read."""
    return UNREAD.findall(text)


@pytest.mark.parametrize("room", ROOMS)
def test_messages_are_plain_english(room: str) -> None:
    found = {
        f"{module.relative_to(ROOT)}:{line}: {text[:100]}"
        for module in (ROOT / room).rglob("*.py")
        for line, text in texts(module)[1]
        if unread(text)
    }
    assert found == set()


@pytest.mark.parametrize("room", DESCRIBED)
def test_docstrings_and_comments_are_plain_english(room: str) -> None:
    found = {
        f"{module.relative_to(ROOT)}:{line}: {text[:100]}"
        for module in (ROOT / room).rglob("*.py")
        for line, text in descriptions(module)
        if unread(re.sub(r"`[^`]*`", "", text))
    }
    assert found == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documents_are_plain_english(page: Path) -> None:
    text = re.sub(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert unread(text) == []
