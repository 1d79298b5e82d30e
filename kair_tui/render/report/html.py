"""A report as one HTML file: no script, nothing loaded; light, dark and on paper."""

from importlib.resources import files
from typing import Final
from xml.etree.ElementTree import Element, tostring

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
    element,
    left_out,
)

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may do with the file: draw it. Should a name ever come through unescaped, it stays a name."""


def html(report: Report) -> str:
    """The file's text. All names in it are text, and nothing else."""
    style = Element("style")
    style.text = files("kair_tui.render.report").joinpath("report.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{report.badge} – {report.kicker}"),
        style,
    )
    main = element("main", *map(_section, report.sections))
    body = element("body", _header(report), main, _footer(report), class_=f"of-{report.tone}")
    text = tostring(element("html", head, body, lang="en"), encoding="unicode", method="html")
    return f"<!DOCTYPE html>\n{text}\n"


def _header(report: Report) -> Element:
    return element(
        "header",
        element("p", report.kicker, class_="kicker"),
        element("p", element("strong", report.badge, class_=f"badge {report.tone}"), class_="verdict"),
        element("h1", report.lead),
        _facts(report.facts),
    )


def _footer(report: Report) -> Element:
    return element("footer", element("p", report.made))


def _section(section: Section) -> Element:
    heading = element("h2", section.title)
    return element("section", heading, *map(_block, section.blocks), class_="card" if section.card else "plain")


def _block(block: Block) -> Element:
    match block:
        case Text():
            made = element("p", block.text, class_="dim" if block.dim else "text")
        case Title():
            made = element("h3", block.text)
        case Command():
            made = element("p", "Shown by ", element("code", block.line), class_="command")
        case Facts():
            made = _facts(block)
        case Tree():
            made = _list(block.nodes, "tree")
        case Table():
            made = _table(block)
        case Picture():
            made = _figure(block)
    return made


def _figure(picture: Picture) -> Element:
    """The drawing over its caption; a wide one in a place of its own to scroll."""
    caption = element("figcaption", picture.caption)
    if not picture.name:
        return element("figure", picture.svg, caption)
    return element("figure", element("div", picture.svg, class_="wide", tabindex="0"), caption, class_="own")


def _facts(facts: Facts) -> Element:
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in facts.pairs]
    return element("dl", *pairs)


def _list(nodes: tuple[Node, ...], name: str) -> Element:
    return element("ul", *map(_node, nodes), class_=name)


def _node(node: Node) -> Element:
    text: Element | str = element("strong", node.text, class_="alarm") if node.alarm else node.text
    shown = element("code", node.command) if node.command else None
    below = _list(node.below, "below") if node.below else None
    return element("li", text, " " if shown is not None else "", shown, below)


def _table(table: Table) -> Element:
    sides = ["number" if right else "words" for right in table.numbers]
    head = element(
        "tr", *(element("th", title, scope="col", class_=side) for title, side in zip(table.titles, sides, strict=True))
    )
    rows = [
        element(
            "tr",
            *(
                element("td", cell.text, class_=f"{side} alarm" if cell.alarm else side)
                for cell, side in zip(row, sides, strict=True)
            ),
        )
        for row in table.rows
    ]
    more = element("p", left_out(table), class_="dim") if table.left_out else None
    # Its own place to scroll: on a phone the table moves, and not the page.
    return element(
        "div",
        element("div", element("table", element("thead", head), element("tbody", *rows)), class_="wide", tabindex="0"),
        more,
    )
