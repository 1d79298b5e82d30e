"""Completes a half-typed `kair` line: commands, options, and what the open job has to name."""

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click

from kair_engine.errors import KairError
from kair_tui.cli.app import command
from kair_tui.cli.registry import COMMANDS, Entry, find

if TYPE_CHECKING:
    from kair_tui.tui.session import Session

LEAVES: Final = ("q", "quit", "q!")
HELPS: Final = ("help", "h")
"""Words that are no commands, and are understood all the same."""


def completed(line: str, worked: Sequence[str], session: "Session | None", rank: int | None) -> str | None:
    """`line` with its last word completed, or a line that worked before; None where nothing begins so.

    `worked` are the lines that were answered, the last at the end; `rank` is the one under the cursor.
    """
    if before := next((known for known in reversed(worked) if line and known.startswith(line) and known != line), None):
        return before
    *words, partial = line.split(" ")
    whole = next((one for one in _offered(words, partial, session, rank) if one.startswith(partial)), None)
    return None if whole is None or whole == partial else " ".join((*words, shlex.quote(whole)))


def _offered(words: Sequence[str], partial: str, session: "Session | None", rank: int | None) -> Iterable[str]:
    said = [word for word in words if word != "kair"]
    if not said:
        return [entry.name for entry in COMMANDS if entry.is_single] + ["quit"]
    entry = find(said[0])
    if entry is None:
        return ()
    built = command(entry)
    options = [one for one in built.params if isinstance(one, click.Option)]
    asked = next((one for one in options if said[-1] in one.opts and not one.is_flag), None)
    if asked is not None:
        return _values(asked, session, rank)
    if partial.startswith("-"):
        return [max(one.opts, key=len) for one in options if one.multiple or not {*one.opts} & {*said}]
    return _arguments(built, partial) if partial else ()


def _values(option: click.Option, session: "Session | None", rank: int | None) -> Iterable[str]:
    if isinstance(option.type, click.Choice):
        return [str(one) for one in option.type.choices]
    if session is None:
        return ()
    if option.name == "rank":
        return [*([] if rank is None else [str(rank)]), *map(str, session.trace.job.ranks)]
    return _operators(session) if option.name == "operator" else ()


def _operators(session: "Session") -> Iterable[str]:
    """The operators that take most time first. They are read from the whole recording, once."""
    try:
        used = session.ask(session.question("info", operators=True)).operators
    except KairError:
        return ()
    return [row.operator for row in used]


def _arguments(built: click.Command, partial: str) -> Iterable[str]:
    """What the shell would be offered: jobs, names of schemas."""
    context = click.Context(built, resilient_parsing=True)
    offers = (one.shell_complete(context, partial) for one in built.params if isinstance(one, click.Argument))
    return [item.value for items in offers for item in items if item.type == "plain"]


def beginning(entry: Entry, rank: int | None) -> str | None:
    """The line that a command begins with which cannot go without being told something; None for one that can."""
    needed = [one for one in command(entry).params if one.required]
    if not needed:
        return None
    flags = [max(one.opts, key=len) for one in needed if isinstance(one, click.Option)]
    known = f" {rank}" if flags == ["--rank"] and rank is not None else " "
    return f"{entry.name} {flags[0]}{known}" if flags and len(needed) == 1 else f"{entry.name} "
