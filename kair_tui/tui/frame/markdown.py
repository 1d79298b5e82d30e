"""Draws a command's Markdown, such as a ticket, as readable lines: markup is hidden, structure is kept."""

from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from kair_tui.render.terminal import Look
from kair_tui.tui.widgets.lines import Paragraph, Piece
from kair_tui.tui.widgets.styles import styles_of

_INDENT = 2


def drawn(text: str, width: int, look: Look) -> list[Piece]:
    """Return headings, paragraphs and lists, wrapped to `width`; one empty line before each heading and paragraph."""
    lines: list[Piece] = []
    before = ""
    for kind, paragraph in _paragraphs(MarkdownIt("commonmark").parse(text), look):
        if lines and not kind == before == "item":
            lines.append(("", styles_of(look).base))
        lines += paragraph.lines(width, look)
        before = kind
    return lines


def _paragraphs(tokens: Sequence[Token], look: Look) -> Iterator[tuple[str, Paragraph]]:
    """Yield each paragraph with its kind: a heading, an item of a list, a text."""
    lists: list[int | None] = []
    """The number of the next item of each open list; None for one without numbers."""
    lead, style = "", "base"
    for token in tokens:
        match token.type:
            case "heading_open":
                style = "strong" if token.tag == "h1" else "title"
            case "bullet_list_open":
                lists.append(None)
            case "ordered_list_open":
                lists.append(int(token.attrs.get("start", 1)))
            case "bullet_list_close" | "ordered_list_close":
                lists.pop()
            case "list_item_open":
                number = lists[-1]
                sign = look.glyphs.bullet if number is None else f"{number}."
                lead = f"{' ' * _INDENT * (len(lists) - 1)}{sign} "
                lists[-1] = None if number is None else number + 1
            case "inline":
                kind = "heading" if style != "base" else "item" if lists else "text"
                yield kind, Paragraph(_text(token.children or ()), style, lead or " " * _INDENT * len(lists))
                lead, style = "", "base"
            case "fence" | "code_block":
                yield from (("item", Paragraph(line, "base", " " * _INDENT)) for line in token.content.splitlines())


def _text(tokens: Sequence[Token]) -> str:
    """Return a line's readable text: without markup, a picture by its description."""
    return "".join(
        " " if one.type in ("softbreak", "hardbreak") else _text(one.children) if one.children else one.content
        for one in tokens
    )
