"""Writes report files, in the form that a file's name asks for."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kair_engine.errors import UsageError
from kair_engine.trace.files import named_file
from kair_tui import __version__
from kair_tui.cli.options import Option

if TYPE_CHECKING:
    from kair_tui.render.report.content import Report

REPORT: Final = Option("--report", "Also write a report to pass on: .html, all in one file, or .md.", metavar="FILE")
_HTML: Final = (".html", ".htm")
MARKDOWN: Final = (".md", ".markdown")


def require_form(
    path: Path | None,
    endings: Sequence[str] = (*_HTML, *MARKDOWN),
    forms: str = "a report is .html or .md",
    example: str = "kair triage JOB --report incident.html",
) -> None:
    """Raise UsageError if a name asks for no form of a document, or its folder does not exist."""
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise UsageError(f"--report {path}: {forms}", example)
    if not path.parent.is_dir():
        raise UsageError(f"--report {path}: there is no folder {path.parent}")


def write_report(path: Path, report: "Report") -> None:
    """Write the whole file or nothing; for Markdown also its pictures, as separate files.

    Raises UsageError or UnwritableError if that is impossible.
    """
    if path.suffix.lower() in _HTML:
        from kair_tui.render.report.templates import html

        text = html(report)
    else:
        from kair_tui.render.report.templates import markdown

        text = markdown(report, _write_pictures(path, report))
    write_text(path, text)


def _write_pictures(path: Path, report: "Report") -> dict[str, str]:
    """Return the files that go with the Markdown, such as `incident.timeline.svg`, by the pictures' names."""
    from kair_tui.render.report.content import Picture
    from kair_tui.render.report.pictures import document

    written = dict[str, str]()
    for picture in (block for section in report.sections for block in section.blocks):
        if isinstance(picture, Picture) and picture.name:
            file = path.with_suffix(f".{picture.name}.svg")
            write_text(file, document(picture))
            written[picture.name] = file.name
    return written


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing. Raises UsageError or UnwritableError if that is impossible."""
    with named_file(path) as file:
        file.write(text.encode())


def made_now() -> str:
    """Return when and by which version a report is made."""
    return f"Made by kair {__version__} on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC."
