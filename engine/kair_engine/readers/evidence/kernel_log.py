"""Reads kernel logs: the formats of `dmesg`, lines of syslog, and the journal as JSON.

Lines of other programs are skipped, because only the kernel's own are reliable. Seconds since boot become Unix times by
lines that state both (audit), else by the hardware clock at boot, else by when the file was written.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.evidence.kernel_events import (
    OBSERVED,
    KernelEvent,
    device_of,
    event_of,
    hostname_in,
    unix_s_in,
)
from kair_engine.readers.evidence.moments import MONTHS, is_possible, iso_ns, modified_ns, syslog_ns, utc_ns
from kair_engine.readers.evidence.opening import CUT, NO_HOST, FileRows, Lines
from kair_engine.readers.paths import host_of
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.measures import Clock, gpu, shown

KIND: Final = "kernel log"

_UNIX: Final = "unix"
_LOCAL: Final = "local"
_BOOT: Final = "boot"


@dataclass(frozen=True)
class _Moment:
    """The time that a line states."""

    style: str
    """`unix`; `local`: Unix if the host's zone were UTC; `boot`: since boot."""
    ns: int


@dataclass(frozen=True)
class _Spelling:
    """One line format, with groups `time`, `message`, and `host` if it has one."""

    pattern: re.Pattern[str]
    moment: Callable[[re.Match[str], int], _Moment | None]
    """Returns the time, given a match and when the file was written (Unix ns)."""
    resolution_s: float


_PREFIX: Final = r"(?:<\d{1,3}>)?(?:kern *:\w+ *: )?"
_SINCE_BOOT: Final = r"\[ *\d{1,9}\.\d{3,9}\]"
_CALLER: Final = r"(?:\[ *[TC]\d{1,10}\])?"
_HOST: Final = r"(?P<host>[\w.:-]{1,253})"
_DAYS: Final = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_ISO_TIME: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
_ZONE: Final = r"(?:Z|[+-]\d\d:?\d\d)"
_TAG: Final = rf"kernel(?:\[\d+\])?: (?:{_SINCE_BOOT} ?)?{_CALLER} ?"


def _since_boot(match: re.Match[str], _: int) -> _Moment:
    return _Moment(_BOOT, round(float(match["time"]) * 1e9))


def _since_1970(match: re.Match[str], _: int) -> _Moment | None:
    ns = round(float(match["time"]) * 1e9)
    return _Moment(_UNIX, ns) if is_possible(ns) else None


def _iso(match: re.Match[str], _: int) -> _Moment | None:
    time = iso_ns(match["time"])
    return None if time is None else _Moment(_UNIX if time[1] else _LOCAL, time[0])


def _human(match: re.Match[str], _: int) -> _Moment | None:
    month, day, clock, year = match["time"].split()
    if month not in MONTHS:
        return None
    hour, minute, second = (int(one) for one in clock.split(":"))
    ns = utc_ns((int(year), 1 + MONTHS.index(month), int(day)), (hour, minute, second))
    return None if ns is None else _Moment(_LOCAL, ns)


def _of_syslog(match: re.Match[str], modified: int) -> _Moment | None:
    ns = syslog_ns(match["time"].partition(".")[0], modified)
    return None if ns is None else _Moment(_LOCAL, ns)


def _spelling(pattern: str, moment: Callable[[re.Match[str], int], _Moment | None], resolution_s: float) -> _Spelling:
    return _Spelling(re.compile(pattern, re.ASCII | re.DOTALL), moment, resolution_s)


