"""The mitigation screen's work in threads: a job's state, and the outcome of an order."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kair.app.places import store_root
from kair.app.question import Question
from kair.app.stores import OpenStore
from kair_engine.results.mitigate import MitigateResult
from kair_tui.commands.mitigate_status import look, mitigated_jobs
from kair_tui.tui.question import answer_of_store, line_of


@dataclass(frozen=True)
class Looked:
    """A job's state as seen by a thread, or the error."""

    at: float
    """Before the look, or after the preceding order."""
    job: str | None
    jobs: tuple[str, ...]
    """The store's jobs under kair mitigate."""
    result: MitigateResult | None = None
    error: Exception | None = None
    done: str = ""
    """The message of an order that succeeds."""


def looked(folder: Path | None, job: str | None, jobs: tuple[str, ...]) -> Looked:
    """Return the job's state, or that of the latest active one; known `jobs` of the store are not searched again."""
    began = time.monotonic()
    try:
        store = OpenStore(store_root(folder))
        jobs = jobs or mitigated_jobs(store.root)
        job = job or next(iter(jobs), None)
        return Looked(began, job, jobs, None if job is None else look(store, job))
    except Exception as error:
        return Looked(began, job, jobs, error=error)


def ordered(
    question: Question,
    folder: Path | None,
    job: str | None,
    jobs: tuple[str, ...],
    *,
    record: Callable[[str], None],
    done: str,
) -> Looked:
    """Return the job's state after an order, whose command goes to `record`."""
    try:
        result = answer_of_store(question, folder).result
        record(line_of(question, "", folder))
    except Exception as error:
        return Looked(time.monotonic(), job, jobs, error=error, done=done)
    return Looked(time.monotonic(), job, jobs, result, done=done)
