"""Makes folders that nobody else can write into, or replace."""

import os
import stat
from pathlib import Path


def make_own_folder(folder: Path) -> None:
    """Makes `folder`, and the one above, of their owner alone. Raises OSError.

    PermissionError where it is somebody else's, or others can write into it; and where others own the one above, or can
    write into that so that they could put another folder in its place (in `/tmp` they cannot).
    """
    for missing in (folder.parent, folder):
        missing.mkdir(mode=0o700, parents=missing is folder.parent, exist_ok=True)
    own, above = folder.stat(), folder.parent.stat()
    if own.st_uid != os.geteuid() or own.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone")
    if above.st_uid not in (os.geteuid(), 0) or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
        raise PermissionError(f"{folder.parent} lets others replace {folder.name}")
