"""A page for people: lines, tables and trees laid out by Rich as text, nothing in them interpreted."""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kair_tui.render.answer import DIM, GAP, UNLIMITED, Cell, Column, PageOptions, Styled, fitting
from kair_tui.render.text import clean, plain_text, to_ascii
from kair_tui.render.units import count

if TYPE_CHECKING:
    from kair_engine.results.step_bar import StepBar

Row = TypeVar("Row")

_RULED = Box("    \n    \n ─  \n    \n    \n    \n    \n    \n")
_RULED_ASCII = Box("    \n    \n -  \n    \n    \n    \n    \n    \n", ascii=True)
_LABEL_WIDTH = 14
_WIDEST_PROSE = 100


class Branch(Protocol):
    """A node of a tree that can have children."""

    def add(self, label: Any) -> "Branch":  # noqa: ANN401
        """Put `label` under this node and return the new node."""


class _Items:
    """A tree's nodes as lines with their depth."""

    def __init__(self, page: "Page", depth: int) -> None:
        self._page, self._depth = page, depth

    def add(self, label: Any) -> Branch:  # noqa: ANN401
        """Put `label` into a line and return its node for children."""
        self._page.line(f"{self._depth}: {label}")
        return _Items(self._page, self._depth + 1)


class _Buffer(io.StringIO):
    """Rich asks its file's encoding to choose between line-drawing characters and ASCII."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


class Page:
    """Collects text for a person. Every string is cleaned when it is added."""

    def __init__(self, options: PageOptions) -> None:
        self._in_ascii = options.ascii_only
        # Drawings use characters that no sentence has, so that they can be recognised and left out.
        self.options = replace(options, ascii_only=options.ascii_only and not options.plain)
        self._buffer = _Buffer("ascii" if options.ascii_only else "utf-8")
        self._console = Console(
            force_jupyter=False,  # in a notebook it would show lines, and write none
            file=self._buffer,
            width=UNLIMITED,
            force_terminal=options.color,
            color_system="auto" if options.color else None,
            no_color=not options.color,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
        )

    def getvalue(self) -> str:
        """Return the page so far, without trailing blanks."""
        text = self._buffer.getvalue()
        lines = text.split("\n") if self.options.color else [line.rstrip(" ") for line in text.split("\n")]
        text = "\n".join(lines).rstrip("\n") + "\n"
        return to_ascii(text.replace("…", "~")) if self._in_ascii else text

    def line(self, text: str = "", style: str = "", indent: int = 0) -> None:
        """Write one line, wrapped at words if the terminal is narrower."""
        self._hanging(" " * indent, text, style)

    def markdown(self, text: str) -> None:
        """Draw Markdown, wrapped at 100 cells: longer lines are hard to read."""
        from kair_tui.render.markdown import print_markdown  # loads a parser

        safe = "\n".join(map(clean, text.split("\n")))
        print_markdown(self._console, safe, min(self.options.width, _WIDEST_PROSE))

    def pieces(self, pieces: Sequence[tuple[str, str]]) -> None:
        """Write one line of styled texts, never wrapped: a picture's."""
        if self.options.plain:
            return
        self._console.print(Text.assemble(*(self.text(text, style) for text, style in pieces)), soft_wrap=True)

    def step_bar(self, bar: "StepBar") -> None:
        """Draw a step's bar as wide as the page, and the meaning of its characters."""
        from kair_tui.render.bar import bar_pieces, bar_width, legend_lines, parts_in_words  # few pages have one

        if self.options.plain:
            for part in parts_in_words(bar):
                self.line(part)
            return
        width, ascii_only = bar_width(self.options.width), self.options.ascii_only
        self.pieces(bar_pieces(bar, width, ascii_only=ascii_only))
        for line in legend_lines(bar, width, ascii_only=ascii_only):
            self.line(line)

    def bullet(self, text: str) -> None:
        """Write a sentence of a list, wrapped with a hanging indent."""
        self._hanging("   • ", text)

    def lines_of(self, texts: Iterable[str]) -> None:
        """Write a line, and its details as a list."""
        for number, text in enumerate(texts):
            (self.bullet if number else self.line)(text)

    def numbered(self, number: int, text: str, style: str = "") -> None:
        """Write a numbered title, wrapped with a hanging indent."""
        self._hanging(f"{number}. ", text, style)

    def fact(self, label: str, value: str) -> None:
        """Write a name and its value, wrapped with a hanging indent."""
        self._hanging(f"{label:<{_LABEL_WIDTH}}", value)

    def _hanging(self, lead: str, text: str, style: str = "") -> None:
        if self.options.plain and text and not plain_text(text).strip():
            return  # A picture's line.
        words, margin = self.text(text, style), self.text(lead, style)
        room = max(self.options.width - margin.cell_len, 10)
        for row in words.wrap(self._console, room) if words else [words]:
            self._console.print(margin + row, soft_wrap=True)
            margin = Text(" " * margin.cell_len)

    def text(self, text: str, style: str = "") -> Text:
        """Return `text` made safe, as Rich's Text."""
        shown = clean(text, ascii_only=self.options.ascii_only)
        return Text(plain_text(shown) if self.options.plain else shown, style=style)

    def table(self, columns: Sequence[Column[Row]], rows: Sequence[Row], *, limit: int | None = None) -> None:
        """Write `rows` as an aligned table; without `wide` only the first `limit`, and the number of others."""
        shown = rows if limit is None or self.options.wide else rows[:limit]
        chosen = [column for column in columns if self.options.wide or not column.detail]
        cells = [[self._cell(column, row) for row in shown] for column in chosen]
        filled = [index for index, column in enumerate(chosen) if self._says_something(column, cells[index])]
        chosen, cells = [chosen[index] for index in filled], [cells[index] for index in filled]
        if self.options.plain:
            self._items(chosen, cells, len(rows) - len(shown))
            return
        chosen, cells = self._fit(chosen, cells)
        table = Table(box=_RULED_ASCII if self.options.ascii_only else _RULED, pad_edge=False, show_edge=False)
        table.padding = (0, GAP - 1, 0, 0)
        overflow: Literal["fold", "ellipsis"] = "fold" if self.options.wide else "ellipsis"
        for column in chosen:
            rigid = column.align == "right" or column.weight < 9
            table.add_column(self.text(column.title), justify=column.align, no_wrap=rigid, overflow=overflow)
        for index in range(len(shown)):
            table.add_row(*(column[index] for column in cells))
        # A wide table keeps its width: the terminal wraps its lines, but no figure is cut.
        self._console.print(table, width=UNLIMITED if self.options.wide else self.options.width)
        self._say_left(len(rows) - len(shown))

    def _items(self, columns: Sequence[Column[Row]], cells: Sequence[Sequence[Text]], left: int) -> None:
        """Write each row as one line, every value with its column's name."""
        for row in zip(*cells, strict=True):
            pairs = zip(columns, (cell.plain.strip() for cell in row), strict=True)
            self.line("; ".join(f"{column.title} {value}".strip() for column, value in pairs if value))
        self._say_left(left)

    def _say_left(self, rows: int) -> None:
        if rows:
            self.line(f"… and {count(rows)} more (-o wide shows all)", DIM)

    def tree(self, label: Cell, grow: Callable[[Branch, Callable[[Cell], Text]], None]) -> None:
        """Write a tree under `label`; `grow` gets its root and the function that makes labels safe."""
        from rich.tree import Tree  # few pages have a tree

        if self.options.plain:
            self.line(self._safe(label).plain)
            grow(_Items(self, 1), self._safe)
            return
        root = Tree(self._safe(label), guide_style=DIM)
        grow(root, self._safe)
        self._console.print(root, width=self.options.width)

    def _says_something(self, column: Column[Row], cells: list[Text]) -> bool:
        """Return whether a column is worth its width: not if nothing is known of any row."""
        texts = {cell.plain for cell in cells}
        return self.options.wide or not texts <= ({"–", "-"} if column.title else {""})

    def _cell(self, column: Column[Row], row: Row) -> Text:
        show = column.full if self.options.wide and column.full else column.show
        return self._safe(show(row))

    def _safe(self, cell: Cell) -> Text:
        return self.text(cell.text, cell.style) if isinstance(cell, Styled) else self.text(cell)

    def _fit(self, columns: list[Column[Row]], cells: list[list[Text]]) -> tuple[list[Column[Row]], list[list[Text]]]:
        """Drop the lightest columns until the rest, with shortened names, fits the width."""
        if self.options.wide:
            return columns, cells
        widths = [
            max([cell_len(of.title), *(cell.cell_len for cell in texts)])
            for of, texts in zip(columns, cells, strict=True)
        ]
        keep = fitting(columns, widths, self.options.width)
        return [columns[index] for index in keep], [cells[index] for index in keep]
