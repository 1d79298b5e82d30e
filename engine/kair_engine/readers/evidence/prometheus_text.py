"""Reads metrics as exporters print them: Prometheus' text format and OpenMetrics, one scrape or several in sequence.

Samples seldom have times. A line before a scrape may state its time: `# time 1732700000`, `# 2026-11-27T14:03:20Z`, or
the output of `date` or `date +%s`. Otherwise samples get the time at which the file was last written.
"""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kair_engine.errors import InputError
from kair_engine.readers.evidence.moments import modified_ns
from kair_engine.readers.evidence.opening import MOST_BYTES, NO_ZONE, Lines
from kair_engine.readers.evidence.prometheus_names import HOST_NAMES, NAMES
from kair_engine.readers.evidence.prometheus_series import Samples, Series
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.evidence_time import JobTime, Near
from kair_engine.trace.measures import Clock, EvidenceSource

KIND: Final = "prometheus"

_NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_TYPE: Final = re.compile(
    rf"^# (?:TYPE {_NAME} (?:counter|gauge|histogram|summary|untyped|unknown|info|stateset)|EOF)\b", re.MULTILINE
)
_SAMPLE: Final = re.compile(
    rf'(?P<series>(?P<name>{_NAME})?+(?:\{{(?P<labels>(?:[^"}}]|"(?:[^"\\]|\\.)*+")*+)\}})?+)'
    r"\s*+(?P<value>[^\s#]++)(?:\s++(?P<time>[-+.\deE]++))?+\s*+(?:#.*)?"
)
_LABEL: Final = re.compile(rf'({_NAME})\s*=\s*"((?:[^"\\]|\\.)*+)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_TIME: Final = re.compile(
    r"(?:#\s*)?(?:(?:time|timestamp|date|scrape|scraped)(?:\s+at)?\s*[:=]?\s*)?"
    r"(?:(?P<number>\d{9,19}(?:\.\d+)?)|"
    r"(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?\s?(?:Z|[+-]\d\d:?\d\d)?))",
    re.IGNORECASE,
)


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (all importers are asked alike)
    """Return whether the file begins with metrics in the text format, or with known samples."""
    text = head.decode("utf-8", "replace")
    if _TYPE.search(text):
        return True
    lines = text.splitlines()[:200]
    return any(
        (match := _SAMPLE.fullmatch(line)) is not None and (match["name"] in NAMES or match["name"] == HOST_NAMES)
        for line in lines
    )


def read(path: Path, limit: int = MOST_BYTES, *, when: JobTime | None = None) -> EvidenceFile:
    """Return the rows of the first `limit` bytes of a file; with `when`, without scrapes far from that time.

    Raises InputError if no sample in it has a known meaning.
    """
    lines, near = Lines(path, limit), Near(when)
    reader = _Reader(path, near)
    for number, line in lines:
        reader.take(number, line)
        lines.only = b"" if reader.is_near else _MARKS
    near.passed_over += lines.passed_over
    if reader.samples.is_empty and not near.passed_over:
        raise InputError(
            f"{path}: no metric in it is one that Kair knows",
            "Kair reads metrics of dcgm-exporter, node_exporter and device-metrics-exporter",
        )
    doubts = (NO_ZONE,) if reader.is_of_no_zone else ()
    notes = [*reader.notes(), *doubts]
    if lines.is_cut:
        notes.append("it was not read to its end: it is too long or damaged")
    source = EvidenceSource(name=path.name, kind=KIND, clock=reader.clock(), notes=tuple(notes), doubts=doubts)
    found = reader.samples.evidence(source)
    return replace(found, sources=tuple(map(near.with_far, found.sources)))


_MARKS: Final = b"#0123456789 \t"
"""First bytes of lines that may state a time."""


