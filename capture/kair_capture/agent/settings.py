"""The agent's settings, from the environment that the training job has too."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kair_capture.places import JobPlaces, address_of, store_root
from kair_capture.settings import SettingsError, settings_of

SPOOL_BYTES: Final = 1 << 30
_FACTORS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class AgentSettings:
    """What an agent must know."""

    job: str
    run_dir: Path
    places: JobPlaces
    host: str
    """KAIR_HOST, else the system's name of this host."""
    key_file: Path
    """KAIR_KEY_FILE, else the one in the job's folder of the store."""
    coordinator: tuple[str, int] | None
    """KAIR_COORDINATOR, host:port; None where the store says it."""
    spool: Path
    """KAIR_SPOOL_DIR: where fragments wait while the store is away. Default: on a disk of this host."""
    spool_bytes: int
    """KAIR_SPOOL_LIMIT: how much may wait there; 1 GiB."""
    idle_s: float
    """KAIR_AGENT_IDLE: the agent ends when no rank lived for so long."""
    command: tuple[int, int] | None
    """KAIR_AGENT_COMMAND: the process that `kair capture run` became; while it runs, ranks may come."""


def agent_settings(environment: Mapping[str, str] = os.environ) -> AgentSettings:
    """The settings in an environment. Raises SettingsError."""
    shared = settings_of(environment)
    places = JobPlaces(store_root(dict(environment)), shared.job)
    spool = environment.get("KAIR_SPOOL_DIR") or f"/var/tmp/kair-{os.getuid()}"
    named = environment.get("KAIR_COORDINATOR", "").strip()
    try:
        coordinator = address_of(named) if named else None
    except ValueError as error:
        raise SettingsError(f"KAIR_COORDINATOR: {error}") from error
    host = environment.get("KAIR_HOST") or socket.gethostname()
    return AgentSettings(
        job=shared.job,
        run_dir=shared.run_dir,
        places=places,
        host=re.sub(r"[^A-Za-z0-9._-]", "_", host)[:80] or "host",
        key_file=Path(environment.get("KAIR_KEY_FILE") or places.key),
        coordinator=coordinator,
        spool=Path(spool) / shared.job,
        spool_bytes=_size(environment, "KAIR_SPOOL_LIMIT", SPOOL_BYTES),
        idle_s=float(_size(environment, "KAIR_AGENT_IDLE", 30)),
        command=_process(environment.get("KAIR_AGENT_COMMAND", "")),
    )


def _process(text: str) -> tuple[int, int] | None:
    number, _, began = text.partition(":")
    return (int(number), int(began)) if number.isdecimal() and began.isdecimal() else None


def _size(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "").strip().upper()
    if not text:
        return default
    match = re.fullmatch(r"(\d{1,12})([KMG]?)B?", text, re.ASCII)
    if match is None:
        raise SettingsError(f"{name} must be a number such as 30 or 500M, got {text[:40]!r}")
    return int(match[1]) * _FACTORS[match[2]]
