"""Kair for notebooks and programs: `import kair`, `job = kair.open("traces/")`, `job.triage()`.

docs/python.md has recipes. `kair.app` below it is what every face of Kair asks.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kair.api import Job, compare, fleet, open  # noqa: A004  (kair.open is what it is for)

__all__ = ["Job", "compare", "fleet", "open"]


def load_ipython_extension(shell: Any) -> None:  # noqa: ANN401
    """Give IPython and notebooks `%kair`: they call this for `%load_ext kair`."""
    from kair.notebook import kair

    shell.register_magic_function(kair, "line", "kair")


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Load the API when it is first used: faces import `kair.app`, and start without it."""
    if name not in __all__:
        raise AttributeError(f"module 'kair' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("kair.api"), name)
