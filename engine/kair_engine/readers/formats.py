"""Lists all formats: those that are read, and those that are only recognised.

To add a reader, add a module or a folder to `readers/` and a row to FORMATS: how to detect its files, and the function
that reads them. The first row in order that matches a file reads it.

Formats are detected by a file's first bytes. Names and suffixes count only if the content does not decide.
"""

import re
from codecs import utf_8_decode
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, Protocol

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.ascend_pieces import PIECE, SLICE
from kair_engine.readers.blocks import PARQUET_MAGIC, BlockReader, open_file
from kair_engine.readers.log_records import text_in_record
from kair_engine.trace.model import GIFT, FragmentInfo

HEAD_SIZE: Final = 64 << 10
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_TRACE_EVENTS: Final = re.compile(rb'"traceEvents"\s*:')
_PLANE_NAME: Final = re.compile(rb"\x12.(/host:|/device:|Task Environment|#Chip)", re.DOTALL)
_FLIGHT_RECORDER: Final = re.compile(rb"pg_config|pg_status|comm_lib_version|nccl_version|nccl_comm_state")
_ASCEND: Final = re.compile(rb'"name"\s*:\s*"(Ascend Hardware|CANN)"')
_ROCPROF: Final = re.compile(rb'"rocprofiler-sdk-tool"|"name"\s*:\s*"(CPU HIP API|CPU HSA API|Markers and Ranges)"')
_CHAKRA: Final = re.compile(rb'"schema"\s*:\s*"[\d.]+-chakra|"schema"\s*:\s*"1\.[\d.]+"[^{}]*"nodes"\s*:')
_RAS: Final = re.compile(rb"^(?:\([^)\n]{1,200}\) ?)?Communicators\.\.\.", re.MULTILINE)
_RAS_JSON: Final = re.compile(rb'"communicators"\s*:\s*\[.*"(collective_counts|missing_ranks_count)"', re.DOTALL)
_RAS_MONITOR: Final = re.compile(rb"RAS Monitor Mode|^\[[\d :-]{19}\] PEER_[A-Z]+: ", re.MULTILINE)
_PY_SPY: Final = re.compile(rb"\AProcess \d+: .*\r?\nPython v\d")
_SQLITE: Final = b"SQLite format 3\0"


@dataclass(frozen=True)
class Head:
    """The first bytes of a file: `raw` as on disk, `content` decompressed, up to HEAD_SIZE bytes."""

    path: Path
    raw: bytes
    content: bytes

    @property
    def text(self) -> bytes:
        """The content without a byte order mark and leading blanks."""
        return self.content.removeprefix(_BYTE_ORDER_MARK).lstrip()

    @property
    def is_whole(self) -> bool:
        """Whether the file ends within the head."""
        return len(self.content) < HEAD_SIZE


def read_head(path: Path) -> Head:
    """Return the file's head. Raises OSError or InputError if it cannot be read."""
    with open_file(path) as file:
        raw = file.read(HEAD_SIZE)
    if raw.startswith(PARQUET_MAGIC):
        return Head(path, raw, raw)
    content = b""
    with closing(iter(BlockReader(path, block_size=HEAD_SIZE))) as blocks:
        for block in blocks:
            content += block
            if len(content) >= HEAD_SIZE:
                break
    return Head(path, raw, content)


def is_parquet(head: Head) -> bool:
    """Return whether it is a Parquet file, which may be of the what-if format."""
    return head.raw.startswith(PARQUET_MAGIC)


def is_gift(head: Head) -> bool:
    """Return whether it was written by `kair donate`."""
    return head.raw.startswith(GIFT)


def is_kineto(head: Head) -> bool:
    """Return whether it is JSON with `traceEvents` (or too long to know), or a list of Chrome's events."""
    text = head.text
    if text.startswith(b"["):
        return text[1:].lstrip()[:1] == b"{" and b'"ph"' in text
    return text.startswith(b"{") and (bool(_TRACE_EVENTS.search(text)) or not (head.is_whole or is_chakra(head)))


def is_flight_recorder(head: Head) -> bool:
    """Return whether it is a dump of PyTorch's Flight Recorder: JSON or a pickle with its first keys."""
    if head.content[:1] == b"\x80":
        return bool(_FLIGHT_RECORDER.search(head.content))
    text = head.text
    return text.startswith(b"{") and bool(_FLIGHT_RECORDER.search(text)) and b'"traceEvents"' not in text


def is_ras(head: Head) -> bool:
    """Return whether it is ncclras's output: text with a table of communicators, or JSON of all their ranks."""
    if head.text.startswith(b"{"):
        return bool(_RAS_JSON.search(head.content))
    return not is_binary(head) and bool(_RAS.search(head.content)) and b"in group  per comm" in head.content


