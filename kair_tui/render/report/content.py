"""The content of a report in any form: sections of paragraphs, lists, trees, tables and pictures.

Also makes elements of HTML and SVG; every text in them is made safe when it is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree.ElementTree import Element, SubElement

from kair_tui.render.answer import Column, Styled
from kair_tui.render.text import clean
from kair_tui.render.units import count

Tone = Literal["alarm", "open", "fine"]
"""A finding; no conclusion; no finding."""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    dim: bool = False


@dataclass(frozen=True)
class Title:
    """A heading within a section."""

    text: str


@dataclass(frozen=True)
class Command:
    """A command that shows the same."""

    line: str


@dataclass(frozen=True)
class Facts:
    """Names and their values."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Node:
    """One line of a tree or list, with its children; `command` shows the same figures."""

    text: str
    below: tuple["Node", ...] = ()
    command: str | None = None
    alarm: bool = False


@dataclass(frozen=True)
class Tree:
    """Lines within lines."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    alarm: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells; `numbers` has per column whether it is right-aligned."""

    titles: tuple[str, ...]
    numbers: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int = 0
    """Rows that are not shown."""

    @property
    def more(self) -> str:
        """Return the number of rows not shown, in words."""
        return f"… and {count(self.left_out)} more"


@dataclass(frozen=True)
class Picture:
    """A drawing, and its text version."""

    svg: Element
    signs: tuple[str, ...]
    caption: str
    name: str = ""
    """The name of a separate file next to Markdown; such a picture is wide and has its own colours."""


Block = Text | Title | Command | Facts | Tree | Table | Picture


@dataclass(frozen=True)
class Section:
    """A part of the report; `card` if it is one of several of a kind."""

    title: str
    blocks: tuple[Block, ...]
    card: bool = False


@dataclass(frozen=True)
class Report:
    """All of it. `kicker` is the subject, `badge` the verdict in a word or two, `lead` in a sentence."""

    kicker: str
    badge: str
    tone: Tone
    lead: str
    facts: Facts
    sections: tuple[Section, ...]
    made: str
    """Date, and program."""


def table(columns: Sequence[Column[Any]], rows: Sequence[Any], limit: int) -> Table:
    """Return the first rows in a terminal's columns, without columns that are empty in all of them."""
    shown = [[_cell(column, row) for column in columns if not column.detail] for row in rows[:limit]]
    kept = [column for column in columns if not column.detail]
    said = [at for at in range(len(kept)) if any(row[at].text not in ("–", "") for row in shown)]
    return Table(
        tuple(kept[at].title for at in said),
        tuple(kept[at].align == "right" for at in said),
        tuple(tuple(row[at] for at in said) for row in shown),
        max(len(rows) - limit, 0),
    )


def _cell(column: Column[Any], row: object) -> Cell:
    shown = column.show(row)
    return Cell(shown.text, alarm=True) if isinstance(shown, Styled) and "red" in shown.style else Cell(_text(shown))


def _text(shown: str | Styled) -> str:
    return shown.text if isinstance(shown, Styled) else shown


def svg(width: int, height: int, label: str) -> Element:
    """Return an empty picture that scales; `label` describes it for screen readers."""
    # HTML needs no namespace, and ElementTree would give every tag a prefix with one.
    return Element("svg", {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": clean(label)})


def draw(into: Element, tag: str, text: str | None = None, **attributes: str | float) -> Element:
    """Return a shape in a picture; numbers keep one decimal."""
    named = {name.rstrip("_").replace("_", "-"): _number(value) for name, value in attributes.items()}
    made = SubElement(into, tag, named)
    made.text = None if text is None else clean(text)
    return made


def path(points: "list[tuple[float, float]]", *, closed: bool = False) -> str:
    """Return the outline through some points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + ("Z" if closed else "")


def _number(value: str | float) -> str:
    return clean(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
