"""Answers commands for all faces: arguments become a question, the session answers it, and words are added."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kair.app.jobs import JobSource
from kair.app.question import Answer, Question, Watcher, unwatched
from kair.app.session import Session
from kair.app.step_choice import parse_steps
from kair.app.stores import OpenStore
from kair_engine.frozen import dataclass
from kair_tui.cli.options import BaselineChoice, JobChoice, own_arguments, take, workers_of
from kair_tui.cli.registry import Entry, find
from kair_tui.render.answer import Document, JobInfo
from kair_tui.render.warnings import warnings_in_words

if TYPE_CHECKING:
    from kair_engine.trace.model import Trace


def open_session(
    job: str | Path | JobSource | None,
    *,
    store: Path | None = None,
    progress: Watcher = unwatched,
    remembers: bool = True,
) -> Session:
    """Open a job whose answers are in words. Raises InputError if it is missing or unreadable."""
    return Session.open(job, store=store, progress=progress, remembers=remembers, in_words=in_words)


def in_words(answer: Answer) -> Answer:
    """Return the answer with its result in words."""
    entry = find(answer.question.command)
    words = None if entry is None else entry.load_words()
    return answer if words is None else answer.with_result(words(answer))


def shown(answer: Answer) -> Document:
    """Return an answer as a document for the output formats."""
    job = answer.job
    about = None if job is None else JobInfo(job.name, job.source, job.world_size, job.ranks, answer.steps)
    warnings = warnings_in_words(answer.warnings)
    return Document(answer.question.command, answer.result, about, warnings, answer.notes)


@dataclass(frozen=True)
class Asker:
    """Asks questions about the steps, against the baseline and on the workers that a command line chose."""

    session: Session
    steps: tuple[int, ...] | None = None
    baseline: str | None = None
    workers: str | None = None

    @classmethod
    def of(cls, entry: Entry, arguments: dict[str, Any], session: Session) -> "Asker":
        """Take the shared options of a command. Raises UsageError for invalid ones."""
        steps = session.chosen(parse_steps(take(JobChoice, arguments).step))
        baseline = take(BaselineChoice, arguments).baseline if entry.takes_baseline else None
        return cls(session, steps, baseline, workers_of(entry, arguments))

    @property
    def trace(self) -> "Trace":
        """The trace of the chosen steps."""
        return self.session.narrowed(self.steps)

    def question(self, question: Question) -> Question:
        """Return the question with the chosen steps, baseline and workers."""
        return replace(question, steps=self.steps, baseline=self.baseline, workers=self.workers)

    def ask(self, question: Question) -> Answer:
        """Answer a question about the choice. Raises KairError."""
        return self.session.ask(self.question(question))


def answer_of_job(entry: Entry, arguments: dict[str, Any], session: Session) -> Document:
    """Answer a command about a job, write its files, and keep reusable results.

    Raises KairError.
    """
    asker, own = Asker.of(entry, arguments, session), own_arguments(entry, arguments)
    if not entry.asks:
        job = session.trace.job
        result = entry.load()(asker, **own)
        about = JobInfo(job.name, job.source, job.world_size, job.ranks, asker.trace.steps)
        return Document(
            entry.name, result, about, warnings_in_words(job.warnings, result.warnings), session.notes.all()
        )
    answer = asked_of_job(entry, arguments, session)
    return _with_report(shown(answer), entry, partial(entry.load_markdown, asker, answer, own))


def asked_of_job(entry: Entry, arguments: dict[str, Any], session: Session) -> Answer:
    """Return the answer to a command that asks about a job; its files are written and reusable results kept.

    Raises KairError.
    """
    asker, own = Asker.of(entry, arguments, session), own_arguments(entry, arguments)
    answer = asker.ask(entry.load()(**own))
    if (finish := entry.load_finish()) is not None:
        finish(asker, answer, own)
    session.keep(answer)
    return answer


def answer_of_store(entry: Entry, arguments: dict[str, Any], store: OpenStore) -> Document:
    """Answer a command about the store. Raises KairError."""
    own = own_arguments(entry, arguments)
    if entry.asks:
        answer = store.ask(entry.load()(**own))
        store.keep(answer)
        return shown(answer)
    result = entry.load()(store, **own)
    return _with_report(done(entry, result), entry, partial(entry.load_markdown, store, result, own))


def done(entry: Entry, result: Any) -> Document:  # noqa: ANN401
    """Return the answer of a command without a job, given its result."""
    return Document(entry.name, result, None, warnings_in_words(getattr(result, "warnings", ())))


def _with_report(answer: Document, entry: Entry, write: Callable[[], str]) -> Document:
    """Return the answer with a function that writes its report, if the command has one."""
    return replace(answer, report=write) if entry.has_report else answer
