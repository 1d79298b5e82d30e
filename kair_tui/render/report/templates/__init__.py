"""Fills the templates of reports, tickets and tables; every text in them is escaped for its form."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from xml.etree.ElementTree import Element, tostring

from kair_tui.render.report.markdown import at_begin, code_text, fence, safe_text
from kair_tui.render.text import clean

if TYPE_CHECKING:
    from jinja2 import Environment

    from kair_tui.render.answer import Column
    from kair_tui.render.report.content import Report


def html(report: "Report") -> str:
    """Return a report as one HTML file. All names in it are plain text."""
    return filled("report.html", report=report)


def markdown(report: "Report", beside: Mapping[str, str] | None = None) -> str:
    """Return a report as Markdown. Names in it are no markup, links or mentions.

    `beside` has the file names of pictures next to it, by the pictures' names: those are shown, too.
    """
    return filled("report.md", report=report, beside=beside or {})


def headed_table(headline: str, columns: "Sequence[Column[Any]]", rows: Sequence[Any]) -> str:
    """Return an answer without a report as Markdown: its first line, and all rows of its main table."""
    from kair_tui.render.report.content import table

    return filled("table.md", headline=headline, table=table(columns, rows, len(rows)))


def filled(template: str, **values: object) -> str:
    """Fill a template of this folder; its suffix decides how texts are escaped."""
    return _environment(template.rpartition(".")[2]).get_template(template).render(values)


@cache
def _environment(form: str) -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # loaded only for documents
    from markupsafe import Markup

    def safe(value: object) -> object:
        """Escape a template's value, unless a filter or a macro made it; Jinja escapes HTML itself."""
        if isinstance(value, Markup):
            return value
        return clean(str(value)) if form == "html" else Markup(safe_text(str(value)))

    made = Environment(
        loader=PackageLoader(__name__, ""),
        autoescape=True,
        finalize=safe,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=form != "html",
        undefined=StrictUndefined,
    )
    made.filters.update({name: lambda value, of=of: Markup(of(value)) for name, of in _FILTERS.items()})
    made.filters["form"] = lambda block: type(block).__name__
    return made


def _svg(picture: Element) -> str:
    return tostring(picture, encoding="unicode", method="html")


_FILTERS: Final = {
    "begin": lambda text: at_begin(safe_text(text)),
    "code": code_text,
    "fence": fence,
    "link": quote,
    "svg": _svg,
    "verbatim": lambda line: clean(line).rstrip(),
}
"""Filters of templates for values that are escaped differently from the rest of their texts."""
