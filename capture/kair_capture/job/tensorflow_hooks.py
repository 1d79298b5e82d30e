"""Captures a TensorFlow job: hooks that find steps, tracing and waits automatically, and its profiler."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from kair_capture.job.compiled_hooks import (
    STEP_MARK,
    ProfilerTurns,
    TracedFunction,
    TrainingCalls,
    XlaJob,
    XplaneProfile,
    arm_compiled,
    place_in,
)
from kair_capture.job.hooks import around_next, around_wait, attempt, begin_phase, between, guard, input_ended, replace
from kair_capture.job.recorder import clock
from kair_capture.job.session import Session
from kair_capture.settings import Settings


class TensorFlowProfile(XplaneProfile):
    """One use of TensorFlow's profiler, without its tracer of Python frames."""

    @classmethod
    def started(cls, run_dir: Path, start: Callable[..., Any]) -> "TensorFlowProfile | None":
        """Start it by `start`, TensorFlow's own; None if another profile is active."""
        profile = cls(run_dir)
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
        )
        taken = (tf.errors.AlreadyExistsError, tf.errors.UnavailableError)
        begun = profile.begin(lambda folder: start(folder, options=options), taken)
        return profile if begun else None

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Return a scope of the script, in the recording too."""
        scope: AbstractContextManager[object] = tf.profiler.experimental.Trace(name)
        return scope

    def _marked(self, step: int) -> AbstractContextManager[object]:
        mark: AbstractContextManager[object] = tf.profiler.experimental.Trace(STEP_MARK, step_num=step, _r=1)
        return mark

    def _wait(self) -> None:
        # The host runs ahead of GPUs: a profile has whole steps only if they are idle at both ends. In a cluster other
        # hosts' GPUs are listed too, but cannot be synchronised.
        for device in tf.config.list_logical_devices("GPU"):
            with suppress(tf.errors.OpError), tf.device(device.name):
                tf.raw_ops.SyncDevice()

    def _end(self) -> None:
        tf.profiler.experimental.stop()


class TensorFlowJob(XlaJob):
    """TensorFlow, for a session."""

    def place(self) -> tuple[int, int] | None:
        """Return rank and world size from TF_CONFIG; None if it has none."""
        return place_in(os.environ.get("TF_CONFIG", ""))

    def description(self) -> Mapping[str, Any]:
        """Return version and device."""
        return {
            "framework": "tensorflow",
            "framework_version": str(tf.__version__),
            "device": "cuda" if tf.config.list_physical_devices("GPU") else "cpu",
        }


def arm(settings: Settings) -> None:
    """Install the hooks; the session starts with the first step."""
    arm_compiled("tensorflow", settings, _install)


def _install(settings: Settings) -> TensorFlowJob:
    start = tf.profiler.experimental.start
    turns = ProfilerTurns(lambda: TensorFlowProfile.started(settings.run_dir, start))
    attempt("TensorFlow", partial(_watch_profiler, turns))
    if settings.hooks:
        calls = TrainingCalls("tensorflow", _is_tracing)
        parts = (_watch_calls, _watch_gradients, _watch_tracing)
        attempt("TensorFlow", *(partial(part, calls) for part in parts), _watch_input)
    if settings.collectives:
        attempt("TensorFlow", _watch_waits)
    return TensorFlowJob(turns)


def _watch_profiler(turns: ProfilerTurns) -> None:
    """Give the job's own use of the profiler, Keras' TensorBoard included, precedence over capture's."""
    from tensorflow.python.profiler import profiler_v2

    replace(profiler_v2, "start", turns.giving_way)
    tf.profiler.experimental.start = profiler_v2.start


def _watch_calls(calls: TrainingCalls) -> None:
    """Watch functions made by `tf.function`, such as Keras' training step."""
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    # Not on the function itself: its attributes may be saved with a model.
    known: WeakKeyDictionary[Any, TracedFunction] = WeakKeyDictionary()

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(function: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            state = known.get(function)
            if state is None:
                state = known[function] = TracedFunction()
            return calls.call(state, original, (function, *args), kwargs)

        return called

    replace(Function, "__call__", around)


def _watch_gradients(calls: TrainingCalls) -> None:
    """Watch gradients, and in loops without compiled functions, backward and optimizer."""
    backward_began = guard(begin_phase, unless=_is_tracing, begins="tensorflow")
    backward_ended = guard(_record_backward, unless=_is_tracing)
    updated = guard(_record_update, unless=_is_tracing)

    def begin_backward() -> None:
        _watch_optimizers(around_apply)
        backward_began()

    def around_gradient(original: Callable[..., Any]) -> Callable[..., Any]:
        alone = between(begin_backward, backward_ended)(original)

        def gradient(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if calls.is_inside:
                calls.gradient_taken()
                return original(*args, **kwargs)
            return alone(*args, **kwargs)

        return gradient

    def around_apply(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if calls.is_inside:
                return original(optimizer, *args, **kwargs)
            begin = clock()
            try:
                return original(optimizer, *args, **kwargs)
            finally:
                updated(id(optimizer), begin)

        return apply

    replace(tf.GradientTape, "gradient", around_gradient)


def _watch_optimizers(around_apply: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Watch Keras' optimizers, which load late, and which end steps only in code that is not compiled."""
    optimizers = sys.modules.get("keras.src.optimizers.base_optimizer")
    base = getattr(optimizers, "BaseOptimizer", None)
    if base is not None and hasattr(base, "apply") and not getattr(base.apply, "is_kairs", False):
        attempt("Keras", lambda: replace(base, "apply", around_apply))


def _watch_tracing(calls: TrainingCalls) -> None:
    from tensorflow.python.eager.polymorphic_function import tracing_compilation

    ended = between(None, lambda begin: calls.compiled(begin, clock()))
    replace(tracing_compilation, "_create_concrete_function", ended)


def _watch_input() -> None:
    """Watch iterations over a `tf.data.Dataset`, whatever framework trains."""
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    replace(OwnedIterator, "__next__", partial(around_next, ended=input_ended, unless=_is_tracing))


def _watch_waits() -> None:
    """Watch where the host waits for a value."""
    from tensorflow.python.framework.ops import _EagerTensorBase

    replace(_EagerTensorBase, "_numpy", around_wait)


def _record_backward(session: Session, begin: int) -> None:
    session.recorder.scope("backward", begin)


def _record_update(session: Session, optimizer: int, begin: int) -> None:
    session.recorder.scope("optimizer", begin)
    session.steps.optimizer_ran(optimizer)


def _is_tracing() -> bool:
    """Return whether a graph is being built; eager code runs."""
    return not tf.executing_eagerly()
