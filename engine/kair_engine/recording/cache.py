"""Parsed traces, kept between runs under the user's cache folder and keyed by the content they came from.

Each entry is `<key>.parquet`, the fragment, and `<key>.json`, what it holds; the second is written last, so
an entry without it does not exist. Deleting any of it is safe.
"""

import hashlib
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from kair_engine.readers.whatif_parquet.meta import metadata_files
from kair_engine.trace.model import FragmentInfo, KairWarning
from kair_engine.trace.warning_texts import short_warning

# Part of every key: raised whenever readers give another table for the same file.
READER_VERSION: Final = 10
_SAMPLE: Final = 64 << 10
_PARQUET_MAGIC: Final = b"PAR1"


class _Entry(msgspec.Struct):
    parquet_bytes: int
    info: FragmentInfo


class FragmentCache:
    """The entries below one folder; several processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "fragments"
        self.warnings: tuple[KairWarning, ...] = ()

    def make_writable(self) -> None:
        """Creates the folder; where that fails, a temporary one takes its place until the process ends."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".probe.{os.getpid()}.{os.urandom(4).hex()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            reason = error.strerror or error
            text = f"cannot write the cache {self.folder} ({reason}); what is parsed will not be kept"
            self.warnings = (short_warning("cache_unwritable", text),)
            self.folder = _temporary_folder()

    def fragment(self, key: str) -> Path:
        """Where the fragment of `key` is, or is to be written."""
        return self.folder / f"{key}.parquet"

    def find(self, key: str, source: Path) -> FragmentInfo | None:
        """What the entry holds, or None where there is none or it is damaged."""
        path = self.fragment(key)
        try:
            entry = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=_Entry)
            if entry.parquet_bytes != path.stat().st_size or not _is_whole(path):
                return None
            return replace(entry.info, source=str(source))
        except (OSError, msgspec.MsgspecError, RecursionError):
            return None

    def add(self, key: str, info: FragmentInfo) -> None:
        """Completes the entry whose fragment was written. Raises OSError when the disk is full."""
        path = self.fragment(key)
        entry = _Entry(path.stat().st_size, info)
        try:
            write_whole(path.with_suffix(".json"), msgspec.json.encode(entry))
        except OSError:
            path.unlink(missing_ok=True)
            raise


def content_key(source: Path, rank: int | None = None) -> str:
    """The key of a file's content, read as `rank` where the file itself does not say. Raises OSError."""
    source = source.absolute()
    digest = hashlib.blake2b(digest_size=20)
    # Rank and host can come from the names, so equal files of different names are different traces.
    names = [folder for folder in source.parts[:-2] if folder.startswith("host=")]
    status = source.stat()
    digest.update(repr((READER_VERSION, rank, names, source.parts[-2:], status.st_size, status.st_mtime_ns)).encode())
    with source.open("rb") as file:
        head = file.read(_SAMPLE)
        digest.update(head)
        if status.st_size > _SAMPLE:
            file.seek(max(status.st_size - _SAMPLE, _SAMPLE))
            digest.update(file.read(_SAMPLE))
    if head.startswith(_PARQUET_MAGIC):
        for beside in metadata_files(source):
            digest.update(beside.read_bytes())
    return digest.hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that appears complete or not at all. Raises OSError when the disk is full."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _temporary_folder() -> Path:
    import atexit
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="kair-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-len(_PARQUET_MAGIC), os.SEEK_END)
        return file.read() == _PARQUET_MAGIC
