"""Reads events in Chrome's JSON format, as a list or under `traceEvents`, into memory; a list may lack its end."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from kair_engine.readers.blocks import read_whole
from kair_engine.readers.formats import NotATraceError
from kair_engine.trace.model import KairWarning, short_warning

_LARGEST: Final = 1 << 31
_LASTING: Final = ("X", "B", "E")
_NOTHING: Final = msgspec.Raw(b"")
_TIME: Final = re.compile(rb'^"?\s*(-?\d{1,18})(?:\.(\d+))?\s*"?$')
_MOST_DIGITS: Final = 18
_LONGEST_NAME: Final = 100_000


class ChromeEvent(msgspec.Struct, gc=False):
    """One event; times stay text, because microseconds since 1970 do not fit a float64."""

    ph: Any = ""
    name: Any = ""
    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING
    pid: Any = 0
    tid: Any = 0
    id: Any = None
    args: Any = None

    @property
    def text(self) -> str:
        """The name as text, whatever its type."""
        return self.name[:_LONGEST_NAME] if isinstance(self.name, str) else str(self.name)[:_LONGEST_NAME]

    @property
    def begin(self) -> int | None:
        """Its time in ns; None if it has none."""
        return nanoseconds(self.ts)

    def of_args(self, *names: str) -> Any:  # noqa: ANN401
        """Return the first of these arguments that is present."""
        if not isinstance(self.args, Mapping):
            return None
        return next((self.args[name] for name in names if name in self.args), None)


class _Wrapped(msgspec.Struct, gc=False):
    traceEvents: list[ChromeEvent]  # noqa: N815 (Chrome's name)


@dataclass(frozen=True)
class ChromeTrace:
    """All events of a file, and the number that could not be understood."""

    events: list[ChromeEvent]
    bad: int
    is_cut: bool

    def process_names(self) -> dict[str, str]:
        """Return the names of processes by their ids as text."""
        found = {}
        for event in self.events:
            if event.ph == "M" and event.name == "process_name" and isinstance(name := event.of_args("name"), str):
                found[str(event.pid)] = name
        return found

    def complete(self) -> Iterator[tuple[ChromeEvent, int, int]]:
        """Yield events with a length as (event, begin, duration) in ns; pairs of begin and end events count as one."""
        waiting: dict[tuple[str, str], list[tuple[ChromeEvent, int]]] = {}
        for event in self.events:
            # Half of a file may be arrows, whose times are not needed here.
            if event.ph not in _LASTING or (begin := event.begin) is None:
                continue
            if event.ph == "X":
                duration = nanoseconds(event.dur)
                if duration is not None:
                    yield event, begin, duration
            elif event.ph == "B":
                waiting.setdefault((str(event.pid), str(event.tid)), []).append((event, begin))
            elif begun := waiting.get((str(event.pid), str(event.tid))):
                first, start = begun.pop()
                yield first, start, begin - start

    def warnings(self, source: Path) -> tuple[KairWarning, ...]:
        """Return warnings for a file that could not be read completely."""
        found = []
        if self.is_cut:
            text = f"{source.name} is cut off or damaged; the events before that place are used"
            found.append(short_warning("truncated_file", text))
        if self.bad:
            text = f"{self.bad} events of {source.name} could not be understood and are left out"
            found.append(short_warning("bad_events", text))
        return tuple(found)


def load(source: Path) -> ChromeTrace:
    """Return the events of a file. Raises NotATraceError if there are none, InputError if it is too large."""
    text, is_cut = read_whole(source, _LARGEST, "record fewer steps")
    text = text.removeprefix(b"\xef\xbb\xbf").strip()
    try:
        if text.startswith(b"{"):
            return ChromeTrace(msgspec.json.decode(text, type=_Wrapped).traceEvents, 0, is_cut)
        # Horovod never closes its list, which Chrome's format permits.
        closed = text if text.endswith(b"]") else text.rstrip(b", \r\n") + b"]"
        return ChromeTrace(msgspec.json.decode(closed, type=list[ChromeEvent]), 0, is_cut)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _by_lines(text.splitlines())


def _by_lines(lines: Iterable[bytes]) -> ChromeTrace:
    """Parse one event per line, as these profilers write: damage stays within its line."""
    events, bad = [], 0
    for line in lines:
        stripped = line.strip().removeprefix(b"[").strip(b", \t")
        if not stripped.startswith(b"{"):
            continue
        try:
            events.append(msgspec.json.decode(stripped, type=ChromeEvent))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            bad += 1
    if not events:
        raise NotATraceError("no events in it")
    return ChromeTrace(events, bad, is_cut=True)


def nanoseconds(raw: msgspec.Raw) -> int | None:
    """Return microseconds as text, quoted or not, in ns."""
    text = bytes(raw)
    whole, point, fraction = text.strip(b'"').partition(b".")
    # The fast path for nearly all values; others are parsed in full.
    if whole.isdigit() and len(whole) <= _MOST_DIGITS and (fraction.isdigit() or not point):
        return int(whole + fraction[:3].ljust(3, b"0"))
    match = _TIME.match(text)
    if match is None:
        return None
    whole, fraction = match.groups()
    part = int((fraction or b"")[:3].ljust(3, b"0"))
    value = int(whole) * 1000
    return value - part if whole.startswith(b"-") else value + part
