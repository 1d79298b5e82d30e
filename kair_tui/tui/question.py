"""A question as a command line, and questions about the store."""

import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kair.app.question import Question, unwatched
from kair.app.step_choice import step_text
from kair_engine.errors import UsageError
from kair_tui.cli.registry import Entry, find

if TYPE_CHECKING:
    from kair_tui.render.answer import Document


_PART_OF = {"windows": "whatif"}
"""Questions without a command of their own → the one that answers each part."""
_LOOKS: Final = {"mitigate": "mitigate simulate"}
"""The action that answers a question about a job, for commands that act; a named action is an order."""
_FLAGS: Final = {"confirm": ("--last",)}
"""The same, for a command without actions."""


def entry_of(question: Question) -> Entry:
    """Return the registry's entry of the question's action. Raises UsageError if it does not exist."""
    command = _PART_OF.get(question.command, question.command)
    action = question.argument("action")
    line = f"{command} {action}" if action else _LOOKS.get(command, command)
    entry = find(line)
    if entry is None:
        raise UsageError(f"no such command {line!r}")
    return entry


def line_of(question: Question, job: str, store: Path | None = None) -> str:
    """Return the `kair …` line of the question about `job`, with the named store."""
    entry = entry_of(question)
    flags = () if question.argument("job") else _FLAGS.get(question.command, ())
    looks = bool(flags) or _LOOKS.get(question.command) == entry.line
    about_job = [job] if entry.needs == "trace" or looks else []
    words = ["kair", *entry.line.split(), *flags, *about_job, *_options(question, entry)]
    if question.steps is not None:
        words += ["--step", step_text(question.steps)]
    if store is not None:
        words += ["--store", str(store)]
    return shlex.join(words)


def answer_of_store(question: Question, store: Path | None) -> "Document":
    """Answer a command about the store, without progress. Raises KairError."""
    from kair_tui.cli.invoke import answer_without_job

    own = {name: value for name, value in question.arguments if name != "action"}
    return answer_without_job(entry_of(question), {**own, "store": store}, unwatched)


def _options(question: Question, entry: Entry) -> Iterator[str]:
    flags = _flags(entry) if question.arguments else {}
    for name, value in question.arguments:
        if name == "action":
            continue
        for one in value if isinstance(value, tuple) else (value,):
            if name in flags:
                yield flags[name]
            if one is not True:
                yield str(one)


@cache
def _flags(entry: Entry) -> Mapping[str, str]:
    """Return how a command's options are written, by the names of their parameters."""
    from kair_tui.cli.app import parameters
    from kair_tui.cli.options import written_as

    return {one.name or "": written_as(one) for one in parameters(entry) if one.param_type_name == "option"}
