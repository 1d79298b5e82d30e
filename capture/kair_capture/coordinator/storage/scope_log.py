"""Puts delivered sums of the script's own scopes into the job's folder, and joins small files.

A delivered file is moved, so that a coordinator that is killed counts none twice. A joined one names those that it was
made of: where they are still there, they go.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from kair_capture.agent.fragment_names import read_name
from kair_capture.agent.scopes import SCHEMA
from kair_capture.places import JobPlaces
from kair_engine.trace.permissions import make_folder

JOIN_FROM: Final = 64
_MOST_FILE_BYTES: Final = 64 << 20
_MOST_BYTES: Final = 1 << 30
"""Of all files; the oldest go."""
_SOURCES: Final = b"kair.sources"


class ScopeLog:
    """The folder `scopes` of a job; only the coordinator writes it."""

    def __init__(self, places: JobPlaces, key: bytes) -> None:
        self._delivered, self._folder, self._key = places.delivered, places.scopes, key
        self.refused = 0
        """Delivered files that no agent of the job made."""

    def round(self) -> None:
        """Takes what was delivered. Raises OSError when the store cannot be written."""
        delivered = sorted(self._delivered.glob("host=*/scopes-*.parquet"))
        if not delivered:
            return
        make_folder(self._folder)
        for path in delivered:
            host = path.parent.name.removeprefix("host=")
            if self._is_ours(path, host):
                path.rename(self._folder / f"{host}-{path.stem.removeprefix('scopes-')}.parquet")
            else:
                self.refused += 1
                path.unlink(missing_ok=True)
        self._remove_joined()
        small = [path for path in self._files() if path.stat().st_size < _MOST_FILE_BYTES // 2]
        if len(small) >= JOIN_FROM:
            self._join(small)
        self._forget_oldest()

    def _is_ours(self, path: Path, host: str) -> bool:
        name = read_name(path.name)
        if name is None or path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_FILE_BYTES:
            return False
        if not name.is_of(path, host, self._key):
            return False
        try:
            schema: pa.Schema = pq.read_schema(path)
        except pa.ArrowException:
            return False
        return bool(schema.equals(SCHEMA))

    def _files(self) -> list[Path]:
        """The oldest first."""
        files = (path for path in self._folder.glob("[!.]*.parquet") if path.is_file())
        return sorted(files, key=lambda path: path.stat().st_mtime_ns)

    def _join(self, small: list[Path]) -> None:
        table = pa.concat_tables([pq.read_table(path, schema=SCHEMA) for path in small])
        table = table.sort_by([("step", "ascending"), ("rank", "ascending"), ("scope", "ascending")])
        names = "\n".join(path.name for path in small).encode()
        first = small[0].name.rpartition(".")[0]
        temporary = self._folder / f".joined-{first}.parquet"
        pq.write_table(table.replace_schema_metadata({_SOURCES: names}), temporary, compression="zstd")
        temporary.chmod(0o600)
        temporary.rename(self._folder / f"joined-{first}.parquet")
        self._remove_joined()

    def _remove_joined(self) -> None:
        """What a joined file holds."""
        for path in filter(Path.is_file, self._folder.glob("joined-*.parquet")):
            sources = (pq.read_metadata(path).metadata or {}).get(_SOURCES, b"").decode().split("\n")
            # Files of this folder: from a bucket that others write to, a list may name any of the host's.
            for source in (self._folder / name for name in sources if name and "/" not in name):
                with suppress(OSError):
                    source.unlink()

    def _forget_oldest(self) -> None:
        files = self._files()
        sizes = [path.stat().st_size for path in files]
        over = sum(sizes) - _MOST_BYTES
        for path, size in zip(files, sizes, strict=True):
            if over <= 0:
                return
            path.unlink(missing_ok=True)
            over -= size
