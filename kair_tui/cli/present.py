"""Writes an answer in the chosen format: the answer to stdout, then its warnings to stderr."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kair_engine.errors import UsageError
from kair_tui.cli.options import Presentation
from kair_tui.cli.output import ProgressBar, is_terminal, say, wants_color, write_answer, write_bytes
from kair_tui.render.answer import UNLIMITED, PageOptions
from kair_tui.render.text import speaks_unicode
from kair_tui.render.view import GRAPH_FORMATS
from kair_tui.render.written import written

if TYPE_CHECKING:
    from kair_tui.render.answer import Document
    from kair_tui.render.view import View


class Presenter:
    """Writes one command's answers to the terminal."""

    def __init__(self, wanted: Presentation, load_view: "Callable[[], View[Any, Any]]", result_type: type[Any]) -> None:
        """Raise UsageError for a field that this result lacks, and for Parquet on a terminal."""
        self._wanted = wanted
        self.view = load_view()
        self.ascii_only = wanted.ascii or not speaks_unicode(sys.stdout)
        if wanted.format == "parquet" and is_terminal(sys.stdout):
            raise UsageError("Parquet is for programs: a terminal shows none of it", "--out FILE.parquet, or > FILE")
        self._keep = columns_to_keep(wanted, self.view, result_type)

    def present(self, answer: "Document") -> None:
        """Write the answer, whole, then the warnings."""
        form, stream = self._wanted.format, self.view.stream
        if stream is not None and (form == "parquet" or (form == "csv" and not self.ascii_only)):
            write_bytes(partial(stream, answer.result, form))
        else:
            write_answer(self.text(answer))
        for warning in answer.warnings:
            self.note(f"warning: {warning.message}")

    def text(self, answer: "Document", *, height: int | None = None) -> str:
        """Return the answer's text for stdout, or for a screen of `height` lines."""
        wanted = self._wanted
        look = stdout_options(ascii_only=self.ascii_only, no_color=wanted.no_color, plain=wanted.plain)
        look = replace(look, wide=wanted.format == "wide", height=height)
        return written(answer, self.view, self._wanted.format, look, self._keep)

    def progress_bar(self) -> ProgressBar:
        """Return the progress bar for long work."""
        wanted = self._wanted
        ascii_only = self.ascii_only or wanted.plain  # plain output has no bar
        return ProgressBar(quiet=wanted.quiet, ascii_only=ascii_only, no_color=wanted.no_color)

    def note(self, text: str) -> None:
        """Write a line for a person to stderr."""
        if not self._wanted.quiet:
            say(f"kair: {text}", ascii_only=self._wanted.ascii)

    def detail(self, text: str) -> None:
        """Write a line for a person who asked for details with `-v`."""
        if self._wanted.verbose:
            self.note(text)


def stdout_options(*, ascii_only: bool, no_color: bool, plain: bool = False) -> PageOptions:
    """Return the capabilities of stdout; `ascii_only` also if it cannot encode more. `plain`: a line is an item."""
    width = UNLIMITED
    if is_terminal(sys.stdout) and not plain:
        from shutil import get_terminal_size  # loads three compressions

        width = get_terminal_size().columns
    return PageOptions(
        width=max(width, 40),
        color=wants_color(sys.stdout, no_color=no_color),
        ascii_only=ascii_only or not speaks_unicode(sys.stdout),
        plain=plain,
    )


def columns_to_keep(wanted: Presentation, view: "View[Any, Any]", result_type: type[Any]) -> tuple[str, ...] | None:
    """Return the columns that `--fields` names, None for all. Raises UsageError for an unknown one."""
    if wanted.fields is None:
        return None
    if wanted.format in (*GRAPH_FORMATS, "svg", "oneline"):
        raise UsageError(f"--fields chooses columns of a table, and -o {wanted.format} has none")
    from kair_tui.render.tabular import chosen_fields, csv_names, field_names

    is_csv = wanted.format == "csv"
    known = csv_names(result_type, view) if is_csv else field_names(result_type, view.main)
    return chosen_fields(wanted.fields, known)
