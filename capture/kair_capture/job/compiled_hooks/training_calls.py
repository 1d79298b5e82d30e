"""Finds the steps of frameworks that compile them whole: a step is a call of a compiled function that trains.

Which function trains shows while it is traced: it is then, and once only, that the framework is asked for a gradient.
"""

import threading
from collections.abc import Callable
from typing import Any, Final

from kair_capture.job.guarding import guard
from kair_capture.job.recorder import clock
from kair_capture.job.session import Session
from kair_capture.ring.layout import Kind

_SHORTEST_COMPILATION_NS: Final = 1_000_000
_MOST_COMPILATIONS: Final = 256


class TracedFunction:
    """What is known of one compiled function."""

    __slots__ = ("trains",)

    def __init__(self) -> None:
        self.trains = False
        """A gradient was taken in it."""


class _Open(threading.local):
    """What is under way on each thread."""

    depth = 0
    compiled_until = 0


class TrainingCalls:
    """Of one framework in one process."""

    def __init__(self, framework: str, is_tracing: Callable[[], bool]) -> None:
        """`is_tracing`: whether what is called now is being compiled into something else, and does not run."""
        self._is_tracing = is_tracing
        self._open = _Open()
        self._gradients = 0
        self._early: list[tuple[int, int]] = []
        """Compilations before the session, begin and end."""
        self._began = guard(_begin_step, unless=is_tracing, begins=framework)
        self._ended = guard(self._end_step, unless=is_tracing)
        self._first_ended = guard(self._end_step, unless=is_tracing, begins=framework)
        self._compilation_ended = guard(_record_compilation, unless=_never)

    def gradient_taken(self) -> None:
        """The framework was asked for a gradient: what is being traced trains."""
        # Not by thread: TensorFlow's strategies trace replicas in threads of their own.
        self._gradients += 1

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in a call of a compiled function, or traces one."""
        return self._open.depth > 0 or self._is_tracing()

    def call(self, function: TracedFunction, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """`original(*args, **kwargs)`, a step where the function trains, and it is no other one's part."""
        here = self._open
        if here.depth:
            return self._nested(function, original, args, kwargs)
        trains, gradients = function.trains, self._gradients
        if trains:
            self._began()
        begin = clock()
        here.depth = 1
        try:
            return original(*args, **kwargs)
        finally:
            here.depth = 0
            if trains:
                self._ended(function, begin)
            elif self._gradients != gradients:
                function.trains = True
                self._first_ended(function, begin)

    def compiled(self, begin: int, end: int) -> None:
        """Something was traced or compiled (CLOCK_MONOTONIC, ns)."""
        if end - begin < _SHORTEST_COMPILATION_NS:
            return
        from kair_capture.job.session import current

        self._open.compiled_until = end
        if current.session is not None:
            self._compilation_ended(begin, end)
        elif len(self._early) < _MOST_COMPILATIONS:
            self._early.append((begin, end))

    def _nested(self, function: TracedFunction, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """What is called while another one is traced: what that asks for gradients, the other one does too."""
        if function.trains:
            self._gradients += 1
            return original(*args, **kwargs)
        gradients = self._gradients
        result = original(*args, **kwargs)
        function.trains = self._gradients != gradients
        return result

    def _end_step(self, session: Session, function: TracedFunction, begin: int) -> None:
        for compilation in self._early:
            if compilation[0] >= begin:
                _record_compilation(session, *compilation)
        self._early.clear()
        # What the call did but compile was to hand work to the device, or to wait for that: and a device waits for its
        # peers. How long the device itself took, only sampled steps tell.
        session.recorder.span(Kind.COLLECTIVE, "device", max(begin, self._open.compiled_until), clock())
        session.recorder.scope("step function", begin)
        session.steps.runs_ahead = True
        session.steps.optimizer_ran(id(function))


def _begin_step(session: Session) -> None:
    session.steps.phase_begins()


def _record_compilation(session: Session, begin: int, end: int) -> None:
    session.recorder.span(Kind.SCOPE, "compile", begin, end)


def _never() -> bool:
    return False
