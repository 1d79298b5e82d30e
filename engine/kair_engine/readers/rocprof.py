"""Reads rocprof's traces: Chrome's JSON of `rocprof --hip-trace --roctx-trace`, and JSON of `rocprofv3`."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_engine.errors import InputError
from kair_engine.readers.blocks import BlockReader, read_whole
from kair_engine.readers.chrome_events import load
from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.fragment_writer import RankRecording, Rows, steps_from, write_recording
from kair_engine.readers.json_values import listing, mapping, mappings
from kair_engine.readers.kineto.classify import NameClass, name_class_of
from kair_engine.readers.paths import rank_from_name
from kair_engine.readers.rank_identity import one_line, process_id, without_unknown
from kair_engine.readers.step_marks import Mark
from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_engine.trace.model import FragmentInfo, KairWarning

_TOOL: Final = "rocprofiler-sdk-tool"
_LARGEST: Final = 1 << 31
_COPIES: Final = {"HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD"}
_HINT: Final = "record with rocprofv3 --runtime-trace --output-format json, or rocprof --hip-trace --roctx-trace"


def read_rocprof(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Write `source` as the fragment `out`, and return its description.

    The rank is `rank_hint`, else the one in its name, else 0 with `rank_known` false. Raises NotATraceError, InputError
    if it has no operation of a GPU, OSError if the disk is full.
    """
    with_head = BlockReader(source, block_size=4096)
    head = next(iter(with_head), b"")
    trace = _SdkTrace(source) if _TOOL.encode() in head else _HipTrace(source)
    trace.read()
    if not any(text.startswith("stream") for text in trace.rows.lanes.texts):
        raise InputError(f"{source.name} holds no operations of a GPU", _HINT)
    found = rank_hint if rank_hint is not None else rank_from_name(source)
    steps, identity = steps_from(trace.marks, trace.rows), replace(trace.identity, rank=found or 0)
    rank = RankRecording(found or 0, trace.rows, steps, trace.main_lane, trace.host, identity)
    return write_recording(
        source,
        out,
        [rank],
        form="rocprof",
        rank_known=found is not None,
        has_device=True,
        device=trace.device,
        mark='roctxRangePush("step 12")',
        warnings=trace.warnings,
    )


class _Trace:
    """The content of a file about its rank."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self.rows, self.marks = Rows(), list[Mark]()
        self.main_lane = "thread host"
        self.device: str | None = None
        self.warnings: tuple[KairWarning, ...] = ()
        self.host: str | None = None
        self.identity = RankIdentity(0)

    def read(self) -> None:
        """Read the file's records."""


class _HipTrace(_Trace):
    """Chrome's JSON, with separate processes for the API, ranges, copies and every GPU."""

    def read(self) -> None:
        trace = load(self._source)
        self.device = "AMD GPU"
        processes = trace.process_names()
        self.warnings = trace.warnings(self._source)
        ran: Counter[str] = Counter()
        for event, start, duration in trace.complete():
            process = processes.get(str(event.pid), "")
            begin, end = event.of_args("BeginNs"), event.of_args("EndNs")
            if str(begin).isdecimal() and str(end).isdecimal() and len(str(begin)) < 19 and len(str(end)) < 19:
                # Unlike the event's microseconds, these are not rounded.
                start, duration = int(begin), int(end) - int(begin)  # noqa: PLW2901
            if process.startswith("GPU") and "Barrier" not in process:
                ran[process[3:]] += 1
                self.rows.add(f"stream {process[3:]}/{event.tid}", event.text, kernel_kind(event.text), start, duration)
            elif process == "COPY":
                self.rows.add("stream copy", _copy_name(event.text), "memory", start, duration)
            elif process == "CPU HIP API":
                self.rows.add(f"thread {event.tid}", event.text, call_kind(event.text), start, duration)
            elif process == "Markers and Ranges":
                self.marks.append(Mark(event.text, start, start + duration))
                self.rows.add(self.main_lane, event.text, "scope", start, duration)
        busiest = max(ran, key=lambda number: ran[number], default="")
        if busiest.isdecimal() and len(busiest) < 4:
            self.identity = RankIdentity(0, device=DeviceIdentity(ordinal=int(busiest)))


