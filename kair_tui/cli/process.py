"""Runs a process for one command, without what only longer lives need."""

import atexit
import gc
import os
import sys
import threading

from kair_tui.cli.main import main

_FULL_SCREEN = "tui"
_OBJECTS = 50_000
"""So many more objects before the first look for garbage: most are modules, which stay; looking costs 25 ms of 400."""


def run() -> int:
    """Runs `kair` with the process's arguments, and ends the process with its exit status."""
    if sys.argv[1:2] == [_FULL_SCREEN]:
        return main()
    gc.set_threshold(_OBJECTS)
    status = main()
    _leave(status)
    return status


def _leave(status: int) -> None:
    """Ends the process at once: to take all modules apart first costs 40 ms. What was to be done at its end is done."""
    if threading.active_count() > 1:
        return
    try:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # the interpreter says what it could not write
    os._exit(status)
