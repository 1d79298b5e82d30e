"""Reads all settings of capture from the environment, once."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from kair_capture.files import own_folder_in

MOST_RECORDS: Final = 1 << 22
FEWEST_RECORDS: Final = 1 << 8


class SettingsError(ValueError):
    """Raised for an invalid variable, which its text names."""


@dataclass(frozen=True)
class Settings:
    """Values of the variables KAIR_*, and torchrun's of the rank. One per process."""

    job: str
    """KAIR_JOB, else the launcher's own name of the run, else `job`."""
    run_dir: Path
    """KAIR_RUN_DIR, else /dev/shm/kair-<uid>/<job>: the folder that a host's ranks and its agent share."""
    rank: int
    world_size: int
    local_rank: int
    disabled: bool
    """KAIR_DISABLE: capture does nothing."""
    ring_records: int
    """KAIR_RING_RECORDS: records in a thread's ring; a power of two."""
    sample_every: int
    """KAIR_SAMPLE_EVERY: profile one step in so many without an agent's request; 0 for none."""
    max_overhead: float
    """KAIR_MAX_OVERHEAD: share of a rank's time that unasked sampling may take."""
    hooks: bool
    """KAIR_HOOKS=0: find no scopes, and use only the script's marks."""
    collectives: bool
    """KAIR_COLLECTIVES=0: do not wrap torch.distributed's functions."""
    delays: bool | None = None
    """KAIR_CAPTURE_DELAYS: whether `kair confirm` may delay the ranks; None leaves it to the coordinator."""
    attachable: bool = False
    """KAIR_CAPTURE_ATTACHABLE=1: count steps, but record nothing until `kair capture attach` orders it."""


def settings_of(environment: Mapping[str, str] = os.environ, *, job: str | None = None) -> Settings:
    """Return the settings in an environment. Raises SettingsError."""
    name = safe_name(job or environment.get("KAIR_JOB") or environment.get("TORCHELASTIC_RUN_ID") or "job")
    folder = environment.get("KAIR_RUN_DIR")
    rank = _whole(environment, "RANK", 0)
    return Settings(
        job=name,
        # Absolute: a script may change its folder before its first step.
        run_dir=Path(folder).absolute() if folder else default_run_dir(name),
        rank=rank,
        world_size=_whole(environment, "WORLD_SIZE", 1, least=1),
        local_rank=_whole(environment, "LOCAL_RANK", rank),
        disabled=switch(environment, "KAIR_DISABLE", False),
        ring_records=_records(environment),
        sample_every=_whole(environment, "KAIR_SAMPLE_EVERY", 0),
        max_overhead=_share(environment, "KAIR_MAX_OVERHEAD", 0.01),
        hooks=switch(environment, "KAIR_HOOKS", True),
        collectives=switch(environment, "KAIR_COLLECTIVES", True),
        delays=switch(environment, "KAIR_CAPTURE_DELAYS", False) if environment.get("KAIR_CAPTURE_DELAYS") else None,
        attachable=switch(environment, "KAIR_CAPTURE_ATTACHABLE", False),
    )


def default_run_dir(job: str) -> Path:
    """Return the default folder of a job's rings: memory of this host, the user's own."""
    return own_folder_in(Path("/dev/shm")) / safe_name(job)


def safe_name(job: str) -> str:
    """Return the job's name as a folder's: characters that could leave the folder, or hide it, are replaced.

    Such a name ends with a checksum of the given one, so that `a/b` and `a:b` stay two jobs.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "_", job).lstrip(".")[:100] or "job"
    return name if name == job or not job else f"{name[:91]}-{crc32(job.encode(errors='surrogatepass')):08x}"


def _whole(environment: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) < least:
        raise SettingsError(f"{name} must be a whole number of {least} or more, got {text[:40]!r}")
    return int(text)


def share_in(text: str) -> float:
    """Return `1%` or `0.01` as a share. Raises ValueError for anything else, or more than 1."""
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


def _share(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "").strip()
    try:
        return share_in(text) if text else default
    except ValueError:
        raise SettingsError(f"{name} must be a share such as 1% or 0.01, got {text[:40]!r}") from None


def switch(environment: Mapping[str, str], name: str, default: bool) -> bool:
    """Return the value of `1`, `0` and the like. Raises SettingsError."""
    text = environment.get(name, "").strip().lower()
    if text in ("", "0", "1", "true", "false", "yes", "no", "on", "off"):
        return default if not text else text in ("1", "true", "yes", "on")
    raise SettingsError(f"{name} must be 0 or 1, got {text[:40]!r}")


def _records(environment: Mapping[str, str]) -> int:
    records = _whole(environment, "KAIR_RING_RECORDS", 1 << 15)
    if not FEWEST_RECORDS <= records <= MOST_RECORDS or records & (records - 1):
        raise SettingsError(f"KAIR_RING_RECORDS must be a power of two from {FEWEST_RECORDS} to {MOST_RECORDS}")
    return records