_SPELLINGS: Final = (
    # [12345.678901] message; also with the caller, and with the host as in journalctl -o short-monotonic
    _spelling(
        rf"{_PREFIX}\[ *(?P<time>\d{{1,9}}\.\d{{3,9}})\]{_CALLER} ?(?:{_HOST} kernel: )?(?P<message>.*)",
        _since_boot,
        1e-3,
    ),
    # Nov 27 14:02:51 node-7 kernel: [12345.678901] message; fractions of a second are dropped
    _spelling(
        rf"{_PREFIX}(?P<time>[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{{1,9}})?) {_HOST} {_TAG}(?P<message>.*)",
        _of_syslog,
        1.0,
    ),
    # 2026-11-27T14:02:51.123456+01:00 node-7 kernel: message
    _spelling(
        rf"{_PREFIX}(?P<time>{_ISO_TIME}(?:[.,]\d{{1,9}})?{_ZONE}?) {_HOST} {_TAG}(?P<message>.*)",
        _iso,
        1.0,
    ),
    # 2026-11-27T14:02:51,123456+01:00 message (dmesg --time-format iso)
    _spelling(rf"{_PREFIX}(?P<time>{_ISO_TIME},\d{{6}}{_ZONE}) {_CALLER} ?(?P<message>.*)", _iso, 1.0),
    # [Fri Nov 27 14:02:51 2026] message (dmesg -T)
    _spelling(
        rf"{_PREFIX}\[(?:{_DAYS}) (?P<time>[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d \d{{4}})\] ?{_CALLER} ?"
        r"(?P<message>.*)",
        _human,
        1.0,
    ),
    # <4>1 2026-11-27T14:02:51.123Z node-7 kernel - - - message (RFC 5424)
    _spelling(
        rf"(?:<\d{{1,3}}>)?1 (?P<time>{_ISO_TIME}(?:\.\d{{1,9}})?{_ZONE}) {_HOST} kernel \S+ \S+ "
        rf"(?:-|\[[^\]]*\]) \ufeff?(?:{_SINCE_BOOT} ?)?{_CALLER} ?(?P<message>.*)",
        _iso,
        1.0,
    ),
    # 1764252171.123456 node-7 kernel: message (journalctl -o short-unix)
    _spelling(rf"(?P<time>\d{{9,11}}\.\d{{6}}) {_HOST} {_TAG}(?P<message>.*)", _since_1970, 1e-3),
)
_JOURNAL_RESOLUTION_S: Final = 1e-3

_REFUSED: Final = re.compile(rb"dmesg: read kernel buffer failed: [^\n]{1,100}|dmesg: klogctl[^\n]{1,100}")
_NAMES: Final = ("dmesg", "kern.log", "kernel")
_SAMPLE_LINES: Final = 400
_SPEAKERS: Final = re.compile(
    r"Linux version |Command line: |BIOS-|ACPI|EFI|DMAR|PCI|pci|NVRM: |nvidia|mlx\d|amdgpu |usb |IPv6: |audit|"
    r"systemd\[|EXT4-fs|XFS |overlayfs: |nfs: |Lustre|nvme|sd |ata\d|scsi|blk_update|I/O error|virtio|hv_|xen|"
    r"eth\d|ib\d|ens\d|eno\d|bond\d|docker|br-|veth|efa |ena |ixgbe |i40e |ice |bnxt_en |"
    r"mce: |EDAC |CPU\d|Memory cgroup |Out of memory|oom-kill:|Killed process |\S+\[\d+\]: segfault |"
    r"perf: |rcu: |watchdog: |NMI |INFO: task |clocksource: |random: |workqueue: |cgroup: "
)
"""Begins of kernel messages; any kernel log has at least one of these."""
_JOURNAL_SIGN: Final = b'"__REALTIME_TIMESTAMP"'


def fits(name: str, head: bytes) -> bool:
    """Return whether half of the first lines are a kernel's, or one is a kernel's line in a syslog or journal."""
    if _REFUSED.match(head):
        return True
    if head.lstrip()[:1] == b"{":
        return _JOURNAL_SIGN in head and b'"MESSAGE"' in head
    lines = [one for one in head.decode("utf-8", "replace").splitlines()[:_SAMPLE_LINES] if one.strip()]
    matches = [matched[1] for one in lines if (matched := _matched(one, _SPELLINGS[0])) is not None]
    if any(match.groupdict().get("host") for match in matches):
        return True
    # Other programs begin lines with times in brackets too.
    is_named = any(one in name.lower() for one in _NAMES)
    is_kernels = is_named or any(_SPEAKERS.match(match["message"]) for match in matches)
    return is_kernels and len(matches) >= max(len(lines) / 2, 1)


def _matched(line: str, first: _Spelling) -> tuple[_Spelling, re.Match[str]] | None:
    """Return the format and match of a line; `first` is tried first, because a file uses one format."""
    match = first.pattern.match(line)
    if match is not None:
        return first, match
    for spelling in _SPELLINGS:
        match = spelling.pattern.match(line) if spelling is not first else None
        if match is not None:
            return spelling, match
    return None


class _Line(NamedTuple):
    """A message of the kernel; created for every line, so it must be cheap."""

    number: int
    message: str
    host: str | None
    moment: Callable[[], _Moment | None]
    """Called for few lines, because parsing the time takes longer than reading the line."""
    resolution_s: float


_OF_ONE_EVENT: Final = 64
"""Most lines from the first to the last of one event: others may come between."""
_ANNOUNCED_AGAIN: Final = 2
"""The same if the later line announces too: `Corrected error` and `Multiple Corrected error`."""