def is_ras_monitor(head: Head) -> bool:
    """Return whether it is ncclras's output in monitor mode: events."""
    return not is_binary(head) and bool(_RAS_MONITOR.search(head.content[:4096]))


def is_py_spy(head: Head) -> bool:
    """Return whether it holds the stacks of a Python process."""
    return bool(_PY_SPY.search(head.text[:4096]))


def is_job_log(head: Head) -> bool:
    """Return whether it is text of no other format: the content of a log lies beyond its head."""
    text = head.text
    is_json = text.startswith(b"{") or (text.startswith(b"[") and text[1:].lstrip()[:1] in (b"{", b"]", b'"'))
    others = (is_py_spy, is_ras_monitor, is_archive, is_perfetto, is_otf2, is_checkpoint, is_wandb)
    return bool(text) and not is_json and not is_binary(head) and not any(sign(head) for sign in others)


def is_log_of_records(head: Head) -> bool:
    """Return whether it is a log as Docker or a collector keeps it: one JSON object per line, with its text."""
    first, _, rest = head.text.partition(b"\n")
    return (not rest or rest.startswith(b"{")) and text_in_record(first) is not None


def is_ascend(head: Head) -> bool:
    """Return whether it is Chrome's events of an Ascend NPU, by process names or, as these may come late, its file
    name.
    """
    is_named = head.path.name.startswith("trace_view.json") or bool(
        PIECE.match(head.path.name) or SLICE.match(head.path.name)
    )
    return is_kineto(head) and (is_named or bool(_ASCEND.search(head.content)))


def is_rocprof(head: Head) -> bool:
    """Return whether it is JSON of rocprofv3, or Chrome's events with rocprof's processes."""
    return head.text.startswith(b"{") and bool(_ROCPROF.search(head.content))


def is_horovod(head: Head) -> bool:
    """Return whether it is a list of Chrome's events, some of them negotiations."""
    return head.text.startswith(b"[") and b'"NEGOTIATE_' in head.content


def is_composer(head: Head) -> bool:
    """Return whether it is a list of Chrome's events that begins with the ranks of training loops."""
    return head.text.startswith(b"[") and b"training loop process" in head.content


def is_xplane(head: Head) -> bool:
    """Return whether it is an XSpace message: planes (field 1), the first with a name that XLA gives."""
    return head.content[:1] == b"\x0a" and bool(_PLANE_NAME.search(head.content[:200]))


def is_nsys_report(head: Head) -> bool:
    """Return whether it is a report in Nsight Systems' own format: binary, known by its name."""
    return head.path.suffix.lower() == ".nsys-rep" and is_binary(head)


def is_old_nsys_report(head: Head) -> bool:
    """Return whether it is such a report of a version before 2021.4."""
    return head.path.suffix.lower() == ".qdrep" and is_binary(head)


def is_sqlite(head: Head) -> bool:
    """Return whether it is an SQLite database."""
    return head.raw.startswith(_SQLITE)


def is_compressed_sqlite(head: Head) -> bool:
    """Return whether it is a compressed SQLite database, which must be unpacked for random access."""
    return head.content.startswith(_SQLITE)


def is_nsys_export(head: Head) -> bool:
    """Return whether it is a database of Nsight Systems, or one whose tables have to be examined."""
    return is_sqlite(head) and not is_rocprof_database(head)


def is_rocprof_database(head: Head) -> bool:
    """Return whether it is a database that rocprof (v2 or v3) wrote: its first pages define the tables."""
    return is_sqlite(head) and any(name in head.raw for name in (b"rocpd_", b"rocprof", b"roctx"))


def is_perfetto(head: Head) -> bool:
    """Return whether it is a Perfetto protobuf: packets (field 1, nested), with its suffix."""
    return head.path.suffix.lower() in (".pftrace", ".perfetto-trace") and head.content[:1] == b"\x0a"


def is_chakra(head: Head) -> bool:
    """Return whether it is a Chakra trace.

    The host's or the device's is JSON of nodes; both linked are length-prefixed messages.
    """
    if head.text.startswith(b"{"):
        return b'"traceEvents"' not in head.content and bool(_CHAKRA.search(head.content[:4096]))
    return head.path.suffix.lower() == ".et" and is_binary(head)


def is_otf2(head: Head) -> bool:
    """Return whether it is an anchor file of an OTF2 archive."""
    return head.path.suffix.lower() == ".otf2" and head.raw.startswith(b"OTF2")


