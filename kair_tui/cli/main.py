"""The program's entry: one command, one exit status."""

import os
import sys
from collections.abc import Sequence

from kair_tui.cli import completion
from kair_tui.cli.app import program, run
from kair_tui.cli.failures import report


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `kair` with `arguments` (the process's own when None) and returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Nothing here multiplies matrices: numpy's import would start a thread per core for it, 60 ms of CPU on two.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        if completion.VARIABLE in os.environ:
            return completion.complete(program())
        return run(given or ["--help"])
    except SystemExit:
        raise
    except BaseException as error:
        return report(error, debug="--debug" in given, ascii_only="--ascii" in given)
