"""`kair` as a process that looks and changes nothing: python -m kair_tui.cli.read_only COMMAND…

A hook of the interpreter refuses to open for writing, make, rename or remove whatever lies outside of the cache and of
the folder for temporary files, as a file system does that is mounted read-only. Commands know such stores, and go
without what they would have kept. Programs that the process starts are not hindered: no command that looks starts any
but readers of traces, which write into the cache alone.
"""

import errno
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_DEVICES: Final = Path("/dev")
_CHANGES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "os.chflags": ((0, -1),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.link": ((1, 3),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.removexattr": ((0, -1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.setxattr": ((0, -1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, -1),),
    "os.utime": ((0, 3),),
}
"""Event of the interpreter → (which argument is a path that is changed, which one the folder it begins in; -1: none).

https://docs.python.org/3/library/audit_events.html
"""


def refuse_writing(allowed: Sequence[Path]) -> None:
    """From now on this process writes below these folders alone: elsewhere it meets OSError (EROFS)."""
    sys.addaudithook(_hook((*(folder.resolve() for folder in allowed), _DEVICES)))


def _hook(roots: tuple[Path, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    def heed(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            # What is open already, which has a number, was looked at when it was opened.
            if isinstance(flags, int) and flags & _WRITING and not isinstance(path, int):
                _require(Path(os.fsdecode(path)).resolve(), roots)
        elif event in _CHANGES:
            for of, folder in _CHANGES[event]:
                if not isinstance(arguments[of], int):
                    _require(_place(arguments[of], arguments[folder] if folder >= 0 else -1), roots)

    return heed


def _require(path: Path, roots: tuple[Path, ...]) -> None:
    if not any(path.is_relative_to(root) for root in roots):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def _place(name: str | bytes | os.PathLike[str], folder: int) -> Path:
    """Where the entry of a folder is, which a link is itself; `folder`: in which open one a name begins, -1: none."""
    path = Path(os.fsdecode(name))
    if folder >= 0 and not path.is_absolute():
        path = _path_of(folder) / path
    return path.parent.resolve() / path.name


def _path_of(folder: int) -> Path:
    """Where an open folder is; where the system does not tell, a place in which nothing may be written."""
    try:
        return Path(f"/proc/self/fd/{folder}").readlink()
    except OSError:
        return Path("/")


def main() -> int:
    """Runs `kair` with the process's arguments, and returns its exit status."""
    from kair_tui.cli.main import main as kair
    from kair_tui.cli.places import cache_root

    refuse_writing([cache_root(), Path(tempfile.gettempdir())])
    return kair()


if __name__ == "__main__":
    sys.exit(main())