def is_archive(head: Head) -> bool:
    """Return whether it is an archive, by name and content; readable ones were opened before."""
    name = head.path.name.lower()
    is_named = name.endswith((".zip", ".tgz", ".7z", ".rar")) or ".tar" in name
    magic = (b"PK\x03\x04", b"7z\xbc\xaf", b"Rar!", b"BZh", b"\xfd7zXZ")
    return is_named and (head.content.startswith(magic) or head.content[257:262] == b"ustar")


_TORCH_ZIP: Final = re.compile(rb"^PK\x03\x04.{26,400}?data\.pkl", re.DOTALL)
_TORCH_OLD: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The number with which torch.save's files began before they were archives."""


def is_checkpoint(head: Head) -> bool:
    """Return whether it was written by torch.save, or is safetensors."""
    is_of_torch = bool(_TORCH_ZIP.match(head.content[:500])) or head.content.startswith(_TORCH_OLD)
    return is_of_torch or (head.content[8:9] == b"{" and b'"data_offsets"' in head.content)


def is_wandb(head: Head) -> bool:
    """Return whether it is a file of a run's folder that Weights & Biases keeps."""
    name = head.path.name
    return head.raw.startswith(b":W&B") or name in ("wandb-summary.json", "wandb-metadata.json")


def is_tensorboard(head: Head) -> bool:
    """Return whether it is a file of events that TensorBoard shows."""
    return ".tfevents." in head.path.name and is_binary(head)


def is_binary(head: Head) -> bool:
    """Return whether it is binary: it has a byte that text does not."""
    return any(byte < 9 for byte in head.content[:4096])


_REPLACED: Final = "\ufffd"
"""Decoders' replacement for invalid bytes: EF BF BD in UTF-8."""


def bytes_replaced(head: Head) -> int:
    """Return how many places of a binary file's head hold EF BF BD: it was decoded as text and written again.

    In an intact binary file hardly any byte above 127 is valid UTF-8, let alone all of them. A rewritten file is UTF-8
    throughout, and most of its non-ASCII characters are replacements.
    """
    if not is_binary(head):
        return 0
    try:
        text, _ = utf_8_decode(head.raw, "strict", not head.is_whole)
    except UnicodeDecodeError:
        return 0
    replaced = text.count(_REPLACED)
    return replaced if 2 * replaced > sum(not one.isascii() for one in text) else 0