class _Reader:
    """Reads lines in order and collects events, devices, hosts and times."""

    def __init__(self, modified: int) -> None:
        self._modified = modified
        self._spelling = _SPELLINGS[0]
        self._journal = msgspec.json.Decoder(dict[str, Any])
        self.read = 0
        """Number of kernel messages."""
        self.passed_over = 0
        self.first: _Line | None = None
        self.last: _Line | None = None
        self.anchors: list[tuple[int, int]] = []
        """(ns since boot, Unix ns by the host's clock)."""
        self.chip: tuple[int, int] | None = None
        """The same by the hardware clock at boot."""
        self.hosts: set[str] = set()
        """The first hosts that lines name."""
        self.hostname: str | None = None
        """The name that systemd logs."""
        self.devices: dict[str, str] = {}
        """PCI address → UUID."""
        self.events: list[tuple[_Line, KernelEvent]] = []
        self.left_out = 0
        """Events beyond the limit per name."""
        self._of_name: Counter[str] = Counter()
        self._announced: dict[str, tuple[_Line, KernelEvent]] = {}
        self._goes_on = ""
        """The previous message with its indented lines; '' after a line that is not the kernel's."""

    def take(self, number: int, text: str) -> None:
        """Read the next line."""
        if text[:1] == "{":
            line = self._of_journal(number, text)
        else:
            matched = _matched(text, self._spelling)
            line = None
            if matched is not None:
                self._spelling = matched[0]
                line = self._of_text(number, *matched)
        if line is None:
            self._without_time(text)
            return
        self.read += 1
        self.last = line
        if line.host is not None and line.host not in self.hosts and len(self.hosts) < _MOST_HOSTS:
            self.hosts.add(shown(line.host))
        if self.first is None:
            self.first = line
        self._goes_on = line.message
        event = event_of(line.message)
        if event is not None:
            self._add(line, event)
        else:
            self._look_beside(line)

    def _without_time(self, text: str) -> None:
        """Append an indented line without a time to the previous message, which then spans several lines."""
        goes_on = text.startswith((" ", "\t")) and 0 < len(self._goes_on) <= _LONGEST_MESSAGE
        if self.last is None or not goes_on:
            # Indented lines after another program's line belong to that program.
            self._goes_on = ""
            self.passed_over += bool(text.strip())
            return
        is_event = event_of(self._goes_on) is not None
        self._goes_on = f"{self._goes_on} {text.strip()}"
        event = None if is_event else event_of(self._goes_on)
        if event is not None:
            self._add(self.last, event)

    def _of_text(self, number: int, spelling: _Spelling, match: re.Match[str]) -> _Line:
        modified = self._modified
        host = match["host"] if "host" in spelling.pattern.groupindex else None
        return _Line(number, match["message"], host, lambda: spelling.moment(match, modified), spelling.resolution_s)

    def _of_journal(self, number: int, text: str) -> _Line | None:
        try:
            record = self._journal.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return None
        message, stamp = _journal_text(record.get("MESSAGE")), record.get("__REALTIME_TIMESTAMP")
        # Fields with _ are the journal's own; the identifier is chosen by the writer.
        origin = record.get("_TRANSPORT", record.get("SYSLOG_IDENTIFIER", "kernel"))
        is_kernels = origin == "kernel" and record.get("SYSLOG_FACILITY", "0") == "0"
        if message is None or not is_kernels or not isinstance(stamp, str) or not re.fullmatch(r"[0-9]{1,16}", stamp):
            return None
        host = record.get("_HOSTNAME")
        ns = int(stamp) * 1000
        moment = _Moment(_UNIX, ns) if is_possible(ns) else None
        return _Line(number, message, host if isinstance(host, str) else None, lambda: moment, _JOURNAL_RESOLUTION_S)

    def _look_beside(self, line: _Line) -> None:
        """Collect names of devices, the host's name and times from messages that are not events."""
        message = line.message
        if known := device_of(message):
            self.devices[known[0]] = known[1]
        elif name := hostname_in(message):
            self.hostname = name
        elif stamp := unix_s_in(message):
            moment = line.moment()
            if moment is None or moment.style != _BOOT:
                return
            unix = round(stamp[0] * 1e9)
            if stamp[1]:
                self.anchors.append((moment.ns, unix))
            else:
                self.chip = (moment.ns, unix)

    def _add(self, line: _Line, event: KernelEvent) -> None:
        """Add an event; one that spans several lines counts once, by its last and fullest line."""
        before = self._announced.pop(event.subject, None) if event.subject else None
        most = _ANNOUNCED_AGAIN if event.is_announced else _OF_ONE_EVENT
        if before is not None and line.number - before[0].number > most:
            self._keep(*before)
        if event.is_announced:
            self._announced[event.subject] = (line, event)
        else:
            self._keep(line, event)

    def _keep(self, line: _Line, event: KernelEvent) -> None:
        self._of_name[event.name] += 1
        if self._of_name[event.name] > _MOST_OF_A_NAME:
            self.left_out += 1
        else:
            self.events.append((line, event))

    def finish(self) -> None:
        """Keep announced events; call this after the last line."""
        for one in self._announced.values():
            self._keep(*one)
        self._announced.clear()
        self.anchors.sort()


