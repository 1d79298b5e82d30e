"""`kair help`: what a word of the answers means, or what a command does."""

from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from textwrap import fill
from typing import Annotated, Final

from kair_engine.errors import UsageError
from kair_tui.cli.parameters import Argument
from kair_tui.cli.registry import COMMANDS, find
from kair_tui.commands.help.glossary import WORDS, Word, entry_of

ALL: Final = "words"
_WIDEST: Final = 100
"""Characters in a line of text that can still be read easily."""


def names(beginning: str = "") -> list[str]:
    """What can be asked about and begins so."""
    known = (ALL, *(word.name for word in WORDS), *(entry.name for entry in COMMANDS))
    return list(dict.fromkeys(name for name in known if name.startswith(beginning)))


def run(
    word: Annotated[
        Sequence[str],
        Argument("A word of the answers (straggler, launch queue), words for all of them, or a command.", offers=names),
    ] = (),
) -> str:
    """What the word means, or what the command of that name does; without one, what there is. Raises UsageError."""
    from kair_tui.cli.app import help_text, program

    if not word:
        return program().get_help(program().make_context("kair", [], resilient_parsing=True)) + "\n"
    asked = " ".join(word)
    if asked == ALL:
        return _list(WORDS)
    known = entry_of(asked)
    command = find(asked.removeprefix("kair "))
    if known is not None:
        return _entry(known) + (f"  The command of that name: kair {command.name} --help\n" if command else "")
    if command is not None:
        return help_text(command) + "\n"
    raise UsageError(f"no word {asked!r} in the glossary", _way_out(asked))


def _entry(word: Word) -> str:
    title = f"{word.name} (also: {', '.join(word.also)})" if word.also else word.name
    width = min(_WIDEST, get_terminal_size().columns)
    text = fill(word.text, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return f"{title}\n{text}\n  More: docs/{word.page}\n"


def _list(words: Iterable[Word]) -> str:
    return "".join(f"{_entry(word)}\n" for word in words) + "kair help WORD shows one of them.\n"


def _way_out(asked: str) -> str:
    from difflib import get_close_matches

    known = {name.lower(): name for word in WORDS for name in (word.name, *word.also)}
    known |= {entry.name: entry.name for entry in COMMANDS}
    near = get_close_matches(asked.lower(), known, n=1)
    return f"did you mean kair help {known[near[0]]}?" if near else "kair help words lists all"
