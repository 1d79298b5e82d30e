"""Statements, one at a time: checked, and run.

Runs one statement: on the job in hand, narrowed to the focus, with references replaced.

Checks statements before any of them runs: commands, options, names and the fields of answers.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click

from kair.app.jobs import JobSource, locate
from kair.app.question import unwatched
from kair.app.step_choice import parse_steps
from kair_engine.errors import UsageError
from kair_tui.cli.app import help_text, parameters, parse
from kair_tui.cli.asking import answer_of_job
from kair_tui.cli.failures import ExitCode, explained
from kair_tui.cli.field_values import check_condition
from kair_tui.cli.fields import Named, NamedType, field_type, text_of
from kair_tui.cli.invoke import (
    ask_cache,
    ask_machine,
    ask_store,
    conditions_of,
    require_sound,
    status_of,
    written_file,
)
from kair_tui.cli.options import FilesOfJob, JobChoice, StorePlace, own_arguments, presentation_of, take
from kair_tui.cli.present import columns_to_keep
from kair_tui.cli.registry import Entry, find
from kair_tui.cli.words import Reference, Word, literal
from kair_tui.shell import language
from kair_tui.shell.language import Assign, Command, Expect, Fail, LineError, ShellCommand, Statement, Use, When
from kair_tui.shell.session import JOB, not_set

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
    """What a statement answered, and the complete line that a shell needs for the same."""

    command: str
    write: "Callable[[PageOptions], str]"
    """Its text, for a page of these options."""
    status: int = ExitCode.ANSWERED
    notes: tuple[str, ...] = ()
    """Warnings, which go to stderr or stand under the answer."""
    answer: "Document | None" = None
    """None of commands that answer in text."""
    without: str | None = None
    """The name of the main table where that is empty; None where it has rows, or there is none."""
    headline: "Callable[[], str] | None" = None
    """The answer in one sentence; None of commands that answer in text."""
    for_people: bool = False
    """Notes may stand under the text: no program reads it."""


def run_line(line: str, state: "ShellState") -> Outcome:
    """Runs a typed line of one statement (with or without `kair` before it). Raises what the command raises."""
    statements = language.parse(line)
    if len(statements) != 1:
        raise UsageError("one command at a time" if statements else "no command", "? lists them")
    return run_one(statements[0], state)


def run_one(statement: language.Statement, state: "ShellState") -> Outcome:
    """Runs a statement that is a command, a value or a focus. Raises UsageError for others."""
    if isinstance(statement, Command) and statement.pipe is None:
        return run_command(statement, state)
    if isinstance(statement, Assign):
        return assign(statement, state)
    if isinstance(statement, Use):
        return use(statement, state)
    raise UsageError(f"{statement.text!r} is for kair shell and for runbooks")


def run_command(statement: Command, state: "ShellState") -> Outcome:
    """Asks a command, and keeps the answer where it is given a name. Raises what the command raises."""
    entry, words = found(statement), [_filled(word, state) for word in statement.words[1:]]
    if set(words) & _HELP:
        return Outcome(shlex.join(["kair", entry.name, *words]), lambda _: help_text(entry))
    if entry.acts:
        require_written_out(statement, words)
    words = completed(entry, words, state)
    command = shlex.join(["kair", entry.name, *words])
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

        options = replace(look, wide=wanted.format == "wide", ascii_only=look.ascii_only or wanted.ascii)
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
    """Gives a value a name; a default gives way to what has the name already."""
    if not (statement.is_default and statement.name in state.named):
        state.named[statement.name] = Named(statement.value.value(state.value_of))
    return Outcome(statement.text, _silent)


def use(statement: Use, state: "ShellState") -> Outcome:
    """Narrows all that follows, or takes another job."""
    value = _filled(statement.value, state)
    if statement.tell_store:
        told = run_command(Command(statement.line, statement.text, (Word(("use",)), statement.value)), state)
        state.take(value)
        return told
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
    """The command's entry: the parser let no other pass."""
    entry = find(statement.command)
    assert entry is not None
    return entry


def completed(entry: Entry, words: Sequence[str], state: "ShellState") -> list[str]:
    """The line with the job in hand, its store and the focus, where it does not name others."""
    if entry.needs in ("nothing", "machine", "cache"):
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
    """The job in hand, where an action on a job names none."""
    if entry.name != MITIGATE or state.source is None:
        return []
    arguments = parse(entry, words)
    is_named = arguments["job"] is not None or len(arguments["words"]) > (arguments["action"] in _OF_PROPOSALS)
    return [] if is_named or arguments["action"] in _OF_NO_JOB else ["--job", state.source.name]