class _Reader:
    """Reads a file's lines in order."""

    def __init__(self, path: Path, near: Near) -> None:
        self.samples = Samples()
        self._near = near
        self.is_near = True
        """Whether the scrape with the latest stated time is near the job's time."""
        self._path = path
        self._known: dict[str, Series | None] = {}
        self._scrape_ns: int | None = None
        self._written_ns: int | None = None
        self._of_mark = self.is_of_no_zone = self._is_repeated = False

    def take(self, number: int, line: str) -> None:
        """Read one line."""
        line = line.strip()
        if not line or line[0] in "#0123456789":
            self.samples.passed_over += not self._takes_time(line) and not line.startswith("#") and bool(line)
            return
        # Fast path: most lines continue a known series, with one or two numbers after the labels.
        end = line.rfind("}") + 1
        if end and line[:end] in self._known and len(numbers := line[end:].split()) in (1, 2):
            self._add(self._known[line[:end]], numbers[0], numbers[1] if len(numbers) == 2 else None)
            return
        name = line.partition("{")[0].partition(" ")[0]
        if name and name not in NAMES and name != HOST_NAMES:
            self.samples.passed_over += 1
            return
        match = _SAMPLE.fullmatch(line)
        if match is None:
            self.samples.passed_over += 1
            return
        series = self._series(match, number)
        if name == HOST_NAMES:
            return
        self._add(series, match["value"], match["time"])

    def _add(self, series: Series | None, value: str, time: str | None) -> None:
        """Add a sample of a series; count it as skipped if the series is unknown."""
        try:
            time_ns = self._time_of(time)
            if not (self.is_of_no_zone or self._near.has(time_ns)):
                self._near.passed_over += series is not None
                return
            if time_ns == self._written_ns and series is not None and time_ns in series.times[-1:]:
                self._is_repeated = True
            is_added = series is not None and series.add(time_ns, float(value))
        except (ValueError, OverflowError):
            is_added = False
        self.samples.passed_over += not is_added

    def _series(self, match: re.Match[str], number: int) -> Series | None:
        text = match["series"]
        if text not in self._known:
            labels = {name: _unescaped(value) for name, value in _LABEL.findall(match["labels"] or "")}
            name = match["name"] or labels.get("__name__", "")
            series = self.samples.series(name, labels, f"{self._path.name}:{number}")
            if name == HOST_NAMES:
                return series
            self._known[text] = series
        return self._known[text]

    def _takes_time(self, line: str) -> bool:
        """Take the time of the next samples from the line; return whether it has one."""
        match = None if line.startswith(("# HELP", "# TYPE")) else _TIME.fullmatch(line)
        if match is None:
            return False
        if match["number"]:
            self._begin_scrape(_unix_ns(match["number"]))
            return True
        try:
            time = datetime.fromisoformat(match["iso"].replace(",", "."))
        except ValueError:
            return False
        self.is_of_no_zone |= time.tzinfo is None
        self._begin_scrape(int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1e6) * 1000)
        return True

    def _begin_scrape(self, time_ns: int) -> None:
        # Times of a zone that is not known are never far.
        self._scrape_ns, self._of_mark = time_ns, True
        self.is_near = self.is_of_no_zone or self._near.has(time_ns)

    def _time_of(self, told: str | None) -> int:
        if told is not None:
            return _unix_ns(told)
        if self._scrape_ns is not None:
            return self._scrape_ns
        if self._written_ns is None:
            self._written_ns = modified_ns(self._path)
        return self._written_ns

    def clock(self) -> Clock:
        """Return the least certain clock of all times."""
        if self._written_ns is not None:
            return "unknown"
        return "host" if self._of_mark else "unix"

    def notes(self) -> list[str]:
        """Return what readers should know about the times."""
        notes = []
        if self._written_ns is not None:
            notes.append("its samples have no times: they are dated by when the file was written")
        if self._is_repeated:
            notes.append("it holds several scrapes without times, of which only the last counts")
        return notes


def _unix_ns(text: str) -> int:
    """Return Unix ns of seconds (OpenMetrics), milliseconds (Prometheus), microseconds or nanoseconds, by magnitude.

    Raises ValueError or OverflowError for anything else.
    """
    if text.isascii() and text.isdigit():
        number = int(text)
        return number * (10**9, 10**6, 10**3, 1)[min(max(len(text) - 9, 0) // 3, 3)]
    seconds = float(text)
    return int(seconds * 1e9) if abs(seconds) < 1e11 else int(seconds * 1e6)


def _unescaped(value: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], value) if "\\" in value else value
