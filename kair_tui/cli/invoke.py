"""Runs a command: from its arguments to its answer on stdout and its exit status."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kair.app.jobs import tidy
from kair.app.places import store_root
from kair.app.question import is_read_only
from kair.app.session import Session
from kair.app.step_choice import parse_steps
from kair.app.stores import OpenStore
from kair_engine.errors import UsageError
from kair_tui.cli.asking import Asker, answer_of_job, answer_of_store, done, in_words, open_session
from kair_tui.cli.failures import ExitCode
from kair_tui.cli.options import (
    Diagnostics,
    FailOn,
    FilesOfJob,
    Following,
    JobChoice,
    Presentation,
    PresentationOfFile,
    StorePlace,
    own_arguments,
    presentation_of,
    take,
    workers_of,
)
from kair_tui.cli.output import ProgressBar, say, write_answer
from kair_tui.cli.present import Presenter
from kair_tui.cli.registry import Entry
from kair_tui.cli.wanted import JobWanted, located
from kair_tui.render.answer import Document
from kair_tui.render.text import speaks_unicode
from kair_tui.render.warnings import warnings_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kair.app.question import Watcher
    from kair_tui.cli.fail_on import Condition


def invoke(entry: Entry, arguments: dict[str, Any]) -> int:
    """Run the command with all its arguments, its own and the shared ones."""
    if entry.needs == "trace":
        return _analyse(entry, arguments)
    return _RUN[entry.needs](entry, arguments)


def answer_without_job(entry: Entry, arguments: dict[str, Any], progress: "Watcher") -> Document:
    """Return the answer of a command about the store, the cache, a certificate or this machine. Raises KairError."""
    if entry.needs != "store":
        watcher = (progress,) if entry.needs == "machine" else ()
        return done(entry, entry.load()(*watcher, **own_arguments(entry, arguments)))
    if not (entry.asks or is_read_only()):
        tidy(take(StorePlace, arguments).store)
    store = OpenStore(store_root(take(StorePlace, arguments).store), progress, in_words)
    store.refresh()
    return answer_of_store(entry, arguments, store)


def _analyse(entry: Entry, arguments: dict[str, Any]) -> int:
    """Run an analysis; everything wrong with the question is found before the job is opened."""
    began = time.monotonic()
    presenter = presenter_of(entry, arguments)
    conditions = conditions_of(entry, arguments)
    require_sound(entry, arguments)
    if entry.is_query and arguments["tables"] and arguments["job"] is None:
        from kair.app.querying import described

        presenter.present(Document(entry.name, described(), None, ()))
        return ExitCode.ANSWERED
    with presenter.progress_bar() as progress:
        session = opened(entry, arguments, progress, presenter.note)
        answer = answer_of_job(entry, arguments, session)
    presenter.present(answer)
    if any(one.rests_on_estimates(answer.result) for one in conditions):
        presenter.note(
            "--fail-on slowdown is met by an estimate: no replay could price the finding, it costs at most that"
        )
    presenter.detail(f"{session.trace.job.source}: {time.monotonic() - began:.2f} s")
    return status_of(conditions, answer)


def require_sound(entry: Entry, arguments: dict[str, Any]) -> None:
    """Raise UsageError for a question that is wrong for any job."""
    parse_steps(take(JobChoice, arguments).step)
    workers_of(entry, arguments)
    if entry.asks:
        entry.load()(**own_arguments(entry, arguments))


def opened(entry: Entry, arguments: dict[str, Any], progress: "Watcher", note: Callable[[str], None]) -> Session:
    """Return the named job, or the one in use, which is then reported by `note`."""
    choice, store = take(FilesOfJob, arguments), take(StorePlace, arguments).store
    source = located(choice.job, store, choice.files, arguments.get("log_pattern"))
    if source.why is not None:
        note(f"using job {source.name} ({source.why})")
    # An additional output file uses the same model.
    writes = any(isinstance(value, Path) for value in own_arguments(entry, arguments).values())
    return open_session(source, store=store, progress=progress, remembers=writes)


def written_file(entry: Entry, arguments: dict[str, Any], session: Session) -> str:
    """Write a command's file, and return its report. Raises KairError."""
    asker = Asker.of(entry, arguments, session)
    said: str = entry.load()(asker.trace, **own_arguments(entry, arguments))
    return said


