"""Runs one statement: on the current job, narrowed to the focus, with references replaced."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click

from kair.app.jobs import JobSource, locate
from kair.app.places import store_root
from kair.app.step_choice import parse_steps
from kair_engine.errors import UsageError
from kair_tui.cli.app import chosen, help_text, parameters, parse
from kair_tui.cli.asking import answer_of_job
from kair_tui.cli.failures import ExitCode
from kair_tui.cli.fields import Named, text_of
from kair_tui.cli.invoke import (
    answer_without_job,
    conditions_of,
    require_sound,
    status_of,
    written_file,
)
from kair_tui.cli.options import FilesOfJob, JobChoice, StorePlace, own_arguments, presentation_of, take
from kair_tui.cli.present import columns_to_keep
from kair_tui.cli.registry import Entry, find
from kair_tui.cli.words import Word
from kair_tui.shell import language
from kair_tui.shell.language import Assign, Command, Use

if TYPE_CHECKING:
    from kair_tui.render.answer import Document, PageOptions
    from kair_tui.shell.session import ShellState


MITIGATE: Final = "mitigate"
EVIDENCE: Final = "evidence"
_OF_PROPOSALS: Final = ("approve", "deny")
_OF_NO_JOB: Final = ("simulate", "drain")
_HELP: Final = {"-h", "--help"}


@dataclass(frozen=True)
class Outcome:
    """The result of a statement, and the complete command line for a shell."""

    command: str
    write: "Callable[[PageOptions], str]"
    """Returns its text for a page with these options."""
    status: int = ExitCode.ANSWERED
    notes: tuple[str, ...] = ()
    """Warnings, for stderr or below the answer."""
    answer: "Document | None" = None
    """None for commands that answer in text."""
    without: str | None = None
    """The name of the main table if it is empty; None if it has rows, or does not exist."""
    headline: "Callable[[], str] | None" = None
    """The answer in one sentence; None for commands that answer in text."""
    for_people: bool = False
    """Whether notes may stand below the text, because no program reads it."""


def run_line(line: str, state: "ShellState") -> Outcome:
    """Run a typed line of one statement (with or without `kair` before it). Raises as the command does."""
    statements = language.parse(line)
    if len(statements) != 1:
        raise UsageError("one command at a time" if statements else "no command", "? lists them")
    return run_one(statements[0], state)


def run_one(statement: language.Statement, state: "ShellState") -> Outcome:
    """Run a statement that is a command, a value or a focus. Raises UsageError for others."""
    if isinstance(statement, Command) and statement.pipe is None:
        return run_command(statement, state)
    if isinstance(statement, Assign):
        return assign(statement, state)
    if isinstance(statement, Use):
        return use(statement, state)
    raise UsageError(f"{statement.text!r} is for kair shell and for runbooks")


def run_command(statement: Command, state: "ShellState") -> Outcome:
    """Run a command, and keep a named answer. Raises as the command does."""
    filled = [_filled(word, state) for word in statement.words[1:]]
    entry, words = chosen(found(statement), filled)
    if set(words) & _HELP:
        return Outcome(shlex.join(["kair", *entry.line.split(), *words]), lambda _: help_text(entry))
    if entry.acts:
        require_written_out(statement, filled)
    words = completed(entry, words, state)
    command = shlex.join(["kair", *entry.line.split(), *words])
    arguments = parse(entry, words)
    if entry.needs == "nothing":
        text = entry.load()(**own_arguments(entry, arguments))
        return Outcome(command, lambda _: text)
    if entry.needs == "file":
        return _file(entry, arguments, command, state)
    wanted, view = presentation_of(entry, arguments), entry.load_view()
    keep = columns_to_keep(wanted, view, entry.result_type())
    conditions = conditions_of(entry, arguments)
    answer = _answer(entry, arguments, state)
    if statement.name is not None:
        from kair_tui.cli.fail_on import described, shorthands_of
        from kair_tui.render.document import data_of

        state.named[statement.name] = Named(
            data_of(answer), view.main, shorthands_of(entry.name, answer.result), described(entry.name)
        )

    def write(look: "PageOptions") -> str:
        from kair_tui.render.written import written

        ascii_only, plain = look.ascii_only or wanted.ascii, look.plain or wanted.plain
        options = replace(look, wide=wanted.format == "wide", ascii_only=ascii_only, plain=plain)
        return written(answer, view, wanted.format, options, keep)

    notes = () if wanted.quiet else tuple(f"warning: {warning.message}" for warning in answer.warnings)
    for_people = wanted.format in ("table", "wide", "tree")
    without = view.main if view.main is not None and not view.rows(answer.result) else None
    return Outcome(
        command,
        write,
        status_of(conditions, answer),
        notes,
        answer,
        without=without,
        headline=lambda: str(view.headline(answer.result)),
        for_people=for_people,
    )


def assign(statement: Assign, state: "ShellState") -> Outcome:
    """Give a value a name; a default yields to an existing value."""
    if not (statement.is_default and statement.name in state.named):
        state.named[statement.name] = Named(statement.value.value(state.value_of))
    return Outcome(statement.text, _silent)


def use(statement: Use, state: "ShellState") -> Outcome:
    """Narrow all that follows, or change the job."""
    value = _filled(statement.value, state)
    if statement.tell_store:
        outcome = run_command(Command(statement.line, statement.text, (Word(("use",)), statement.value)), state)
        state.take(value)
        return outcome
    if statement.what == "rank":
        state.focus_rank(value)
    elif statement.what == "step":
        state.focus_steps(value)
    else:
        state.take(value)
    return Outcome(statement.text, _silent)


def _silent(_: "PageOptions") -> str:
    return ""


def found(statement: Command) -> Entry:
    """Return the command's entry, which the parser has checked."""
    entry = find(statement.command)
    assert entry is not None
    return entry


