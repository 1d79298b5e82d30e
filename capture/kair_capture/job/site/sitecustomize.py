"""Runs at the start of every Python process of a captured job, so that importing a framework arms capture.

Under `kair mitigate run`, workers of torchrun die with it from here on.

Python imports one `sitecustomize`, the first on the path: this one then runs the next, as if it were not there. It
imports only what Python has already loaded, because most processes of a job never import a framework.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # as type checkers know it: typing would be loaded into every process
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib would be loaded into every process
_SET_DEATH_SIGNAL, _KILL = 1, 9  # Linux's numbers: the signal module is not loaded here
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120  # see above


class _AfterImport:
    """Finds a framework through the other finders, and arms capture once it is imported."""

    def __init__(self) -> None:
        self._awaited = {"torch", "jax", "tensorflow"}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the real spec, its loader wrapped; None for everything else."""
        if name not in self._awaited:
            return None
        self._awaited.discard(name)
        if not self._awaited and self in sys.meta_path:
            sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    _arm_after(spec.loader, name)
                return spec
        return None


def _arm_after(loader: Loader, framework: str) -> None:
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        _arm(framework)

    loader.exec_module = exec_module  # type: ignore[method-assign]  # this one loader's, which loads this module alone


def _arm(framework: str) -> None:
    """Load the package by path: the job's interpreter may not be Kair's."""
    try:
        if "kair_capture" not in sys.modules:
            from importlib.util import module_from_spec, spec_from_file_location

            entry = f"{_PACKAGE}/__init__.py"
            spec = spec_from_file_location("kair_capture", entry, submodule_search_locations=[_PACKAGE])
            assert spec is not None and spec.loader is not None
            sys.modules["kair_capture"] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules["kair_capture"])
        from kair_capture.job.launch import arm_process

        arm_process(framework)
    except Exception as error:  # the job continues without capture
        sys.stderr.write(f"kair: warning: capture is off, training goes on: {error}\n")


def _run_next() -> None:
    """Run the `sitecustomize` that would have been imported; Python reports its errors as usual."""
    elsewhere = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]  # noqa: PTH100  # see above
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _die_with_torchrun() -> None:
    """Have this worker killed with its torchrun, which alone starts no successor; Linux only.

    Processes that a worker starts are left alone: they may be meant to outlive it.
    """
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/environ", "rb") as file:  # noqa: PTH123  # see above
            if b"TORCHELASTIC_RUN_ID=" in file.read():
                return
        import ctypes

        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, _KILL, 0, 0, 0)
    except (OSError, ImportError, AttributeError):
        return
    if os.getppid() != parent:  # it died before
        os.kill(os.getpid(), _KILL)


if "TORCHELASTIC_RUN_ID" in os.environ and "KAIR_MITIGATE_RUN" in os.environ:
    _die_with_torchrun()
if os.environ.get("KAIR_CAPTURE") == "1":
    sys.meta_path.insert(0, _AfterImport())
_run_next()
