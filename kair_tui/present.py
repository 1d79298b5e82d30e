"""Writes an answer in the format asked for: the answer to stdout, then its warnings to stderr."""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kair_tui.options import Presentation
from kair_tui.progress import ProgressBar
from kair_tui.render.text import json_in_ascii, to_ascii
from kair_tui.streams import is_terminal, say, speaks_unicode, wants_color, write_answer

if TYPE_CHECKING:
    from kair_tui.render.answer import Answer
    from kair_tui.render.page import Look
    from kair_tui.render.view import Column, View


class Presenter:
    """One command's way to the terminal."""

    def __init__(self, wanted: Presentation, load_view: "Callable[[], View[Any, Any]]", result_type: type[Any]) -> None:
        """Raises UsageError for a field that this result does not have."""
        self._wanted = wanted
        self.view = load_view()
        self.ascii_only = wanted.ascii or not speaks_unicode(sys.stdout)
        self._keep: tuple[str, ...] | None = None
        if wanted.fields is not None:
            from kair_tui.render.tabular import chosen_fields, field_names

            self._keep = chosen_fields(wanted.fields, field_names(result_type, self.view.main))

    def present(self, answer: "Answer") -> None:
        """The answer, whole, then the warnings."""
        write_answer(self._text(answer))
        for notice in answer.warnings:
            self.note(f"warning: {notice.message}")

    def progress_bar(self) -> ProgressBar:
        """What long work reports to."""
        wanted = self._wanted
        return ProgressBar(quiet=wanted.quiet, ascii_only=self.ascii_only, no_color=wanted.no_color)

    def note(self, text: str) -> None:
        """A line for the person, on stderr."""
        if not self._wanted.quiet:
            say(f"kair: {text}", ascii_only=self._wanted.ascii)

    def detail(self, text: str) -> None:
        """A line for the person who asked for more with `-v`."""
        if self._wanted.verbose:
            self.note(text)

    def _text(self, answer: "Answer") -> str:
        if self._wanted.format in ("table", "wide", "tree"):
            return self._page(answer.result)
        from kair_tui.render import document, tabular

        if self._wanted.format == "csv":
            text = tabular.csv_table(answer, self.view, self._keep)
            return to_ascii(text) if self.ascii_only else text
        if self._wanted.format == "ndjson":
            text = tabular.ndjson(answer, self.view, self._keep)
        else:
            data = tabular.narrowed(document.data_of(answer), self.view.main, self._keep)
            text = document.document(answer, data)
        return json_in_ascii(text) if self.ascii_only else text

    def _page(self, result: Any) -> str:  # noqa: ANN401
        """The answer in one line, then what belongs to it."""
        from kair_tui.render.page import Page

        page = Page(self._look())
        page.line(self.view.headline(result))
        page.line()
        if self._keep is not None:
            page.table(self._columns(self._keep), self.view.rows(result))
        elif self._wanted.format == "tree" and self.view.tree is not None:
            self.view.tree(result, page)
        else:
            self.view.body(result, page)
        return page.getvalue()

    def _columns(self, keep: "Sequence[str]") -> "list[Column[Any]]":
        from kair_tui.render.view import plain_column

        known = {column.key: column for column in self.view.columns}
        return [replace(known[name], detail=False) if name in known else plain_column(name) for name in keep]

    def _look(self) -> "Look":
        """What stdout can show."""
        from kair_tui.render.page import UNLIMITED, Look

        width = UNLIMITED
        if is_terminal(sys.stdout):
            width = shutil.get_terminal_size().columns
        return Look(
            width=max(width, 40),
            color=wants_color(sys.stdout, no_color=self._wanted.no_color),
            ascii_only=self.ascii_only,
            wide=self._wanted.format == "wide",
        )
