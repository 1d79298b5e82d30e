"""Lists all kinds of evidence, one row each: a name for users, and the module that recognises and reads such files.

A new importer is a module of this folder and a row of IMPORTERS. Its `fits(name, head)` returns whether a file with
this name and begin is of its kind, and its `read(path)` reads the file. The first row that fits gets the file.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.blocks import PARQUET_MAGIC
from kair_engine.readers.formats import read_head
from kair_engine.trace.evidence_table import METADATA_KEY, EvidenceFile, read_evidence
from kair_engine.trace.evidence_time import JobTime

_COMPRESSED: Final = (".gz", ".zst", ".zstd")


class Importer(Protocol):
    """A module that reads one kind of evidence."""

    def fits(self, name: str, head: bytes) -> bool:
        """Return whether a file is of this kind, by its name (without `.gz`) and first decompressed bytes."""

    def read(self, path: Path) -> EvidenceFile:
        """Return the file's rows and sources. Raises InputError if it is damaged or holds nothing of the kind."""


class TimedImporter(Importer, Protocol):
    """An importer of telemetry, which skips readings far from a job's time: files may span many hosts and hours."""

    def read(self, path: Path, *, when: JobTime | None = None) -> EvidenceFile:
        """Return the same; with `when`, without rows much farther from it than `JobTime.around` allows."""


@dataclass(frozen=True)
class EvidenceKind:
    """A kind of file that can be read."""

    module: str
    """A module of this package, imported when the first file is examined."""
    is_timed: bool = False
    """Whether it is a TimedImporter."""


IMPORTERS: Final = (
    EvidenceKind("nvidia_smi"),
    EvidenceKind("nccl_ras"),
    EvidenceKind("nccl_inspector"),
    EvidenceKind("torch_memory"),
    EvidenceKind("kubernetes"),
    EvidenceKind("slurm"),
    EvidenceKind("prometheus_api", is_timed=True),
    EvidenceKind("prometheus_text", is_timed=True),
    EvidenceKind("node_agents"),
    EvidenceKind("superbench"),
    EvidenceKind("fabric_manager"),
    # Last, because any text can contain lines of the kernel.
    EvidenceKind("kernel_log"),
)


WHAT_IS_READ = "kair help sources lists the evidence that is read, and how to get it"
"""The hint of files that are something else."""


class NotEvidenceError(InputError):
    """Raised for a file that is something else; a folder with evidence skips it silently."""


def require_evidence(path: Path, when: JobTime | None = None) -> Callable[[], EvidenceFile]:
    """Return a function that reads the file, if its first bytes are those of evidence; telemetry near `when` alone.

    Raises NotEvidenceError for any other file, and InputError if it cannot be read, as the function does.
    """
    try:
        head = read_head(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    if head.raw.startswith(PARQUET_MAGIC):
        _require_table(path)
        return lambda: read_evidence(path, when)
    name = path.stem if path.suffix.lower() in _COMPRESSED else path.name
    for kind in IMPORTERS if head.content else ():
        importer = cast("Importer", import_module(f"{__package__}.{kind.module}"))
        if importer.fits(name, head.content):
            timed = cast("TimedImporter", importer) if kind.is_timed else None
            return lambda: _read(path, importer.read if timed is None else partial(timed.read, when=when))
    raise NotEvidenceError(f"{path} is not evidence that Kair reads", WHAT_IS_READ)


def read_file(path: Path) -> EvidenceFile:
    """Return the evidence in one file. Raises InputError if it has none, is damaged, or cannot be read."""
    return require_evidence(path)()


def _read(path: Path, read: Callable[[Path], EvidenceFile]) -> EvidenceFile:
    try:
        return read(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot read {path}: {error.strerror or error}")


def _require_table(path: Path) -> None:
    """Raise NotEvidenceError for a Parquet file of another kind; a damaged one is reported when it is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path).metadata or {}
    except (pa.ArrowException, ValueError, OSError):
        return
    if METADATA_KEY not in metadata:
        raise NotEvidenceError(f"{path} is a Parquet file, and no table of evidence")
