"""The program's entry: one command, one exit status.

Runs a process for one command, without preparations for a longer life.
"""

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence

_INTERRUPTED = 130
_ENDED_BY = 128
"""Added by shells to the number of the signal that ended a program."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `kair` with `arguments` (None: the process's own) and return its exit status.

    Imports live inside, so that Ctrl-C during start-up is reported like any later interrupt.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments is None:
            # Nothing here multiplies matrices: for that numpy would start a thread per core, 60 ms of CPU on two.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
            _heed_signals(given)
        return _run(given)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BaseException as error:
        from kair_tui.cli.failures import report

        return report(error, debug="--debug" in given, ascii_only="--ascii" in given)
    finally:
        if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # The answer is written: the interpreter's clean-up may be cut short.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(given: Sequence[str]) -> int:
    from kair_tui.cli import completion
    from kair_tui.cli.app import program, run

    if completion.VARIABLE in os.environ:
        return completion.complete(program())
    return run(given or ["--help"])


def _heed_signals(given: Sequence[str]) -> None:
    """Make every terminating signal end the program in order: partial files are removed, and workers end."""
    sys.unraisablehook = _unraisable
    if given[:1] == ["tui"]:
        return  # the full screen has its own ending
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
            signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(_ENDED_BY + number)


def _unraisable(unraisable: "sys.UnraisableHookArgs", /) -> None:
    """End the program also by an interrupt that Python cannot raise, as in a library's clean-up."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        os._exit(_INTERRUPTED)
    sys.__unraisablehook__(unraisable)


_FULL_SCREEN = "tui"
_OBJECTS = 50_000
"""Objects before the first garbage collection: most are modules, which stay; a collection costs 25 ms of 400."""


def run() -> int:
    """Run `kair` with the process's arguments, and end the process with its exit status."""
    if sys.argv[1:2] == [_FULL_SCREEN]:
        return main()
    gc.set_threshold(_OBJECTS)
    status = main()
    _leave(status)
    return status


def _leave(status: int) -> None:
    """End the process at once, after its exit handlers: unloading all modules first costs 40 ms."""
    if threading.active_count() > 1:
        return
    try:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # the interpreter reports what it could not write
    os._exit(status)
