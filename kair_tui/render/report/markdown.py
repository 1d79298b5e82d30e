"""A report as Markdown, for tickets that take no file; pictures are drawn in signs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from kair_tui.render.answer import Column
from kair_tui.render.report.content import (
    Block,
    Command,
    Facts,
    Node,
    Picture,
    Report,
    Section,
    Table,
    Text,
    Title,
    Tree,
    left_out,
    table,
)
from kair_tui.render.text import clean

_MARKS: Final = re.compile(r"([\\`*_{}\[\]<>#|~&!$^])")
_LINKS: Final = re.compile(r"(?i)(://|www\.|mailto:|@|#(?=\d))")
"""What trackers make links and messages to people of, without any mark."""


def markdown(report: Report, beside: Mapping[str, str] | None = None) -> str:
    """The text. Names in it are neither marks nor links, and call nobody.

    `beside` has the file names of pictures that lie beside it, by the pictures' names: those are shown, too.
    """
    lines = [
        f"# {safe_text(report.badge)}: {safe_text(report.kicker)}",
        "",
        f"**{safe_text(report.lead)}**",
        "",
        *_facts(report.facts),
    ]
    for section in report.sections:
        lines += ["", *_section(section, beside or {})]
    return "\n".join([*lines, "", f"*{safe_text(report.made)}*"]) + "\n"


def headed_table(headline: str, columns: Sequence[Column[Any]], rows: Sequence[Any]) -> str:
    """An answer of which there is no report: its first line, and all rows of its main table."""
    return "\n".join([f"**{safe_text(headline)}**", "", *_table(table(columns, rows, len(rows)))]) + "\n"


def fenced(lines: Sequence[str]) -> str:
    """Lines as they are, in a font in which columns stand below one another."""
    return "\n".join(_fenced(tuple(lines))) + "\n"


def _section(section: Section, beside: Mapping[str, str]) -> Iterator[str]:
    yield f"## {safe_text(section.title)}"
    for block in section.blocks:
        yield ""
        if isinstance(block, Picture) and block.name in beside:
            yield f"![{safe_text(section.title)}]({quote(beside[block.name])})"
            yield ""
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Text():
            yield at_begin(safe_text(block.text))
        case Title():
            yield f"### {safe_text(block.text)}"
        case Command():
            yield f"Shown by {code_text(block.line)}"
        case Facts():
            yield from _facts(block)
        case Tree():
            for node in block.nodes:
                yield from _node(node, 0)
        case Table():
            yield from _table(block)
        case Picture():
            yield from _fenced(block.signs)
            yield ""
            yield at_begin(safe_text(block.caption))


def _facts(facts: Facts) -> Iterator[str]:
    for name, value in facts.pairs:
        yield f"- {safe_text(name)}: {safe_text(value)}"


def _node(node: Node, depth: int) -> Iterator[str]:
    text = safe_text(node.text)
    shown = f" {code_text(node.command)}" if node.command else ""
    yield f"{'  ' * depth}- {f'**{text}**' if node.alarm else text}{shown}"
    for below in node.below:
        yield from _node(below, depth + 1)


def _table(of: Table) -> Iterator[str]:
    yield _row(map(safe_text, of.titles))
    yield _row("---:" if right else "---" for right in of.numbers)
    for row in of.rows:
        yield _row(f"**{safe_text(cell.text)}**" if cell.alarm and cell.text else safe_text(cell.text) for cell in row)
    if of.left_out:
        yield ""
        yield left_out(of)


def _row(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _fenced(rows: tuple[str, ...]) -> Iterator[str]:
    """Behind a fence that is longer than any in it."""
    texts = [clean(row).rstrip() for row in rows]
    longest = max((len(run) for text in texts for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}text"
    yield from texts
    yield fence


def code_text(line: str) -> str:
    """A command as code, whatever backticks are in it."""
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
