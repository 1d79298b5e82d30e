"""Man pages, one for each command, made from the same declarations as the help."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from kair_engine.errors import InputError

STATUSES: Final = (
    ("0", "Answered, whether or not a straggler was found."),
    ("1", "The analysis failed, or a runbook's fail ended it."),
    ("2", "Wrong usage or configuration."),
    ("3", "The input is missing, unreadable or not a trace."),
    ("10", "With --fail-on or expect: found."),
    ("130", "Interrupted."),
)
VARIABLES: Final = (
    ("KAIR_JOB", "The job that commands take when none is named."),
    ("KAIR_STORE", "The folder of the job store, or its URL."),
    ("KAIR_CACHE", "The folder of what was parsed."),
    ("NO_COLOR", "Use no colour."),
)


def write_pages(program: click.Group, folder: str) -> int:
    """Write kair.1 and a page for each command and action into `folder`, and return their number. Raises InputError."""
    from kair_engine.trace.files import atomic_write

    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        pages = dict(man_pages(program))
        for name, text in pages.items():
            with atomic_write(place / f"{name}.1") as file:
                file.write(text.encode())
    except OSError as error:
        raise InputError(f"{error.filename or place}: {error.strerror}") from None
    return len(pages)


def man_pages(program: click.Group) -> Iterator[tuple[str, str]]:
    """Yield (name, page in man's language) of the program and of each command."""
    yield from _pages_of(program, click.Context(program, info_name="kair"), [])


def _pages_of(group: click.Group, context: click.Context, others: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the page of a command with several parts, and then theirs."""
    name, line = context.command_path.replace(" ", "-"), context.command_path
    commands = [(part, group.get_command(context, part)) for part in group.list_commands(context)]
    known = [(part, command) for part, command in commands if command is not None]
    listed = [item for part, command in known for item in _item(f"{line} {part}", command.help or "")]
    yield name, _page(group, context, name, ["COMMANDS", *listed], [*others, *(f"{name}-{part}" for part, _ in known)])
    for part, command in known:
        own = click.Context(command, parent=context, info_name=part)
        if isinstance(command, click.Group):
            yield from _pages_of(command, own, [name])
        else:
            yield f"{name}-{part}", _page(command, own, f"{name}-{part}", [], [name])


def _page(command: click.Command, context: click.Context, name: str, more: list[str], others: list[str]) -> str:
    summary = (command.help or "").rstrip(".")
    usage = " ".join(command.collect_usage_pieces(context))
    words = [one for one in command.params if isinstance(one, click.Argument)]
    records = [one.get_help_record(context) for one in command.params if isinstance(one, click.Option)]
    lines = [
        f'.TH "{name.upper()}" "1" "" "Kair" "Kair"',
        *_section("NAME", [f"{_text(name)} \\- {_text(summary)}"]),
        *_section("SYNOPSIS", [f".B {_text(context.command_path)}", _text(usage)]),
        *(_section(more[0], more[1:]) if more else []),
        *_section("ARGUMENTS", [line for one in words for line in _item(one.make_metavar(context), one.help or "")]),
        *_section("OPTIONS", [line for record in records if record for line in _item(*record)]),
        *_section("EXAMPLES", _verbatim(command.epilog or "")),
        *_section("EXIT STATUS", [line for item in STATUSES for line in _item(*item)]),
        *_section("ENVIRONMENT", [line for item in VARIABLES for line in _item(*item)]),
        *_section("SEE ALSO", [", ".join(f"\\fB{_text(other)}\\fR(1)" for other in others)]),
    ]
    return "\n".join(lines) + "\n"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f'.SH "{title}"', *lines] if lines else []


def _item(title: str, text: str) -> list[str]:
    return [".TP", f"\\fB{_text(title)}\\fR", _text(text)]


def _verbatim(epilog: str) -> list[str]:
    """Return the examples and notes, line by line as in the help."""
    text = re.sub(r"^\s*\x08?\s*Examples:\n", "", epilog.replace("\b\n", ""))
    return [".nf", *map(_text, text.splitlines()), ".fi"] if text.strip() else []


def _text(text: str) -> str:
    """Return text without requests and escapes of man."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
