"""Arms capture in every Python process of a job that `kair capture run` starts, without a change to its script."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Final

from kair_capture.job.failing import described, warn
from kair_capture.settings import SettingsError, settings_of

SITE: Final = Path(__file__).parent / "site"
"""A folder with a `sitecustomize`, which Python imports at its start."""
SWITCH: Final = "KAIR_CAPTURE"


def environment_of(base: Mapping[str, str], *, job: str, run_dir: Path) -> dict[str, str]:
    """The environment in which a command and all that it starts are captured."""
    paths = [str(SITE), *filter(None, [base.get("PYTHONPATH", "")])]
    environment = {**base, SWITCH: "1", "KAIR_JOB": job, "KAIR_RUN_DIR": str(run_dir), "PYTHONPATH": ":".join(paths)}
    torch_settings(environment)
    quiet_profiler(environment)
    return environment


def torch_settings(environment: MutableMapping[str, str] = os.environ) -> None:
    """Lets PyTorch number collectives (its flight recorder), unless the job says otherwise."""
    environment.setdefault("TORCH_FR_BUFFER_SIZE", "2000")


def quiet_profiler(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keeps the profiler from writing two lines to stderr with every window; read when PyTorch is imported."""
    environment.setdefault("KINETO_LOG_LEVEL", "6")


def arm_at_import() -> None:
    """Arms capture when, and if, this process imports PyTorch."""
    if os.environ.get(SWITCH) != "1":
        return
    try:
        if settings_of().disabled:
            return
    except SettingsError as error:
        warn(f"capture is off, training goes on: {error}")
        return
    if "torch" in sys.modules:
        _arm()
    else:
        sys.meta_path.insert(0, _AfterTorch())


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds `torch` where it is, and arms capture once it is imported."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  # the protocol's
        target: ModuleType | None = None,  # noqa: ARG002  # the protocol's
    ) -> importlib.machinery.ModuleSpec | None:
        """The real spec, its loader wrapped; None for everything else."""
        if fullname != "torch":
            return None
        with suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            _arm_after(spec.loader)
        return spec


def _arm_after(loader: importlib.abc.Loader) -> None:
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        _arm()

    loader.exec_module = exec_module  # type: ignore[method-assign]  # this one loader's, which loads torch alone


def _arm() -> None:
    try:
        from kair_capture.job.torch_hooks.installing import arm

        arm(settings_of())
    except Exception as error:  # training goes on, whatever it is
        warn(f"capture is off, training goes on: {described(error)}")
