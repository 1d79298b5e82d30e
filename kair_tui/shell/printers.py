"""Printers: write to stdout and stderr while statements run."""

from typing import TYPE_CHECKING

from kair_tui.cli.failures import report
from kair_tui.cli.output import say, write_answer
from kair_tui.render.text import clean
from kair_tui.shell.language import Expect, Statement, When

if TYPE_CHECKING:
    from kair_tui.render.answer import PageOptions
    from kair_tui.shell.runner import Outcome

_DIM, _ALARM, _PLAIN = "\x1b[2m", "\x1b[1;31m", "\x1b[0m"


class StatementPrinter:
    """Writes answers to stdout, and everything else to stderr."""

    def __init__(self, look: "PageOptions", *, place: str, quiet: bool = False, debug: bool = False) -> None:
        """`place`: the source of the statements, before the line's number; empty if they were typed."""
        self.look = look
        self._place = place
        self._quiet = quiet
        self._debug = debug
        self._said: set[str] = set()

    def on_start(self, statement: Statement) -> None:
        """Write nothing."""

    def on_answer(self, outcome: "Outcome") -> None:
        """Write the answer, then its warnings."""
        write_answer(outcome.write(self.look))
        for note in () if self._quiet else outcome.notes:
            if note not in self._said:  # commands about one job repeat their warnings
                self._said.add(note)
                say(f"kair: {note}", ascii_only=self.look.ascii_only)

    def on_condition(self, statement: When | Expect, found: str | None) -> None:
        """Report an unmet expectation, even with notes turned off."""
        if isinstance(statement, Expect) and found is not None:
            say(f"kair: {self._at(statement.line)}expected {statement.condition_text}: {found}")

    def on_error(self, line: int, error: BaseException) -> None:
        """Write one line, as for any command."""
        report(error, debug=self._debug, ascii_only=self.look.ascii_only, where=self._at(line))

    def on_fail(self, line: int, message: str) -> None:
        """Write the runbook's own message."""
        say(f"kair: error: {self._at(line)}{message}", ascii_only=self.look.ascii_only)

    def _at(self, line: int) -> str:
        return f"{self._place}{line}: " if self._place else ""


class RunbookPrinter(StatementPrinter):
    """The same with each statement above its answer, so that a page shows the whole investigation."""

    def on_start(self, statement: Statement) -> None:
        """Write a heading."""
        if not isinstance(statement, When | Expect):
            self._line(f"{statement.line}: {statement.text}", _DIM)

    def on_condition(self, statement: When | Expect, found: str | None) -> None:
        """Write the condition, and whether it holds."""
        if isinstance(statement, When):
            said = "yes" if found is None else f"no, {found}"
            self._line(f"{statement.line}: when {statement.condition_text}: {said}", _DIM)
            return
        said = "holds" if found is None else f"does not hold, {found}"
        self._line(f"{statement.line}: expect {statement.condition_text}: {said}", _DIM if found is None else _ALARM)

    def on_answer(self, outcome: "Outcome") -> None:
        """Write the answer, and an empty line under it. An answer without rows is reported if its format would not."""
        super().on_answer(outcome)
        if outcome.without is not None and not outcome.for_people:
            self._line(f"no {outcome.without.replace('_', ' ')}", _DIM)
        if outcome.answer is not None:
            write_answer("\n")

    def _line(self, text: str, style: str) -> None:
        line = clean(text, ascii_only=self.look.ascii_only)
        write_answer(f"{style}{line}{_PLAIN}\n" if self.look.color else f"{line}\n")


class ErrorPrinter(StatementPrinter):
    """Prints only errors; results go into the final document."""

    def on_answer(self, outcome: "Outcome") -> None:
        """Write nothing: the document will contain it."""