def _with_evidence(entry: Entry, words: Sequence[str], state: "ShellState") -> list[str]:
    """The job in hand, where its evidence is to be listed and no other job is named."""
    if entry.name != EVIDENCE or state.source is None:
        return []
    named = parse(entry, words)["words"]
    return [state.source.name] if not named or named == ("list",) else []


def require_written_out(statement: Command, words: Sequence[str]) -> None:
    """What is done to a job stands in the line itself. Raises UsageError where a value says it, or it would not end."""
    entry = found(statement)
    for word, text in zip(statement.words[1:], words, strict=True):
        if word.references and not isinstance(word.parts[0], str) and text.startswith("-"):
            raise UsageError(f"{entry.name}: options are written out, {text!r} comes from a value")
    if entry.name != MITIGATE:
        return
    try:
        # A word that is no action stands for each value: only written out there is one.
        arguments = parse(entry, [word.filled(lambda _: "1") for word in statement.words[1:]])
    except click.BadParameter as error:
        if error.param is None or error.param.name != "action" or not any(one.references for one in statement.words):
            raise
        raise UsageError(f"{MITIGATE}: what is to be done is written out, and comes from no value") from None
    if arguments["action"] in {"run", "shards"} or (arguments["action"] == "control" and not arguments["once"]):
        raise UsageError(f"{MITIGATE} {arguments['action']} goes on beside the job", "give it a shell of its own")


def _filled(word: Word, state: "ShellState") -> str:
    return word.filled(lambda reference: text_of(reference, state.value_of(reference)))


def _has(words: Sequence[str], option: str) -> bool:
    return any(word.partition("=")[0] == option for word in words)


def lacks_rank(entry: Entry, words: Sequence[str]) -> bool:
    """Whether the command is about one rank, and the line does not say which."""
    takes = any(one.name == "rank" and not one.multiple for one in parameters(entry))
    short = any(word.startswith("-r") and not word.startswith("--") for word in words)
    return takes and not short and not _has(words, "--rank")


def _answer(entry: Entry, arguments: dict[str, Any], state: "ShellState") -> "Document":
    if entry.needs == "store":
        answer = ask_store(entry, arguments, state.progress)
        _forget_changed(entry, arguments, state)
        return answer
    if entry.needs == "cache":
        return ask_cache(entry, arguments)
    if entry.needs == "machine":
        return ask_machine(entry, arguments, unwatched)
    require_sound(entry, arguments)
    return answer_of_job(entry, arguments, state.opened(_source(arguments, state)))


def _file(entry: Entry, arguments: dict[str, Any], command: str, state: "ShellState") -> Outcome:
    """A file that was written, and what is to be said of it."""
    parse_steps(take(JobChoice, arguments).step)
    said = written_file(entry, arguments, state.opened(_source(arguments, state)))
    return Outcome(command, lambda _: said)


def _source(arguments: dict[str, Any], state: "ShellState") -> JobSource:
    choice, store = take(FilesOfJob, arguments), take(StorePlace, arguments).store
    name = choice.job
    if name is None:
        return state.job() if store in (None, state.store) else locate(None, store)
    return state.named_source(name, store, choice.files)


def _forget_changed(entry: Entry, arguments: dict[str, Any], state: "ShellState") -> None:
    """A job that was imported anew is read anew."""
    if entry.name != "import":
        return
    from kair.app.places import store_root

    folder = store_root(take(StorePlace, arguments).store) / str(arguments["job"])
    state.forget(JobSource(str(arguments["job"]), folder, stored=True))


_ANY_VALUE = "0"
"""Stands for a value that is known once the statements before have run."""


def check(
    statements: Iterable[Statement],
    given: Mapping[str, NamedType] = MappingProxyType({}),
    *,
    allow_shell: bool,
    pipes: bool,
    require_use: bool = True,
) -> None:
    """Raises LineError for the first statement that cannot work, and UsageError for a value that nothing takes.

    `given` are the names that have a value already, which with `require_use` are to be asked for; `allow_shell` lets
    `!` pass, with `pipes` also `|`.
    """
    statements = tuple(statements)
    checked = _Check(given, allow_shell, pipes)
    checked.all_of(statements)
    for name in given if require_use else ():
        if name not in checked.asked_for:
            error = not_set(name, sorted(checked.asked_for))
            raise UsageError(f"--set {name}: nothing here asks for ${name}", error.hint)


