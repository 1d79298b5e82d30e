"""Defines the records that every face and the session exchange: questions and answers."""

import os
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args, get_origin

from kair_engine.errors import UsageError
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank

if TYPE_CHECKING:
    from kair.app.remembered import OneEntryCache
    from kair_engine.results.localize import ChosenBaseline
    from kair_engine.trace.model import ImportOutcome, Job, KairWarning, Trace

READ_ONLY: Final = "KAIR_READ_ONLY"
"""The variable that makes `keep` write nothing."""
ANSWERED_BY: Final = {
    "triage": "kair.app.investigate:triage",
    "localize": "kair.app.answers.stages:localize",
    "pinpoint": "kair.app.answers.stages:pinpoint",
    "blame": "kair.app.answers.stages:blame",
    "whatif": "kair.app.answers.whatif:whatif",
    "rank": "kair.app.answers.looks:rank",
    "sensitivity": "kair.app.answers.looks:sensitivity",
    "forecast": "kair.app.answers.looks:forecast",
    "frequency": "kair.app.answers.looks:frequency",
    "operators": "kair.app.answers.looks:operators",
    "collectives": "kair.app.answers.looks:collectives",
    "timeline": "kair.app.answers.timeline:timeline",
    "steps": "kair.app.answers.looks:steps",
    "info": "kair.app.answers.looks:info",
    "query": "kair.app.answers.query:query",
    "windows": "kair.app.answers.windows:windows",
    "mitigate": "kair.app.answers.mitigate:mitigate",
    "confirm": "kair.app.answers.confirm:confirm",
    "lateness": "kair.app.answers.looks:lateness",
    "evidence": "kair.app.answers.evidence:evidence",
    "compare": "kair.app.answers.stores:compare",
    "ledger": "kair.app.answers.stores:ledger",
    "jobs": "kair.app.answers.stores:jobs",
    "fleet": "kair.app.answers.stores:fleet",
    "baseline": "kair.app.answers.stores:baseline",
}
"""Question → the function that answers it.

It takes a `Given` (of questions about the store an `OpenStore`) and the arguments, and returns the result, or a pair of
it and of what writes what is worth keeping.
"""


ABOUT_STORE: Final = frozenset({"compare", "ledger", "jobs", "fleet", "baseline"})
"""Questions that `OpenStore` answers; `Session` answers the others."""


BY_HISTORY: Final = frozenset({"triage", "steps", "info", "lateness", "forecast", "evidence", "mitigate", "confirm"})
"""Questions that recorded steps of a captured job can answer where none is sampled."""


BY_COLLECTIVES: Final = frozenset({"triage", "steps", "info", "lateness", "forecast"})
"""Questions that logs of NCCL's Inspector can answer."""


BY_LOG: Final = frozenset({"triage", "steps", "info"})
"""Questions that a job's log can answer where nothing was recorded."""


@dataclass(frozen=True)
class Question:
    """States one question about a job; equal questions have equal answers while the data stay the same."""

    command: str
    """A name of `ANSWERED_BY`, or of a command about the store."""
    arguments: tuple[tuple[str, Any], ...] = ()
    """Its options by the names of the answering function's parameters; lists are tuples."""
    steps: tuple[int, ...] | None = None
    """Only these steps; None for all."""
    baseline: str | None = None
    """The name of a baseline, `none` for none; None for the one in use."""
    workers: str | None = None
    """The address of a Dask cluster that works the steps out; None for this process."""

    @classmethod
    def of(cls, command: str, steps: tuple[int, ...] | None = None, **arguments: Any) -> "Question":  # noqa: ANN401
        """Return a question; arguments that are None, False or empty keep their defaults."""
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
        stated = ((name, value) for name, value in given.items() if value is not None and value is not False)
        return cls(command, tuple((name, value) for name, value in stated if value != ()), steps)

    def argument(self, name: str) -> Any:  # noqa: ANN401
        """Return an argument's stated value; None if it was not stated."""
        return dict(self.arguments).get(name)


def answering(command: str) -> Callable[..., Any]:
    """Return the function that answers a question. Raises UsageError for an unknown name."""
    if command not in ANSWERED_BY:
        raise UsageError(f"no such question {command!r}", f"there are {', '.join(ANSWERED_BY)}")
    module, _, function = ANSWERED_BY[command].partition(":")
    answers: Callable[..., Any] = getattr(import_module(module), function)
    return answers


