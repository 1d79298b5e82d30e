"""Runs a command of Kair next to the coordinator, one at a time, at low priority while the job trains."""

import os
import subprocess
import time
from collections.abc import Sequence
from typing import IO, Final

_NICE: Final = 10
"""Replaying a large job takes a core for a minute."""


class Background:
    """Runs `command`, and reports how it ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._began_s = 0.0
        self.took_s = 0.0
        """Duration of the last run, in s."""

    def __bool__(self) -> bool:
        """Return whether there is a command."""
        return bool(self._command)

    @property
    def is_running(self) -> bool:
        """Return whether it runs, or its end was not read by `ended` yet."""
        return self._process is not None

    def begin(self, output: IO[bytes] | None = None, *, is_urgent: bool = False) -> str | None:
        """Start it; return the reason if that fails, else None."""
        self._began_s = time.monotonic()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if output is None else output,
                stderr=subprocess.DEVNULL,
            )
            if not is_urgent:
                os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICE)
        except OSError as error:
            return str(error.strerror)
        return None

    def ended(self) -> str | None:
        """Return "" after success, a text after failure, and None while it runs or is not started."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        self._process, self.took_s = None, time.monotonic() - self._began_s
        return f"{self._command[0]} ended with status {status}" if status else ""

    def close(self) -> None:
        """End the current run; what it has written stays."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