def completed(entry: Entry, words: Sequence[str], state: "ShellState") -> list[str]:
    """Return the line completed with the current job, its store and the focus, if it does not name others."""
    if entry.needs in ("nothing", "machine", "cache", "certificate"):
        return list(words)
    store = [] if _has(words, "--store") or state.store is None else ["--store", str(state.store)]
    if entry.needs == "store":
        return [*words, *_mitigated(entry, words, state), *_with_evidence(entry, words, state), *store]
    rank = ["--rank", str(state.rank)] if lacks_rank(entry, words) and state.rank is not None else []
    given = parse(entry, [*words, *rank])
    if given["job"] is not None or given["store"] not in (None, state.store):
        return [*words, *rank, *store]
    steps = [] if _has(words, "--step") or state.steps == "all" else ["--step", state.steps]
    return [state.job().name, *words, *rank, *steps, *store]


def _mitigated(entry: Entry, words: Sequence[str], state: "ShellState") -> list[str]:
    """Return the current job, if an action on a job names none."""
    if entry.name != MITIGATE or state.source is None:
        return []
    arguments = parse(entry, words)
    first = "number" if entry.action in _OF_PROPOSALS else "named"
    is_named = arguments["job"] is not None or arguments.get(first) is not None
    return [] if is_named or entry.action in _OF_NO_JOB else ["--job", state.source.name]


def _with_evidence(entry: Entry, words: Sequence[str], state: "ShellState") -> list[str]:
    """Return the current job, if its evidence is to be listed and no other job is named."""
    if entry.name != EVIDENCE or state.source is None:
        return []
    return [state.source.name] if entry.action == "list" and parse(entry, words)["job"] is None else []


def require_written_out(statement: Command, words: Sequence[str]) -> None:
    """Raise UsageError if a value decides what is done to a job, or if the command would not end."""
    entry = found(statement)
    for word, text in zip(statement.words[1:], words, strict=True):
        if word.references and not isinstance(word.parts[0], str) and text.startswith("-"):
            raise UsageError(f"{entry.name}: options are written out, {text!r} comes from a value")
    if entry.name != MITIGATE:
        return
    try:
        # A word that is no action stands for any value: only a written word can be an action.
        of_action, others = chosen(entry, [word.filled(lambda _: "1") for word in statement.words[1:]])
    except click.NoSuchCommand:
        if not any(one.references for one in statement.words):
            raise
        raise UsageError(f"{MITIGATE}: what is to be done is written out, and comes from no value") from None
    action = of_action.action
    if action in {"run", "shards"} or (action == "control" and not parse(of_action, others)["once"]):
        raise UsageError(f"{MITIGATE} {action} goes on next to the job", "give it a shell of its own")


def _filled(word: Word, state: "ShellState") -> str:
    return word.filled(lambda reference: text_of(reference, state.value_of(reference)))


def _has(words: Sequence[str], option: str) -> bool:
    return any(word.partition("=")[0] == option for word in words)


def lacks_rank(entry: Entry, words: Sequence[str]) -> bool:
    """Return whether the command is about one rank, and the line names none."""
    takes = any(one.name == "rank" and not one.multiple for one in parameters(entry))
    short = any(word.startswith("-r") and not word.startswith("--") for word in words)
    return takes and not short and not _has(words, "--rank")


def _answer(entry: Entry, arguments: dict[str, Any], state: "ShellState") -> "Document":
    if entry.needs in ("store", "cache", "certificate", "machine"):
        answer = answer_without_job(entry, arguments, state.progress)
        if entry.name == "import":
            folder = store_root(take(StorePlace, arguments).store) / str(arguments["job"])
            state.forget(JobSource(str(arguments["job"]), folder, stored=True))
        if entry.name == EVIDENCE:
            state.forget_answers()
        return answer
    require_sound(entry, arguments)
    return answer_of_job(entry, arguments, state.opened(_source(arguments, state)))


def _file(entry: Entry, arguments: dict[str, Any], command: str, state: "ShellState") -> Outcome:
    """Write a file, and return the report about it."""
    parse_steps(take(JobChoice, arguments).step)
    said = written_file(entry, arguments, state.opened(_source(arguments, state)))
    return Outcome(command, lambda _: said)


def _source(arguments: dict[str, Any], state: "ShellState") -> JobSource:
    choice, store = take(FilesOfJob, arguments), take(StorePlace, arguments).store
    name = choice.job
    if name is None:
        return state.job() if store in (None, state.store) else locate(None, store)
    source = state.named_source(name, store, choice.files)
    pattern = arguments.get("log_pattern")
    return source if pattern is None else replace(source, log_pattern=pattern)
