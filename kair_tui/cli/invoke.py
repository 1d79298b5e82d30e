"""Runs a command: from its arguments to its answer on stdout and its exit status.

The baseline of a question: the one that was named, else the one in use.

Whether a cluster works the steps out, and which one.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from kair_engine.errors import UsageError
from kair_engine.results.localize import ChosenBaseline
from kair_engine.trace.model import Trace
from kair_tui.cli.failures import ExitCode
from kair_tui.cli.job import JobWanted, OneEntryCache, StoreSession, blaming_files, open_job, parse_steps, tidy
from kair_tui.cli.options import (
    CACHE,
    PROGRESS,
    BaselineChoice,
    Diagnostics,
    EngineChoice,
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
    takes_cache,
    takes_progress,
)
from kair_tui.cli.output import ProgressBar, Report, say, unwatched, write_answer
from kair_tui.cli.places import is_mirror, store_root
from kair_tui.cli.present import Presenter
from kair_tui.cli.registry import Entry
from kair_tui.render.answer import Answer, JobInfo
from kair_tui.render.text import speaks_unicode
from kair_tui.render.warnings import warnings_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kair_tui.cli.fail_on import Condition
    from kair_tui.cli.output import Watcher


def invoke(entry: Entry, arguments: dict[str, Any]) -> int:
    """Runs the command with all its arguments, its own and the shared ones."""
    if entry.needs == "trace":
        return _analyse(entry, arguments)
    return _RUN[entry.needs](entry, arguments)


def analysed(
    entry: Entry,
    arguments: dict[str, Any],
    trace: Trace,
    *,
    progress: "Report" = unwatched,
    cache: OneEntryCache | None = None,
) -> Answer:
    """The answer about `trace`, narrowed to the steps that the arguments choose. Raises KairError.

    `cache` is where a command leaves what serves the next one.
    """
    own = own_arguments(entry, arguments)
    if takes_progress(entry):
        own[PROGRESS] = progress
    if cache is not None and takes_cache(entry):
        own[CACHE] = cache
    chosen = parse_steps(take(JobChoice, arguments).step).among(trace.job.steps)
    if chosen is not None:
        trace = trace.select(chosen)
    if entry.takes_baseline:
        store = store_root(take(StorePlace, arguments).store)
        baseline = chosen_baseline(take(BaselineChoice, arguments).baseline, store)
        own |= {} if baseline is None else {"baseline": baseline}
    with blaming_files(trace), on_workers(entry, arguments, trace) as given:
        result = entry.load()(given, **own)
    return _with_report(answer_about(entry, result, trace), entry, trace, own)


def _with_report(answer: Answer, entry: Entry, about: Trace | StoreSession, own: dict[str, Any]) -> Answer:
    """The answer with what writes its report, of a command that has one."""
    if not entry.has_report:
        return answer
    return replace(answer, report=lambda: entry.load_markdown()(about, answer.result, own))


def with_notes(answer: Answer, trace: Trace) -> Answer:
    """The answer with what people wrote of its job."""
    from kair_tui.cli.job import Notes  # loads msgspec, which the help of `kair run` does without

    return replace(answer, notes=Notes.of(trace.job).all())


def written_file(entry: Entry, arguments: dict[str, Any], trace: Trace) -> str:
    """What a command that writes a file says of it; `trace` is narrowed to the steps chosen. Raises KairError."""
    chosen = parse_steps(take(JobChoice, arguments).step).among(trace.job.steps)
    with blaming_files(trace):
        told: str = entry.load()(trace if chosen is None else trace.select(chosen), **own_arguments(entry, arguments))
    return told


def answer_about(entry: Entry, result: Any, trace: Trace) -> Answer:  # noqa: ANN401
    """A result with the job that it is about."""
    job = trace.job
    info = JobInfo(job.name, job.source, job.world_size, job.ranks, trace.steps)
    return Answer(entry.name, result, info, warnings_in_words(job.warnings, getattr(result, "warnings", ())))


def ask_store(entry: Entry, arguments: dict[str, Any], progress: "Watcher") -> Answer:
    """The answer of a command about the store. Raises KairError."""
    from kair_engine.store.jobs import Store

    tidy(take(StorePlace, arguments).store)
    root = store_root(take(StorePlace, arguments).store)
    if is_mirror(root):
        from kair_engine.store.remote import fetch_jobs

        fetch_jobs(root)
    session = StoreSession(Store(root), progress)
    own = own_arguments(entry, arguments)
    result = entry.load()(session, **own)
    answer = Answer(entry.name, result, None, warnings_in_words(getattr(result, "warnings", ())))
    return _with_report(answer, entry, session, own)


def ask_cache(entry: Entry, arguments: dict[str, Any]) -> Answer:
    """The answer of a command about the cache. Raises KairError."""
    result = entry.load()(**own_arguments(entry, arguments))
    return Answer(entry.name, result, None, warnings_in_words(result.warnings))


def ask_machine(entry: Entry, arguments: dict[str, Any], report: "Report") -> Answer:
    """The answer of a command about this machine. Raises KairError."""
    result = entry.load()(report, **own_arguments(entry, arguments))
    return Answer(entry.name, result, None, warnings_in_words(result.warnings))


def _analyse(entry: Entry, arguments: dict[str, Any]) -> int:
    """Everything that can be wrong with the question is found before the job is opened."""
    began = time.monotonic()
    presenter = presenter_of(entry, arguments)
    choice = take(FilesOfJob, arguments)
    parse_steps(choice.step)
    tidy(take(StorePlace, arguments).store)
    conditions = conditions_of(entry, arguments)
    with presenter.progress_bar() as progress:
        trace = open_job(
            choice.job,
            take(StorePlace, arguments).store,
            progress=progress,
            note=presenter.note,
            files=choice.files,
            reads_history=entry.reads_history,
        )
        answer = with_notes(analysed(entry, arguments, trace, progress=progress), trace)
    presenter.present(answer)
    if any(one.rests_on_estimates(answer.result) for one in conditions):
        presenter.note(
            "--fail-on slowdown is met by an estimate: no replay could price the finding, it costs at most that"
        )
    presenter.detail(f"{trace.job.source}: {time.monotonic() - began:.2f} s")
    return status_of(conditions, answer)


def _write_file(entry: Entry, arguments: dict[str, Any]) -> int:
    choice, quiet = take(FilesOfJob, arguments), take(PresentationOfFile, arguments).quiet
    parse_steps(choice.step)

    def note(text: str) -> None:
        if not quiet:
            say(f"kair: {text}")

    with ProgressBar(quiet=quiet, ascii_only=not speaks_unicode(sys.stderr), no_color=False) as progress:
        store = take(StorePlace, arguments).store
        trace = open_job(choice.job, store, progress=progress, note=note, files=choice.files)
        written = written_file(entry, arguments, trace)
    write_answer(written)
    for warning in warnings_in_words(trace.job.warnings):
        note(f"warning: {warning.message}")
    return ExitCode.ANSWERED


def _ask_store(entry: Entry, arguments: dict[str, Any]) -> int:
    presenter = presenter_of(entry, arguments)
    with presenter.progress_bar() as progress:
        presenter.present(ask_store(entry, arguments, progress))
    presenter.detail(f"store {store_root(take(StorePlace, arguments).store)}")
    return ExitCode.ANSWERED


def _ask_machine(entry: Entry, arguments: dict[str, Any]) -> int:
    presenter = presenter_of(entry, arguments)
    conditions = conditions_of(entry, arguments)
    if conditions and not arguments["compare"]:
        raise UsageError("--fail-on needs --compare", "kair probe --compare SUSPECT.json PEER.json --fail-on slower")
    with presenter.progress_bar() as progress:
        answer = ask_machine(entry, arguments, progress)
    presenter.present(answer)
    return status_of(conditions, answer)


def _ask_cache(entry: Entry, arguments: dict[str, Any]) -> int:
    presenter_of(entry, arguments).present(ask_cache(entry, arguments))
    return ExitCode.ANSWERED


def _take_terminal(entry: Entry, arguments: dict[str, Any]) -> int:
    return int(entry.load()(_wanted(arguments), **own_arguments(entry, arguments)))


def _run_runbook(entry: Entry, arguments: dict[str, Any]) -> int:
    """A runbook tells its answers as they come; as one document when it is through."""
    presenter = presenter_of(entry, arguments)
    presentation = take(Presentation, arguments)
    result = entry.load()(_wanted(arguments), presentation, **own_arguments(entry, arguments))
    if presentation.format not in ("table", "wide", "tree"):
        presenter.present(Answer(entry.name, result, None, ()))
    return int(result.status)


def _wanted(arguments: dict[str, Any]) -> JobWanted:
    shared = (take(group, arguments) for group in (FilesOfJob, StorePlace, Diagnostics))
    return JobWanted(**{name: value for group in shared for name, value in vars(group).items()})


def _run_process(entry: Entry, arguments: dict[str, Any]) -> int:
    return int(entry.load()(store_root(take(StorePlace, arguments).store), **own_arguments(entry, arguments)))


def _follow(entry: Entry, arguments: dict[str, Any]) -> int:
    from kair_tui.cli.present import follow

    presenter, conditions = presenter_of(entry, arguments), conditions_of(entry, arguments)
    store, own = store_root(take(StorePlace, arguments).store), own_arguments(entry, arguments)
    found = follow(
        lambda: Answer(entry.name, entry.load()(store, **own), None, ()),
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
    "store": _ask_store,
    "cache": _ask_cache,
    "machine": _ask_machine,
    "screen": _take_terminal,
    "shell": _take_terminal,
    "runbook": _run_runbook,
    "process": _run_process,
    "running": _follow,
    "nothing": _write_text,
}
"""What runs a command that is not about a trace, by what it needs."""


def status_of(conditions: "Iterable[Condition]", answer: Answer) -> int:
    """The exit status of an answer: whether `--fail-on` found what it names, and what it asked for was done."""
    if any(one.is_met(answer.result) for one in conditions):
        return ExitCode.FOUND
    return int(getattr(answer.result, "exit_status", ExitCode.ANSWERED))


def presenter_of(entry: Entry, arguments: dict[str, Any]) -> Presenter:
    """How the command's answer is written. Raises UsageError for a field that it does not have."""
    result_type = get_type_hints(entry.load())["return"]
    return Presenter(presentation_of(entry, arguments), entry.load_view, result_type)


