"""Reads nvidia-smi's output: `-q` (text, XML), `--query-gpu=… --format=csv` with its header, `dmon`, and `nvlink -e`.

Its times are of the host's clock without a zone; UTC is assumed. Names and units are those of the tool's own help
(`--help-query-gpu`) and of its XML since driver 450.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Final, Literal
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import msgspec

from kair_engine.data_tables import data_table
from kair_engine.errors import InputError
from kair_engine.readers.evidence.moments import MONTHS, modified_ns, utc_ns
from kair_engine.readers.evidence.opening import NO_ZONE, FileRows, Lines, read_bounded
from kair_engine.readers.evidence.prometheus_names import is_blank
from kair_engine.readers.paths import host_of
from kair_engine.trace.evidence_table import EvidenceFile, NamedDevice
from kair_engine.trace.identity import pci_address, uuid_of
from kair_engine.trace.measures import gpu, gpu_index, pci

KIND: Final = "nvidia-smi"
MOST_BYTES: Final = 256 << 20
"""Largest XML file, which is read as a whole."""

_OF_FILE: Final = "it has no times: everything is dated by when the file was written"
_UNITS: Final = {
    "": 1.0,
    "%": 0.01,
    "us": 1e-6,
    "MiB": float(1 << 20),
    "KB/s": 1e3,
    "MB/s": 1e6,
    "MHz": 1.0,
    "W": 1.0,
    "C": 1.0,
}
_NUMBER: Final = re.compile(r"(-?\d{1,18}(?:\.\d{1,9})?)\s*(x|%|us|MiB|KB/s|MHz|W|C)?")
_BITS: Final = re.compile(r"0x[0-9a-fA-F]{1,16}")
_YES: Final = {"yes": 1.0, "no": 0.0}


class _Field(msgspec.Struct, array_like=True):
    """The measure that a field of the tool becomes."""

    measure: str
    unit: str = ""
    """Unit of a bare number, as `nounits` prints it."""
    instead: bool = False
    """Whether it is used only if the measure's other field has no value."""


class _Report(msgspec.Struct):
    """Where a report of `-q` has its values, as paths below a device."""

    fields: dict[str, _Field]
    sums: dict[str, list[str]]
    """Measure → fields that add up to it."""
    reasons_at: str
    """Path with {} for `event`, or `throttle` in older versions."""
    reasons: dict[str, int]
    """Clock reason → its bit (nvml.h, nvmlClocksEventReason*)."""


class _Fields(msgspec.Struct):
    """nvidia_smi.json."""

    xml: _Report
    text: _Report
    """Lower-case paths from their headings."""
    dmon: dict[str, _Field]
    csv: dict[str, _Field]
    """Columns without their units."""
    csv_sums: dict[str, list[str]]
    """Measure → columns that add up to it, in microseconds."""


