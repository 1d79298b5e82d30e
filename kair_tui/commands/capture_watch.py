"""`kair capture run --watch`: starts a coordinator with the command; it ends with the job."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

from kair_tui.cli.output import say

_LEAVE_S: Final = "10"
"""Seconds that the coordinator stays after the last rank: agents' last deliveries are committed by then."""
_MOST_S: Final = 60.0
"""Seconds to wait after the command for agents that still deliver."""
_LOOK_S: Final = 0.5


def start_coordinator(store: Path, job: str) -> None:
    """Start a coordinator for this process's job; its alerts go to standard error.

    Does nothing if one runs already or KAIR_COORDINATOR names one. This process becomes the command afterwards.
    """
    from kair_capture.files import BusyError, locked
    from kair_capture.places import JobPlaces

    lock = JobPlaces(store, job).capture / "lock"
    if named := os.environ.get("KAIR_COORDINATOR"):
        say(f"kair: job {job} is watched by the coordinator at {named} (KAIR_COORDINATOR)")
        return
    try:
        if lock.exists():
            os.close(locked(lock))
    except BusyError:
        say(f"kair: job {job} has a coordinator already")
        return
    process = os.getpid()
    if not (child := os.fork()):
        _stand_by(store, job, process)
    os.waitpid(child, 0)


def _stand_by(store: Path, job: str, process: int) -> NoReturn:
    """Run the coordinator in a separate session, out of Ctrl-C's reach, until the command and its job have ended."""
    from kair_capture.ring import is_running, start_ticks

    began = start_ticks(process)
    if os.fork():
        os._exit(0)  # the command does not know the grandchild, so nobody waits for it
    try:
        os.setsid()
        words = (
            "coordinator",
            "--job",
            job,
            "--store",
            str(store),
            "--listen",
            "127.0.0.1:0",
            "--leave-after",
            _LEAVE_S,
        )
        null = subprocess.DEVNULL
        coordinator = subprocess.Popen((sys.executable, "-P", "-m", "kair_tui", *words), stdin=null, stdout=null)
        while is_running(process, began) and coordinator.poll() is None:
            time.sleep(_LOOK_S)
        until = time.monotonic() + _MOST_S
        while coordinator.poll() is None and time.monotonic() < until and _has_agents(store, job):
            time.sleep(_LOOK_S)
        coordinator.terminate()
        coordinator.wait()
    finally:
        os._exit(0)


def _has_agents(store: Path, job: str) -> bool:
    """Return whether any agent has reported to the coordinator; if none has, nothing will come."""
    from kair_capture.files import object_in
    from kair_capture.places import JobPlaces

    try:
        return bool(object_in(JobPlaces(store, job).status.read_bytes()).get("hosts"))
    except OSError:
        return False
