"""Quantities of the host thread, and what the system counts beside: switches, waiting for a core, limits."""

import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kair_engine.probe.repetitions import Quantity, timed
from kair_engine.results.runs.probe import HostCounters

SLEEP_S: Final = 0.001
_SLEEPS: Final = 5
"""In a repetition."""

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")


def host_quantities(repetition_s: float) -> tuple[Quantity, ...]:
    """How fast Python runs, and how late a thread wakes up."""
    loop = timed(_loop, 1.0, repetition_s)
    return (
        Quantity("python_loop", "one addition", "loops_per_s", loop),
        Quantity("wake_up", f"a sleep of {SLEEP_S * 1000:g} ms", "us", _lateness_us),
    )


def _loop(times: int) -> None:
    total = 0
    for number in range(times):
        total += number


def _lateness_us() -> float:
    """How much later than asked a thread wakes up, the mean of some sleeps."""
    began = time.perf_counter()
    for _ in range(_SLEEPS):
        time.sleep(SLEEP_S)
    late = (time.perf_counter() - began) / _SLEEPS - SLEEP_S
    return max(late * 1e6, 1e-3)


def processor_name(proc: Path = PROC) -> str:
    """The processor's model, as far as the system tells."""
    for line in _text(proc / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "cpu model", "Hardware") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Snapshot:
    """What the system has counted so far."""

    at_s: float
    waited_ns: int | None
    switches: int
    throttled: int | None


def snapshot(proc: Path = PROC, cgroups: Path = CGROUPS) -> Snapshot:
    """The counters of this thread and its control group."""
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    return Snapshot(time.perf_counter(), _waited_ns(proc), switches, _throttled(_group(proc, cgroups)))


def counted(before: Snapshot, after: Snapshot, proc: Path = PROC, cgroups: Path = CGROUPS) -> HostCounters:
    """What was counted between two snapshots."""
    seconds = max(after.at_s - before.at_s, 1e-9)
    waited = _difference(before.waited_ns, after.waited_ns)
    return HostCounters(
        run_queue_share=None if waited is None else waited / 1e9 / seconds,
        involuntary_switches_per_s=(after.switches - before.switches) / seconds,
        cpu_quota=_quota(_group(proc, cgroups)),
        throttled_periods=_difference(before.throttled, after.throttled),
    )


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(after - before, 0)


def _waited_ns(proc: Path) -> int | None:
    """The thread's time on a run queue: the second of three numbers, all of them 0 where the kernel counts none."""
    words = _text(proc / "thread-self" / "schedstat").split() or _text(proc / "self" / "schedstat").split()
    return int(words[1]) if len(words) == 3 and all(word.isdigit() for word in words) and words[0] != "0" else None


def _group(proc: Path, cgroups: Path) -> Path:
    """The folder of the process's control group; inside a container its own is the root."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        root = cgroups if not controllers else cgroups / "cpu"
        if (not controllers or "cpu" in controllers.split(",")) and (folder := root / name.lstrip("/")).is_dir():
            return folder
    return cgroups if (cgroups / "cpu.max").exists() else cgroups / "cpu"


def _quota(group: Path) -> float | None:
    """Cores that the group may use: cpu.max of the second version of control groups, cpu.cfs_* of the first."""
    words = _text(group / "cpu.max").split()
    if not words:
        words = [*_text(group / "cpu.cfs_quota_us").split(), *_text(group / "cpu.cfs_period_us").split()]
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":
        return None  # "max" and -1 are no limit
    return int(words[0]) / int(words[1])


def _throttled(group: Path) -> int | None:
    for line in _text(group / "cpu.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "nr_throttled" and value.isdigit():
            return int(value)
    return None


def _text(path: Path) -> str:
    """A small file of the system; empty where there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
