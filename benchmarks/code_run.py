"""Counts the modules and functions of Kair in which one command runs code: what a reader of it has to know.

    python benchmarks/code_run.py triage sample_traces/slow_operator

The command runs twice; the second run, whose trace is parsed already, is counted. Bodies of modules and classes are
not.
"""

import contextlib
import io
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = tuple(f"{ROOT / folder}/" for folder in ("kair_tui", "engine", "capture", "mitigate"))
IS_FUNCTION = 0x2
"""Of a code object's flags: its names are local."""


def main() -> int:
    """Runs the command twice, and prints two figures."""
    from kair_tui.cli.main import main as kair

    seen = set[CodeType]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        kair(sys.argv[1:])
        threading.setprofile(note)
        sys.setprofile(note)
        status = kair(sys.argv[1:])
        sys.setprofile(None)
    of_product = [code for code in seen if code.co_filename.startswith(PRODUCT) and code.co_flags & IS_FUNCTION]
    modules = {code.co_filename for code in of_product}
    print(f"{len(modules)} modules, {len(of_product)} functions, exit status {status}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
