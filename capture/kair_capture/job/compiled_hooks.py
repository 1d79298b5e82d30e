"""What the hooks of frameworks share that compile a step as one, JAX and TensorFlow; none of it imports either.

A step is a call of a compiled function that trains. Which one does shows while it is traced: it is then, and once only,
that the framework is asked for a gradient. XLA's profiler writes into a folder of its own, of which one file is kept.
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
        self._began = guard(begin_phase, unless=is_tracing, begins=framework)
        self._ended = guard(self._end_step, unless=is_tracing)
        self._first_ended = guard(self._end_step, unless=is_tracing, begins=framework)
        self._compilation_ended = guard(_record_compilation, unless=never)

    def gradient_taken(self) -> None:
        """Note that the framework was asked for a gradient: what is being traced trains."""
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
        self._open.compiled_until = end
        if current.session is not None:
            self._compilation_ended(begin, end)
        elif len(self._early) < _MOST_COMPILATIONS:
            self._early.append((begin, end))

    def _nested(self, function: TracedFunction, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Note what is called while another one is traced: where it asks for gradients, the other one does too."""
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


def _record_compilation(session: Session, begin: int, end: int) -> None:
    session.recorder.span(Kind.SCOPE, COMPILATION, begin, end)


STEP_MARK: Final = "kair step"
"""The name of capture's own marks of steps; the script may have marks too, with numbers of its own."""


class XplaneProfile(Profile):
    """One use of the profiler."""

    suffix = ".xplane.pb"

    def __init__(self, run_dir: Path) -> None:
        """Make the folder. Raises OSError."""
        self._folder = Path(tempfile.mkdtemp(prefix=f"profile-{os.getpid()}-", dir=run_dir))
        self._is_over = False

    def begin(self, start: Callable[[str], object], taken: tuple[type[Exception], ...]) -> bool:
        """Start the profiler by `start(folder)`; false where another profile is under way, which raises `taken`."""
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
        """Give the recording up: the job wants the profiler itself."""
        if not self._is_over:
            self.is_lost = True
            self.discard()

    def save(self, path: Path, _: Mapping[str, Any]) -> None:
        """Leaves the profile as `path`. Raises OSError."""
        try:
            written = next(self._folder.glob("plugins/profile/*/*.xplane.pb"), None)
            if written is None:
                raise FileNotFoundError("the profiler left no profile")
            shutil.move(written, path)
        finally:
            self.discard()

    def discard(self) -> None:
        """End the recording without waiting for anything, and keep nothing of it."""
        if not self._is_over:
            self._is_over = True
            with suppress(Exception):
                self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> None:
        """For what the devices have left to do."""
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class ProfilerTurns:
    """Who has the process' one profiler: the job's own use of it goes before capture's."""

    def __init__(self, make: Callable[[], XplaneProfile | None]) -> None:
        """`make` starts a profile of capture's; None where the job has the profiler."""
        self._make = make
        self._own: XplaneProfile | None = None

    def start(self) -> XplaneProfile | None:
        """Return a profile for capture; None where the job itself profiles."""
        self._own = self._make()
        return self._own

    def giving_way(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the profiler's `start`, before which capture's own profile ends."""

        def start(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            own, self._own = self._own, None
            if own is not None:
                own.give_way()
            return original(*args, **kwargs)

        return start


class XlaJob(Framework):
    """What is so of both: collectives are part of what is compiled, and nobody tells of them."""

    def __init__(self, turns: ProfilerTurns) -> None:
        self._turns = turns

    def start_profile(self, _: ProfileOptions = NOTHING_MORE, /) -> XplaneProfile | None:
        """Return the profiler, where the job does not use it itself."""
        return self._turns.start()


_installed: Final[dict[str, XlaJob]] = {}
"""Framework → what is in this process already."""


def arm_compiled(framework: str, settings: Settings, install: Callable[[Settings], XlaJob]) -> None:
    """Installs the hooks once; the session starts with the first step."""
    if framework not in _installed:
        _installed[framework] = install(settings)
    job, armed = _installed[framework], clock()
    current.arm(
        framework, lambda begin: Session(settings, job, begin=armed if begin is None else begin), settings.run_dir
    )


class Jitted:
    """A compiled function. JAX's own cannot be watched: its calls never leave C++."""

    def __init__(self, function: Any, calls: TrainingCalls) -> None:  # noqa: ANN401  # JAX's, untyped here
        functools.update_wrapper(self, function)
        self._kairs_calls, self._kairs_state = calls, TracedFunction()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Return what the function gives."""
        return self._kairs_calls.call(self._kairs_state, self.__wrapped__, args, kwargs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        # Before __wrapped__ is there (while it is unpickled), this would ask for itself for ever.
        if name == "__wrapped__":
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __get__(self, instance: object, owner: type | None = None) -> Any:  # noqa: ANN401
        """Return a method, where it is a class' attribute."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce__(self) -> tuple[Any, ...]:
        """As the function itself: what is copied or saved is not watched."""
        return _itself, (self.__wrapped__,)


def watching(jit: Callable[..., Any], calls: TrainingCalls) -> Callable[..., Any]:
    """`jax.jit`, or one like it, whose functions are watched; also as `jit(static_argnums=0)`, a decorator."""

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
    """Rank and world size in the text of TF_CONFIG: chief and workers, in this order; None where it says neither."""
    try:
        told = json.loads(cluster)
        sizes = {role: len(told["cluster"].get(role, ())) for role in ("chief", "worker")}
        role, index = told["task"]["type"], int(told["task"]["index"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if role not in sizes or not 0 <= index < sizes[role]:
        return None
    return index + (sizes["chief"] if role == "worker" else 0), sum(sizes.values())
