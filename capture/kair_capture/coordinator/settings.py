"""The coordinator's settings."""

from dataclasses import dataclass
from pathlib import Path

from kair_capture.places import JobPlaces


@dataclass(frozen=True)
class CoordinatorSettings:
    """What `kair coordinator` is told."""

    places: JobPlaces
    listen: tuple[str, int]
    """Where agents reach it; port 0 for any."""
    advertise: str | None = None
    """The name by which agents on other hosts find it; else this host's, or the address that it listens at."""
    key_file: Path | None = None
    """Else the one in the job's folder, which is made where there is none."""
    max_overhead: float = 0.01
    """The share of the job's time that sampling may take."""
    metrics: tuple[str, int] | None = None
    """Where Prometheus may ask."""
    leave_after_s: float | None = None
    """End so long after the job's last rank; None to stay."""