_MOST_HOSTS: Final = 10_000
_MOST_OF_A_NAME: Final = 20_000
"""Events of one name that are kept: a bad PCIe link reports errors without end."""
_LONGEST_MESSAGE: Final = 1_000
"""Longer messages are not continued."""


def _journal_text(message: object) -> str | None:
    """Return a journal's message, which may be a text or a list of bytes."""
    if isinstance(message, str):
        return message
    if isinstance(message, list) and all(type(one) is int and 0 <= one < 256 for one in message):
        return bytes(message).decode("utf-8", "replace")
    return None


def read(path: Path) -> EvidenceFile:
    """Return the events of a kernel log: of devices by PCI address, links, disks, processes, and the host.

    A source's `first_ns` and `last_ns` span the whole log, so that missing events count as evidence. Raises InputError
    if no line is the kernel's.
    """
    lines, written = Lines(path), modified_ns(path)
    reader = _Reader(written)
    for number, text in lines:
        reader.take(number, text)
    reader.finish()
    if not reader.read:
        raise _not_read(path)
    times = _Times(reader, written)
    told_host = host_of(path, reader.hostname)
    rows = FileRows(path, KIND)
    rows.passed_over = reader.passed_over
    rows.hosts |= reader.hosts or ({told_host} if told_host else set())
    for line, event in reader.events:
        time_ns = times.unix_ns(line)
        if time_ns is None:
            rows.passed_over += 1
            continue
        host = line.host or told_host
        entity = event.entity
        if host is None:
            # Any host may have a device at this address, but a UUID is unique.
            uuid = reader.devices.get(entity.removeprefix("pci:"))
            entity = gpu(uuid) if uuid else entity
        rows.add(time_ns, entity, event.name, event.value, host=host, text=event.text, raw=rows.at(line.number))
    is_whole = reader.read > len(reader.events) + reader.left_out
    rows.notes += _notes(reader, times, told_host, is_whole=is_whole, is_cut=lines.is_cut)
    rows.doubts += times.doubts()
    ends = [times.unix_ns(line) for line in (reader.first, reader.last) if line is not None]
    rows.cover(*(ns for ns in ends if ns is not None))
    return rows.evidence(times.clock, times.bound_s(), OBSERVED if is_whole else ())


def _not_read(path: Path) -> InputError:
    start = "\n".join(text for _, text in islice(Lines(path), 3)).encode()
    if _REFUSED.search(start):
        return InputError(
            f"{path}: dmesg was not allowed to read the kernel's log",
            "containers do not see it: run dmesg as root on the host, or journalctl -k -o json",
        )
    return InputError(
        f"{path} holds no line of a kernel with its time", "write it with dmesg, or journalctl -k -o json"
    )


_DRIFT: Final = 100e-6
"""Drift of the kernel's uncorrected clock since boot, in seconds per second: that of a cheap crystal."""
_AUDIT_RESOLUTION_S: Final = 0.01


