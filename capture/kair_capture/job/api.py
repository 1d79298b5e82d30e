"""Defines the calls for training scripts: start, step, samples, scopes, stop. They never raise."""

import importlib.util
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

from kair_capture.job.failing import warn
from kair_capture.job.recorder import clock
from kair_capture.job.session import Session, current
from kair_capture.settings import Settings, SettingsError, settings_of


def start(job: str | None = None) -> None:
    """Start capture in this process, for the job of that name (else KAIR_JOB). A second call does nothing.

    Call it after the framework's import and before the model is wrapped, or not at all: `kair capture run` needs no
    call.
    """
    _start(job, clock())


def start_amid(job: str) -> None:
    """Start in a process that trains already: the current step is recorded partially."""
    _start(job, None)


def _start(job: str | None, begin: int | None) -> None:
    if current.session is not None:
        return
    try:
        settings = settings_of(job=job)
        if settings.disabled:
            return
        if _arm(settings):
            current.begin(begin)
    except SettingsError as error:
        warn(f"capture is off, training goes on: {error}")
    except Exception as error:  # whatever it is, training continues
        current.give_up(error)


def _say(say: Callable[[Session], object]) -> None:
    session = current.session or current.begin()
    if session is None:
        return
    try:
        say(session)
    except Exception as error:  # whatever it is, training continues
        current.give_up(error)


def step() -> None:
    """End a step. If a script calls this, only it ends steps; otherwise the optimizers do."""
    _say(lambda session: session.steps.step())


def samples(count: int) -> None:
    """Note this rank's samples in the step that begins now; several calls in a step add up.

    If all ranks call it, they are compared per sample. Call it before the forward pass.
    """
    _say(lambda session: session.steps.takes(int(count)))


class scope:  # noqa: N801  # used as a function is: `with scope("forward"):`
    """A named part of a step, as a context manager. Scopes nest; forward, backward, optimizer and input are known."""

    __slots__ = ("_begin", "_name", "_sampled", "_session")

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._session: Session | None = None
        self._sampled: AbstractContextManager[object] | None = None

    def __enter__(self) -> "scope":
        self._session = session = current.session
        if session is not None:
            try:
                session.steps.phase_begins()
                session.depths.depth += 1
                self._sampled = session.sampled_scope(self._name)
                if self._sampled is not None:
                    self._sampled.__enter__()
            except Exception as error:  # whatever it is, training continues
                current.give_up(error)
        self._begin = clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._session
        if session is None or session is not current.session:
            return
        try:
            session.depths.depth = depth = max(0, session.depths.depth - 1)
            session.recorder.scope(self._name, self._begin, depth)
            if self._sampled is not None:
                self._sampled.__exit__(None, None, None)
        except Exception as failure:  # whatever it is, training continues
            current.give_up(failure)


_begun = threading.local()
_MOST_OPEN: Final = 64
"""Most open scopes of a thread: beyond it the innermost end, as in a loop that omits their ends."""


def perf_scope_begin(name: str) -> None:
    """Begin a scope, as `with scope(name)` does, if begin and end are in different places of a program.

    It is the PerfScopeBegin of the KAIR paper (III.A). Scopes belong to the thread that begins them, and nest.
    """
    scopes: list[tuple[str, scope]] = _begun.__dict__.setdefault("scopes", [])
    while len(scopes) >= _MOST_OPEN:
        perf_scope_end()
    scopes.append((name, scope(name).__enter__()))


def perf_scope_end(name: str | None = None) -> None:
    """End the innermost scope of that name that this thread began, and those begun within it; None: the innermost.

    Without such a scope nothing ends: an exception may have skipped its begin.
    """
    scopes: list[tuple[str, scope]] = _begun.__dict__.setdefault("scopes", [])
    if name is not None and all(begun != name for begun, _ in scopes):
        return
    while scopes:
        begun, open_scope = scopes.pop()
        open_scope.__exit__(None, None, None)
        if name in {None, begun}:
            return


def stop() -> None:
    """End capture in this process, as the end of the process does too."""
    current.stop()


def _arm(settings: Settings) -> bool:
    """Arm the imported frameworks, else the first installed, else a plain job; return whether to start at once.

    JAX and TensorFlow know a process's rank later, and among several frameworks the first sign of training decides.
    """
    from kair_capture.job.launch import FRAMEWORKS, arm_framework, quiet_profiler, torch_settings

    present = [name for name in FRAMEWORKS if sys.modules.get(name) is not None]
    found = present or [name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None][:1]
    if not found:
        from kair_capture.cupti import PlainJob

        current.arm("none", lambda begin: Session(settings, PlainJob(), begin=begin), settings.run_dir)
        return True
    if "torch" in found:
        torch_settings()
        quiet_profiler()
    for name in found:
        arm_framework(name, settings)
    return found == ["torch"]
