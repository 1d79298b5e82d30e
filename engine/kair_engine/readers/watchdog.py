"""Parses reports of PyTorch's watchdog in a log (wordings of 1.13 to 2.10): the rank, its time-out and its progress.

A report names a work (`WorkNCCL(SeqNum=808, OpType=ALLREDUCE, …)`) and not its process group; the line after it names
the group, and the last works that were enqueued and completed in it.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.trace.calls import (
    NOT_NUMBERED,
    UNKNOWN,
    UNNAMED_GROUP,
    CollectiveCall,
    GroupProgress,
    is_of_all,
    location_in,
)

SIGNS: Final = ("atchdog caught collective", "nqueued", "failed collective:", "following async exception")
"""Every line with a report contains one of them."""
_GROUP: Final = re.compile(
    r"\[PG (?:ID \d+ PG GUID )?(?P<name>[^\s()\]]{1,80})\s?(?:\((?P<words>[^)\]]{0,120})\))? Rank (?P<rank>\d{1,7})\]"
)
_WORK: Final = re.compile(
    r"(?:\[Rank (?P<rank>\d{1,7})\] )?(?:Watchdog caught collective operation timeout: |Collective )"
    r"Work\w{1,8}\((?P<fields>.{0,400}?)\) "
    r"(?:ran for(?: (?P<ran>\d{1,15}) milliseconds)?|raised the following async exception)"
)
_FIELD: Final = re.compile(r"(\w+)(?:\(ms\))?=(\[[^\]]*\]|[^,]*)")
_STATUS: Final = re.compile(
    r"last enqueued (?:\w+ )?work: (?P<enqueued>-?\d{1,18})"
    r"(?:, last started (?:\w+ )?work: -?\d{1,18})?, last completed (?:\w+ )?work: (?P<completed>-?\d{1,18})",
    re.IGNORECASE,
)
_AT_WORK: Final = re.compile(r"(?:work sequence id|at work|at NCCL work): (\d{1,18})")
_TIME: Final = re.compile(r"\[[EWIF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\b")
_STACK: Final = "Stack trace of the failed collective:"
_FRAME: Final = re.compile(r"#\d{1,4} (?P<name>.{1,200}?) from (?P<file>.{1,500}):(?P<line>\d{1,9})\s*$")
_OPERATIONS: Final = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "allreduce_coalesced",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all_single",
}
_TRANSFERS: Final = ("send", "recv", "recvanysource")


def seconds_of(text: str) -> int | None:
    """Return when a line was logged, in seconds of an unstated year; None if it has no time."""
    found = _TIME.search(text)
    return None if found is None else in_year(*map(int, found.groups()))


def in_year(month: int, day: int, hour: int, minute: int, second: int) -> int | None:
    """Return the seconds since the begin of a leap year; None if there is no such time."""
    try:
        return int((datetime(2000, month, day, hour, minute, second) - datetime(2000, 1, 1)).total_seconds())
    except ValueError:
        return None


@dataclass(frozen=True)
class Report:
    """The report in one line: a time-out, a process group's progress, or the begin of a stack."""

    group: re.Match[str] | None
    work: re.Match[str] | None
    status: re.Match[str] | None
    at: int
    """The number of the reported work."""
    seconds: int | None
    begins_stack: bool

    @property
    def rank(self) -> int | None:
        """The rank of the job in the line's own words; the one in brackets is that in the process group."""
        if self.group is not None and is_of_all(self.group["name"], self.group["words"] or ""):
            return int(self.group["rank"])
        return None

    @property
    def rank_in_group(self) -> int | None:
        """The rank in an unnamed process group."""
        return int(self.work["rank"]) if self.work is not None and self.work["rank"] else None


def report_in(line: str) -> Report | None:
    """Return the report in a line; None if it has none."""
    if not any(sign in line for sign in SIGNS):
        return None
    at = _AT_WORK.search(line)
    number = NOT_NUMBERED if at is None else int(at[1])
    return Report(
        _GROUP.search(line), _WORK.search(line), _STATUS.search(line), number, seconds_of(line), _STACK in line
    )


class Reports:
    """The reports in one attempt of a job, by rank."""

    def __init__(self) -> None:
        self._of_rank: dict[int, _OfRank] = {}
        self._in_stack: _OfRank | None = None
        self.first_seconds: int | None = None
        """When the first rank timed out."""

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks with a report."""
        return frozenset(self._of_rank)

    @property
    def is_in_stack(self) -> bool:
        """Whether the next lines may be the frames of a stack."""
        return self._in_stack is not None

    def take_frame(self, line: str) -> None:
        """Take a line that may belong to a stack."""
        frame = _FRAME.search(line)
        if frame is not None and self._in_stack is not None:
            self._in_stack.add_frame((frame["file"], int(frame["line"]), frame["name"]))
        elif not line.strip():
            self._in_stack = None

    def is_of_next_attempt(self, rank: int, report: Report) -> bool:
        """Return whether a report cannot be of the attempt that the rank reported on before."""
        known = self._of_rank.get(rank)
        return known is not None and known.is_behind(report)

    def latest_of(self, rank: int) -> dict[str, str]:
        """Return the fields of the rank's last reported work."""
        known = self._of_rank.get(rank)
        return {} if known is None else known.latest

    def take(self, rank: int, report: Report, before: dict[str, str]) -> None:
        """Take a report; `before` has the fields of the work that an earlier line of it named."""
        of_rank = self._of_rank.setdefault(rank, _OfRank())
        if before:
            of_rank.timed_out(before, report)
        if report.begins_stack:
            self._in_stack = of_rank
        if report.work is not None:
            of_rank.timed_out(dict(_FIELD.findall(report.work["fields"])), report)
            if self.first_seconds is None:
                self.first_seconds = report.seconds
        if report.group is not None and report.status is not None:
            of_rank.status(report.group, report.status, report.at)

    def progress(self, world: int) -> dict[int, tuple[GroupProgress, ...]]:
        """Return rank → its progress in the groups that it reports on; the job has at least `world` ranks."""
        everybody = tuple(range(world)) if world > max(self._of_rank, default=0) else ()
        found = {rank: tuple(of_rank.progress(everybody)) for rank, of_rank in sorted(self._of_rank.items())}
        return {rank: groups for rank, groups in found.items() if groups}


