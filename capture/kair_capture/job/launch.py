"""Arms capture in every Python process of a job that `kair capture run` starts, without a change to its script."""

import os
import sys
from collections.abc import Mapping, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Final

from kair_capture.job.failing import described, warn
from kair_capture.settings import Settings, SettingsError, settings_of

SITE: Final = Path(__file__).parent / "site"
"""A folder with a `sitecustomize`, which Python imports at its start."""
SWITCH: Final = "KAIR_CAPTURE"


def environment_of(base: Mapping[str, str], *, job: str, run_dir: Path) -> dict[str, str]:
    """Return the environment in which a command and all that it starts are captured."""
    paths = [str(SITE), *filter(None, [base.get("PYTHONPATH", "")])]
    environment = {**base, SWITCH: "1", "KAIR_JOB": job, "KAIR_RUN_DIR": str(run_dir), "PYTHONPATH": ":".join(paths)}
    torch_settings(environment)
    quiet_profiler(environment)
    return environment


def torch_settings(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have PyTorch number collectives (its flight recorder), unless the job sets it otherwise."""
    # It is dumped after each sampled step, at 20 µs an entry: enough for a few steps.
    environment.setdefault("TORCH_FR_BUFFER_SIZE", "512")


def quiet_profiler(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep the profiler from writing two lines to stderr with every window; read when PyTorch is imported."""
    environment.setdefault("KINETO_LOG_LEVEL", "6")


FRAMEWORKS: Final = ("torch", "jax", "tensorflow")
"""Modules that capture has hooks for."""


def arm_process(framework: str) -> None:
    """Arm capture in this process, which has imported `framework`; the first sign of training starts it."""
    try:
        settings = settings_of()
        if not settings.disabled:
            arm_framework(framework, settings)
    except SettingsError as error:
        warn(f"capture is off, training goes on: {error}")
    except Exception as error:  # whatever it is, training continues
        warn(f"capture is off, training goes on: {described(error)}")


def arm_attachable() -> None:
    """With KAIR_CAPTURE_ATTACHABLE=1, arm imported frameworks, so that steps are counted before recording starts."""
    found = [name for name in FRAMEWORKS if sys.modules.get(name) is not None]
    if not found:
        warn("KAIR_CAPTURE_ATTACHABLE has no effect: import kair_capture after PyTorch, JAX or TensorFlow")
    for name in found:
        arm_process(name)


def arm_framework(framework: str, settings: Settings) -> None:
    """Install the framework's hooks in this process, importing it if necessary."""
    import_module(f"kair_capture.job.{framework}_hooks").arm(settings)
