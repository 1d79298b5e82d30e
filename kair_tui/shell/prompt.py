"""The prompt of `kair shell`: reads a line, runs it, and continues until the user leaves."""

import os
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from kair.app.places import data_root, store_root
from kair_engine.errors import KairError
from kair_tui.cli.app import program
from kair_tui.cli.failures import ExitCode, report
from kair_tui.cli.options import Presentation
from kair_tui.cli.output import say, write_answer
from kair_tui.cli.wanted import JobWanted
from kair_tui.render.text import clean
from kair_tui.render.units import plural
from kair_tui.shell.batch import BatchSession, open_session
from kair_tui.shell.checks import check
from kair_tui.shell.language import Command, LineError, Statement, parse
from kair_tui.shell.script import Script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from prompt_toolkit import PromptSession
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import History

    from kair_tui.shell.session import ShellState

_LEAVING = ("exit", "quit", "q")
_HELP = ("help", "?", "h")
_LANGUAGE = """
Of this shell:
  worst = localize                 names an answer; $worst.rank is a field of it, or of its first row
  use rank 16, use step 40-60      narrow all that follows; `all` widens again; use job NAME takes another job
  localize | less                  lets a program read the answer
  !date                            calls the system's shell
  COMMAND --help                   the options of a command
  help WORD                        what a word of the answers means
  exit, or ctrl-d                  leaves; ctrl-c stops a command
"""


def converse(wanted: JobWanted, presentation: Presentation) -> int:
    """Run the prompt at the terminal, and return the exit status.

    Raises InputError if the named job cannot be opened.
    """
    session = open_session(wanted, presentation, place="")
    _open_first(session, wanted)
    prompt_session = _prompt(session)
    while True:
        try:
            line = prompt_session.prompt(_prompt_text(session.state, ascii_only=session.look.ascii_only))
        except KeyboardInterrupt:
            continue
        except EOFError:
            return ExitCode.ANSWERED
        if line.strip() in _LEAVING:
            return ExitCode.ANSWERED
        try:
            _run(line, session)
        except KeyboardInterrupt:
            say("kair: stopped")
        finally:
            session.progress.end()


def _open_first(session: BatchSession, wanted: JobWanted) -> None:
    """Open the job before the first input. Without a named job, a shell is useful as well."""
    try:
        state = session.state
        state.opened(state.job())
        if wanted.step != "all":
            state.focus_steps(wanted.step)
    except KairError as error:
        if wanted.job is not None:
            raise
        report(error)
    finally:
        session.progress.end()


def _run(line: str, session: BatchSession) -> None:
    """Run a typed line; errors are reported, and the shell goes on."""
    if line.strip() in _HELP:
        write_answer(program().get_help(program().make_context("kair", [], resilient_parsing=True)) + _LANGUAGE)
        return
    try:
        statements = parse(line)
        _check(statements, session.state)
    except LineError as error:
        report(error, ascii_only=session.look.ascii_only)
        return
    Script(session.state, session.printer()).run(statements)


def _check(statements: tuple[Statement, ...], state: "ShellState") -> None:
    """Check the line if it has more than one command; a single one is checked when it runs."""
    if len(statements) == 1 and isinstance(statements[0], Command):
        return
    check(
        statements,
        {name: one.type_now for name, one in state.named.items()},
        allow_shell=True,
        pipes=True,
        require_use=False,
    )


def _prompt_text(state: "ShellState", *, ascii_only: bool) -> str:
    """Write `job123 20 steps rank 16> `."""
    if state.source is None:
        return "kair> "
    trace = state.opened(state.source).trace
    steps = plural(len(trace.job.steps), "step") if state.steps == "all" else f"step {state.steps}"
    rank = "" if state.rank is None else f" rank {state.rank}"
    return f"{clean(trace.job.name, ascii_only=ascii_only)} {steps}{rank}> "


def _prompt(session: BatchSession) -> "PromptSession[str]":
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.output.color_depth import ColorDepth

    from kair_tui.shell.completer import offers, unfinished

    class _Offers(Completer):
        def get_completions(self, document: "Document", complete_event: CompleteEvent) -> "Iterator[Completion]":  # noqa: ARG002
            text = document.text_before_cursor
            for offer in offers(text, session.state):
                yield Completion(f'"{offer}"' if " " in offer else offer, start_position=-len(unfinished(text)))

    plain = session.presentation.no_color or bool(os.environ.get("NO_COLOR"))
    return PromptSession(
        history=_history(store_root(session.state.store)),
        completer=_Offers(),
        complete_in_thread=True,
        complete_while_typing=False,
        color_depth=ColorDepth.DEPTH_1_BIT if plain else None,
    )


def _history(store: "Path") -> "History":
    """Return the history for this store, kept with the user's own data because stores may be shared."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class _Lasting(FileHistory):
        """A history that drops a line without room; the shell goes on."""

        def store_string(self, string: str) -> None:
            with suppress(OSError):
                super().store_string(string)

    from kair_engine.trace.files import append_kept, make_folder

    name = sha256(str(store.absolute()).encode(errors="surrogateescape")).hexdigest()[:16]
    file = data_root() / "shell_history" / name
    with suppress(OSError):
        make_folder(file.parent)
        os.close(append_kept(file))
        return _Lasting(file)
    return InMemoryHistory()