class _Times:
    """Converts a log's times to Unix, and states the assumptions."""

    def __init__(self, reader: _Reader, modified: int) -> None:
        events = [line for line, _ in reader.events]
        known = [line for line in (reader.first, reader.last, *events) if line is not None]
        moments = [moment for line in known if (moment := line.moment()) is not None]
        self.styles: Final = {moment.style for moment in moments}
        self._anchors = reader.anchors
        self._checks = sorted([*reader.anchors, *([reader.chip] if reader.chip else [])])
        boots = [moment.ns for moment in moments if moment.style == _BOOT]
        self.is_guessed: Final = bool(boots) and not self._checks
        """Whether boot time is inferred from when the file was written."""
        self._started = (
            modified - max(boots) if self.is_guessed else reader.chip[1] - reader.chip[0] if reader.chip else 0
        )
        self.zone_s: Final = _zone_s([moment.ns for moment in moments if moment.style == _LOCAL], modified)
        """Offset of its times from UTC, if it can be inferred."""
        self._resolution_s = max((line.resolution_s for line in known), default=1.0)
        self._boots_of_events = [
            moment.ns for line in events if (moment := line.moment()) is not None and moment.style == _BOOT
        ]

    @property
    def clock(self) -> Clock:
        if _BOOT in self.styles and not self._anchors:
            return "boot"
        return "host" if self.styles else "unknown"

    def bound_s(self) -> float | None:
        """Return the error of its times against the host's clock; None if that rests on an assumption."""
        if self.clock != "host" or _LOCAL in self.styles:
            return None
        if _BOOT in self.styles:
            bounds = [self._bound_s(ns) for ns in self._boots_of_events]
            known = [one for one in bounds if one is not None]
            return max(known) if known and len(known) == len(bounds) else None
        return self._resolution_s

    def doubts(self) -> Iterator[str]:
        """Yield the zone that is assumed for times that state none."""
        if _LOCAL not in self.styles:
            return
        if self.zone_s is None:
            yield "its times state no zone: they are taken for UTC; journalctl -k -o json has real times"
        else:
            hours, minutes = divmod(abs(self.zone_s) // 60, 60)
            sign = "-" if self.zone_s < 0 else "+"
            yield (
                f"its times state no zone: UTC{sign}{hours:02}:{minutes:02} is assumed, which dates its last line to "
                "the moment when the file was written"
            )

    def _bound_s(self, ns: int) -> float | None:
        """Return the error of a time between two lines that state both clocks; a clock that was reset shows as a
        difference.
        """
        at = bisect_left(self._checks, (ns, 0))
        if not 0 < at < len(self._checks):
            return None
        (boot, unix), (next_boot, next_unix) = self._checks[at - 1 : at + 1]
        apart = abs((unix - boot) - (next_unix - next_boot))
        return _AUDIT_RESOLUTION_S + (apart + _DRIFT * abs(self._nearest(ns)[0] - ns)) / 1e9

    def unix_ns(self, line: _Line) -> int | None:
        moment = line.moment()
        if moment is None:
            return None
        ns = moment.ns
        if moment.style == _LOCAL:
            ns -= (self.zone_s or 0) * 10**9
        elif moment.style == _BOOT:
            ns = self._since_boot(ns)
        return ns if is_possible(ns) else None

    def _since_boot(self, ns: int) -> int:
        if self._anchors:
            boot, unix = self._nearest(ns)
            return unix + ns - boot
        return self._started + ns

    def _nearest(self, ns: int) -> tuple[int, int]:
        at = bisect_left(self._anchors, (ns, 0))
        return min(self._anchors[max(at - 1, 0) : at + 1], key=lambda one: abs(one[0] - ns))


_ZONE_STEP_S: Final = 900
_ZONE_MOST_S: Final = 14 * 3600
_ZONE_SLACK_S: Final = 2


def _zone_s(local: list[int], modified: int) -> int | None:
    """Return the zone (s) in which the last line coincides with the writing of the file, as in a live log.

    Zones are multiples of 15 minutes, so a copied file fits one by chance in 1 of 180 cases.
    """
    if not local:
        return None
    ahead = (max(local) - modified) / 1e9
    zone = round(ahead / _ZONE_STEP_S) * _ZONE_STEP_S
    return zone if abs(zone) <= _ZONE_MOST_S and abs(ahead - zone) <= _ZONE_SLACK_S else None


def _notes(reader: _Reader, times: _Times, host: str | None, *, is_whole: bool, is_cut: bool) -> Iterator[str]:
    if times.is_guessed:
        yield (
            "its times are seconds since the host's start: it is assumed that the file was written right after its "
            "last line; dmesg --time-format iso prints real times"
        )
    elif times.clock == "boot":
        yield (
            "its times are seconds since the host's start, which is taken from the clock that the host started with: "
            "that clock may have been wrong; dmesg --time-format iso prints real times"
        )
    elif _BOOT in times.styles:
        yield (
            "its times are seconds since the host's start, converted by lines of audit, which state both; "
            "after the last of these the host's clock may have been set again"
        )
    yield from times.doubts()
    if reader.first is not None and reader.first.host is None and host is None:
        yield f"{NO_HOST}, or write it with journalctl -k -o json"
    if not is_whole:
        yield "it holds events alone, as after a search: the absence of other events says nothing"
    if reader.left_out:
        yield f"{reader.left_out} more events are left out: the first {_MOST_OF_A_NAME} of each name are kept"
    if is_cut:
        yield CUT
    if any(event.entity.startswith("pid:") for _, event in reader.events):
        yield "process numbers are the host's: in a container a process has another one"
