"""A program in its own process, within a time and a memory limit, and what it took."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from subprocess import Popen
from typing import Final

SECONDS: Final = 300
"""Of wall-clock time, for a program and a recording."""
ADDRESS_SPACE_GB: Final = 16
_LIMITED: Final = ("/bin/sh", "-c", f'ulimit -v {ADDRESS_SPACE_GB << 20} && exec "$@"', "limited")
"""The program takes the shell's place, with its limit; what it starts has the same."""


@dataclass(frozen=True)
class Ran:
    """How a program ended, what it printed and what it took; of several processes the largest one's memory."""

    code: int
    out: str
    error: str
    cpu_s: float
    peak_mb: float
    timed_out: bool


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Ran:
    """Return how `command` ended; beyond the time limit it is killed with its children.

    The caller must be smaller than what it measures: a process begins with the memory of who started it.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        child = Popen(
            [*_LIMITED, *command],
            stdout=out,
            stderr=error,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        late = threading.Event()

        def end() -> None:
            late.set()
            os.killpg(child.pid, signal.SIGKILL)

        timer = threading.Timer(SECONDS, end)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, error):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Ran(
        code=child.returncode,
        out=texts[0],
        error=texts[1],
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mb=usage.ru_maxrss * 1024 / 1e6,
        timed_out=late.is_set(),
    )
