"""Which paths are archives', and which lead into one; light, as every opened file is asked."""

from pathlib import Path
from typing import Final

SUFFIXES: Final = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.zstd")


def is_archive_name(path: Path) -> bool:
    """Whether the name is an archive's; only such files are opened as one."""
    return path.name.lower().endswith(SUFFIXES)


def archive_of(path: Path) -> Path | None:
    """The archive that a path leads into, None for one that is a file's own."""
    return next((parent for parent in path.parents if is_archive_name(parent) and parent.is_file()), None)


def is_member(path: Path) -> bool:
    """Whether the path leads into an archive."""
    return archive_of(path) is not None
