"""Prices windows of sampled steps as they are committed: S, M_W and S_w over time, in a separate process."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from kair_capture.coordinator.background import Background
from kair_engine.results.windows import PricedWindow
from kair_engine.trace.files import read_kept


class Pricing:
    """Runs `command`, which stores the prices in a file, after each commit; one at a time."""

    def __init__(self, command: Sequence[str], kept: Path) -> None:
        """`kept` is the file that the command writes."""
        self._command, self._kept = Background(command), kept
        self._is_due = True
        """True at the start: windows may have been committed before a restart."""
        self.windows = _read(kept)
        """Priced windows, oldest first."""

    @property
    def is_open(self) -> bool:
        """Return whether windows are being priced, or must be."""
        return bool(self._command) and (self._is_due or self._command.is_running)

    def look(self) -> None:
        """Note a commit."""
        self._is_due = True

    def turn(self) -> str | None:
        """Continue; return "" after new prices, a text after a failure, else None."""
        if not self._command.is_running:
            if not (self._command and self._is_due):
                return None
            self._is_due = False
            why_not = self._command.begin()
            return None if why_not is None else f"sampled steps could not be priced: {why_not}"
        if (ended := self._command.ended()) is None:
            return None
        before, self.windows = self.windows, _read(self._kept)
        if ended:
            return f"sampled steps could not be priced: {ended}"
        return "" if self.windows != before else None

    def close(self) -> None:
        """End the current run; its prices so far are kept."""
        self._command.close()


def _read(kept: Path) -> tuple[PricedWindow, ...]:
    """Return the file's prices; () if it is missing or damaged."""
    try:
        return tuple(msgspec.json.decode(read_kept(kept), type=dict[str, PricedWindow]).values())
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return ()
