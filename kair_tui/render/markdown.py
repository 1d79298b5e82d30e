"""Draws Markdown, such as a ticket, for a terminal: markup becomes styles, and nothing becomes a link."""

from typing import ClassVar, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, ImageItem, Markdown, MarkdownElement
from rich.text import Text
from rich.theme import Theme

_STYLES: Final = Theme(
    {
        "markdown.h1": "bold",
        "markdown.h2": "bold",
        "markdown.code": "cyan",
        "markdown.item.bullet": "none",
        "markdown.item.number": "none",
    }
)


class _Heading(Heading):
    """A heading at the left, as the rest of the text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _Image(ImageItem):
    """A picture, by its description and its file."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text.assemble(self.text, f" ({self.destination})", end="")


class _Plain(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "image": _Image,
    }


def print_markdown(console: Console, text: str, width: int) -> None:
    """Print Markdown, wrapped to `width` cells; links are text, as a terminal would open what a trace names."""
    with console.use_theme(_STYLES), console.capture() as drawn:
        console.print(_Plain(text, hyperlinks=False), width=width)
    lines = [line.rstrip(" ") for line in drawn.get().split("\n")]  # each is padded, also after a command to copy
    console.file.write("\n".join(lines))
