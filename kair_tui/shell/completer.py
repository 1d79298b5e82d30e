"""Completion at the prompt: commands, options, names of answers, and what the open job has."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from kair_engine.errors import KairError
from kair_engine.trace.model import Trace
from kair_tui.cli.app import parameters
from kair_tui.cli.completion import job_names
from kair_tui.cli.fields import COUNT
from kair_tui.cli.registry import COMMANDS, find
from kair_tui.render.text import clean
from kair_tui.shell.language import KEYWORDS
from kair_tui.shell.session import ShellState

_ASSIGNED = re.compile(r"\s*[A-Za-z_]\w*\s*=\s*(?=[a-z])")
_REFERENCE = re.compile(r"\$([\w.\[\]-]*)$")
_USED: Final = ("rank", "step", "job")


class ShellCompleter(Completer):
    """Offers what can stand at the cursor. Names of operators are read once a job."""

    def __init__(self, state: ShellState) -> None:
        self._state = state
        self._operators: tuple[Path, list[str]] | None = None

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002
        """Return what goes on from the text before the cursor."""
        text = document.text_before_cursor
        for offer in offers(text, self._state, self._operators_of):
            typed = _typed(text)
            yield Completion(offer, start_position=-len(typed))

    def _operators_of(self, trace: Trace) -> list[str]:
        source = self._state.job().path
        if self._operators is None or self._operators[0] != source:
            names = trace.scan().select("name").unique().collect()["name"].cast(str).to_list()
            self._operators = source, sorted(clean(name) for name in names if name)
        return self._operators[1]


def offers(text: str, state: ShellState, operators_of: Callable[[Trace], list[str]]) -> list[str]:
    """Return what can take the place of the word that `text` ends with."""
    if (match := _REFERENCE.search(text)) is not None:
        return _fields(match[1], state)
    typed = _typed(text)
    command = re.split(r"[;|]|:\s", text)[-1]
    words = _ASSIGNED.sub("", command).removeprefix("kair ").split()
    before = words if not typed or not words else words[:-1]
    known = _known(before, state, operators_of)
    lowered = typed.lower()
    return [name for name in known if name.lower().startswith(lowered)]


def _known(words: list[str], state: ShellState, operators_of: Callable[[Trace], list[str]]) -> Iterable[str]:
    if not words:
        runnable = (entry.name for entry in COMMANDS if entry.is_single)
        return [*runnable, *KEYWORDS, "exit"]
    if words[0] == "use":
        return _of_job(words[1], state) if len(words) > 1 else [*_USED, *job_names("")]
    entry = find(words[0])
    if entry is None:
        return ()
    options = {flag: one for one in parameters(entry) for flag in one.opts if isinstance(one, click.Option)}
    last = options.get(words[-1])
    if last is not None and not getattr(last, "is_flag", False):
        return _values(last, state, operators_of)
    return [
        *sorted(flag for flag in options if flag.startswith("--")),
        *(job_names("") if entry.needs in ("trace", "file") else []),
    ]


def _values(option: click.Option, state: ShellState, operators_of: Callable[[Trace], list[str]]) -> Iterable[str]:
    if isinstance(option.type, click.Choice):
        return [str(choice) for choice in option.type.choices]
    if option.name == "operator":
        with suppress(KairError):
            return [f'"{name}"' if " " in name else name for name in operators_of(state.opened(state.job()).trace)]
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
    """Complete `$worst.sc` by the fields of what stands before the last dot."""
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


def _typed(text: str) -> str:
    """Return the unfinished word."""
    match = re.search(r"[^\s;|]*$", text)
    return match[0] if match else ""
