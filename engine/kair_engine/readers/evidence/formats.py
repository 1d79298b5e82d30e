"""All kinds of evidence, one row each: how people call them, and the module that knows and reads such files.

A new importer is a module of this folder and a row of IMPORTERS. It has `fits(name, head)`, whether a file of that name
that begins so is of its kind, and `read(path)`. Rows are asked in their order; the first that fits has the file.
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
        """Whether a file is of this kind: its name without the ending of a compression, its first bytes in plain."""

    def read(self, path: Path) -> EvidenceFile:
        """Return the file's rows and sources. Raises InputError where it is damaged or holds nothing of the kind."""


class TimedImporter(Importer, Protocol):
    """One whose files hold telemetry of so many hosts and hours that it passes over what is far from a job's time."""

    def read(self, path: Path, *, when: JobTime | None = None) -> EvidenceFile:
        """Return the same; `when`: without rows that are much farther off than `JobTime.around` asks for."""


@dataclass(frozen=True)
class EvidenceKind:
    """A kind of files that is read."""

    words: str
    """For people, in a list of what is read."""
    module: str
    """Of this package; imported when the first file is looked at."""
    is_timed: bool = False
    """Whether it is a TimedImporter."""


IMPORTERS: Final = (
    EvidenceKind("what nvidia-smi prints (-q, -q -x, dmon, or --query-gpu as CSV)", "nvidia_smi"),
    EvidenceKind("what ncclras prints", "nccl_ras"),
    EvidenceKind("NCCL Inspector's JSON lines", "nccl_inspector"),
    EvidenceKind("snapshots and statistics of PyTorch's memory", "torch_memory"),
    EvidenceKind("events of Kubernetes (kubectl get events -o json)", "kubernetes"),
    EvidenceKind("what sacct, sinfo and scontrol print", "slurm"),
    EvidenceKind("answers of Prometheus (query_range)", "prometheus_api", is_timed=True),
    EvidenceKind("scraped metrics (dcgm-exporter, node_exporter)", "prometheus_text", is_timed=True),
    EvidenceKind("events of gpud (/v1/events) and NVSentinel", "node_agents"),
    EvidenceKind("SuperBench's diagnosis and monitor", "superbench"),
    EvidenceKind("the fabric manager's log", "fabric_manager"),
    # Behind all others, as any text can hold lines of the kernel.
    EvidenceKind("kernel logs (dmesg, journalctl -k)", "kernel_log"),
)


class NotEvidenceError(InputError):
    """The file was looked at, and is something else. In a folder with evidence it is passed over in silence."""


def known_kinds() -> str:
    """All kinds that are read, for a hint."""
    return "; ".join(one.words for one in IMPORTERS)


def require_evidence(path: Path, when: JobTime | None = None) -> Callable[[], EvidenceFile]:
    """Return what reads the file, which its first bytes say is evidence; of telemetry for a job of that time.

    Raises NotEvidenceError for any other, InputError where it cannot be read; so does what reads it.
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
    raise NotEvidenceError(f"{path} is no evidence that Kair knows", f"what is read: {known_kinds()}")


def read_file(path: Path) -> EvidenceFile:
    """Return what one file of evidence holds. Raises InputError where it is none, damaged, or cannot be read."""
    return require_evidence(path)()


def _read(path: Path, read: Callable[[Path], EvidenceFile]) -> EvidenceFile:
    try:
        return read(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot read {path}: {error.strerror or error}")


def _require_table(path: Path) -> None:
    """Raise NotEvidenceError for a Parquet file of something else; a damaged one is told when it is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path).metadata or {}
    except (pa.ArrowException, ValueError, OSError):
        return
    if METADATA_KEY not in metadata:
        raise NotEvidenceError(f"{path} is a Parquet file, and no table of evidence")
