"""What a running job's coordinator says of it, for the screen that follows the job."""

from pathlib import Path
from typing import TYPE_CHECKING

from kair_engine.errors import InputError
from kair_tui.cli.arguments.job import JobSource

if TYPE_CHECKING:
    from kair_engine.results.runs.watch import WatchResult

_OPEN_FOR_MORE = ("waiting", "training", "stalled")


class LiveJob:
    """The job that is followed: its step, and alerts as they come."""

    def __init__(self) -> None:
        self._told: frozenset[str] | None = None
        self.where = ""
        """`step 512` while it trains, else empty."""

    def hear(self, status: "WatchResult | None") -> list[str]:
        """Takes the latest status; what is new since the one before, in words. At first that is what is still so."""
        if status is None:
            self.where = ""
            return []
        from kair_capture.coordinator.alert_text import in_words

        self.where = f"step {status.step}" if status.state in _OPEN_FOR_MORE and status.step >= 0 else ""
        new = [
            alert
            for alert in (status.open_alerts() if self._told is None else status.alerts)
            if self._told is None or repr(alert) not in self._told
        ]
        self._told = frozenset(map(repr, status.alerts))
        return [in_words(alert) for alert in new]


def live_status(source: JobSource) -> "WatchResult | None":
    """As it is now; None of a job without a coordinator, or of one that has gone."""
    if not source.stored or not Path(source.path, "capture", "status.json").exists():
        return None
    from kair_tui.commands.running.watch import run

    try:
        return run(source.path.parent, job=source.path.name)
    except (InputError, OSError):
        return None
