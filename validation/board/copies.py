"""Files of fetched repositories, read from a git directory or a checkout and held against their digests."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from .catalogue import Entry, Source


class NotHereError(Exception):
    """The machine has no copy of this, or another than the catalogue's."""


def blob_id(data: bytes) -> str:
    """Return the id that git gives a file of these contents (SHA-1 of its length and its bytes, hexadecimal)."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def read_files(entry: Entry, copies: Path | None) -> dict[str, bytes]:
    """Return the contents of an entry's files by their paths.

    Raises NotHereError where the copy, a file of it or its expected contents are absent.
    """
    source = entry.source
    if source is None:
        return {}
    if copies is None:
        raise NotHereError("no folder of copies was named (--copies or KAIR_BOARD_COPIES)")
    if not (copies / source.repository).is_dir():
        raise NotHereError(f"no copy of github.com/{source.repository}")
    return {path: _read(copies / source.repository, source, path, digest) for path, digest in entry.files.items()}


def _read(copy: Path, source: Source, path: str, digest: str) -> bytes:
    file = copy / path
    if file.is_file():
        data = file.read_bytes()
    else:
        # By the contents' id: a copy may have them at another commit, or have renamed the file since.
        command = ["git", "-C", str(copy), "cat-file", "blob", digest]
        shown = subprocess.run(command, capture_output=True, check=False)
        if shown.returncode:
            raise NotHereError(f"the copy of {source.repository} has no {path} of {source.commit[:8]}")
        data = shown.stdout
    if blob_id(data) != digest:
        raise NotHereError(f"{path} in the copy of {source.repository} is not that of {source.commit[:8]}")
    return data
