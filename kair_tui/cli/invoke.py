"""Runs a command: from its arguments to its answer on stdout and its exit status."""

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from kair_engine.errors import UsageError
from kair_engine.trace.model import Trace
from kair_tui.cli.failures import ExitCode
from kair_tui.cli.job_source import JobWanted, StoreSession, open_job
from kair_tui.cli.notes import Notes
from kair_tui.cli.options import Diagnostics, FailOn, JobChoice, Presentation, StorePlace, own_arguments, take
from kair_tui.cli.places import store_root
from kair_tui.cli.present import Presenter
from kair_tui.cli.registry import Entry
from kair_tui.cli.shared_work import SharedWork
from kair_tui.cli.step_choice import parse_steps
from kair_tui.cli.streams import write_answer
from kair_tui.render.answer import Answer, JobInfo
from kair_tui.render.words.warnings import warnings_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kair_engine.probe.repetitions import Report
    from kair_engine.recording.importing import Progress
    from kair_tui.cli.fail_on import Condition

_OF_SCREEN: Final = (JobChoice, StorePlace, Diagnostics)
"""What the full screen is told besides its own options."""


def invoke(entry: Entry, arguments: dict[str, Any], shared: SharedWork | None = None) -> int:
    """Runs the command with all its arguments, its own and the shared ones; `shared` is left by others before it."""
    if entry.needs == "trace":
        return _analyse(entry, arguments, shared or SharedWork())
    if entry.needs == "store":
        return _ask_store(entry, arguments)
    if entry.needs == "machine":
        return _ask_machine(entry, arguments)
    if entry.needs == "screen":
        wanted = JobWanted(
            **{name: value for group in _OF_SCREEN for name, value in vars(take(group, arguments)).items()}
        )
        return int(entry.load()(wanted, **own_arguments(entry, arguments)))
    if entry.needs == "runbook":
        return int(entry.load()(**own_arguments(entry, arguments)))
    write_answer(entry.load()(**own_arguments(entry, arguments)))
    return ExitCode.ANSWERED


def analysed(entry: Entry, arguments: dict[str, Any], trace: Trace) -> Answer:
    """The answer about `trace`, narrowed to the steps that the arguments choose. Raises KairError."""
    chosen = parse_steps(take(JobChoice, arguments).step).among(trace.job.steps)
    if chosen is not None:
        trace = trace.select(chosen)
    return answer_about(entry, entry.load()(trace, **own_arguments(entry, arguments)), trace)


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


def _analyse(entry: Entry, arguments: dict[str, Any], shared: SharedWork) -> int:
    """Everything that can be wrong with the question is found before the job is opened."""
    began = time.monotonic()
    presenter = _presenter(entry, arguments)
    choice = take(JobChoice, arguments)
    parse_steps(choice.step)
    conditions = _conditions(entry, arguments)
    with presenter.progress_bar() as progress:
        store = take(StorePlace, arguments).store
        opened = partial(open_job, choice.job, store, progress=progress, note=presenter.note)
        trace = shared.trace((choice.job, store), opened)
        asked = {"step": choice.step, **own_arguments(entry, arguments)}
        answer = shared.answer(entry.name, asked, lambda: analysed(entry, arguments, trace))
        answer = replace(answer, notes=Notes.of(trace.job).all())
    presenter.present(answer)
    presenter.detail(f"{trace.job.source}: {time.monotonic() - began:.2f} s")
    return _status(conditions, answer)


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

    return parse_conditions(wanted, entry.name)
