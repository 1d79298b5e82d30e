"""Reads logs of NVIDIA's fabric manager, alone or within a syslog or journal, for errors of NVSwitches."""

import re
from pathlib import Path
from typing import Final

from kair_engine.errors import InputError
from kair_engine.readers.evidence.moments import MONTHS, modified_ns, syslog_ns, utc_ns
from kair_engine.readers.evidence.opening import CUT, NO_HOST, NO_ZONE, FileRows, Lines
from kair_engine.readers.paths import host_of
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.identity import pci_address
from kair_engine.trace.measures import HOST, pci

KIND: Final = "fabric manager"

_CLOCK: Final = r"(\d\d):(\d\d):(\d\d)"
_OWN: Final = re.compile(rf"\[([A-Z][a-z]{{2}}) (\d\d) (\d{{4}}) {_CLOCK}\] \[\w+\] \[tid \d+\] (.*)", re.ASCII)
_SYSLOG: Final = re.compile(
    r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?:\.\d{1,9})? ([\w.:-]{1,253}) nv-fabricmanager\[\d+\]: (.*)", re.ASCII
)
_ERROR: Final = re.compile(
    r"(detected NVSwitch (?:non-)?fatal error) (\d{1,6}) on .{0,80}?pci bus id ([0-9a-fA-F:.]{5,16})(.*)"
)
_MOST_ROWS: Final = 20_000


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (the content is enough)
    """Return whether one of the first lines is the fabric manager's."""
    lines = head.decode("utf-8", "replace").splitlines()[:400]
    return any(_OWN.match(line) or _SYSLOG.match(line) for line in lines)


def read(path: Path) -> EvidenceFile:
    """Return the errors of NVSwitches (SXIDs). Raises InputError if no line is the fabric manager's."""
    lines, rows, written = Lines(path), FileRows(path, KIND), modified_ns(path)
    own_host = host_of(path)
    is_read, others = False, 0
    for number, line in lines:
        time_ns, host, message = _told(line, written)
        if time_ns is None:
            rows.passed_over += bool(line.strip())
            continue
        rows.hosts |= {one for one in (host or own_host,) if one}
        is_read = True
        rows.cover(time_ns)
        error = _ERROR.match(message)
        others += error is None
        if error is not None and len(rows) < _MOST_ROWS:
            entity = pci(error[3]) if pci_address(error[3]) else HOST
            said = f"{error[1]}{error[4]}"
            rows.add(time_ns, entity, "sxid", float(error[2]), host=host or own_host, text=said, raw=rows.at(number))
    if not is_read:
        raise InputError(f"{path} holds no line of the fabric manager with its time")
    rows.note(NO_ZONE, is_doubt=True)
    rows.note(NO_HOST, holds=not rows.hosts)
    rows.note(CUT, holds=lines.is_cut)
    return rows.evidence(observes=("sxid",) if others else ())


def _told(line: str, written: int) -> tuple[int | None, str | None, str]:
    """Return the time, host and message of a line; of other lines the time is missing."""
    if (own := _OWN.match(line)) is not None and own[1] in MONTHS:
        month = 1 + MONTHS.index(own[1])
        return utc_ns((int(own[3]), month, int(own[2])), (int(own[4]), int(own[5]), int(own[6]))), None, own[7]
    if (match := _SYSLOG.match(line)) is not None:
        return syslog_ns(match[1], written), match[2], match[3]
    return None, None, ""
