"""Writes an answer as text, in any of the formats."""

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

from kair_engine.errors import UsageError
from kair_tui.render.text import clean, json_in_ascii, to_ascii
from kair_tui.render.view import GraphFormat

if TYPE_CHECKING:
    from kair_tui.render.answer import Column, Document, PageOptions
    from kair_tui.render.view import View

Format = Literal["table", "wide", "tree", "json", "ndjson", "csv", "md"]
FormatOfGraph = Literal[Format, GraphFormat]
"""For an answer that is a graph."""
FormatOfPicture = Literal[Format, "svg"]
"""For an answer that is a picture."""
FormatOfVerdict = Literal[Format, "oneline"]
"""For an answer that has a one-line form."""
FormatOfRows = Literal[Format, "parquet"]
"""For an answer with streamed rows: Parquet only goes to files and pipes."""
AnyFormat = Literal[FormatOfGraph, FormatOfPicture, FormatOfVerdict, FormatOfRows]


def written(
    answer: "Document",
    view: "View[Any, Any]",
    form: AnyFormat,
    options: "PageOptions",
    keep: Sequence[str] | None = None,
) -> str:
    """Return the whole answer; `keep` are the fields to show of the main table's rows, None for all."""
    if form in ("table", "wide", "tree"):
        return _page(answer.result, view, form, options, keep)
    if form in ("md", "oneline"):
        text = _markdown(answer, view, options, keep) if form == "md" else _line(answer, view)
        return to_ascii(text) if options.ascii_only else text
    if form == "svg":
        from kair_tui.render.text import xml_in_ascii

        assert view.picture is not None  # no other command takes this format
        text = view.picture(answer.result)
        return xml_in_ascii(text) if options.ascii_only else text
    if form in ("dot", "graphml", "node-link"):
        from kair_tui.render.view import graph_text

        assert view.graph is not None  # no other command takes these formats
        return graph_text(view.graph(answer.result, form), form, ascii_only=options.ascii_only)
    return _for_programs(answer, view, form, options, keep)


def _for_programs(
    answer: "Document", view: "View[Any, Any]", form: AnyFormat, options: "PageOptions", keep: Sequence[str] | None
) -> str:
    """Return the answer as CSV, NDJSON or a JSON document. Raises UsageError for Parquet, which is no text."""
    if form == "parquet":
        raise UsageError("Parquet is no text", "--out FILE.parquet writes it")
    from kair_tui.render import document, tabular

    if form == "csv":
        if view.stream is None:
            text = tabular.csv_table(answer, view, keep)
        else:
            view.stream(answer.result, form, rows := BytesIO())
            text = rows.getvalue().decode()
        return to_ascii(text) if options.ascii_only else text
    if view.whole is not None:
        answer = replace(answer, result=view.whole(answer.result))
    if form == "ndjson":
        text = tabular.ndjson(answer, view, keep)
    else:
        text = document.document(answer, tabular.narrowed(document.data_of(answer), view.main, keep))
    return json_in_ascii(text) if options.ascii_only else text


def _line(answer: "Document", view: "View[Any, Any]") -> str:
    assert view.line is not None  # no other command takes this format
    assert answer.job is not None
    return f"{clean(view.line(answer.result, answer.job.name))}\n"


def _markdown(answer: "Document", view: "View[Any, Any]", options: "PageOptions", keep: Sequence[str] | None) -> str:
    """Return the report about the answer, if it has one.

    Else its first line and its main table, or the whole as it is.
    """
    if keep is None and answer.report is not None:
        return answer.report()
    if keep is None and view.text is not None:
        return view.text(answer.result)
    from kair_tui.render.report.templates import filled, headed_table

    if keep is None and not view.columns:
        lines = _page(answer.result, view, "table", replace(options, color=False), None).splitlines()
        return filled("fenced.md", lines=lines)
    columns = view.columns if keep is None else _columns(view, keep)
    return headed_table(view.headline(answer.result), columns, view.rows(answer.result))


def _page(result: Any, view: "View[Any, Any]", form: Format, options: "PageOptions", keep: Sequence[str] | None) -> str:  # noqa: ANN401
    """Return the answer in one line, then its details; a text as it is, but Markdown drawn for a terminal."""
    from kair_tui.render.answer import UNLIMITED
    from kair_tui.render.page import Page

    page = Page(options)
    if view.text is not None and keep is None:
        text = view.text(result)
        if options.width < UNLIMITED and view.is_markdown is not None and view.is_markdown(result):
            page.markdown(text)
            return page.getvalue()
        return to_ascii(text) if options.ascii_only else text
    page.line(view.headline(result))
    page.line()
    if keep is not None:
        page.table(_columns(view, keep), view.rows(result))
    elif form == "tree" and view.tree is not None:
        view.tree(result, page)
    else:
        view.body(result, page)
    return page.getvalue()


def _columns(view: "View[Any, Any]", keep: Sequence[str]) -> "list[Column[Any]]":
    from kair_tui.render.answer import plain_column

    known = {column.key: column for column in view.columns}
    return [replace(known[name], detail=False) if name in known else plain_column(name) for name in keep]