def _write_file(entry: Entry, arguments: dict[str, Any]) -> int:
    quiet = take(PresentationOfFile, arguments).quiet
    parse_steps(take(JobChoice, arguments).step)

    def note(text: str) -> None:
        if not quiet:
            say(f"kair: {text}")

    with ProgressBar(quiet=quiet, ascii_only=not speaks_unicode(sys.stderr), no_color=False) as progress:
        session = opened(entry, arguments, progress, note)
        written = written_file(entry, arguments, session)
    write_answer(written)
    for warning in warnings_in_words(session.trace.job.warnings):
        note(f"warning: {warning.message}")
    return ExitCode.ANSWERED


def _ask_without_job(entry: Entry, arguments: dict[str, Any]) -> int:
    presenter = presenter_of(entry, arguments)
    conditions = conditions_of(entry, arguments)
    if conditions and entry.needs == "machine" and not arguments["compare"]:
        raise UsageError("--fail-on needs --compare", "kair probe --compare SUSPECT.json PEER.json --fail-on slower")
    with presenter.progress_bar() as progress:
        answer = answer_without_job(entry, arguments, progress)
    presenter.present(answer)
    if entry.needs == "store":
        presenter.detail(f"store {store_root(take(StorePlace, arguments).store)}")
    return status_of(conditions, answer)


def _take_terminal(entry: Entry, arguments: dict[str, Any]) -> int:
    return int(entry.load()(_wanted(arguments), **own_arguments(entry, arguments)))


def _run_runbook(entry: Entry, arguments: dict[str, Any]) -> int:
    """Run a runbook: answers are written as they come, or as one document at the end."""
    presenter = presenter_of(entry, arguments)
    presentation = take(Presentation, arguments)
    result = entry.load()(_wanted(arguments), presentation, **own_arguments(entry, arguments))
    if result.runbooks or presentation.format not in ("table", "wide", "tree"):
        presenter.present(Document(entry.name, result, None, ()))
    return int(result.status)


def _wanted(arguments: dict[str, Any]) -> JobWanted:
    shared = (take(group, arguments) for group in (FilesOfJob, StorePlace, Diagnostics))
    named = {name: value for group in shared for name, value in vars(group).items()}
    return JobWanted(**named, log_pattern=arguments.get("log_pattern"))


def _run_process(entry: Entry, arguments: dict[str, Any]) -> int:
    return int(entry.load()(store_root(take(StorePlace, arguments).store), **own_arguments(entry, arguments)))


def _follow(entry: Entry, arguments: dict[str, Any]) -> int:
    from kair_tui.cli.follow import follow

    presenter, conditions = presenter_of(entry, arguments), conditions_of(entry, arguments)
    store, own = store_root(take(StorePlace, arguments).store), own_arguments(entry, arguments)
    found = follow(
        lambda: done(entry, entry.load()(store, **own)),
        presenter,
        take(Presentation, arguments).format,
        take(Following, arguments),
        lambda answer: status_of(conditions, answer) == ExitCode.FOUND,
    )
    return ExitCode.FOUND if found else ExitCode.ANSWERED


def _write_text(entry: Entry, arguments: dict[str, Any]) -> int:
    write_answer(entry.load()(**own_arguments(entry, arguments)))
    return ExitCode.ANSWERED


_RUN: Final = {
    "file": _write_file,
    "store": _ask_without_job,
    "cache": _ask_without_job,
    "certificate": _ask_without_job,
    "machine": _ask_without_job,
    "screen": _take_terminal,
    "shell": _take_terminal,
    "runbook": _run_runbook,
    "process": _run_process,
    "running": _follow,
    "nothing": _write_text,
}
"""The runner of a command without a trace, by its needs."""


def status_of(conditions: "Iterable[Condition]", answer: Document) -> int:
    """Return the exit status of an answer: whether `--fail-on` holds, and whether its action succeeded."""
    if any(one.is_met(answer.result) for one in conditions):
        return ExitCode.FOUND
    return int(getattr(answer.result, "exit_status", ExitCode.ANSWERED))


def presenter_of(entry: Entry, arguments: dict[str, Any]) -> Presenter:
    """Return the presenter of the command's answer. Raises UsageError for an unknown field."""
    return Presenter(presentation_of(entry, arguments), entry.load_view, entry.result_type())


def conditions_of(entry: Entry, arguments: dict[str, Any]) -> "tuple[Condition, ...]":
    """Return the conditions of `--fail-on`. Raises UsageError for what the command does not report."""
    wanted = take(FailOn, arguments).fail_on if entry.fails_on else ()
    if not wanted:
        return ()
    from kair_tui.cli.fail_on import parse_conditions  # loads results that other commands do not need

    if arguments.get("method") == "paper":
        raise UsageError("--method paper accuses nobody: no condition of --fail-on can be met", "leave one of them out")
    return parse_conditions(wanted, entry.name)