class _SdkTrace(_Trace):
    """rocprofv3's JSON: records of each kind, with separate lists of the names of kernels and calls."""

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self._ran: Counter[int] = Counter()
        """Number of kernels by agent handle."""
        self._launched: dict[int, int] = {}
        """Begin of the call with a correlation."""
        self._busy: dict[int, int] = {}
        """Records of each thread; a range counts more than a call."""

    def read(self) -> None:
        tool = self._tool()
        records, names = mapping(tool.get("buffer_records")), _operation_names(tool)
        self.device = next((name for one in listing(tool.get("agents")) if (name := _gpu(one))), None)
        for kind in ("hip_api", "rccl_api"):
            self._add_calls(records.get(kind), names, kind)
        self._add_ranges(records.get("marker_api"), _marker_texts(tool))
        if self._busy:
            self.main_lane = f"thread {max(self._busy, key=lambda thread: self._busy[thread])}"
        self._add_kernels(records.get("kernel_dispatch"), _kernel_names(tool))
        self._add_copies(records.get("memory_copy"), names)
        self._note_identity(tool)

    def _note_identity(self, tool: Mapping[str, Any]) -> None:
        """Note the process and its host, and the agent that ran most kernels."""
        of, agent = mapping(tool.get("metadata")), max(self._ran, key=lambda handle: self._ran[handle], default=None)
        node = mapping(of.get("node"))
        agents = mappings(tool.get("agents"))
        own = next((one for one in agents if agent is not None and _handle(one.get("id")) == agent), {})
        self.host = one_line(node.get("hostname"))
        self.identity = RankIdentity(
            0,
            pid=process_id(of.get("pid")),
            device=DeviceIdentity(pci=_pci(own), ordinal=_ordinal(own), model=_gpu(own)),
            versions=without_unknown(kernel=one_line(node.get("release"))),
        )

    def _add_calls(self, records: object, names: Mapping[tuple[int, int], str], kind: str) -> None:
        for one, start, end in _timed(records):
            thread, number = _int(one.get("thread_id")), _correlation(one)
            name = names.get((_int(one.get("kind")), _int(one.get("operation"))), kind)
            self._launched[number] = start
            self._busy[thread] = self._busy.get(thread, 0) + 1
            self.rows.add(f"thread {thread}", name, call_kind(name), start, end - start, correlation=number)

    def _add_ranges(self, records: object, texts: Mapping[int, str]) -> None:
        for one, start, end in _timed(records):
            thread, text = _int(one.get("thread_id")), texts.get(_correlation(one))
            if text is not None and end > start:
                self.marks.append(Mark(text, start, end))
                self._busy[thread] = self._busy.get(thread, 0) + 1000
                self.rows.add(f"thread {thread}", text, "scope", start, end - start)

    def _add_kernels(self, records: object, names: Mapping[int, str]) -> None:
        for one, start, end in _timed(records):
            info = mapping(one.get("dispatch_info"))
            name, number = names.get(_int(info.get("kernel_id")), "kernel"), _correlation(one)
            queue = _handle(one.get("stream_id")) or _handle(info.get("queue_id"))
            moment = self._launched.get(number, start)
            kind = kernel_kind(name)
            self._ran[_handle(info.get("agent_id"))] += 1
            self.rows.add(f"stream {queue}", name, kind, start, end - start, correlation=number, moment=moment)

    def _add_copies(self, records: object, names: Mapping[tuple[int, int], str]) -> None:
        for one, start, end in _timed(records):
            name = _copy_name(names.get((_int(one.get("kind")), _int(one.get("operation"))), ""))
            number, size = _correlation(one), _int(one.get("bytes"))
            moment = self._launched.get(number, start)
            lane = "stream copy"
            self.rows.add(lane, name, "memory", start, end - start, correlation=number, size=size, moment=moment)

    def _tool(self) -> Mapping[str, Any]:
        content, _ = read_whole(self._source, _LARGEST, "record fewer steps")
        try:
            document = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = f"{self._source.name} is cut off or damaged: its names stand at its end"
            raise InputError(text, "record it again") from error
        tools = mappings(mapping(document).get(_TOOL))
        if not tools:
            raise NotATraceError(f"no {_TOOL} in it")
        return tools[0]


def kernel_kind(name: str) -> str:
    """Return the kind of a kernel."""
    return "collective" if name_class_of(name) is NameClass.DEVICE_COLLECTIVE else "compute"


def call_kind(name: str) -> str:
    """Return the kind of a call to HIP or RCCL."""
    return "sync" if "Synchronize" in name else "host"


def _copy_name(name: str) -> str:
    kind = next((short for long, short in _COPIES.items() if long in name.upper()), "")
    return f"Memcpy {kind}".rstrip()


def _timed(records: object) -> Iterator[tuple[Mapping[str, Any], int, int]]:
    for one in mappings(records):
        start, end = one.get("start_timestamp"), one.get("end_timestamp")
        if isinstance(start, int) and isinstance(end, int):
            yield one, start, end


def _operation_names(tool: Mapping[str, Any]) -> dict[tuple[int, int], str]:
    """Return (kind, operation) → its name."""
    found = {}
    for kind, one in enumerate(listing(mapping(tool.get("strings")).get("buffer_records"))):
        for operation, name in enumerate(listing(mapping(one).get("operations"))):
            if isinstance(name, str):
                found[kind, operation] = name
    return found


def _marker_texts(tool: Mapping[str, Any]) -> dict[int, str]:
    """Return correlation → a range's text."""
    entries = map(mapping, listing(mapping(tool.get("strings")).get("marker_api")))
    return {_int(one.get("key")): text for one in entries if isinstance(text := one.get("value"), str)}


def _kernel_names(tool: Mapping[str, Any]) -> dict[int, str]:
    found = {}
    for at, one in enumerate(listing(tool.get("kernel_symbols"))):
        symbol = mapping(one)
        name = symbol.get("formatted_kernel_name") or symbol.get("demangled_kernel_name") or symbol.get("kernel_name")
        number = symbol.get("kernel_id", at)
        if isinstance(name, str) and isinstance(number, int):
            found[number] = name
    return found


def _gpu(agent: object) -> str | None:
    """Return the name of an agent that is a GPU (type 2)."""
    of = mapping(agent)
    name = of.get("product_name") or of.get("name")
    return name if of.get("type") in (2, "GPU") and isinstance(name, str) and name else None


def _pci(agent: Mapping[str, Any]) -> str | None:
    """Return a GPU's PCI address: `location_id` has its bus (8 bits), device (5) and function (3), as in the driver."""
    domain, place = _int(agent.get("domain", 0)), _int(agent.get("location_id"))
    if not 0 < place < 1 << 16 or not 0 <= domain < 1 << 16:
        return None
    return f"{domain:04x}:{place >> 8:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _ordinal(agent: Mapping[str, Any]) -> int | None:
    """Return a GPU's number among the GPUs, which `logical_node_type_id` counts per type."""
    number = _int(agent.get("logical_node_type_id"))
    return number if 0 <= number < 1024 else None


def _correlation(record: Mapping[str, Any]) -> int:
    return _int(mapping(record.get("correlation_id")).get("internal"))


def _handle(value: object) -> int:
    return max(_int(mapping(value).get("handle")), 0)


def _int(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
