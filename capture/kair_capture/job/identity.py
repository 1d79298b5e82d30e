"""Says who a rank is: the file beside its rings."""

import json
import os
import platform
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kair_capture.job.files import write_atomically
from kair_capture.job.framework import Communication
from kair_capture.ring.process_identity import process_namespace, start_ticks
from kair_capture.settings import Settings


def write_identity(
    settings: Settings,
    rank: int,
    world_size: int,
    framework: Mapping[str, Any],
    communication: Communication | None = None,
) -> None:
    """Writes `rank-<r>.json` whole, again once it is known how the rank communicates. Raises OSError."""
    identity = {
        "job": settings.job,
        "rank": rank,
        "world_size": world_size,
        "local_rank": settings.local_rank,
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "start_ticks": start_ticks(os.getpid()),
        "pid_namespace": process_namespace(),
        "started_ns": time.time_ns(),
        "python": platform.python_version(),
        "clock": "CLOCK_MONOTONIC",
        **framework,
    }
    if communication is not None:
        identity["communication"] = asdict(communication)
    write_atomically(settings.run_dir / f"rank-{rank}.json", json.dumps(identity).encode())
