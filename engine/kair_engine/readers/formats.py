"""All formats, one row each: those that are read, and those that are only recognised.

A new reader is a folder of `readers/` and a row of FORMATS: how its files are told, and the function that reads them.
Rows are asked in their order; the first that knows the file has it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from kair_engine.frozen import dataclass
from kair_engine.readers import magic
from kair_engine.readers.magic import Head
from kair_engine.trace.model import FragmentInfo


class Reader(Protocol):
    """What reads a file of one format."""

    def __call__(self, source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
        """Writes `source` as the fragment `out`, and says what it holds.

        `rank_hint` is the rank of a file that does not say its own. Raises NotATraceError where the file is something
        else after all, InputError where it cannot be read or holds no operations, OSError when the disk is full.
        """


@dataclass(frozen=True)
class Format:
    """A format that is read."""

    name: str
    """As `FragmentInfo.format` and `kair info` have it."""
    words: str
    """For people, in a list of what is read."""
    matches: Callable[[Head], bool]
    """Whether a file that begins like this is of the format."""
    reader: str
    """`module:function`, imported when the first file is read."""
    needs_file: bool = False
    """Whether it is read here and there, and not from its begin to its end: then it cannot lie in an archive."""


@dataclass(frozen=True)
class Unsupported:
    """A format that is known and not read: what it is, and how one comes to something that is."""

    words: str
    matches: Callable[[Head], bool]
    way_out: str


_READERS: Final = "kair_engine.readers"

FORMATS: Final = (
    Format(
        "whatif",
        "what-if Parquet files",
        magic.is_parquet,
        f"{_READERS}.whatif_parquet.reader:read_whatif",
        needs_file=True,
    ),
    Format(
        "nsys",
        "Nsight Systems' SQLite exports",
        magic.is_nsys_export,
        f"{_READERS}.nsys.reader:read_nsys",
        needs_file=True,
    ),
    Format("xplane", "XLA profiles (.xplane.pb)", magic.is_xplane, f"{_READERS}.xplane.reader:read_xplane"),
    Format("ras", "what NCCL's RAS prints (ncclras)", magic.is_ras, f"{_READERS}.ras.reader:read_ras"),
    Format(
        "flight_recorder",
        "PyTorch Flight Recorder dumps",
        magic.is_flight_recorder,
        f"{_READERS}.flight_recorder.reader:read_flight_recorder",
    ),
    Format("ascend", "Ascend's trace_view.json", magic.is_ascend, f"{_READERS}.chrome.ascend:read_ascend"),
    Format("rocprof", "rocprof's JSON", magic.is_rocprof, f"{_READERS}.chrome.rocprof:read_rocprof"),
    Format("horovod", "Horovod's timeline", magic.is_horovod, f"{_READERS}.chrome.horovod:read_horovod"),
    Format("composer", "Composer's traces", magic.is_composer, f"{_READERS}.chrome.composer:read_composer"),
    # Behind all other JSON, as it takes any that is too long to tell.
    Format("kineto", "PyTorch profiler (Kineto) JSON", magic.is_kineto, f"{_READERS}.kineto.reader:read_kineto"),
    # Behind all others, as it takes any text: what it reads stands at the end of a log.
    Format(
        "job_log",
        "job logs with time-outs of NCCL's watchdog",
        magic.is_job_log,
        f"{_READERS}.job_log.reader:read_job_log",
    ),
)

UNSUPPORTED: Final = (
    Unsupported("an archive within another, or of a kind that is not opened", magic.is_archive, "unpack it"),
    Unsupported(
        "an Nsight Systems report",
        magic.is_nsys_report,
        "convert it: nsys export --type sqlite --lazy=false FILE.nsys-rep",
    ),
    Unsupported(
        "an old Nsight Systems report (.qdrep)",
        magic.is_old_nsys_report,
        "convert it: nsys export --type sqlite FILE.qdrep (or open it in Nsight Systems and export to SQLite)",
    ),
    Unsupported(
        "a database of rocprof",
        magic.is_rocprof_database,
        "record with rocprofv3 --output-format json, or with torch.profiler",
    ),
    Unsupported("a compressed SQLite database", magic.is_compressed_sqlite, "decompress it: gunzip FILE"),
    Unsupported(
        "a Perfetto protobuf trace",
        magic.is_perfetto,
        "convert it: traceconv json FILE.pftrace FILE.json, or record with rocprofv3 --output-format json",
    ),
    Unsupported(
        "a Chakra execution trace",
        magic.is_chakra,
        "it tells what depends on what, for simulators; give the Kineto traces that were recorded beside it",
    ),
    Unsupported(
        "a dump of stacks by py-spy",
        magic.is_py_spy,
        "it tells where one process is, and not who waits for whom: give the job's log or its Flight Recorder dumps",
    ),
    Unsupported(
        "a list of events by ncclras -m",
        magic.is_ras_monitor,
        "it tells who came and went: ask the job how far it is with ncclras -v",
    ),
    Unsupported(
        "an OTF2 archive",
        magic.is_otf2,
        "OTF2 is not read; record with torch.profiler or Nsight Systems",
    ),
)