_UNKNOWN: Final = NamedType(None)
_JOB_NAME: Final = NamedType(str)


class _Check:
    def __init__(self, given: Mapping[str, NamedType], allow_shell: bool, pipes: bool) -> None:
        self._known: dict[str, NamedType] = {**given}
        self._rank_in_focus = False
        self._allow_shell = allow_shell
        self._pipes = pipes
        self.asked_for: set[str] = set()

    def all_of(self, statements: Iterable[Statement]) -> None:
        """Looks at each, in order."""
        for statement in statements:
            try:
                self._one(statement)
            except LineError:
                raise
            except (UsageError, click.UsageError) as error:
                message, hint, _ = explained(error)
                raise LineError(statement.line, UsageError(message, hint)) from None

    def _one(self, statement: Statement) -> None:
        if isinstance(statement, ShellCommand):
            self._require_shell(statement.text)
        elif isinstance(statement, When | Expect):
            check_condition(statement.condition, self._known_of)
            if isinstance(statement, When):
                self._body(statement)
        elif isinstance(statement, Assign):
            self._assign(statement)
        elif isinstance(statement, Use):
            self._references(statement.value.references)
            self._rank_in_focus |= statement.what == "rank"
            if statement.what == "step" and (text := statement.value.text) is not None:
                parse_steps(text)
        elif isinstance(statement, Fail):
            self._references(statement.message.references)
        else:
            self._command(statement)

    def _body(self, statement: When) -> None:
        """What depends on a condition may not run: a name that gets another kind of value there has either of them."""
        before = dict(self._known)
        self.all_of(statement.body)
        for name, known in self._known.items():
            if before.get(name, known) != known:
                self._known[name] = _UNKNOWN

    def _assign(self, statement: Assign) -> None:
        self._references(statement.value.references)
        if statement.is_default:
            self.asked_for.add(statement.name)
        if not (statement.is_default and statement.name in self._known):
            self._known[statement.name] = self._worth(statement.value)

    def _worth(self, word: Word) -> NamedType:
        """What is known of a value that gets a name."""
        if (reference := word.reference) is None:
            text = word.text
            if text is None:
                return NamedType(str)
            return NamedType(None, constant=text if word.quoted else literal(text))
        known = self._known_of(reference)
        return known if not reference.path else NamedType(field_type(reference, known))

    def _command(self, statement: Command) -> None:
        if statement.pipe is not None:
            self._require_shell(f"| {statement.pipe}", pipe=True)
        for word in statement.words:
            self._references(word.references)
        entry = found(statement)
        self._options(statement, statement.words[1:])
        if statement.name is not None:
            if not entry.has_result:
                raise UsageError(f"{entry.name} answers in text, which has no fields")
            from kair_tui.cli.fail_on import described

            self._known[statement.name] = described(entry.name)

    def _options(self, statement: Command, words: tuple[Word, ...]) -> None:
        """A value that is not known yet cannot be wrong yet; everything else can."""
        entry = found(statement)
        texts = [word.filled(lambda _: _ANY_VALUE) for word in words]
        if {"-h", "--help"} & set(texts):
            return
        if entry.acts:
            require_written_out(statement, texts)
        if self._rank_in_focus and lacks_rank(entry, texts):
            texts += ["--rank", "0"]
        try:
            arguments = parse(entry, texts)
        except click.MissingParameter:
            raise
        except click.BadParameter:
            if any(word.references for word in words):
                return
            raise
        conditions_of(entry, arguments)
        if "step" in arguments and not any(word.references for word in words):
            parse_steps(arguments["step"])

    def _references(self, references: Iterable[Reference]) -> None:
        for reference in references:
            field_type(reference, self._known_of(reference))

    def _known_of(self, reference: Reference) -> NamedType:
        """What is known of its name. Raises UsageError where that was given nothing."""
        self.asked_for.add(reference.name)
        if reference == Reference(JOB) and JOB not in self._known:
            return _JOB_NAME
        if reference.name not in self._known:
            raise not_set(reference.name, list(self._known))
        return self._known[reference.name]

    def _require_shell(self, text: str, *, pipe: bool = False) -> None:
        if pipe and not self._pipes:
            raise UsageError(f"{text}: a runbook pipes nothing", "write the command behind a ! and --allow-shell")
        if not self._allow_shell:
            raise UsageError(f"{text}: the system's shell is not allowed here", "--allow-shell allows it")
