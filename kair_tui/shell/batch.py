"""Opens a session about a job: its state, its output, and batches of statements."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kair.app.step_choice import parse_steps
from kair_engine.errors import UsageError
from kair_tui.cli.fields import Named
from kair_tui.cli.options import Presentation
from kair_tui.cli.output import ProgressBar, say, write_answer
from kair_tui.cli.present import stdout_options
from kair_tui.cli.wanted import JobWanted
from kair_tui.render.text import clean
from kair_tui.render.units import plural
from kair_tui.shell.checks import check
from kair_tui.shell.language import LineError, Statement, When, parse
from kair_tui.shell.printers import ErrorPrinter, RunbookPrinter, StatementPrinter
from kair_tui.shell.script import Script
from kair_tui.shell.session import ShellState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kair_tui.render.answer import PageOptions
    from kair_tui.shell.run_result import RunResult
    from kair_tui.shell.runbooks import Runbook


@dataclass(frozen=True)
class BatchSession:
    """A shell's state, and its output for a person or a program."""

    state: ShellState
    presentation: Presentation
    look: "PageOptions"
    """The capabilities of stdout."""
    place: str
    """The source of the statements, shown before line numbers; empty if they were typed."""
    progress: ProgressBar
    debug: bool = False

    def printer(self, kind: type[StatementPrinter] = StatementPrinter) -> StatementPrinter:
        """Return a printer for running statements."""
        return kind(self.look, place=self.place, quiet=self.presentation.quiet, debug=self.debug)

    def script(self, *, for_people: bool = True, keep_going: bool = False) -> Script:
        """Return a run of a runbook: written as it goes, or kept as a document."""
        printer = self.printer(RunbookPrinter if for_people else ErrorPrinter)
        return Script(self.state, printer, documents=not for_people, keep_going=keep_going)

    def assign(self, values: dict[str, Any]) -> None:
        """Name values."""
        self.state.named |= {name: Named(value) for name, value in values.items()}

    def print_ending(self, result: "RunResult", *, for_people: bool) -> None:
        """Write how the run ended: on a person's page at the end; next to a document as a note."""
        self.progress.end()
        ending = f"{result.runbook}: {result.summary}"
        if not for_people:
            self.state.note(ending)
            return
        commands = sum(one.command is not None for one in result.statements)
        read, seconds = plural(result.jobs_read, "recording"), result.duration_us / 1e6
        self.state.note(f"{result.runbook}: {plural(commands, 'command')}, {read} read, {seconds:.2f} s")
        write_answer(f"{clean(ending, ascii_only=self.look.ascii_only)}\n")


def open_session(wanted: JobWanted, presentation: Presentation, *, place: str) -> BatchSession:
    """Locate the named job without opening it. Raises InputError if it does not exist."""
    plain = presentation.plain
    look = stdout_options(ascii_only=presentation.ascii, no_color=presentation.no_color, plain=plain)
    without_bar = look.ascii_only or plain
    progress = ProgressBar(quiet=presentation.quiet, ascii_only=without_bar, no_color=presentation.no_color)

    def note(text: str) -> None:
        if not presentation.quiet:
            say(f"kair: {text}", ascii_only=look.ascii_only)

    parse_steps(wanted.step)
    state = ShellState(wanted.store, progress=progress, note=note)
    if wanted.job is not None:
        state.take(wanted.job, wanted.files)
    state.steps = wanted.step
    return BatchSession(state, presentation, look, place, progress, wanted.debug)


def run_batch(text: str, wanted: JobWanted, presentation: Presentation, *, allow_shell: bool) -> int:
    """Check and run the statements of `text`, and return the exit status. Raises UsageError with the line."""
    try:
        statements = parse(text)
        check(statements, allow_shell=allow_shell, pipes=True)
    except LineError as error:
        raise UsageError(f"line {error.line}: {error}", error.hint) from None
    session = open_session(wanted, presentation, place="line ")
    script = Script(session.state, session.printer())
    script.run(statements)
    return script.status


def write_plan(book: "Runbook", wanted: JobWanted, presentation: Presentation) -> None:
    """Write the statements that would run, and their job."""
    about = wanted.job or "the job in use"
    look = stdout_options(ascii_only=presentation.ascii, no_color=presentation.no_color)
    lines = [f"{book.name}, about {about}: nothing was run", "", *_plan_lines(book.statements, "")]
    write_answer("".join(f"{clean(line, ascii_only=look.ascii_only)}\n" for line in lines))


def _plan_lines(statements: "Sequence[Statement]", indent: str) -> list[str]:
    lines: list[str] = []
    for one in statements:
        text = f"when {one.condition_text}:" if isinstance(one, When) else one.text
        lines.append(f"{one.line:>4}  {indent}{text}")
        lines += _plan_lines(one.body, f"{indent}    ") if isinstance(one, When) else []
    return lines
