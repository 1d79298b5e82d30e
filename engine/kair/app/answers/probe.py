"""The answers of `probe`: this machine measured, or a suspect's probe compared with its peers'."""

from collections.abc import Sequence
from pathlib import Path

from kair.app.question import Watcher
from kair_engine.results.probe import ProbeResult


def processes_of_launch() -> int:
    """Return how many processes the launcher started with this one."""
    from kair_engine.probe.measuring import launch_of

    return launch_of().world_size


def measured(seconds: float, device: str, rank: int | None, progress: Watcher) -> ProbeResult:
    """Measure this machine. Raises UsageError for a device that it does not have."""
    from kair_engine.probe.measuring import measured as measure

    recording = measure(seconds, device, rank, progress)
    from kair_engine.probe.comparison import summary  # loads NumPy, which measuring loads in its own way

    return summary(recording)


def compared(suspect: Path, peers: Sequence[Path]) -> ProbeResult:
    """Compare a suspect's probe with its peers'. Raises InputError for other files or kinds of probe."""
    from kair_engine.probe.comparison import compared as compare
    from kair_engine.probe.comparison import read_probe

    return compare(read_probe(suspect), [*map(read_probe, peers)])
