"""The cache's size, and what is removed of it: all, or what was not used for longest."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from kair_engine.errors import BusyError, UnwritableError
from kair_engine.frozen import dataclass
from kair_engine.recording.in_use import remove_unused
from kair_engine.trace.permissions import read_kept, remove_unwritten

FRAGMENTS: Final = "fragments"
UNFINISHED: Final = "unfinished"
MOVING: Final = ".moving"
"""Ends the name of what tells the fragment that is being moved to its place, by its inode."""
CHOOSE: Final = "$KAIR_CACHE"
"""The variable that puts the cache elsewhere."""
LIMIT: Final = 20 * 10**9
"""Bytes, where no other limit is set."""
_RECENT_S: Final = 3600.0
"""What was used so lately may be in use."""
_HALF_S: Final = 60.0
"""Half an entry that is older than this will not become whole."""


@dataclass(frozen=True)
class CacheSize:
    """So many traces, parsed, and the bytes of their files."""

    entries: int = 0
    bytes: int = 0


@dataclass
class _Entry:
    files: list[Path]
    bytes: int = 0
    used: float = 0.0


def tidy_cache(root: Path) -> None:
    """Removes what imports left that were killed."""

    def is_left(folder: Path) -> bool:
        for moving in folder.glob(f"*{MOVING}"):
            with suppress(OSError, ValueError):
                _drop_half(root / FRAGMENTS / f"{moving.stem}.parquet", int(read_kept(moving)))
        return True

    remove_unused(leftovers(root), is_left)
    remove_unwritten(root)


def _drop_half(fragment: Path, inode: int) -> None:
    """Removes a fragment of which nothing else is there, unless another import has put its own in the place."""
    if not fragment.with_suffix(".json").exists() and fragment.stat().st_ino == inode:
        fragment.unlink()


def cache_size(root: Path) -> CacheSize:
    """How much the cache below `root` holds."""
    return _size(_entries(root))


def clear(root: Path) -> CacheSize:
    """Removes every entry. Raises BusyError while traces are parsed into it, UnwritableError where it may not."""
    tidy_cache(root)
    if leftovers(root):
        raise BusyError(f"another kair is parsing traces into {root}", "clear it afterwards")
    entries = _entries(root)
    for entry in entries:
        try:
            _remove(entry)
        except OSError as error:
            raise UnwritableError(root, error, CHOOSE) from error
    return _size(entries)


def evict(root: Path, limit: int) -> CacheSize:
    """Removes what was not used for longest, until the rest takes `limit` bytes; nothing that was in the last hour."""
    now, held = time.time(), _entries(root)
    entries = sorted(held, key=lambda entry: entry.used)
    over = sum(entry.bytes for entry in entries) - limit
    removed = []
    for entry in entries:
        half = len(entry.files) == 1 and now - entry.used > _HALF_S
        if half or (over > 0 and now - entry.used > _RECENT_S):
            with suppress(OSError):
                _remove(entry)
                over -= entry.bytes
                removed.append(entry)
    return _size(removed)


def leftovers(root: Path) -> list[Path]:
    """The folders in which imports work, or worked until they were killed."""
    try:
        return list((root / UNFINISHED).iterdir())
    except OSError:
        return []


def _entries(root: Path) -> list[_Entry]:
    found: dict[str, _Entry] = {}
    with suppress(OSError):
        for path in (root / FRAGMENTS).iterdir():
            with suppress(OSError):
                status = path.stat()
                entry = found.setdefault(path.stem, _Entry([]))
                entry.files.append(path)
                entry.bytes += status.st_size
                entry.used = max(entry.used, status.st_mtime)
    return list(found.values())


def _remove(entry: _Entry) -> None:
    # First what it holds: without that there is no entry.
    for path in sorted(entry.files, key=lambda path: path.suffix):
        path.unlink(missing_ok=True)


def _size(entries: list[_Entry]) -> CacheSize:
    return CacheSize(len(entries), sum(entry.bytes for entry in entries))
