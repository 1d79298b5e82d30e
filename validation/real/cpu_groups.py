"""Groups of processes with a quota of CPU time: of control groups, the first version or the second."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
FIRST_VERSION = ROOT / "cpu"


@dataclass(frozen=True)
class CpuGroup:
    """One group; where it is in the first version its quota is in files of its own."""

    folder: Path
    parent: Path

    @classmethod
    def make(cls, name: str, stack: ExitStack) -> CpuGroup:
        """A group below this process's own, removed with the take; in the second version below the root."""
        parent = ROOT
        if FIRST_VERSION.exists():
            lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
            parent = FIRST_VERSION / next(line for line in lines if ":cpu:" in line).split(":")[2].strip("/")
        else:
            (ROOT / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")
        group = cls(parent / name, parent)
        group.folder.mkdir()
        stack.callback(group.remove)
        return group

    @property
    def stat(self) -> Path:
        """The file that tells of throttling."""
        return self.folder / "cpu.stat"

    def limit(self, quota_us: int, period_us: int) -> None:
        """Let the group run for so long in every period."""
        if FIRST_VERSION.exists():
            (self.folder / "cpu.cfs_period_us").write_text(str(period_us), encoding="ascii")
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")
        else:
            (self.folder / "cpu.max").write_text(f"{quota_us} {period_us}", encoding="ascii")

    def lift(self) -> None:
        """No limit any more."""
        if FIRST_VERSION.exists():
            (self.folder / "cpu.cfs_quota_us").write_text("-1", encoding="ascii")
        else:
            (self.folder / "cpu.max").write_text("max", encoding="ascii")

    def add(self, pid: int) -> None:
        """Move a process into it."""
        (self.folder / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def remove(self) -> None:
        """Move out what still runs in it, and remove it once the last process is gone."""
        for _ in range(50):
            try:
                for pid in (self.folder / "cgroup.procs").read_text(encoding="ascii").split():
                    (self.parent / "cgroup.procs").write_text(pid, encoding="ascii")
                self.folder.rmdir()
            except OSError:
                time.sleep(0.1)
            else:
                return


def throttled_ns(stat: str) -> int:
    """How long the group has been kept from running, by its file `stat`."""
    for line in Path(stat).read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(" ")
        if name in ("throttled_time", "throttled_usec"):
            return int(value) * (1000 if name == "throttled_usec" else 1)
    return 0
