"""Runs a command: from its arguments to its answer on stdout and its exit status."""

import sys
import time
from typing import TYPE_CHECKING, Any, get_type_hints

from kair_engine.errors import UsageError
from kair_engine.trace.model import Trace
from kair_tui.cli.baseline_choice import chosen_baseline
from kair_tui.cli.failures import ExitCode
from kair_tui.cli.job_source import JobWanted, StoreSession, open_job
from kair_tui.cli.options import (
    BaselineChoice,
    FailOn,
    JobChoice,
    Presentation,
    PresentationOfFile,
    StorePlace,
    own_arguments,
    take,
)
from kair_tui.cli.places import store_root
from kair_tui.cli.present import Presenter
from kair_tui.cli.progress import ProgressBar
from kair_tui.cli.registry import Entry
from kair_tui.cli.step_choice import parse_steps
from kair_tui.cli.streams import say, write_answer
from kair_tui.render.answer import Answer, JobInfo
from kair_tui.render.text import speaks_unicode
from kair_tui.render.words.warnings import warnings_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kair_engine.probe.repetitions import Report
    from kair_engine.recording.importing import Progress
    from kair_tui.cli.fail_on import Condition


def invoke(entry: Entry, arguments: dict[str, Any]) -> int:
    """Runs the command with all its arguments, its own and the shared ones."""
    if entry.needs == "trace":
        return _analyse(entry, arguments)
    if entry.needs == "file":
        return _write_file(entry, arguments)
    if entry.needs == "store":
        return _ask_store(entry, arguments)
    if entry.needs == "machine":
        return _ask_machine(entry, arguments)
    if entry.needs == "screen":
        wanted = JobWanted(**vars(take(JobChoice, arguments)), **vars(take(StorePlace, arguments)))
        return int(entry.load()(wanted, **own_arguments(entry, arguments)))
    write_answer(entry.load()(**own_arguments(entry, arguments)))
    return ExitCode.ANSWERED


def analysed(entry: Entry, arguments: dict[str, Any], trace: Trace) -> Answer:
    """The answer about `trace`, narrowed to the steps that the arguments choose. Raises KairError."""
    chosen = parse_steps(take(JobChoice, arguments).step).among(trace.job.steps)
    if chosen is not None:
        trace = trace.select(chosen)
    own = own_arguments(entry, arguments)
    if entry.takes_baseline:
        store = store_root(take(StorePlace, arguments).store)
        baseline = chosen_baseline(take(BaselineChoice, arguments).baseline, store)
        own |= {} if baseline is None else {"baseline": baseline}
    return answer_about(entry, entry.load()(trace, **own), trace)


def written_file(entry: Entry, arguments: dict[str, Any], trace: Trace) -> str:
    """What a command that writes a file says of it; `trace` is narrowed to the steps chosen. Raises KairError."""
    chosen = parse_steps(take(JobChoice, arguments).step).among(trace.job.steps)
    told: str = entry.load()(trace if chosen is None else trace.select(chosen), **own_arguments(entry, arguments))
    return told


def answer_about(entry: Entry, result: Any, trace: Trace) -> Answer:  # noqa: ANN401
    """A result with the job that it is about."""
    job = trace.job
    info = JobInfo(job.name, job.source, job.world_size, job.ranks, trace.steps)
    return Answer(entry.name, result, info, warnings_in_words(job.warnings, getattr(result, "warnings", ())))


def ask_store(entry: Entry, arguments: dict[str, Any], progress: "Progress") -> Answer:
    """The answer of a command about the store. Raises KairError."""
    from kair_engine.store.jobs import Store

    session = StoreSession(Store(store_root(take(StorePlace, arguments).store)), progress)
    result = entry.load()(session, **own_arguments(entry, arguments))
    return Answer(entry.name, result, None, warnings_in_words(getattr(result, "warnings", ())))


def ask_machine(entry: Entry, arguments: dict[str, Any], report: "Report") -> Answer:
    """The answer of a command about this machine. Raises KairError."""
    result = entry.load()(report, **own_arguments(entry, arguments))
    return Answer(entry.name, result, None, warnings_in_words(result.warnings))


def _analyse(entry: Entry, arguments: dict[str, Any]) -> int:
    """Everything that can be wrong with the question is found before the job is opened."""
    began = time.monotonic()
    presenter = _presenter(entry, arguments)
    choice = take(JobChoice, arguments)
    parse_steps(choice.step)
    conditions = _conditions(entry, arguments)
    with presenter.progress_bar() as progress:
        trace = open_job(choice.job, take(StorePlace, arguments).store, progress=progress, note=presenter.note)
        answer = analysed(entry, arguments, trace)
    presenter.present(answer)
    presenter.detail(f"{trace.job.source}: {time.monotonic() - began:.2f} s")
    return _status(conditions, answer)


def _write_file(entry: Entry, arguments: dict[str, Any]) -> int:
    choice, quiet = take(JobChoice, arguments), take(PresentationOfFile, arguments).quiet
    parse_steps(choice.step)

    def note(text: str) -> None:
        if not quiet:
            say(f"kair: {text}")

    with ProgressBar(quiet=quiet, ascii_only=not speaks_unicode(sys.stderr), no_color=False) as progress:
        trace = open_job(choice.job, take(StorePlace, arguments).store, progress=progress, note=note)
        written = written_file(entry, arguments, trace)
    write_answer(written)
    for warning in warnings_in_words(trace.job.warnings):
        note(f"warning: {warning.message}")
    return ExitCode.ANSWERED


def _ask_store(entry: Entry, arguments: dict[str, Any]) -> int:
    presenter = _presenter(entry, arguments)
    with presenter.progress_bar() as progress:
        presenter.present(ask_store(entry, arguments, progress))
    presenter.detail(f"store {store_root(take(StorePlace, arguments).store)}")
    return ExitCode.ANSWERED


def _ask_machine(entry: Entry, arguments: dict[str, Any]) -> int:
    presenter = _presenter(entry, arguments)
    conditions = _conditions(entry, arguments)
    if conditions and not arguments["compare"]:
        raise UsageError("--fail-on needs --compare", "kair probe --compare SUSPECT.json PEER.json --fail-on slower")
    with presenter.progress_bar() as progress:
        answer = ask_machine(entry, arguments, progress)
    presenter.present(answer)
    return _status(conditions, answer)


def _status(conditions: "Iterable[Condition]", answer: Answer) -> int:
    return ExitCode.FOUND if any(one.is_met(answer.result) for one in conditions) else ExitCode.ANSWERED


def _presenter(entry: Entry, arguments: dict[str, Any]) -> Presenter:
    result_type = get_type_hints(entry.load())["return"]
    return Presenter(take(Presentation, arguments), entry.load_view, result_type)


def _conditions(entry: Entry, arguments: dict[str, Any]) -> "tuple[Condition, ...]":
    wanted = take(FailOn, arguments).fail_on if entry.fails_on else ()
    if not wanted:
        return ()
    from kair_tui.cli.fail_on import parse_conditions  # loads results that other commands do without

    if arguments.get("method") == "paper":
        raise UsageError("--method paper accuses nobody: no condition of --fail-on can be met", "leave one of them out")
    return parse_conditions(wanted, entry.name)
