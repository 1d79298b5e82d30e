"""Captures a JAX job: hooks that find steps, compilation and waits automatically, and its profiler."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import jax
import jax.monitoring
import jax.profiler

from kair_capture.job.compiled_hooks import (
    STEP_MARK,
    ProfilerTurns,
    TrainingCalls,
    XlaJob,
    XplaneProfile,
    arm_compiled,
    watching,
)
from kair_capture.job.hooks import around_wait, attempt, begin_phase, between, guard, never, replace
from kair_capture.job.recorder import clock
from kair_capture.settings import Settings


class JaxProfile(XplaneProfile):
    """One use of JAX's profiler, without its tracer of Python frames."""

    @classmethod
    def started(cls, run_dir: Path, start: Callable[..., Any]) -> "JaxProfile | None":
        """Start it by `start`, JAX's own `start_trace`; None if another profile is active."""
        profile = cls(run_dir)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        begun = profile.begin(lambda folder: start(folder, profiler_options=options), (RuntimeError,))
        return profile if begun else None

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Return a scope of the script, in the recording too."""
        scope: AbstractContextManager[object] = jax.profiler.TraceAnnotation(name)
        return scope

    def _marked(self, step: int) -> AbstractContextManager[object]:
        # StepTraceAnnotation, which marks the job's own steps, is based on this.
        mark: AbstractContextManager[object] = jax.profiler.TraceAnnotation(STEP_MARK, step_num=step, _r=1)
        return mark

    def _wait(self) -> None:
        # The host runs ahead of the devices: a profile has whole steps only if they are idle at both ends.
        jax.block_until_ready(jax.live_arrays())

    def _end(self) -> None:
        jax.profiler.stop_trace()


_COMPILATION: Final = "/jax/core/compile/"
_GRADIENTS: Final = ("grad", "value_and_grad")


class JaxJob(XlaJob):
    """JAX, for a session."""

    def place(self) -> tuple[int, int] | None:
        """Return rank and world size from jax.distributed; None for one process."""
        # Asking JAX for its processes would start its devices, which a job may have reasons to delay.
        if not _has_devices() or jax.process_count() == 1:
            return None
        return jax.process_index(), jax.process_count()

    def description(self) -> Mapping[str, Any]:
        """Return version and devices."""
        has_devices = _has_devices()
        return {
            "framework": "jax",
            "framework_version": str(jax.__version__),
            "device": jax.default_backend() if has_devices else "unknown",
            "local_devices": jax.local_device_count() if has_devices else 0,
        }


def arm(settings: Settings) -> None:
    """Install the hooks; the session starts with the first step."""
    arm_compiled("jax", settings, _install)


def _install(settings: Settings) -> JaxJob:
    start = jax.profiler.start_trace
    turns = ProfilerTurns(lambda: JaxProfile.started(settings.run_dir, start))
    attempt("JAX", partial(_watch_profiler, turns))
    if settings.hooks:
        calls = TrainingCalls("jax", lambda: not _trace_state_clean())
        parts = (_watch_calls, _watch_gradients, _watch_compilation)
        attempt("JAX", *(partial(part, calls) for part in parts), _watch_marks)
    if settings.collectives:
        attempt("JAX", _watch_waits)
    return JaxJob(turns)


def _watch_profiler(turns: ProfilerTurns) -> None:
    """Give the job's own use of the profiler precedence over capture's."""
    from jax._src import profiler

    replace(profiler, "start_trace", turns.giving_way)
    jax.profiler.start_trace = profiler.start_trace


def _watch_calls(calls: TrainingCalls) -> None:
    for name in ("jit", "pmap"):
        replace(jax, name, lambda jit: watching(jit, calls))


def _watch_gradients(calls: TrainingCalls) -> None:
    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def differentiate(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            made = original(*args, **kwargs)

            @wraps(made)
            def gradient(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
                calls.gradient_taken()
                return made(*args, **kwargs)

            return gradient

        return differentiate

    for name in _GRADIENTS:
        replace(jax, name, around)
    replace(jax, "vjp", between(calls.gradient_taken, None))


def _watch_compilation(calls: TrainingCalls) -> None:
    def ended(event: str, seconds: float, **_: object) -> None:
        if event.startswith(_COMPILATION):
            end = clock()
            calls.compiled(end - round(seconds * 1e9), end)

    jax.monitoring.register_event_duration_secs_listener(ended)


def _watch_marks() -> None:
    """Treat a script's step marks for the profiler as marks for capture."""
    began = guard(begin_phase, unless=never, begins="jax")
    ended = guard(lambda session, _: session.steps.step(), unless=never)
    replace(jax.profiler.StepTraceAnnotation, "__enter__", between(began, None))
    replace(jax.profiler.StepTraceAnnotation, "__exit__", between(None, ended))


def _watch_waits() -> None:
    """Watch where the host waits until the device has a value."""
    from jax._src.array import ArrayImpl

    replace(jax, "block_until_ready", around_wait)
    replace(ArrayImpl, "block_until_ready", around_wait)
    value = ArrayImpl._value
    if not getattr(value.fget, "is_kairs", False):
        getter = around_wait(value.fget)
        getter.is_kairs = True  # type: ignore[attr-defined]  # a mark on a function of our own
        ArrayImpl._value = property(getter)


def _has_devices() -> bool:
    try:
        from jax._src.xla_bridge import backends_are_initialized
    except ImportError:
        return True
    return bool(backends_are_initialized())


try:
    from jax.core import trace_state_clean as _trace_state_clean
except ImportError:
    try:
        from jax._src.core import trace_state_clean as _trace_state_clean
    except ImportError:  # then a call within another one's tracing may count as a step

        def _trace_state_clean() -> bool:
            return True
