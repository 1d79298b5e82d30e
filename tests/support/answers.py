"""Each recording parsed once per run of the tests, and each analysis of one computed once.

What a test asks still takes the product's whole way: its arguments are read, its job is opened, its answer is drawn.
Only the analysis in the middle is not repeated for a job, steps and options that it was asked about before, and it
reads the job's steps once.
"""

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from fcntl import LOCK_EX, lockf
from functools import cache, lru_cache, wraps
from hashlib import sha256
from importlib import import_module
from inspect import signature
from pathlib import Path
from threading import get_ident
from typing import Any, TypeVar

import pytest

from kair.app import question
from kair_engine.recording.opening import open_trace
from kair_engine.results.triage import TriageResult
from kair_engine.trace.batches import StepMemory, keeping_steps
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage

Answer = TypeVar("Answer")

PLACE = "KAIR_TESTS_CACHE"
"""The variable with the folder of parsed traces, which all processes of a run of the tests inherit."""

_ANALYSES = ("triage.analysis.triage", "localize.analysis.localize", "blame.analysis.blame")
"""Of the engine: what commands ask, and tests that need no command."""
_answers: dict[str, object] = {}


def shared_cache() -> Path:
    """Where the run's parsed traces are; content decides which one is found, so that no test sees another's."""
    return Path(os.environ[PLACE])


@cache
def recorded(source: Path) -> Trace:
    """The trace of a recording that no test changes; its steps are read once, as they are for a session's questions."""
    return keeping_steps(open_trace(source, cache=shared_cache()))


@cache
def triaged(source: Path) -> TriageResult:
    """Its triage."""
    return once(triage)(recorded(source))


@contextmanager
def answered_once() -> Iterator[None]:
    """Lets every question know what it was asked before. Not for tests that change what an analysis does."""
    find = question.answering

    def stand_in(command: str) -> Callable[..., Any]:
        return find(command) if command in question.ABOUT_STORE else once_given(find(command))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(question, "answering", stand_in)
        for name in _ANALYSES:
            module, _, function = f"kair_engine.{name}".rpartition(".")
            patch.setattr(import_module(module), function, once(getattr(import_module(module), function)))
        yield


def once_given(run: Callable[..., Answer]) -> Callable[..., Answer]:
    """The same of a function that answers a question; who watches how far it is changes nothing in an answer."""

    @wraps(run)
    def answer(given: question.Given, **options: object) -> Answer:
        # A stored job has more beside its recording, which changes.
        if given.trace.job.stored_in is not None or given.baseline is not None:
            return run(given, **options)
        # Nor does what is left for the next question, but of a timeline: its screen looks for that.
        cache = given.cache if run.__name__ == "timeline" else None

        def ask(trace: Trace, **options: object) -> Answer:
            return run(replace(given, trace=trace), **options)

        ask.__module__, ask.__qualname__ = run.__module__, run.__qualname__
        ask.__signature__ = signature(run)  # type: ignore[attr-defined]
        return once(ask)(given.trace, **options) if cache is None else run(given, **options)

    return answer


def once(run: Callable[..., Answer]) -> Callable[..., Answer]:
    """An analysis of a trace that knows what it was asked before, be it by another process."""

    @wraps(run)
    def answer(trace: Trace, *arguments: object, **options: object) -> Answer:
        # A stored job keeps its verdict, and a timeline goes to a file: those are written each time.
        if trace.job.stored_in is not None or any(isinstance(value, Path) for value in options.values()):
            return run(trace, *arguments, **options)
        # A screen leaves out what a command line has at its default.
        given = signature(run).bind(trace, *arguments, **options)
        given.apply_defaults()
        name = f"{run.__module__}.{run.__qualname__}"
        asked = (name, trace.job.source, trace.steps, _content(trace), given.args[1:], given.kwargs)
        about = repr(asked)
        if about not in _answers:
            _answers[about] = shared(about, lambda: run(_remembered(trace), *arguments, **options))
        known: Answer = _answers[about]  # type: ignore[assignment]  # it is what this one was asked
        return known

    return answer


def _remembered(trace: Trace) -> Trace:
    """The trace with the steps that an earlier question read, as a session of `kair shell` has them."""
    kept = keeping_steps(trace)
    if trace.memory is not None or trace.workers is not None or kept.memory is None:
        return trace
    return replace(trace, memory=_steps_of(repr((trace.job, trace.only, _content(trace)))))


@lru_cache(maxsize=16)
def _steps_of(_job: str) -> StepMemory:
    return StepMemory()


def shared(question: str, answer: Callable[[], Answer]) -> Answer:
    """What another process of this run has worked out, or else works it out for all of them."""
    folder = shared_cache() / "answers"
    folder.mkdir(exist_ok=True)
    kept = folder / sha256(question.encode()).hexdigest()
    # Processes that ask the same wait for the first one; threads of a process do not.
    with kept.with_suffix(".lock").open("w") as asked:
        with suppress(OSError):  # each would wait for the other: then both work it out
            lockf(asked, LOCK_EX)
        if kept.exists():
            said: Answer = pickle.loads(kept.read_bytes())
            return said
        said = answer()
        beside = kept.with_suffix(f".{os.getpid()}.{get_ident()}")
        beside.write_bytes(pickle.dumps(said))
        beside.replace(kept)
        return said


def _content(trace: Trace) -> tuple[object, ...]:
    return tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in trace.fragments)
