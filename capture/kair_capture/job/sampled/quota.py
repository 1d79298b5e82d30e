"""The quota of CPU time that this process has, and how often it stopped it: what its control groups tell."""

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
GROUPS: Final = Path("/sys/fs/cgroup")
_OF_CORES: Final = ("quota", "period")
"""Of a group without a quota the first is no number: `max`, or −1."""


class Quota:
    """The next group around this process that has a quota, of the first version of control groups or the second."""

    def __init__(self, proc: Path = PROC, groups: Path = GROUPS) -> None:
        self._proc, self._groups = proc, groups
        self._stat: Path | None = None
        self._last: int | None = None

    def look(self) -> None:
        """Which group that is now; from here on stops are counted."""
        self._stat = next((folder / "cpu.stat" for folder in self._around() if _cores(folder) is not None), None)
        self._last = self._so_far()

    def stops(self) -> int | None:
        """Since the last call, or `look`; None where there is no quota."""
        if self._stat is None:
            self.look()  # one may be set at any time
            return None
        before, self._last = self._last, self._so_far()
        return None if before is None or self._last is None else max(self._last - before, 0)

    def cores(self) -> float | None:
        """How many cores' time it may use: by the least of the quotas around it; None where there is none."""
        return min((cores for folder in self._around() if (cores := _cores(folder)) is not None), default=None)

    def _around(self) -> list[Path]:
        """The process's group and those around it; inside a container its own is the root."""
        for line in _text(self._proc / "self" / "cgroup").splitlines():
            _, controllers, name = (*line.split(":", 2), "", "")[:3]
            root = self._groups / "cpu" if controllers else self._groups
            folder = root / name.lstrip("/")
            if "cpu" in controllers.split(",") or (not controllers and (root / "cgroup.controllers").exists()):
                own = folder if folder.is_dir() else root
                return [one for one in (own, *own.parents) if one.is_relative_to(root)]
        return []

    def _so_far(self) -> int | None:
        if self._stat is not None:
            for line in _text(self._stat).splitlines():
                name, _, value = line.partition(" ")
                if name == "nr_throttled" and value.isdecimal():
                    return int(value)
        return None


def _cores(folder: Path) -> float | None:
    """`cpu.max` is of the second version, `cpu.cfs_quota_us` of the first; None where a group has no quota."""
    words = _text(folder / "cpu.max").split() or [_text(folder / f"cpu.cfs_{of}_us").strip() for of in _OF_CORES]
    if len(words) != len(_OF_CORES) or not all(word.isdecimal() for word in words):
        return None
    quota, period = map(int, words)
    return quota / period if period else None


def _text(path: Path) -> str:
    """A small file of the system; empty where there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
