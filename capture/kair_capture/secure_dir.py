"""Makes folders that nobody else can write into, or replace.

Nothing of the engine is used: the training process, whose interpreter may lack it, makes such folders too.
"""

import os
import stat
from pathlib import Path


def make_secure_dir(folder: Path) -> None:
    """Makes `folder`, and what is missing above it, of their owner alone. Raises OSError.

    PermissionError where it is somebody else's, or others can write into it; and where others own the one above, or can
    write into that so that they could put another folder in its place (in `/tmp` they cannot).
    """
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(0o700, exist_ok=True)
    folder.mkdir(0o700, exist_ok=True)
    own, above = folder.stat(), folder.parent.stat()
    if own.st_uid != os.geteuid() or own.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone")
    if above.st_uid not in (os.geteuid(), 0) or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
        raise PermissionError(f"{folder.parent} lets others replace {folder.name}")
