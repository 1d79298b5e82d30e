"""Runs statements in order, to the end or to the first that fails."""

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from kair_engine.errors import UsageError
from kair_tui.cli.failures import ExitCode, explained
from kair_tui.shell.language import Assign, Command, Expect, Fail, ShellCommand, Statement, Use, When
from kair_tui.shell.run_result import StatementRun, how_it_ended, worth_of
from kair_tui.shell.runner import Outcome, run_one
from kair_tui.shell.system import call_system, pipe_to

if TYPE_CHECKING:
    from kair_tui.render.answer import Document
    from kair_tui.shell.printers import StatementPrinter
    from kair_tui.shell.session import ShellState


TRIAGE: Final = "triage"


class Script:
    """One run: the result of each statement, and the exit status so far."""

    def __init__(
        self, state: "ShellState", listener: "StatementPrinter", *, documents: bool = False, keep_going: bool = False
    ) -> None:
        """`documents`: each answer is kept as in JSON; `keep_going`: only `fail` ends it."""
        self._state = state
        self._listener = listener
        self._documents = documents
        self._keep_going = keep_going
        self.status: int = ExitCode.ANSWERED
        self.runs: list[StatementRun] = []
        self._verdict: str | None = None
        """The last triage's answer, in one sentence."""
        self._sentences: dict[str, str] = {}
        """Named answers, each in one sentence."""
        self._unmet: str | None = None
        """The answer that first failed an expectation."""

    @property
    def summary(self) -> str:
        """How it ended, in one sentence."""
        return how_it_ended(self.runs, self.status, self._verdict or self._unmet)

    def run(self, statements: Iterable[Statement]) -> bool:
        """Run them, and return whether later statements may run. Raises KeyboardInterrupt and BrokenPipeError."""
        return all(self._one(statement) for statement in statements)

    def _one(self, statement: Statement) -> bool:
        self._listener.on_start(statement)
        began = time.monotonic()
        try:
            return self._ran(statement, began)
        except BrokenPipeError:
            raise
        except Exception as error:  # every command's errors end here, as in cli/main.py
            message, _, status = explained(error)
            self._note(statement, "failed", began, status=status, error=message, condition=_condition(statement))
            self._listener.on_error(statement.line, error)
            return self._keep_going

    def _ran(self, statement: Statement, began: float) -> bool:
        if isinstance(statement, When):
            return self._when(statement, began)
        if isinstance(statement, Expect):
            self._expect(statement, began)
        elif isinstance(statement, Fail):
            return self._fail(statement, began)
        elif isinstance(statement, ShellCommand):
            status = call_system(statement.command, self._state)
            self._note(statement, "failed" if status else "answered", began, status=status)
            return status == 0 or self._keep_going
        else:
            self._command(statement, began)
        return True

    def _when(self, statement: When, began: float) -> bool:
        holds = statement.condition.holds(self._state.value_of)
        self._note(statement, "met" if holds else "not_met", began, condition=_condition(statement))
        self._listener.on_condition(statement, None if holds else self._found(statement))
        if holds:
            return self.run(statement.body)
        self._skip(statement.body)
        return True

    def _skip(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            self.runs.append(StatementRun(statement.line, statement.text, "skipped", _condition(statement)))
            if isinstance(statement, When):
                self._skip(statement.body)

    def _expect(self, statement: Expect, began: float) -> None:
        holds = statement.condition.holds(self._state.value_of)
        status = ExitCode.ANSWERED if holds else ExitCode.FOUND
        found = None if holds else self._found(statement)
        names = [one.name for one in statement.condition.references if one.name in self._sentences]
        if not holds and self._unmet is None and names:
            self._unmet = self._sentences[names[0]]
        state = "met" if holds else "not_met"
        self._note(statement, state, began, status=status, condition=_condition(statement), found=found)
        self._listener.on_condition(statement, found)

    def _found(self, statement: When | Expect) -> str:
        """Return the values that the condition compares, as far as known."""
        values: list[str] = []
        for reference in dict.fromkeys(statement.condition.references):
            with suppress(UsageError):  # a part that was not evaluated
                values.append(f"{reference} is {worth_of(self._state.value_of(reference))}")
        return ", ".join(values) or f"{statement.condition_text} is not so"

    def _fail(self, statement: Fail, began: float) -> bool:
        message = str(statement.message.filled(lambda reference: str(self._state.value_of(reference))))
        self._note(statement, "failed", began, status=ExitCode.FAILED, error=message)
        self._listener.on_fail(statement.line, message)
        return False

    def _command(self, statement: Command | Assign | Use, began: float) -> None:
        if isinstance(statement, Command) and statement.pipe is not None:
            from dataclasses import replace

            outcome = run_one(replace(statement, pipe=None), self._state)
            pipe_to(statement.pipe, outcome.write(self._listener.look), self._state)
        else:
            outcome = run_one(statement, self._state)
            self._listener.on_answer(outcome)
        self._keep_sentence(statement, outcome)
        is_command = isinstance(statement, Command) or outcome.answer is not None
        self._note(
            statement,
            "answered" if is_command else "set",
            began,
            status=outcome.status,
            command=outcome.command if is_command else None,
            result=_document(outcome.answer) if self._documents and outcome.answer is not None else None,
        )

    def _keep_sentence(self, statement: Command | Assign | Use, outcome: Outcome) -> None:
        """Keep the answer for the run's final sentence."""
        if outcome.answer is None or outcome.headline is None:
            return
        if outcome.answer.command == TRIAGE:
            self._verdict = outcome.headline()
        if isinstance(statement, Command) and statement.name is not None:
            self._sentences[statement.name] = outcome.headline()

    def _note(self, statement: Statement, state: Any, began: float, **more: Any) -> None:  # noqa: ANN401
        took = (time.monotonic() - began) * 1e6
        self.runs.append(StatementRun(statement.line, statement.text, state, duration_us=took, **more))
        # A failure outranks an earlier finding: parts that were not examined are not known to be healthy.
        if status := more.get("status", 0):
            self.status = status if self.status in (0, ExitCode.FOUND) else self.status


def planned(statements: Iterable[Statement]) -> list[StatementRun]:
    """Return what would run, without running any of it."""
    runs: list[StatementRun] = []
    for statement in statements:
        runs.append(StatementRun(statement.line, statement.text, "planned", _condition(statement)))
        runs += planned(statement.body) if isinstance(statement, When) else []
    return runs


def _condition(statement: Statement) -> str | None:
    """Return the condition as written."""
    return statement.condition_text if isinstance(statement, When | Expect) else None


def _document(answer: "Document") -> dict[str, Any]:
    from kair_tui.render.document import data_of, envelope, to_plain

    return {**envelope(answer), "data": data_of(answer), "warnings": to_plain(answer.warnings)}
