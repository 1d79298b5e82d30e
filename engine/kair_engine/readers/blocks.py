"""Decompresses a trace file in blocks; what a cut or damaged file still holds is kept."""

import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Final

from kair_engine.errors import InputError

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
PARQUET_MAGIC: Final = b"PAR1"

BLOCK_SIZE: Final = 1 << 18
_READ_SIZE: Final = 128 << 10
_OF_MEMBER: Final = 16 << 20
"""The same for all members: files of an archive are read fastest in its order."""


# Traces compress by 12 to 17.
_COMPRESSION: Final = 12


def text_size(path: Path) -> int:
    """Return about how many bytes of text a file holds, which may lie in an archive; 0 if that is unknown."""
    try:
        with path.open("rb") as file:
            head = file.read(4)
        size = path.stat().st_size
    except NotADirectoryError:
        return _OF_MEMBER
    except OSError:
        return 0
    return size * (_COMPRESSION if head.startswith(GZIP_MAGIC) or head == ZSTD_MAGIC else 1)


def open_file(path: Path) -> IO[bytes]:
    """Return the file, which may lie in an archive. Raises OSError, or InputError if the archive is damaged."""
    try:
        return path.open("rb")
    except NotADirectoryError:
        from kair_engine.readers.archives import open_member  # few recordings are in one

        return open_member(path)


class BlockReader:
    """Iterates over the decompressed blocks of one file; `damaged` is set when it ends early or is corrupt."""

    def __init__(self, path: Path, *, block_size: int = BLOCK_SIZE) -> None:
        self._path = path
        self._block_size = block_size
        self.bytes_read = 0
        """Decompressed bytes handed out so far."""
        self.damaged = False

    def __iter__(self) -> Generator[bytes, None, None]:
        # Only the reader's own errors are about the input: those of the caller pass through.
        blocks = self._blocks()
        while True:
            try:
                block = next(blocks, b"")
            except OSError as error:
                raise InputError(f"cannot read {self._path}: {error.strerror or error}") from error
            if not block:
                return
            self.bytes_read += len(block)
            yield block
            # Frees its memory for the next block if nobody else holds it.
            del block

    def _blocks(self) -> Iterator[bytes]:
        with open_file(self._path) as file:
            magic = file.read(4)
            file.seek(0)
            if magic.startswith(GZIP_MAGIC):
                yield from self._gzip(file)
            elif magic.startswith(ZSTD_MAGIC):
                yield from self._zstd(file)
            else:
                yield from iter(lambda: file.read(self._block_size), b"")

    def _gzip(self, file: IO[bytes]) -> Iterator[bytes]:
        """Yield every member of the file; `max_length` bounds the memory that a highly compressed block takes."""
        member = zlib.decompressobj(wbits=31)
        pending = b""
        while True:
            if not pending:
                pending = file.read(min(_READ_SIZE, self._block_size))
                if not pending:
                    self.damaged = not member.eof
                    return
            if member.eof:
                pending = pending.lstrip(b"\0")
                if not pending:
                    continue
                if not pending.startswith(GZIP_MAGIC[: len(pending)]):
                    return
                member = zlib.decompressobj(wbits=31)
            try:
                block = member.decompress(pending, self._block_size)
            except zlib.error:
                self.damaged = True
                return
            pending = member.unused_data if member.eof else member.unconsumed_tail
            if block:
                yield block

    def _zstd(self, file: IO[bytes]) -> Iterator[bytes]:
        import pyarrow as pa

        stream = pa.CompressedInputStream(file, "zstd")
        while True:
            try:
                block = stream.read(min(_READ_SIZE, self._block_size))
            except OSError:
                self.damaged = True
                return
            if not block:
                return
            yield block


def read_whole(path: Path, most_bytes: int, hint: str | None = None) -> tuple[bytes, bool]:
    """Return a file's decompressed content, and whether it is cut off or damaged.

    Raises InputError with `hint` if it is larger than `most_bytes` or cannot be read.
    """
    blocks, held = BlockReader(path), []
    with closing(iter(blocks)) as stream:
        for block in stream:
            held.append(block)
            if blocks.bytes_read > most_bytes:
                text = f"{path.name} holds more than {most_bytes >> 20:,} MiB, the most that is read of such a file"
                raise InputError(text, hint)
    return b"".join(held), blocks.damaged
