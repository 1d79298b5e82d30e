"""Report files: which form a name asks for, and the writing of it."""

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
    """Raise UsageError where a name asks for no form of a document, or is in no folder."""
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise UsageError(f"--report {path}: {forms}", example)
    if not path.parent.is_dir():
        raise UsageError(f"--report {path}: there is no folder {path.parent}")


def write_report(path: Path, report: "Report") -> None:
    """Write the file whole or not at all; for Markdown also its pictures, as separate files.

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
    """Return the files written with the Markdown: `incident.timeline.svg`, by the pictures' names."""
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
    """Write a file whole or not at all. Raises UsageError or UnwritableError where it cannot be written."""
    with named_file(path) as file:
        file.write(text.encode())


def made_now() -> str:
    """When, and by what."""
    return f"Made by kair {__version__} on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC."
