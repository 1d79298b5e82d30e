"""Tells a process from a later one of the same number."""

from pathlib import Path


def start_ticks(pid: int) -> int:
    """When the process began, in clock ticks since boot; 0 where there is none, or no /proc."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
        # The name, in brackets, may hold spaces and brackets itself; the begin is the 20th field after it.
        return int(status[status.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def is_running(pid: int, began: int) -> bool:
    """Whether the process that began then is there; one that ended and was not waited for is not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
        state, *rest = status[status.rindex(b")") + 2 :].split()
        return state not in (b"Z", b"X") and int(rest[18]) == began
    except (OSError, ValueError, IndexError):
        return False


def process_namespace() -> int:
    """In which processes have their numbers: that of a container may be another one. 0 without /proc."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
