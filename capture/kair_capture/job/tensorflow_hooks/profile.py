"""TensorFlow's profiler for a few steps."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from kair_capture.job.compiled_hooks.xplane_profile import STEP_MARK, XplaneProfile


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
