"""Reads SuperBench's findings on nodes before a job, and its monitor: `sb result diagnosis`, `monitor.jsonl`.

A diagnosis has an object per defective node and no time: it is dated by when the file was written. A monitor writes an
object every few seconds, about one node, in that node's local time. microsoft/superbenchmark writes them in
analyzer/data_diagnosis.py and monitor/record.py.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_engine.errors import InputError
from kair_engine.readers.evidence.moments import iso_ns, modified_ns
from kair_engine.readers.evidence.opening import CUT, NO_HOST, NO_ZONE, FileRows, Lines, read_bounded
from kair_engine.readers.json_values import mappings, text
from kair_engine.readers.paths import host_of
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.measures import HOST, gpu_index

KIND: Final = "SuperBench"

_MOST_BYTES: Final = 64 << 20
"""Largest diagnosis that is one JSON value."""
_DIAGNOSIS: Final = re.compile(rb'"(?:Defective Details|# of Issues)"\s*:')
_MONITOR: Final = re.compile(rb'\{"time":\s*"[\d :-]{19}"[^{}]*"gpu_(?:usage|temperature|power_limit):\d')
_MEASURES: Final = {
    "gpu_usage": ("gpu_utilization", 0.01),
    "gpu_temperature": ("gpu_temperature", 1.0),
    "gpu_power_limit": ("gpu_power_limit", 1.0),
    "gpu_mem_used": ("gpu_memory_used", 1.0),
    "gpu_corrected_ecc": ("gpu_ecc_corrected", 1.0),
    "gpu_uncorrected_ecc": ("gpu_ecc_uncorrected", 1.0),
}
"""Field of a monitor → (measure, factor to the measure's unit)."""
_INDEX: Final = re.compile(r"\d{1,3}", re.ASCII)
_UNDATED: Final = "a diagnosis has no times: it is dated by when the file was written"


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (the content is enough)
    """Return whether it is JSON of SuperBench's diagnosis or monitor."""
    return head.lstrip()[:1] in (b"[", b"{") and bool(_DIAGNOSIS.search(head) or _MONITOR.search(head))


def read(path: Path) -> EvidenceFile:
    """Return nodes with defects and measurements. Raises InputError if the file is damaged or has neither."""
    rows, own_host, measured, lines = FileRows(path, KIND), host_of(path), 0, Lines(path)
    diagnosed = 0
    for number_of_line, one in _objects(path, lines):
        if "time" in one:
            measured += _add_measured(rows, one, own_host, number_of_line)
        elif text(one.get("Category")) and (host := text(one.get("Index"))):
            diagnosed += 1
            said = f"SuperBench, {text(one['Category'])}: {text(one.get('Defective Details'))}"
            rows.hosts.add(host)
            rows.add(modified_ns(path), HOST, "node_state", host=host, text=said, raw=rows.at(number_of_line))
        else:
            rows.passed_over += 1
    if not measured + diagnosed:
        raise InputError(f"{path} holds no node with defects and nothing that SuperBench measured")
    rows.hosts |= {own_host} if measured and own_host else set()
    rows.note(NO_ZONE, holds=measured, is_doubt=True)
    rows.note(NO_HOST, holds=measured and own_host is None)
    rows.note(_UNDATED, holds=diagnosed, is_doubt=True)
    rows.note(CUT, holds=lines.is_cut)
    return rows.evidence()


def _objects(path: Path, lines: Lines) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """Yield (line, object) of a file with one per line, or (None, object) of a single list."""
    for number_of_line, line in lines:
        if number_of_line == 1 and line.lstrip().startswith("["):
            with suppress(ValueError, RecursionError):
                yield from ((None, one) for one in mappings(msgspec.json.decode(read_bounded(path, _MOST_BYTES))))
            return
        found: Mapping[str, Any] = {}
        with suppress(ValueError, RecursionError):
            found = next(iter(mappings([msgspec.json.decode(line)])), {})
        if line.strip():
            yield number_of_line, found


def _add_measured(rows: FileRows, one: Mapping[str, Any], host: str | None, line: int | None) -> bool:
    """Add a monitor's measurements at one time; return whether it states that time."""
    moment = iso_ns(text(one["time"]))
    if moment is None:
        rows.passed_over += 1
        return False
    for field, value in one.items():
        name, _, index = field.partition(":")
        if name in _MEASURES and _INDEX.fullmatch(index) and type(value) in (int, float) and isfinite(value):
            measure, unit = _MEASURES[name]
            rows.add(moment[0], gpu_index(int(index)), measure, value * unit, host=host, raw=rows.at(line))
    return True
