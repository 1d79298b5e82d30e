"""What the mitigation screen asks in threads: where a job stands, what a sample takes, what becomes of an order."""

import time
from collections.abc import Callable
from pathlib import Path

from textual.message import Message

from kair.app.places import store_root
from kair.app.question import Question
from kair.app.stores import OpenStore
from kair_engine.results.mitigate import MitigateResult, RankRate
from kair_tui.commands.mitigate_status import look, mitigated_jobs, rates
from kair_tui.tui.question import answer_of_store, line_of


class Looked(Message, bubble=False):
    """What a thread saw of a job, or the error that came instead."""

    def __init__(
        self,
        at: float,
        job: str | None,
        jobs: tuple[str, ...],
        result: MitigateResult | None,
        error: BaseException | None,
        *,
        done: str = "",
    ) -> None:
        """`at` is before the look, or after the order that it follows, whose success `done` tells."""
        super().__init__()
        self.at, self.job, self.jobs, self.result, self.error, self.done = at, job, jobs, result, error, done


class Rated(Message, bubble=False):
    """What a sample takes on each rank of a job, and how long it took to find out."""

    def __init__(self, job: str, of: tuple[RankRate, ...], error: BaseException | None, took_s: float) -> None:
        super().__init__()
        self.job, self.of, self.error, self.took_s = job, of, error, took_s


def looked(folder: Path | None, job: str | None, jobs: tuple[str, ...]) -> Looked:
    """Return where the job stands, or whichever said something last; `jobs` of the store are not looked for again."""
    began, result, caught = time.monotonic(), None, None
    try:
        store = OpenStore(store_root(folder))
        jobs = jobs or mitigated_jobs(store.root)
        job = job or next(iter(jobs), None)
        result = None if job is None else look(store, job)
    except Exception as error:
        caught = error
    return Looked(began, job, jobs, result, caught)


def rated(folder: Path | None, job: str) -> Rated:
    """Apart from the rest, which is not to wait: it takes the longer the more steps there are."""
    began, caught = time.monotonic(), None
    of: tuple[RankRate, ...] = ()
    try:
        of = rates(OpenStore(store_root(folder)), job)
    except Exception as error:
        caught = error
    return Rated(job, of, caught, time.monotonic() - began)


def ordered(
    question: Question,
    folder: Path | None,
    job: str | None,
    jobs: tuple[str, ...],
    *,
    record: Callable[[str], None],
    done: str,
) -> Looked:
    """Return where the job stands after an order, whose command `record` is given."""
    result, caught = None, None
    try:
        result = answer_of_store(question, folder).result
        record(line_of(question, "", folder))
    except Exception as error:
        caught = error
    return Looked(time.monotonic(), job, jobs, result, caught, done=done)
