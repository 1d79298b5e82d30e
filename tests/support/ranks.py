"""Ranks of a real job: processes that run one script and meet by gloo on the loopback."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

LONGEST_S = 120


def run_ranks(script: Path, ranks: int, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
    """Runs the script as so many ranks, and fails with what they said where one of them does."""
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    shared |= {"OMP_NUM_THREADS": "1", **(environment or {})}
    started = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=LONGEST_S)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * ranks, "\n".join(one[-2000:] for one in said)