def conditions_of(entry: Entry, arguments: dict[str, Any]) -> "tuple[Condition, ...]":
    """What `--fail-on` names. Raises UsageError for what the command does not report."""
    wanted = take(FailOn, arguments).fail_on if entry.fails_on else ()
    if not wanted:
        return ()
    from kair_tui.cli.fail_on import parse_conditions  # loads results that other commands do without

    if arguments.get("method") == "paper":
        raise UsageError("--method paper accuses nobody: no condition of --fail-on can be met", "leave one of them out")
    return parse_conditions(wanted, entry.name)


def chosen_baseline(wanted: str | None, store: Path) -> ChosenBaseline | None:
    """None where none is wanted (`none`), or none is named and none in use. Raises UsageError for an unknown one."""
    if wanted == "none" or (wanted is None and not (store / ".baseline").exists()):
        return None
    from kair_engine.baselines import Baselines  # loads NumPy and msgspec

    kept = Baselines(store)
    name = wanted or kept.current()
    return None if name is None else ChosenBaseline(name, kept.load(name), named=wanted is not None)


_ADDRESS: Final = "DASK_SCHEDULER_ADDRESS"


@contextmanager
def on_workers(entry: Entry, arguments: dict[str, Any], trace: Trace) -> Iterator[Trace]:
    """The trace, with the cluster that was asked for; it is left again in the end.

    Raises UsageError where none is named, or one that is not asked.
    """
    chosen = take(EngineChoice, arguments) if entry.on_workers else EngineChoice()
    if chosen.engine == "local":
        if chosen.scheduler is not None:
            raise UsageError("--scheduler belongs to --engine dask")
        yield trace
        return
    if arguments.get("method") == "paper":
        raise UsageError("--method paper works in this process alone: --engine dask belongs to the robust method")
    address = chosen.scheduler or os.environ.get(_ADDRESS)
    if not address:
        raise UsageError("--engine dask needs a cluster", f"--scheduler tcp://HOST:8786, or ${_ADDRESS}")
    from kair_engine.dask_workers import DaskWorkers

    with closing(DaskWorkers(address)) as workers:
        yield replace(trace, workers=workers)
