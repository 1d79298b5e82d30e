"""JAX's profiler for a few steps."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.profiler

from kair_capture.job.compiled_hooks.xplane_profile import STEP_MARK, XplaneProfile


class JaxProfile(XplaneProfile):
    """One use of it, without its tracer of Python frames."""

    @classmethod
    def started(cls, run_dir: Path, start: Callable[..., Any]) -> "JaxProfile | None":
        """Starts it by `start`, JAX's own `start_trace`; None where another profile is under way."""
        profile = cls(run_dir)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        begun = profile.begin(lambda folder: start(folder, profiler_options=options), (RuntimeError,))
        return profile if begun else None

    def scope(self, name: str) -> AbstractContextManager[object]:
        """A scope of the script's, in the recording too."""
        scope: AbstractContextManager[object] = jax.profiler.TraceAnnotation(name)
        return scope

    def _marked(self, step: int) -> AbstractContextManager[object]:
        # What StepTraceAnnotation is made of, which marks the job's own steps.
        mark: AbstractContextManager[object] = jax.profiler.TraceAnnotation(STEP_MARK, step_num=step, _r=1)
        return mark

    def _wait(self) -> None:
        # The host runs ahead of the devices: a profile is of whole steps if they have nothing left at either end.
        jax.block_until_ready(jax.live_arrays())

    def _end(self) -> None:
        jax.profiler.stop_trace()