class _OfRank:
    """The reports of one rank; only a group's first time-out counts, because an abort completes the rest."""

    def __init__(self) -> None:
        self._works: dict[int, dict[str, str]] = {}
        self._works_of: dict[str, int] = {}
        self._status: dict[str, tuple[str, int, int]] = {}
        self._frames: dict[int, list[tuple[str, int, str]]] = {}
        self._latest = NOT_NUMBERED
        self._seconds: int | None = None

    @property
    def latest(self) -> dict[str, str]:
        """The fields of the last reported work."""
        return self._works.get(self._latest, {})

    def is_behind(self, report: Report) -> bool:
        """Return whether a report has a lower number, or is about a wait that began after the rank had timed out."""
        if report.work is None:
            name = "" if report.group is None else report.group["name"]
            return NOT_NUMBERED < report.at < self._works_of.get(name, NOT_NUMBERED) and report.at == self._latest
        number = _number(dict(_FIELD.findall(report.work["fields"])).get("SeqNum"))
        if report.group is not None and number < self._works_of.get(report.group["name"], NOT_NUMBERED):
            return True
        if self._seconds is not None and report.seconds is not None and report.work["ran"]:
            return report.seconds - int(report.work["ran"]) / 1000 > self._seconds
        is_named = report.group is not None or self._status or report.seconds is not None
        return not is_named and NOT_NUMBERED < number < self._latest

    def timed_out(self, fields: dict[str, str], report: Report) -> None:
        number = _number(fields.get("SeqNum"))
        if number not in self._works:
            self._works[number] = fields
        self._latest = number
        self._seconds = report.seconds if report.seconds is not None else self._seconds
        if report.group is not None:
            self._works_of.setdefault(report.group["name"], number)

    def status(self, group: re.Match[str], status: re.Match[str], at: int) -> None:
        name = group["name"]
        words, enqueued, completed = group["words"] or "", int(status["enqueued"]), int(status["completed"])
        if at != NOT_NUMBERED:
            if self._works_of.get(name, at) != at and at in self._works:
                self._status.pop(name, None)
            self._works_of[name] = at
        known = self._status.get(name)
        if known is None or (at == NOT_NUMBERED and name not in self._works_of):
            self._status[name] = (words, enqueued, completed)
        elif name in self._works_of:
            self._status[name] = (known[0] or words, max(known[1], enqueued), min(known[2], completed))

    def add_frame(self, frame: tuple[str, int, str]) -> None:
        self._frames.setdefault(self._latest, []).append(frame)

    def progress(self, everybody: tuple[int, ...]) -> Iterator[GroupProgress]:
        reported = set()
        for name, (words, enqueued, completed) in sorted(self._status.items()):
            number = self._works_of.get(name, NOT_NUMBERED)
            reported.add(number)
            ranks = everybody if is_of_all(name, words) else ()
            yield self._group((name, words, ranks), number, enqueued, completed)
        for number in sorted(self._works.keys() - reported):
            name = next((name for name, one in self._works_of.items() if one == number), UNNAMED_GROUP)
            yield self._group((name, "", everybody if is_of_all(name, "") else ()), number, number, number - 1)

    def _group(
        self, group: tuple[str, str, tuple[int, ...]], number: int, enqueued: int, completed: int
    ) -> GroupProgress:
        name, words, ranks = group
        call = self._call(number) if number in self._works else None
        is_transfer = call is not None and call.operation in _TRANSFERS
        collectives = () if call is None or is_transfer else (call,)
        return GroupProgress(
            name=name,
            description="" if words == "undefined" else words,
            ranks=ranks,
            enqueued=NOT_NUMBERED if is_transfer else max(enqueued, number),
            completed=NOT_NUMBERED if is_transfer else completed,
            calls=collectives,
            transfers=(call,) if call is not None and is_transfer else (),
            has_transfers=is_transfer,
            counts_transfers=True,
            latest=call,
        )

    def _call(self, number: int) -> CollectiveCall:
        fields = self._works[number]
        operation = fields.get("OpType", "").strip()
        inputs, outputs = _number(fields.get("NumelIn")), _number(fields.get("NumelOut"))
        return CollectiveCall(
            sequence=number,
            operation=_OPERATIONS.get(operation, operation.lower())[:40],
            state="open",
            sizes="" if inputs < 0 else f"{inputs} elements" + ("" if outputs in (inputs, -1) else f" → {outputs}"),
            input_elements=inputs if inputs >= 0 else UNKNOWN,
            output_elements=outputs if outputs >= 0 else UNKNOWN,
            location=location_in(self._frames.get(number, [])),
        )


def _number(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch(r"\d{1,18}", text.strip()) else -1
