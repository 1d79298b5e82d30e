"""Parses times of logs and schedulers to Unix ns."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from kair_engine.errors import InputError

MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
LATEST_NS: Final = 1 << 62
"""In the year 2116; later times are damage."""

_ISO: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:(Z)|([+-])(\d\d):?(\d\d))?", re.ASCII
)


def iso_ns(text: str) -> tuple[int, bool] | None:
    """Return (Unix ns, whether a zone is stated) of `2026-11-27T14:02:51.5+01:00`; without a zone UTC is assumed.

    Return None for anything else, and for times before 1970 or after LATEST_NS.
    """
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(one) for one in match.groups()[:6])
    ns = utc_ns((year, month, day), (hour, minute, second))
    if ns is None:
        return None
    if match[7]:
        ns += int(match[7].ljust(9, "0"))
    if match[9]:
        ahead = int(match[10]) * 3600 + int(match[11]) * 60
        ns -= (ahead if match[9] == "+" else -ahead) * 10**9
    return (ns, bool(match[8] or match[9])) if is_possible(ns) else None


def utc_ns(date: tuple[int, int, int], clock: tuple[int, int, int]) -> int | None:
    """Return Unix ns of a date (year, month, day) and time (hour, minute, second) in UTC; None if they do not exist."""
    hour, minute, second = clock
    try:
        # datetime has no leap seconds: use the first second of the next minute.
        moment = datetime(*date, hour, minute, min(second, 59), tzinfo=UTC)
        whole = moment + timedelta(seconds=1) if second == 60 else moment
    except (ValueError, OverflowError):
        return None
    ns = int(whole.timestamp()) * 10**9
    return ns if is_possible(ns) else None


def syslog_ns(text: str, written: int) -> int | None:
    """Return Unix ns of `Nov 27 14:02:51`, assumed to be UTC; None for anything else.

    The year is the last one for which the time is not after `written`, when the file was written, plus a day for zones.
    """
    month, day, clock = text.split()
    hour, minute, second = (int(one) for one in clock.split(":"))
    year = 1970 + written // (31_556_952 * 10**9)
    for one in (year + 1, year, year - 1, year - 2, year - 3, year - 4) if month in MONTHS else ():
        ns = utc_ns((one, 1 + MONTHS.index(month), int(day)), (hour, minute, second))
        if ns is not None and ns <= written + 86_400 * 10**9:
            return ns
    return None


def is_possible(ns: int) -> bool:
    """Return whether a log can have this time."""
    return 0 <= ns < LATEST_NS


def modified_ns(path: Path) -> int:
    """Return when a file, or its archive, was last written (Unix ns). Raises InputError if there is no file."""
    place = path
    while True:
        try:
            return max(place.stat().st_mtime_ns, 0)
        except NotADirectoryError:
            place = place.parent
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
