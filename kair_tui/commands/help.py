"""`kair help`: explains a word of the answers or a command, or prints a document.

The words are those of the table in `glossary.md`, which is docs/glossary.md.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Annotated, Final

from kair_engine.errors import UsageError
from kair_engine.frozen import dataclass
from kair_tui.cli.options import Argument
from kair_tui.cli.registry import COMMANDS, find
from kair_tui.commands import pages


@dataclass(frozen=True)
class Word:
    """An entry: the meaning of the word, in one or two sentences."""

    name: str
    text: str
    page: str
    """The page and section that explains it, below docs/."""
    also: tuple[str, ...] = ()
    """Its synonyms."""


def entry_of(typed: str) -> Word | None:
    """Return the entry of a word as somebody types it: in any case, in the plural, with hyphens or blanks."""
    plain = _plain(typed)
    return _ENTRIES.get(plain) or _ENTRIES.get(plain.removesuffix("s")) or _ENTRIES.get(plain.removesuffix("es"))


def _plain(word: str) -> str:
    return " ".join(word.lower().replace("-", " ").replace("_", " ").split())


_ROW: Final = re.compile(r"\| \*\*(.+?)\*\*((?:, [^|]+)?) \| (.+) \| \[.+\]\((.+)\) \|")
"""Matches a row of the glossary's table: the word, its synonyms, its meaning, and the page that explains it."""


def _read() -> Iterator[Word]:
    page = Path(__file__).with_name("glossary.md").read_text(encoding="utf-8")
    for name, also, text, more in _ROW.findall(page):
        yield Word(name, text, more, tuple(also.split(", ")[1:]))


WORDS: Final = tuple(_read())
"""The glossary's entries, by name."""

_ENTRIES: Final = {_plain(name): word for word in WORDS for name in (word.name, *word.also)}


_SECTIONS: Final = {"record": "formats#recording-with-pytorchs-profiler", "sources": "evidence#sources"}
"""Words that show a section of a page."""
ALL: Final = "words"
PAGES: Final = "pages"
ALL_COMMANDS: Final = "commands"
_WIDEST: Final = 100
"""Characters of a line, at most: longer ones are hard to read."""


def names(beginning: str = "") -> list[str]:
    """Return the words, commands and pages whose name starts with `beginning`."""
    known = (
        ALL,
        PAGES,
        ALL_COMMANDS,
        *_SECTIONS,
        *(word.name for word in WORDS),
        *_lines(),
        *pages.names(),
    )
    return list(dict.fromkeys(name for name in known if name.startswith(beginning)))


def run(
    word: Annotated[
        Sequence[str],
        Argument(
            "A word of the answers (straggler, launch queue), a command, or a page of the documents (formats, "
            "evidence#sources). words, commands and pages list them.",
            offers=names,
        ),
    ] = (),
) -> str:
    """Explain a word or a command, or show a page; without a word, list the commands. Raises UsageError."""
    from kair_tui.cli.app import all_commands, help_text, program

    if not word:
        return program().get_help(program().make_context("kair", [], resilient_parsing=True)) + "\n"
    asked = " ".join(word)
    lists = {ALL: lambda: _list(WORDS), ALL_COMMANDS: all_commands, PAGES: _page_names}
    if asked in lists:
        return lists[asked]()
    known = entry_of(asked)
    command = find(asked.removeprefix("kair "))
    if known is not None:
        return _entry(known) + (f"  The command of that name: kair {command.line} --help\n" if command else "")
    page = pages.page_named(_SECTIONS.get(asked, asked))
    if command is not None:
        more = f"\nThe page of that name: kair help docs/{asked}\n" if page is not None else ""
        return f"{help_text(command)}\n{more}"
    if page is not None:
        return page
    raise UsageError(f"no word, command or page is called {asked!r}", _way_out(asked))


def _lines() -> Iterator[str]:
    """Yield the commands and their actions, as they are typed after `kair`."""
    for entry in COMMANDS:
        yield entry.name
        yield from (f"{entry.name} {action.name}" for action in entry.actions)


def _page_names() -> str:
    return "".join(f"{name}\n" for name in pages.names()) + "kair help PAGE shows one of them.\n"


def _entry(word: Word) -> str:
    title = f"{word.name} (also: {', '.join(word.also)})" if word.also else word.name
    width = min(_WIDEST, get_terminal_size().columns)
    text = fill(word.text, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return f"{title}\n{text}\n  More: kair help {word.page.replace('.md', '')}\n"


def _list(words: Iterable[Word]) -> str:
    return "".join(f"{_entry(word)}\n" for word in words) + "kair help WORD shows one of them.\n"


def _way_out(asked: str) -> str:
    from difflib import get_close_matches

    known = {name.lower(): name for word in WORDS for name in (word.name, *word.also)}
    known |= {name: name for name in (*_lines(), *pages.names())}
    near = get_close_matches(asked.lower(), known, n=1)
    if near:
        return f"did you mean kair help {known[near[0]]}?"
    return "kair help words lists the words, kair help pages the documents"
