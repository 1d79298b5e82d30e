"""Shares hooks between frameworks that compile a whole step, JAX and TensorFlow; it imports neither.

A step is a call of a compiled function that trains. Whether it trains shows while it is traced: only then the framework
is asked for a gradient. XLA's profiler writes into a separate folder, of which one file is kept.
"""

import functools
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MethodType
from typing import Any, Final

from kair_capture.control import NOTHING_MORE, ProfileOptions
from kair_capture.job.framework import Framework, Profile
from kair_capture.job.hooks import begin_phase, guard, never
from kair_capture.job.recorder import COMPILATION, clock
from kair_capture.job.session import Session, current
from kair_capture.ring import Kind
from kair_capture.settings import Settings

_SHORTEST_COMPILATION_NS: Final = 1_000_000
_MOST_COMPILATIONS: Final = 256


class TracedFunction:
    """What is known of one compiled function."""

    __slots__ = ("trains",)

    def __init__(self) -> None:
        self.trains = False
        """Whether a gradient was taken in it."""


class _Open(threading.local):
    """State of each thread."""

    depth = 0
    compiled_until = 0


class TrainingCalls:
    """Training calls of one framework in one process."""

    def __init__(self, framework: str, is_tracing: Callable[[], bool]) -> None:
        """`is_tracing` returns whether present calls are being compiled into another function and do not run."""
        self._is_tracing = is_tracing
        self._open = _Open()
        self._gradients = 0
        self._early: list[tuple[int, int]] = []
        """Begin and end of compilations before the session."""
        self._began = guard(begin_phase, unless=is_tracing, begins=framework)
        self._ended = guard(self._end_step, unless=is_tracing)
        self._first_ended = guard(self._end_step, unless=is_tracing, begins=framework)
        self._compilation_ended = guard(_record_compilation, unless=never)

    def gradient_taken(self) -> None:
        """Note that the framework was asked for a gradient, so the function being traced trains."""
        # Not by thread: TensorFlow's strategies trace replicas in separate threads.
        self._gradients += 1

    @property
    def is_inside(self) -> bool:
        """Return whether this thread is in a call of a compiled function, or traces one."""
        return self._open.depth > 0 or self._is_tracing()

    def call(self, function: TracedFunction, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Return `original(*args, **kwargs)`; it is a step if the function trains and is not part of another one."""
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
        """Note a trace or compilation (CLOCK_MONOTONIC, ns)."""
        if end - begin < _SHORTEST_COMPILATION_NS:
            return
        self._open.compiled_until = end
        if current.session is not None:
            self._compilation_ended(begin, end)
        elif len(self._early) < _MOST_COMPILATIONS:
            self._early.append((begin, end))

    def _nested(self, function: TracedFunction, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Call a function within the trace of another: if it asks for gradients, the outer one trains too."""
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
        # Apart from compiling, the call handed work to the device or waited for it, and a device waits for its peers.
        # Only sampled steps show how long the device itself took.
        session.recorder.span(Kind.COLLECTIVE, "device", max(begin, self._open.compiled_until), clock())
        session.recorder.scope("step function", begin)
        session.steps.runs_ahead = True
        session.steps.optimizer_ran(id(function))


def _record_compilation(session: Session, begin: int, end: int) -> None:
    session.recorder.span(Kind.SCOPE, COMPILATION, begin, end)


STEP_MARK: Final = "kair step"
"""Name of capture's own step marks; the script may have marks with other numbers."""


class XplaneProfile(Profile):
    """One use of the profiler."""

    suffix = ".xplane.pb"

    def __init__(self, run_dir: Path) -> None:
        """Create the folder. Raises OSError."""
        self._folder = Path(tempfile.mkdtemp(prefix=f"profile-{os.getpid()}-", dir=run_dir))
        self._is_over = False

    def begin(self, start: Callable[[str], object], taken: tuple[type[Exception], ...]) -> bool:
        """Start the profiler by `start(folder)`; return False if another profile is active, which raises `taken`."""
        try:
            self._wait()
            start(str(self._folder))
        except BaseException as error:
            self._is_over = True
            self.discard()
            if isinstance(error, taken):
                return False
            raise
        return True

    def stop(self) -> None:
        """End the recording, once the devices are done."""
        if not self._is_over:
            self._is_over = True
            try:
                self._wait()
                self._end()
            except BaseException:
                self.discard()
                raise

    def give_way(self) -> None:
        """Abandon the recording, because the job itself needs the profiler."""
        if not self._is_over:
            self.is_lost = True
            self.discard()

    def save(self, path: Path, _: Mapping[str, Any]) -> None:
        """Move the profile to `path`. Raises OSError."""
        try:
            written = next(self._folder.glob("plugins/profile/*/*.xplane.pb"), None)
            if written is None:
                raise FileNotFoundError("the profiler left no profile")
            shutil.move(written, path)
        finally:
            self.discard()

    def discard(self) -> None:
        """End the recording without waiting, and keep nothing of it."""
        if not self._is_over:
            self._is_over = True
            with suppress(Exception):
                self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> None:
        """Wait until the devices are idle."""
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class ProfilerTurns:
    """Shares the process's only profiler: the job's own use has precedence over capture's."""

    def __init__(self, make: Callable[[], XplaneProfile | None]) -> None:
        """`make` starts a profile for capture; it returns None if the job has the profiler."""
        self._make = make
        self._own: XplaneProfile | None = None

    def start(self) -> XplaneProfile | None:
        """Return a profile for capture; None if the job itself profiles."""
        self._own = self._make()
        return self._own

    def giving_way(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the profiler's `start`, which first ends capture's own profile."""

        def start(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            own, self._own = self._own, None
            if own is not None:
                own.give_way()
            return original(*args, **kwargs)

        return start


class XlaJob(Framework):
    """Common to both: collectives are part of the compiled function and not visible."""

    def __init__(self, turns: ProfilerTurns) -> None:
        self._turns = turns

    def start_profile(self, _: ProfileOptions = NOTHING_MORE, /) -> XplaneProfile | None:
        """Start the profiler; None if the job uses it itself."""
        return self._turns.start()


_installed: Final[dict[str, XlaJob]] = {}
"""Framework → its hooks in this process."""


def arm_compiled(framework: str, settings: Settings, install: Callable[[Settings], XlaJob]) -> None:
    """Install the hooks once; the session starts with the first step."""
    if framework not in _installed:
        _installed[framework] = install(settings)
    job, armed = _installed[framework], clock()
    current.arm(
        framework, lambda begin: Session(settings, job, begin=armed if begin is None else begin), settings.run_dir
    )


class Jitted:
    """A compiled function. JAX's own cannot be watched, because its calls never leave C++."""

    def __init__(self, function: Any, calls: TrainingCalls) -> None:  # noqa: ANN401  # JAX's, untyped here
        functools.update_wrapper(self, function)
        self._kairs_calls, self._kairs_state = calls, TracedFunction()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Return the function's result."""
        return self._kairs_calls.call(self._kairs_state, self.__wrapped__, args, kwargs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        # While it is unpickled, __wrapped__ is missing, and this would recurse forever.
        if name == "__wrapped__":
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __get__(self, instance: object, owner: type | None = None) -> Any:  # noqa: ANN401
        """Return a method if it is a class attribute."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the function itself: copies are not watched."""
        return _itself, (self.__wrapped__,)


def watching(jit: Callable[..., Any], calls: TrainingCalls) -> Callable[..., Any]:
    """Return `jax.jit`, or a similar function, with watched results; also as a decorator `jit(static_argnums=0)`."""

    def watched(function: Any) -> Any:  # noqa: ANN401
        return Jitted(function, calls) if hasattr(function, "lower") else function

    def jitting(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        made = jit(*args, **kwargs)
        if args or "fun" in kwargs:
            return watched(made)
        return lambda function: watched(made(function))

    return jitting


def _itself(function: Any) -> Any:  # noqa: ANN401
    return function


def place_in(cluster: str) -> tuple[int, int] | None:
    """Return rank and world size from the text of TF_CONFIG: chief, then workers; None if it has neither."""
    try:
        config = json.loads(cluster)
        sizes = {role: len(config["cluster"].get(role, ())) for role in ("chief", "worker")}
        role, index = config["task"]["type"], int(config["task"]["index"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if role not in sizes or not 0 <= index < sizes[role]:
        return None
    return index + (sizes["chief"] if role == "worker" else 0), sum(sizes.values())