def result_type(command: str) -> type[Any]:
    """Return the class of a question's result. Raises UsageError for an unknown question."""
    kind: type[Any] = answering(command).__annotations__["return"]
    return get_args(kind)[0] if get_origin(kind) is tuple else kind


Writes = Callable[[Any], None] | None
"""What writes the part of a result that is worth keeping, as it is shown; None where nothing is."""


def answered(question: Question, given: Any) -> tuple[Any, Writes]:  # noqa: ANN401
    """Return the result, and a function that keeps it. Raises what the question raises (KairError).

    Raises UsageError for a question about the store that is asked of a job.
    """
    if question.command in ABOUT_STORE and isinstance(given, Given):
        raise UsageError(f"{question.command} is a question about the store", f"kair {question.command}")
    found = answering(question.command)(given, **dict(question.arguments))
    return found if isinstance(found, tuple) else (found, None)


def unchanged(answer: "Answer") -> "Answer":
    """Return an answer as the engine gave it, without sentences."""
    return answer


class Watcher(Protocol):
    """Receives the progress of long work, such as reading files."""

    def __call__(self, done: int, total: int, what: str, outcome: "ImportOutcome | None" = None) -> None:
        """Receive that `done` of `total` parts are finished, the last of them `what`, with a file's result."""


def unwatched(done: int, total: int, what: str, outcome: "ImportOutcome | None" = None) -> None:
    """Ignore all progress."""


@dataclass(frozen=True)
class Given:
    """Holds what an answering function uses in addition to the question's arguments."""

    trace: "Trace"
    """Narrowed to the question's steps."""
    baseline: "ChosenBaseline | None" = None
    progress: Watcher = unwatched
    cache: "OneEntryCache | None" = None
    """Where a face that asks again keeps what serves the next question; None where nothing is kept in memory."""

    def require_rank(self, rank: Rank | None) -> None:
        """Raise UsageError for a rank that left no trace; None is allowed."""
        from kair_engine.trace.model import require_rank

        if rank is not None:
            require_rank(self.trace, rank)


InWords = Callable[["Answer"], "Answer"]
"""What a face makes of an answer before it shows it."""


@dataclass(frozen=True)
class Note:
    """Holds a person's note on something in the job, written on the full screen."""

    text: str
    """A sentence for people."""
    about: str
    """What was under the cursor."""
    screen: str
    """Where that is seen."""
    written_at: str
    """UTC, ISO 8601."""
    rank: int | None = None
    """Its number in the job."""
    operator: str | None = None
    """Its name in the recording; null where no single one can be named."""
    step: int | None = None
    """Its number in the recording."""
    steps: tuple[int, ...] | None = None
    """The steps that were chosen; null for all."""
    at_us: float | None = None
    """The moment on a timeline."""


@dataclass(frozen=True)
class Answer:
    """Holds a question's result, and what is worth keeping of it."""

    question: Question
    result: Any
    job: "Job | None"
    """None of a question about the store."""
    steps: tuple[int, ...] = ()
    """The steps that were analysed."""
    warnings: "tuple[KairWarning, ...]" = ()
    """Of the job, then of the result."""
    notes: tuple[Note, ...] = ()
    """Of the job, whatever was asked."""
    writes: Writes = field(default=None, compare=False)
    """Writes what of it is worth keeping, given the result as it is shown; only `keep` calls it."""

    def with_result(self, result: Any) -> "Answer":  # noqa: ANN401
        """Return the answer with another result."""
        return replace(self, result=result)


def write(answer: Answer) -> None:
    """Write the part of an answer that is worth keeping, unless $KAIR_READ_ONLY is set."""
    if answer.writes is not None and not is_read_only():
        answer.writes(answer.result)


def is_read_only() -> bool:
    """Return whether $KAIR_READ_ONLY forbids writing."""
    return bool(os.environ.get(READ_ONLY))


def warnings_of(result: Any) -> "Sequence[KairWarning]":  # noqa: ANN401
    """Return the warnings of a result; none if it has no such field."""
    found: Sequence[KairWarning] = getattr(result, "warnings", ())
    return found
