"""Prices the windows of sampled steps as they are committed: S, M_W and S_w over time, by a process of its own."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from kair_engine.results.windows import PricedWindow
from kair_engine.trace.files import read_kept

_NICE: Final = 10
"""The replay of a large job takes a core for a minute."""


class Pricing:
    """Runs `command`, which keeps the prices in a file, whenever something was committed; one at a time."""

    def __init__(self, command: Sequence[str], kept: Path) -> None:
        """`kept`: the file that the command writes."""
        self._command, self._kept = tuple(command), kept
        self._process: subprocess.Popen[bytes] | None = None
        self._is_due = True
        """At the start too: windows may have been committed before a restart."""
        self.windows = _read(kept)
        """Those that are priced, the oldest first."""

    @property
    def is_open(self) -> bool:
        """Whether windows are being priced, or have to be."""
        return bool(self._command) and (self._is_due or self._process is not None)

    def look(self) -> None:
        """Something was committed."""
        self._is_due = True

    def turn(self) -> str | None:
        """Go on; `""` once prices are new, what went wrong where they could not be had, None where nothing happened."""
        if self._process is None:
            return self._begin() if self._command and self._is_due else None
        if (status := self._process.poll()) is None:
            return None
        self._process = None
        before, self.windows = self.windows, _read(self._kept)
        if status:
            return f"sampled steps could not be priced: {self._command[0]} ended with status {status}"
        return "" if self.windows != before else None

    def _begin(self) -> str | None:
        self._is_due = False
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICE)
        except OSError as error:
            return f"sampled steps could not be priced: {error.strerror}"
        return None

    def close(self) -> None:
        """End what is under way: what it had priced is kept."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def _read(kept: Path) -> tuple[PricedWindow, ...]:
    """Return what the file has; nothing where it is missing or damaged."""
    try:
        return tuple(msgspec.json.decode(read_kept(kept), type=dict[str, PricedWindow]).values())
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return ()
