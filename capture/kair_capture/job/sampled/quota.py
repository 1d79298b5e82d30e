"""How often a quota of CPU time stopped this process: what the system counts for its control group."""

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
GROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = ("max", "-1")


class Quota:
    """The next group around this process that has a quota, of the first version of control groups or the second."""

    def __init__(self, proc: Path = PROC, groups: Path = GROUPS) -> None:
        self._proc, self._groups = proc, groups
        self._stat: Path | None = None
        self._last: int | None = None

    def look(self) -> None:
        """Which group that is now; from here on stops are counted."""
        self._stat = next((folder / "cpu.stat" for folder in self._around() if _is_limited(folder)), None)
        self._last = self._so_far()

    def stops(self) -> int | None:
        """Since the last call, or `look`; None where there is no quota."""
        before, self._last = self._last, self._so_far()
        return None if before is None or self._last is None else max(self._last - before, 0)

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


def _is_limited(folder: Path) -> bool:
    """`cpu.max` is of the second version, `cpu.cfs_quota_us` of the first."""
    words = _text(folder / "cpu.max").split() or _text(folder / "cpu.cfs_quota_us").split()
    return bool(words) and words[0] not in _UNLIMITED


def _text(path: Path) -> str:
    """A small file of the system; empty where there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
