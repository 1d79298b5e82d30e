"""Runs at the start of every Python process of a captured job: arms capture, then the site's own customization.

Python imports one `sitecustomize`, the first on the path: this one lets the next one have its turn, as if it were not
there.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from os.path import abspath, dirname

_HERE = dirname(abspath(__file__))  # noqa: PTH100, PTH120  # pathlib would be loaded into every process


def _run_next() -> None:
    """The `sitecustomize` that would have been imported. Its errors are its own: Python reports them as ever."""
    elsewhere = [folder for folder in sys.path if abspath(folder) != _HERE]  # noqa: PTH100  # see above
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _arm() -> None:
    """By its place: the job's interpreter may be another one than Kair's."""
    try:
        if "kair_capture" not in sys.modules:
            package = dirname(dirname(_HERE))  # noqa: PTH120  # see above
            entry = f"{package}/__init__.py"
            spec = spec_from_file_location("kair_capture", entry, submodule_search_locations=[package])
            assert spec is not None and spec.loader is not None
            sys.modules["kair_capture"] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules["kair_capture"])
        from kair_capture.job.launch import arm_at_import

        arm_at_import()
    except Exception as error:  # the job goes on without capture
        sys.stderr.write(f"kair: warning: capture is off, training goes on: {error}\n")


_arm()
_run_next()