class Reader(Protocol):
    """A function that reads a file of one format."""

    def __call__(self, source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
        """Write `source` as the fragment `out`, and return its description.

        `rank_hint` is the rank of a file that does not state its own. Raises NotATraceError if the file is something
        else after all, InputError if it cannot be read or holds no operations, OSError if the disk is full.
        """


@dataclass(frozen=True)
class Format:
    """A format that is read."""

    name: str
    """As in `FragmentInfo.format` and `kair info`."""
    words: str
    """For people, in a list of supported formats."""
    matches: Callable[[Head], bool]
    """Whether a file that begins like this is of the format."""
    reader: str
    """`module:function`, imported when the first file is read."""
    needs_file: bool = False
    """Whether reading it needs random access: then it cannot lie in an archive."""
    one_clock: bool = False
    """Whether one host's recorder writes the whole file, so that all its ranks share that host's clock."""


@dataclass(frozen=True)
class Unsupported:
    """A recognised format that is not read: its name, and how to convert it."""

    words: str
    matches: Callable[[Head], bool]
    way_out: str
    is_recording: bool = True
    """Whether it records ranks; other files next to traces are skipped silently."""


_READERS: Final = "kair_engine.readers"
_LOG_WORDS: Final = "job logs with times of steps, time-outs and ends of ranks"

FORMATS: Final = (
    Format("gift", "what kair donate wrote", is_gift, f"{_READERS}.gift:read_gift"),
    Format(
        "whatif",
        "what-if Parquet files",
        is_parquet,
        f"{_READERS}.whatif_parquet:read_whatif",
        needs_file=True,
    ),
    Format(
        "nsys",
        "Nsight Systems' SQLite exports",
        is_nsys_export,
        f"{_READERS}.nsys:read_nsys",
        needs_file=True,
        one_clock=True,
    ),
    Format(
        "xplane",
        "XLA profiles (.xplane.pb)",
        is_xplane,
        f"{_READERS}.xplane.reader:read_xplane",
        one_clock=True,
    ),
    Format("job_log", _LOG_WORDS, is_log_of_records, f"{_READERS}.job_log:read_job_log"),
    Format("ras", "what NCCL's RAS prints (ncclras)", is_ras, f"{_READERS}.ras:read_ras"),
    Format(
        "flight_recorder",
        "PyTorch Flight Recorder dumps",
        is_flight_recorder,
        f"{_READERS}.flight_recorder:read_flight_recorder",
    ),
    Format("ascend", "Ascend's trace_view.json and msprof's timelines", is_ascend, f"{_READERS}.ascend:read_ascend"),
    Format("rocprof", "rocprof's JSON", is_rocprof, f"{_READERS}.rocprof:read_rocprof", one_clock=True),
    Format("horovod", "Horovod's timeline", is_horovod, f"{_READERS}.horovod:read_horovod"),
    Format("composer", "Composer's traces", is_composer, f"{_READERS}.composer:read_composer"),
    # After all other JSON, because it takes any that is too long to decide.
    Format("kineto", "PyTorch profiler (Kineto) JSON", is_kineto, f"{_READERS}.kineto.reader:read_kineto"),
    # Last, because it takes any text: its content lies at the end of a log.
    Format("job_log", _LOG_WORDS, is_job_log, f"{_READERS}.job_log:read_job_log"),
)

ONE_CLOCK: Final = frozenset(form.name for form in FORMATS if form.one_clock)
"""The names of formats whose files have one clock each."""

UNSUPPORTED: Final = (
    Unsupported("an archive within another, or of a kind that is not opened", is_archive, "unpack it"),
    Unsupported(
        "an Nsight Systems report",
        is_nsys_report,
        "convert it: nsys export --type sqlite --lazy=false --include-blobs=true FILE.nsys-rep",
    ),
    Unsupported(
        "an old Nsight Systems report (.qdrep)",
        is_old_nsys_report,
        "convert it: nsys export --type sqlite FILE.qdrep (or open it in Nsight Systems and export to SQLite)",
    ),
    Unsupported(
        "a database of rocprof",
        is_rocprof_database,
        "record with rocprofv3 --output-format json, or with torch.profiler",
    ),
    Unsupported("a compressed SQLite database", is_compressed_sqlite, "decompress it: gunzip FILE"),
    Unsupported(
        "a Perfetto protobuf trace",
        is_perfetto,
        "convert it: traceconv json FILE.pftrace FILE.json, or record with rocprofv3 --output-format json",
    ),
    Unsupported(
        "a Chakra execution trace",
        is_chakra,
        "it lists what depends on what, for simulators; give the Kineto traces that were recorded with it",
    ),
    Unsupported(
        "a dump of stacks by py-spy",
        is_py_spy,
        "it shows where one process is, and not who waits for whom: give the job's log or its Flight Recorder dumps",
    ),
    Unsupported(
        "a list of events by ncclras -m",
        is_ras_monitor,
        "it shows who came and went: ask the job how far it is with ncclras -v",
    ),
    Unsupported(
        "a checkpoint",
        is_checkpoint,
        "it holds weights, and nothing of times: record some steps with torch.profiler (kair help formats)",
        is_recording=False,
    ),
    Unsupported(
        "a run of Weights & Biases",
        is_wandb,
        "it holds curves of the job, and nothing of its ranks: give the run's files/output.log where the job hung or "
        "died, else record some steps with torch.profiler (kair help formats)",
        is_recording=False,
    ),
    Unsupported(
        "a file of TensorBoard's curves",
        is_tensorboard,
        "give the traces below plugins/profile, or record some steps with torch.profiler (kair help formats)",
        is_recording=False,
    ),
    Unsupported(
        "an OTF2 archive",
        is_otf2,
        "OTF2 is not read; record with torch.profiler or Nsight Systems",
    ),
)


class NotATraceError(InputError):
    """The file was read, and is something else. In a folder with traces it is skipped silently."""


class UnsupportedFormatError(InputError):
    """The file is a recording in a recognised format that is not read; the hint says how to convert it."""


def detect_format(path: Path) -> Format | None:
    """Return the format `path` is read as, or None if its first bytes already show that it is no trace.

    Raises UnsupportedFormatError if its format is only recognised, NotATraceError if it is known to be no recording,
    InputError if it lost bytes by being handled as text, OSError if it cannot be read.
    """
    head = read_head(path)
    if replaced := bytes_replaced(head):
        where = "" if head.is_whole else f" of its first {HEAD_SIZE >> 10} KiB"
        raise InputError(
            f"{path.name} is damaged: it was read as UTF-8 text and written again, with EF BF BD in {replaced} places"
            f"{where} where other bytes were, which are lost",
            "copy it again as binary (in git: `*.pb binary` in .gitattributes; no editor, no transfer as text), or "
            "export it again",
        )
    found = next((form for form in FORMATS if form.matches(head)), None)
    if found is None:
        for known in UNSUPPORTED:
            if known.matches(head) and not known.is_recording:
                raise NotATraceError(f"it is {known.words}", known.way_out)
            if known.matches(head):
                raise UnsupportedFormatError(f"{path.name} is {known.words}: not read", known.way_out)
    return found
