"""Completes an unfinished line: commands, options, names of answers, and the open job's ranks and steps."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

import click

from kair.app.question import Question
from kair_engine.errors import KairError
from kair_tui.cli.app import chosen, command, parameters
from kair_tui.cli.completion import job_names
from kair_tui.cli.fields import COUNT
from kair_tui.cli.registry import COMMANDS, Entry, find
from kair_tui.render.text import clean
from kair_tui.shell.language import KEYWORDS
from kair_tui.shell.session import ShellState

_ASSIGNED = re.compile(r"\s*[A-Za-z_]\w*\s*=\s*(?=[a-z])")
_REFERENCE = re.compile(r"\$([\w.\[\]-]*)$")
_USED: Final = ("rank", "step", "job")


Operators = Callable[[ShellState], Iterable[str]]


def operators_of(state: ShellState) -> Iterable[str]:
    """Return the operators of the current job, the most time-consuming first; computed once."""
    used = state.opened(state.job()).ask(Question.of("info", operators=True)).result.operators
    return [clean(row.operator) for row in used]


def offers(text: str, state: ShellState, operators: Operators = operators_of) -> list[str]:
    """Return replacements for the word that `text` ends with."""
    if (match := _REFERENCE.search(text)) is not None:
        return _fields(match[1], state)
    typed = unfinished(text)
    command = re.split(r"[;|]|:\s", text)[-1]
    words = _ASSIGNED.sub("", command).removeprefix("kair ").split()
    before = words if not typed or not words else words[:-1]
    lowered = typed.lower()
    return [name for name in _known(before, typed, state, operators) if name.lower().startswith(lowered)]


def _known(words: list[str], typed: str, state: ShellState, operators: Operators) -> Iterable[str]:
    if not words:
        runnable = (entry.name for entry in COMMANDS if entry.is_single)
        return [*runnable, *KEYWORDS, "exit", "quit"]
    if words[0] == "use":
        return _of_job(words[1], state) if len(words) > 1 else [*_USED, *job_names("")]
    entry = find(words[0])
    if entry is None:
        return ()
    actions = [action.name for action in entry.actions]
    with suppress(click.UsageError):
        entry, others = chosen(entry, words[1:])
        actions = actions if len(others) == len(words) - 1 else []  # one is named already
    options = {flag: one for one in parameters(entry) for flag in one.opts if isinstance(one, click.Option)}
    last = options.get(words[-1])
    if last is not None and not getattr(last, "is_flag", False):
        return _values(last, state, operators)
    left = (flag for flag, one in options.items() if one.multiple or not {*one.opts} & {*words})
    return [*actions, *sorted(flag for flag in left if flag.startswith("--")), *_arguments(entry, typed)]


def _arguments(entry: Entry, typed: str) -> Iterable[str]:
    """Return possible arguments, such as jobs or names of schemas; files are not offered."""
    context = click.Context(command(entry), resilient_parsing=True)
    offered = (one.shell_complete(context, typed) for one in parameters(entry) if isinstance(one, click.Argument))
    return dict.fromkeys(item.value for items in offered for item in items if item.type == "plain")


def _values(option: click.Option, state: ShellState, operators: Operators) -> Iterable[str]:
    if isinstance(option.type, click.Choice):
        return [str(choice) for choice in option.type.choices]
    if option.name == "operator":
        with suppress(KairError):
            return operators(state)
    return _of_job(option.name or "", state)


def _of_job(what: str, state: ShellState) -> Iterable[str]:
    """Return the ranks, steps or hosts of the open job; jobs of the store."""
    if what == "job":
        return job_names("")
    if what not in ("rank", "step", "steps"):
        return ()
    with suppress(KairError):
        job = state.opened(state.job()).trace.job
        if what == "rank":
            return ["all", *map(str, job.ranks)]
        return ["all", "last", *map(str, job.steps)]
    return ()


def _fields(typed: str, state: ShellState) -> list[str]:
    """Complete `$worst.sc` by the fields of the value before the last dot."""
    before, dot, last = typed.rpartition(".")
    if not dot:
        return [f"${name}" for name in state.named if name.startswith(typed)]
    from kair_tui.cli.words import reference_of

    try:
        value = state.value_of(reference_of(before))
    except (KairError, AssertionError):
        return []
    named = state.named.get(before)
    fields: list[str] = [*value] if isinstance(value, Mapping) else [COUNT] if isinstance(value, list | tuple) else []
    fields += named.shorthands if named is not None else ()
    if named is not None and named.main and isinstance(value, Mapping) and value[named.main]:
        fields += value[named.main][0]
    return [f"${before}.{name}" for name in dict.fromkeys(fields) if name.startswith(last)]


def unfinished(text: str) -> str:
    """Return the unfinished word."""
    match = re.search(r"[^\s;|]*$", text)
    return match[0] if match else ""
