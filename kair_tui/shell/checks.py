"""Checks statements before any of them runs: commands, options, names and the fields of answers."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import click

from kair.app.step_choice import parse_steps
from kair_engine.errors import UsageError
from kair_tui.cli.app import chosen, parse
from kair_tui.cli.failures import explained
from kair_tui.cli.field_values import check_condition
from kair_tui.cli.fields import NamedType, field_type
from kair_tui.cli.invoke import conditions_of
from kair_tui.cli.words import Reference, Word, literal
from kair_tui.shell.language import Assign, Command, Expect, Fail, LineError, ShellCommand, Statement, Use, When
from kair_tui.shell.runner import found, lacks_rank, require_written_out
from kair_tui.shell.session import JOB, not_set

_ANY_VALUE = "0"
"""Stands for a value that is known only after earlier statements have run."""


def check(
    statements: Iterable[Statement],
    given: Mapping[str, NamedType] = MappingProxyType({}),
    *,
    allow_shell: bool,
    pipes: bool,
    require_use: bool = True,
) -> None:
    """Raise LineError for the first statement that cannot work, and UsageError for a value that nothing uses.

    `given` are the names that have a value already, which must be used if `require_use`; `allow_shell` permits `!`, and
    with `pipes` also `|`.
    """
    statements = tuple(statements)
    checked = _Check(given, allow_shell, pipes)
    checked.all_of(statements)
    for name in given if require_use else ():
        if name not in checked.used:
            error = not_set(name, sorted(checked.used))
            raise UsageError(f"--set {name}: nothing here asks for ${name}", error.hint)


_UNKNOWN: Final = NamedType(None)
_JOB_NAME: Final = NamedType(str)


class _Check:
    def __init__(self, given: Mapping[str, NamedType], allow_shell: bool, pipes: bool) -> None:
        self._known: dict[str, NamedType] = {**given}
        self._rank_in_focus = False
        self._allow_shell = allow_shell
        self._pipes = pipes
        self.used: set[str] = set()

    def all_of(self, statements: Iterable[Statement]) -> None:
        """Check each, in order."""
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
        """Check a body that may not run: names that it sets may have either kind of value afterwards."""
        before = dict(self._known)
        self.all_of(statement.body)
        for name, known in self._known.items():
            if before.get(name, known) != known:
                self._known[name] = _UNKNOWN

    def _assign(self, statement: Assign) -> None:
        self._references(statement.value.references)
        if statement.is_default:
            self.used.add(statement.name)
        if not (statement.is_default and statement.name in self._known):
            self._known[statement.name] = self._worth(statement.value)

    def _worth(self, word: Word) -> NamedType:
        """Return what is known of an assigned value."""
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
        """Check options; a value that is not known yet passes."""
        entry = found(statement)
        texts = [word.filled(lambda _: _ANY_VALUE) for word in words]
        if {"-h", "--help"} & set(texts):
            return
        if entry.acts:
            require_written_out(statement, texts)
        if self._rank_in_focus and lacks_rank(entry, texts):
            texts += ["--rank", "0"]
        try:
            entry, texts = chosen(entry, texts)
            arguments = parse(entry, texts)
        except click.MissingParameter:
            raise
        except (click.BadParameter, click.NoSuchCommand):
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
        """Return what is known of its name. Raises UsageError if it has no value."""
        self.used.add(reference.name)
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
