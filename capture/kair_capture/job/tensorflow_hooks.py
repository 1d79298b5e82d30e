"""How capture sees a TensorFlow job: hooks that find steps, tracing and waits by themselves.

Puts the hooks into a process that has TensorFlow, once.

TensorFlow's profiler for a few steps.
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from kair_capture.control import NOTHING_MORE, ProfileOptions
from kair_capture.job.compiled_hooks import (
    STEP_MARK,
    ProfilerTurns,
    TracedFunction,
    TrainingCalls,
    XplaneProfile,
    place_in,
)
from kair_capture.job.hooks import around_next, around_wait, attempt, guard, input_begins, input_ended, replace
from kair_capture.job.recorder import clock
from kair_capture.job.session import Session, current
from kair_capture.settings import Settings


class TensorFlowProfile(XplaneProfile):
    """One use of it, without its tracer of Python frames."""

    @classmethod
    def started(cls, run_dir: Path, start: Callable[..., Any]) -> "TensorFlowProfile | None":
        """Starts it by `start`, TensorFlow's own; None where another profile is under way."""
        profile = cls(run_dir)
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
        )
        taken = (tf.errors.AlreadyExistsError, tf.errors.UnavailableError)
        begun = profile.begin(lambda folder: start(folder, options=options), taken)
        return profile if begun else None

    def scope(self, name: str) -> AbstractContextManager[object]:
        """A scope of the script's, in the recording too."""
        scope: AbstractContextManager[object] = tf.profiler.experimental.Trace(name)
        return scope

    def _marked(self, step: int) -> AbstractContextManager[object]:
        mark: AbstractContextManager[object] = tf.profiler.experimental.Trace(STEP_MARK, step_num=step, _r=1)
        return mark

    def _wait(self) -> None:
        # The host runs ahead of GPUs: a profile is of whole steps if they have nothing left at either end. In a
        # cluster the others' GPUs are listed too, and cannot be asked.
        for device in tf.config.list_logical_devices("GPU"):
            with suppress(tf.errors.OpError), tf.device(device.name):
                tf.raw_ops.SyncDevice()

    def _end(self) -> None:
        tf.profiler.experimental.stop()


class TensorFlowJob:
    """TensorFlow, as a session asks it."""

    marks_input = False
    profile_options = NOTHING_MORE
    refusal: str | None = None
    """There always is a profiler, though at times the job has it."""

    def __init__(self, turns: ProfilerTurns) -> None:
        self._turns = turns

    def place(self) -> tuple[int, int] | None:
        """As TF_CONFIG has it."""
        return place_in(os.environ.get("TF_CONFIG", ""))

    def description(self) -> Mapping[str, Any]:
        """Version and device."""
        return {
            "framework": "tensorflow",
            "framework_version": str(tf.__version__),
            "device": "cuda" if tf.config.list_physical_devices("GPU") else "cpu",
        }

    def watch_communication(self) -> None:
        """Nobody tells of it: collectives are part of what is compiled."""

    def communication(self) -> None:
        """Nobody tells of it."""

    def start_profile(self, _: ProfileOptions = NOTHING_MORE, /) -> TensorFlowProfile | None:
        """The profiler, where the job does not use it itself."""
        profile = self._turns.start()
        assert profile is None or isinstance(profile, TensorFlowProfile)
        return profile


class _Installed:
    """What is in this process already."""

    job: TensorFlowJob | None = None


def arm(settings: Settings) -> None:
    """Installs the hooks; the session starts with the first step."""
    if _Installed.job is None:
        _Installed.job = _install(settings)
    job, armed = _Installed.job, clock()
    current.arm(
        "tensorflow", lambda begin: Session(settings, job, begin=armed if begin is None else begin), settings.run_dir
    )