_FIELDS: Final = data_table(__file__, _Fields)
_COUNTER_PREFIXES: Final = ("clocks_event_reasons_counters.",)
_FIRST_LINES: Final = 40
_UNIT_OF_HEADER: Final = re.compile(r"\s*\[[^\]]{0,12}\]$")
_NO_HEADER: Final = re.compile(
    r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}, |(?:\d+, )?(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]+, "
)
_IS_TEXT: Final = re.compile(r"=+NVSMI LOG=+")
_TEXT_GPU: Final = re.compile(r"GPU ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
_TEXT_FIELD: Final = re.compile(r"( *)([^:]{1,60}?) *(?:: (.*)|:)?")
_DMON_DATE: Final = re.compile(r"(\d{4})/?(\d\d)/?(\d\d)")
_NVLINK_GPU: Final = re.compile(r"GPU (\d{1,4}): [^(]{1,80}(?:\(UUID: (\S{1,80})\))?")
_NVLINK_COUNT: Final = re.compile(r"\s+Link (\d{1,3}): (Replay|Recovery|CRC) Errors: (\d{1,18})")
_NVLINK: Final = {"Replay": "gpu_nvlink_replays", "Recovery": "gpu_nvlink_recoveries", "CRC": "gpu_nvlink_errors"}


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (all importers are asked alike)
    """Return whether the file begins like nvidia-smi's output."""
    return _kind_of(head.decode("utf-8", "replace").splitlines()[:_FIRST_LINES]) is not None


def _kind_of(lines: Sequence[str]) -> Literal["xml", "text", "dmon", "csv", "csv without header", "nvlink"] | None:
    """Return the format of a file that begins with these lines; other output of a shell may come first."""
    if any("<nvidia_smi_log>" in line or "<!DOCTYPE nvidia_smi_log" in line for line in lines):
        return "xml"
    if any(_IS_TEXT.fullmatch(line.strip()) for line in lines):
        return "text"
    if any(_dmon_columns(line) for line in lines):
        return "dmon"
    if any(_is_header(_columns(line)) for line in lines):
        return "csv"
    if any(_NVLINK_GPU.match(line) for line in lines) and any(_NVLINK_COUNT.match(line) for line in lines):
        return "nvlink"
    return "csv without header" if lines and _NO_HEADER.match(lines[0]) else None


def read(path: Path, limit: int = MOST_BYTES) -> EvidenceFile:
    """Return the rows of a file of at most `limit` bytes. Raises InputError if nothing in it can be read."""
    lines = Lines(path, limit)
    numbered = iter(lines)
    begun = list(islice(numbered, _FIRST_LINES))
    rows = _Rows(path)
    kind = _kind_of([line for _, line in begun])
    if kind == "xml":
        _take_xml(rows, read_bounded(path, limit))
    elif kind == "nvlink":
        _take_nvlink(rows, chain(begun, numbered))
    elif kind == "text":
        _take_text(rows, chain(begun, numbered))
    elif kind == "dmon":
        _take_dmon(rows, chain(begun, numbered))
    elif kind == "csv":
        _take_csv(rows, chain(begun, numbered))
    elif kind == "csv without header":
        raise InputError(
            f"{path} has no header with the names of its columns",
            "ask nvidia-smi --query-gpu=… --format=csv again, without noheader",
        )
    rows.add_untimed()
    if not len(rows):
        raise InputError(f"{path} holds no value of nvidia-smi that Kair knows")
    rows.note(NO_ZONE, holds=rows.is_of_zone, is_doubt=True)
    rows.note(_OF_FILE, holds=rows.is_of_file)
    rows.note("it was not read to its end: it is too long or damaged", holds=lines.is_cut and kind != "xml")
    return replace(rows.evidence("unknown" if rows.is_of_file else "host"), devices=tuple(rows.devices))


class _Rows(FileRows):
    """Rows of one file, and the devices that they describe."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, KIND)
        self.host = host_of(path)
        self.hosts |= {self.host} if self.host else set()
        self.devices: dict[NamedDevice, None] = {}
        self.is_of_zone = self.is_of_file = False
        self._written_ns: int | None = None
        self._untimed: dict[tuple[str, str], tuple[float, str]] = {}

    def time_of(self, text: str | None) -> int | None:
        """Return the Unix time of a text, or when the file was written for None; None if the text is damaged."""
        if text is not None:
            self.is_of_zone = True
            return _unix_ns(text)
        if self._written_ns is None:
            self._written_ns = modified_ns(self.path)
        self.is_of_file = True
        return self._written_ns

    def entity(self, uuid: str, address: str, index: str) -> str | None:
        """Return a device's entity, by UUID, else PCI address, else the driver's number; keep all its names."""
        number = int(index) if re.fullmatch(r"\d{1,4}", index.strip()) else None
        where = pci_address(address)
        if uuid_of(uuid):
            entity = gpu(uuid)
        elif where:
            entity = pci(where)
        elif number is not None:
            entity = gpu_index(number)
        else:
            return None
        self.devices[NamedDevice(entity, self.host, where, number)] = None
        return entity

    def add_all(self, time_ns: int, entity: str, values: Mapping[str, float], place: str) -> None:
        """Add rows of one device at one time; `place` is their position in the file."""
        for measure, value in values.items():
            if time_ns == self._written_ns:
                # For readings without times, only the last is known to be current when the file was written.
                self.passed_over += (entity, measure) in self._untimed
                self._untimed[entity, measure] = value, place
            else:
                self.add(time_ns, entity, measure, value, host=self.host, raw=f"{self.path.name}{place}")

    def add_untimed(self) -> None:
        """Add readings without a time."""
        for (entity, measure), (value, place) in self._untimed.items():
            raw = f"{self.path.name}{place}"
            self.add(self._written_ns or 0, entity, measure, value, host=self.host, raw=raw)


_OF_XML: Final = re.compile(r"\w{3} (\w{3}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})")
_OF_CSV: Final = re.compile(r"(\d{4})/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{3}))?")


def _unix_ns(text: str) -> int | None:
    """Return Unix ns of `Mon Oct 13 00:25:36 2025` or `2025/10/13 00:25:36.123`, assumed UTC; None otherwise."""
    if (match := _OF_XML.fullmatch(text.strip())) is not None and match[1] in MONTHS:
        date = (match[6], str(MONTHS.index(match[1]) + 1), match[2])
        clock, ms = match.group(3, 4, 5), "0"
    elif (match := _OF_CSV.fullmatch(text.strip())) is not None:
        date, clock, ms = (match[1], match[2], match[3]), match.group(4, 5, 6), match[7] or "0"
    else:
        return None
    year, month, day, hour, minute, second = (int(part) for part in (*date, *clock))
    whole = utc_ns((year, month, day), (hour, minute, second))
    return None if whole is None else whole + int(ms) * 10**6


def _number(text: str, unit: str = "") -> float | None:
    """Return the number in `1395 MHz`, `0x20`, `16x` or `Yes`, in the measure's unit; None for `N/A` and others."""
    text = text.strip()
    if _BITS.fullmatch(text):
        return float(int(text, 16))
    if text.lower() in _YES:
        return _YES[text.lower()]
    match = _NUMBER.fullmatch(text)
    if match is None or is_blank(float(match[1]), "gpu", "DCGM_"):
        return None
    stated = unit if match[2] is None else match[2]
    return float(match[1]) * _UNITS["" if stated == "x" else stated]


_DEEPEST: Final = 32
_XML_BEGIN: Final = re.compile(rb"<\?xml\b")


def _take_xml(rows: _Rows, content: bytes) -> None:
    """Read one document, or several in sequence, as `-l` prints them."""
    begins = [match.start() for match in _XML_BEGIN.finditer(content)] or [0]
    for at, (first, end) in enumerate(zip(begins, [*begins[1:], len(content)], strict=True)):
        try:
            log = _parsed(content[first:end])
        except (expat.ExpatError, AssertionError, ValueError, LookupError):
            rows.passed_over += 1
            continue
        time_ns = rows.time_of(_text(log, "timestamp") or None)
        if log.tag != "nvidia_smi_log" or time_ns is None:
            rows.passed_over += 1
            continue
        devices = log.findall("gpu")
        # Devices are in the order of their numbers, which are not printed: known only if all of the host are listed.
        are_all = _text(log, "attached_gpus") == str(len(devices))
        for number, device in enumerate(devices):
            address = _text(device, "pci/pci_bus_id") or device.get("id", "")
            entity = rows.entity(_text(device, "uuid"), address, str(number) if are_all else "")
            if entity is None:
                rows.passed_over += 1
                continue
            rows.add_all(time_ns, entity, _of_device(_FIELDS.xml, device.findtext), f": document {at + 1}")


def _parsed(document: bytes) -> Element:
    """Return the root of a document. Raises ExpatError if it is not XML; InputError if it defines its own entities.

    Nothing outside it is read. nvidia-smi never defines entities, which could expand without bound.
    """
    builder, depth = TreeBuilder(), 0
    parser = expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise InputError("the XML defines entities, as nvidia-smi's never does: it was not read")

    def doctype(name: str, system: str | None, public: str | None, has_internal_subset: bool) -> None:
        if has_internal_subset or name != "nvidia_smi_log":
            refuse(system, public)

    def begin(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise InputError("the XML is nested deeper than nvidia-smi's: it was not read")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    parser.StartDoctypeDeclHandler = doctype
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.Parse(document.strip(), True)
    return builder.close()


def _text(node: Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def _of_device(report: _Report, found_at: Callable[[str], str | None]) -> dict[str, float]:
    """Return measure → value of one device."""

    def text(path: str) -> str:
        return (found_at(path) or "").strip()

    values = _chosen((one, _number(text(path))) for path, one in report.fields.items())
    for measure, paths in report.sums.items():
        _add_sum(values, measure, [_number(text(path)) for path in paths])
    for word in ("event", "throttle"):
        path = report.reasons_at.replace("{}", word)
        flags = {bit: text(f"{path}{reason}") for reason, bit in report.reasons.items()}
        if any(flag in ("Active", "Not Active") for flag in flags.values()):
            values["gpu_throttle_reasons"] = float(sum(bit for bit, flag in flags.items() if flag == "Active"))
    return values


def _chosen(found: Iterator[tuple[_Field, float | None]]) -> dict[str, float]:
    """Return measure → value; a substitute field gives way to the preferred one."""
    values: dict[str, float] = {}
    preferred: set[str] = set()
    for one, value in found:
        if value is None or (one.instead and one.measure in values) or one.measure in preferred:
            continue
        values[one.measure] = value
        if not one.instead:
            preferred.add(one.measure)
    return values


def _add_sum(values: dict[str, float], measure: str, parts: Sequence[float | None]) -> None:
    known = [part for part in parts if part is not None]
    if known:
        values[measure] = sum(known)


def _columns(line: str) -> list[str]:
    return [_UNIT_OF_HEADER.sub("", column.strip()) for column in line.lstrip("\ufeff").split(",")]


def _is_header(columns: Sequence[str]) -> bool:
    known = [name for name in columns if name in _FIELDS.csv or name.startswith(_COUNTER_PREFIXES)]
    return bool(known) and (len(columns) > 1 or len(known) == len(columns))


def _take_csv(rows: _Rows, lines: Iterable[tuple[int, str]]) -> None:
    """Read one row per device; the header may repeat, if files were concatenated."""
    columns: list[str] = []
    for number, line in lines:
        if not line.strip():
            continue
        if _is_header(again := _columns(line)):
            columns = again
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(columns):
            rows.passed_over += 1
            continue
        row = dict(zip(columns, cells, strict=True))
        entity = rows.entity(
            row.get("uuid") or row.get("gpu_uuid") or "",
            row.get("pci.bus_id") or row.get("gpu_bus_id") or "",
            row.get("index") or "",
        )
        time_ns = rows.time_of(row.get("timestamp"))
        if entity is None or time_ns is None:
            rows.passed_over += 1
            continue
        known = ((_FIELDS.csv[name], cell) for name, cell in row.items() if name in _FIELDS.csv)
        values = _chosen((one, _number(cell, one.unit)) for one, cell in known)
        for measure, names in _FIELDS.csv_sums.items():
            _add_sum(values, measure, [_number(row.get(name, ""), "us") for name in names])
        rows.add_all(time_ns, entity, values, f":{number}")


def _take_nvlink(rows: _Rows, lines: Iterable[tuple[int, str]]) -> None:
    """Read the errors of each device's links and add them up."""
    counts: dict[tuple[str, str], tuple[float, int]] = {}
    entity: str | None = None
    for number, line in lines:
        if (device := _NVLINK_GPU.match(line)) is not None:
            entity = rows.entity(device[2] or "", "", device[1])
        elif (count := _NVLINK_COUNT.fullmatch(line.rstrip())) is not None and entity is not None:
            before, first = counts.get((entity, _NVLINK[count[2]]), (0.0, number))
            counts[entity, _NVLINK[count[2]]] = before + int(count[3]), first
        else:
            rows.passed_over += bool(line.strip())
    time_ns = rows.time_of(None)
    for (of_device, measure), (total, first) in counts.items():
        if time_ns is not None:
            rows.add_all(time_ns, of_device, {measure: total}, f":{first}")


def _take_text(rows: _Rows, lines: Iterable[tuple[int, str]]) -> None:
    """Read logs of `-q` in sequence: fields are indented below their headings."""
    log = _TextLog(rows)
    for number, line in lines:
        log.take(number, line.rstrip())
    log.finish()


class _TextLog:
    """The lines of a log of `-q`; `finish` adds its devices."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self._timestamp: str | None = None
        self._attached = ""
        self._headings: list[tuple[int, str]] = []
        self._devices: list[tuple[int, str, dict[str, str]]] = []
        """Line, address and fields of each device of this log."""

    def take(self, number: int, line: str) -> None:
        """Read the next line."""
        if _IS_TEXT.fullmatch(line.strip()):
            self.finish()
            self._timestamp, self._attached = None, ""
        elif (device := _TEXT_GPU.fullmatch(line)) is not None:
            self._devices.append((number, device[1], {}))
            self._headings = []
        elif (field := _TEXT_FIELD.fullmatch(line)) is not None and line.strip():
            self._field(len(field[1]), field[2].strip().lower(), field[3])

    def _field(self, depth: int, name: str, value: str | None) -> None:
        if not self._devices:
            self._timestamp = value if name == "timestamp" else self._timestamp
            self._attached = value or "" if name == "attached gpus" else self._attached
            return
        while self._headings and self._headings[-1][0] >= depth:
            self._headings.pop()
        path = "/".join([*(heading for _, heading in self._headings), name])
        self._headings.append((depth, name))
        if value is not None:
            self._devices[-1][2].setdefault(path, value)

    def finish(self) -> None:
        """Add the devices of the completed log."""
        time_ns = self._rows.time_of(self._timestamp) if self._devices else None
        are_all = self._attached.strip() == str(len(self._devices))
        for at, (line, address, fields) in enumerate(self._devices):
            entity = self._rows.entity(fields.get("gpu uuid", ""), address, str(at) if are_all else "")
            if entity is None or time_ns is None:
                self._rows.passed_over += 1
            else:
                self._rows.add_all(time_ns, entity, _of_device(_FIELDS.text, fields.get), f":{line}")
        self._devices = []


def _dmon_columns(line: str) -> list[str]:
    """Return the columns of a header of `dmon`, `date` and `time` included; [] for another line."""
    columns = [one.lower() for one in re.split(r"[\s,]+", line.lstrip("#").strip())] if line.startswith("#") else []
    return columns if "gpu" in columns and any(name in _FIELDS.dmon for name in columns) else []


def _take_dmon(rows: _Rows, lines: Iterable[tuple[int, str]]) -> None:
    """Read one row per device, below a header that repeats."""
    columns: list[str] = []
    for number, line in lines:
        if line.startswith("#") or not line.strip():
            columns = _dmon_columns(line) or columns
            continue
        cells = re.split(r"[\s,]+", line.strip())
        row = dict(zip(columns, cells, strict=False))
        date = _DMON_DATE.fullmatch(row.get("date", ""))
        time_ns = rows.time_of(f"{date[1]}/{date[2]}/{date[3]} {row.get('time', '')}" if date else None)
        entity = rows.entity("", "", row.get("gpu", ""))
        if len(cells) != len(columns) or entity is None or time_ns is None:
            rows.passed_over += 1
            continue
        known = ((_FIELDS.dmon[name], cell) for name, cell in row.items() if name in _FIELDS.dmon)
        rows.add_all(time_ns, entity, _chosen((one, _number(cell, one.unit)) for one, cell in known), f":{number}")