def _install(settings: Settings) -> TensorFlowJob:
    start = tf.profiler.experimental.start
    turns = ProfilerTurns(lambda: TensorFlowProfile.started(settings.run_dir, start))
    attempt(lambda: _watch_profiler(turns), "TensorFlow")
    if settings.hooks:
        calls = TrainingCalls("tensorflow", _is_tracing)
        for part in (_watch_calls, _Gradients(calls).watch, _watch_tracing):
            attempt(lambda part=part: part(calls), "TensorFlow")  # type: ignore[misc]  # mypy: no default in a lambda
        attempt(_watch_input, "TensorFlow")
    if settings.collectives:
        attempt(_watch_waits, "TensorFlow")
    return TensorFlowJob(turns)


def _watch_profiler(turns: ProfilerTurns) -> None:
    """The job's own use of it, Keras' TensorBoard included, goes before capture's."""
    from tensorflow.python.profiler import profiler_v2

    replace(profiler_v2, "start", turns.giving_way)
    tf.profiler.experimental.start = profiler_v2.start


def _watch_calls(calls: TrainingCalls) -> None:
    """Whatever `tf.function` made; Keras' training step is one."""
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    # Not on the function itself: what is found there may be saved with a model.
    known: WeakKeyDictionary[Any, TracedFunction] = WeakKeyDictionary()

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(function: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            state = known.get(function)
            if state is None:
                state = known[function] = TracedFunction()
            return calls.call(state, original, (function, *args), kwargs)

        return called

    replace(Function, "__call__", around)


class _Gradients:
    """Tells that gradients are taken; and of a loop without compiled functions backward and optimizer."""

    def __init__(self, calls: TrainingCalls) -> None:
        self._calls = calls
        self._watches_optimizers = False
        self._backward_began = guard(_begin_phase, unless=_is_tracing, begins="tensorflow")
        self._ran = guard(_record_phase, unless=_is_tracing)
        self._updated = guard(_record_update, unless=_is_tracing)

    def watch(self, _: TrainingCalls) -> None:
        """From here on."""
        replace(tf.GradientTape, "gradient", self._around_gradient)

    def _around_gradient(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def gradient(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if self._calls.is_inside:
                self._calls.gradient_taken()
                return original(*args, **kwargs)
            self._watch_optimizers()
            self._backward_began()
            begin = clock()
            try:
                return original(*args, **kwargs)
            finally:
                self._ran("backward", begin)

        return gradient

    def _watch_optimizers(self) -> None:
        """Keras is loaded late, and its optimizers are steps only where nothing is compiled."""
        optimizers = sys.modules.get("keras.src.optimizers.base_optimizer")
        if self._watches_optimizers or optimizers is None:
            return
        self._watches_optimizers = True
        attempt(lambda: replace(optimizers.BaseOptimizer, "apply", self._around_apply), "Keras")

    def _around_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if self._calls.is_inside:
                return original(optimizer, *args, **kwargs)
            begin = clock()
            try:
                return original(optimizer, *args, **kwargs)
            finally:
                self._updated(id(optimizer), begin)

        return apply


def _watch_tracing(calls: TrainingCalls) -> None:
    from tensorflow.python.eager.polymorphic_function import tracing_compilation

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def trace(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            begin = clock()
            try:
                return original(*args, **kwargs)
            finally:
                calls.compiled(begin, clock())

        return trace

    replace(tracing_compilation, "_create_concrete_function", around)


def _watch_input() -> None:
    """Iterating over a `tf.data.Dataset`, whatever framework trains."""
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    began, ended = guard(input_begins, unless=_is_tracing), guard(input_ended, unless=_is_tracing)
    replace(OwnedIterator, "__next__", partial(around_next, began=began, ended=ended))


def _watch_waits() -> None:
    """Where the host stands still until there is a value."""
    from tensorflow.python.framework.ops import _EagerTensorBase

    replace(_EagerTensorBase, "_numpy", around_wait)


def _begin_phase(session: Session) -> None:
    session.steps.phase_begins()


def _record_phase(session: Session, name: str, begin: int) -> None:
    session.recorder.scope(name, begin)


def _record_update(session: Session, optimizer: int, begin: int) -> None:
    session.recorder.scope("optimizer", begin)
    session.steps.optimizer_ran(optimizer)


def _is_tracing() -> bool:
    """Whether a graph is being made; eager code runs."""
    return not tf.executing_eagerly()
