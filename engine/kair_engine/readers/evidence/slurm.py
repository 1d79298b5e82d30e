"""What Slurm's tools print: jobs (`sacct -P`, `sacct --json`) and nodes (`scontrol show node`, `sinfo -R`).

An event of a job is of the entity `job:4711`, as the account of a cluster holds other people's jobs as well; it has a
host where the job or its step ran on one node alone, since of several it is not told on which it happened.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.evidence.moments import is_possible, iso_ns, modified_ns
from kair_engine.readers.evidence.opening import Lines, read_bounded
from kair_engine.trace.evidence_table import EvidenceFile, EvidenceRows, described
from kair_engine.trace.measures import HOST, EvidenceSource, shown

KIND: Final = "slurm"

_MOST_NODES: Final = 20_000
"""Nodes that one list is expanded to."""
_MOST_BYTES: Final = 256 << 20
_MOST_ROWS: Final = 500_000
_WELL: Final = frozenset(("COMPLETED", "RUNNING", "PENDING", "COMPLETING", "SUSPENDED", "RESIZING", "CONFIGURING"))
"""States of jobs that are no news."""
_SERVING: Final = frozenset(
    ("IDLE", "ALLOCATED", "ALLOC", "MIXED", "MIX", "COMPLETING", "PLANNED", "CLOUD", "RESERVED")
)
"""States and flags of nodes that are no news."""
_NO_ZONE: Final = "its times state no zone: they are taken for UTC; SLURM_TIME_FORMAT=%s makes Slurm tell real times"


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (what they hold tells enough)
    """Whether it begins as one of the tools prints."""
    text = head.decode("utf-8", "replace").lstrip()
    if text.startswith("{"):
        return '"jobs"' in text and ('"exit_code"' in text or '"slurm"' in text.lower())
    first = text.partition("\n")[0]
    columns = first.strip().split("|")
    return (
        ("JobID" in columns and "State" in columns)
        or re.match(r"NodeName=\S+ ", text) is not None
        or re.match(r"REASON +USER +TIMESTAMP ", first) is not None
    )


def read(path: Path) -> EvidenceFile:
    """Events of jobs that did not end well, and of nodes that were drained, went down or started.

    Raises InputError where it is damaged, or nothing of it is one of Slurm's tools'.
    """
    taker = _Taker(path)
    if _begins_with_brace(path):
        _take_json(path, taker)
    else:
        _take_lines(path, taker)
    if not taker.read:
        raise InputError(f"{path} holds nothing that sacct, scontrol or sinfo prints")
    return taker.evidence()


def nodes(text: str) -> list[str]:
    """The nodes of a list: `node[01-03,07]` is node01, node02, node03 and node07. At most 20,000 are told.

    A list that is damaged is told as it is.
    """
    found: list[str] = []
    for one in _parts(text):
        found += _expanded(one, _MOST_NODES - len(found))
    return found


def _parts(text: str) -> Iterator[str]:
    """What stands between commas that are in no brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


_BRACKET: Final = re.compile(r"\[([0-9,-]{1,2000})\]", re.ASCII)


def _expanded(one: str, most: int) -> list[str]:
    pieces = _BRACKET.split(one)
    found = [pieces[0]] if one and most > 0 else []
    for ranges, behind in zip(pieces[1::2], pieces[2::2], strict=True):
        numbers = list(_numbers(ranges, most))
        found = [f"{before}{number}{behind}" for before in found for number in numbers[: most // len(found) or 1]][
            :most
        ]
    return found


def _numbers(ranges: str, most: int) -> Iterator[str]:
    """`01`, `02`, `03`, `07` of `01-03,07`."""
    left = most
    for one in ranges.split(","):
        first, dash, last = one.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first) > 9 or len(last) > 9:
            continue
        for number in range(int(first), min(int(last) if dash else int(first), int(first) + left - 1) + 1):
            left -= 1
            yield str(number).zfill(len(first))


@dataclass(frozen=True)
class _Job:
    """A job's state, or that of one of its steps."""

    job: str
    name: str
    state: str
    exit_code: str
    ended: str
    nodes: str


class _Taker:
    """Collects events."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = EvidenceRows()
        self._modified = modified_ns(path)
        self._has_zone = True
        self._is_of_writing = False
        self._lacks_times = False
        self.read = 0
        self.passed_over = 0
        self.is_cut = False
        self.hosts: set[str] = set()
        """Nodes that are told of."""

    def job(self, job: _Job, line: int | None) -> None:
        """What became of a job or a step, where that is news."""
        self.read += 1
        words = job.state.split()
        state = words[0].rstrip("+") if words else ""
        if not state or state in _WELL:
            return
        time_ns = self._time(job.ended)
        if time_ns is None:
            self._lacks_times = self._lacks_times or not job.ended
            return
        ran_on = nodes(job.nodes) if job.nodes not in ("None assigned", "") else []
        where = f" on {job.nodes}" if ran_on else ""
        exit_code = f", exit {job.exit_code}" if job.exit_code else ""
        text = f"{job.job} ({job.name}): {job.state}{exit_code}{where}"
        host = ran_on[0] if len(ran_on) == 1 else None
        self._add(time_ns, f"job:{job.job.partition('.')[0]}", "job_event", text, host=host, line=line)

    def node(self, host: str, text: str, time: str | None, line: int | None) -> None:
        """That a node's state changed; `time` None: at some time before the file was written."""
        self.read += 1
        if len(self.hosts) < _MOST_NODES:
            self.hosts.add(shown(host))
        told = None if time is None else self._time(time)
        self._is_of_writing = self._is_of_writing or told is None
        time_ns = self._modified if told is None else told
        self._add(time_ns, HOST, "node_state", text, host=host, line=line)

    def _add(self, time_ns: int, entity: str, name: str, text: str, *, host: str | None, line: int | None) -> None:
        if len(self._rows) >= _MOST_ROWS:
            self.is_cut = True
            return
        raw = self._path.name if line is None else f"{self._path.name}:{line}"
        self._rows.add(time_ns, entity, name, host=host, text=text, raw=raw)

    def is_time(self, text: str) -> bool:
        """Whether it is a time."""
        return self._time(text) is not None

    def _time(self, text: str) -> int | None:
        """Unix ns, None where that is not told, or damaged."""
        if text in ("Unknown", "None", "N/A", "", "0"):
            return None
        if re.fullmatch(r"[0-9]{9,11}", text):
            ns = int(text) * 10**9
            return ns if is_possible(ns) else None
        told = iso_ns(text)
        if told is None:
            self.passed_over += 1
            return None
        self._has_zone = self._has_zone and told[1]
        return told[0]

    def evidence(self) -> EvidenceFile:
        """All events."""
        notes = [] if self._has_zone else [_NO_ZONE]
        if self._is_of_writing:
            notes.append(
                "since when a node is in its state is not always told: such times are when the file was written"
            )
        if self._lacks_times:
            notes.append(
                "jobs whose times it does not state are passed over: ask with "
                "-o JobID,JobName,State,ExitCode,Start,End,NodeList"
            )
        if self.is_cut:
            notes.append("it is cut off or damaged, or longer than is read")
        source = EvidenceSource(
            self._path.name,
            KIND,
            clock="host",
            bound_s=1.0 if self._has_zone and not self._is_of_writing else None,
            passed_over=self.passed_over,
            hosts=tuple(sorted(self.hosts)),
            notes=tuple(notes),
        )
        return described(self._rows, source)


_SINFO: Final = re.compile(
    r"(?P<reason>\S.*?) +(?P<user>[\w.()-]{1,64}) +(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|Unknown|\d{9,11}) +"
    r"(?:(?P<state>[a-zA-Z*~#!%$@^+-]{2,32}) +)?(?P<nodes>\S+) *",
    re.ASCII,
)
_REASON: Final = re.compile(r"Reason=(.*?)(?: \[([\w.-]{1,64})@([^\]\s]{1,40})\])? *$")
_FIELD: Final = re.compile(r"(?:^|\s)(NodeName|State|BootTime)=(\S{1,300})")


def _take_lines(path: Path, taker: _Taker) -> None:
    lines = Lines(path)
    of_nodes = _Nodes(taker)
    take: Callable[[int, str], bool] = _nothing
    for number, text in lines:
        columns = text.strip().split("|")
        if "JobID" in columns and "State" in columns:
            take = _of_columns(columns, taker)
        elif text.startswith("REASON "):
            take = _of_sinfo(taker)
        elif text.strip():
            take = of_nodes.take if text.startswith("NodeName=") else take
            taker.passed_over += not take(number, text)
    of_nodes.finish()
    taker.is_cut = taker.is_cut or lines.is_cut


def _nothing(number: int, text: str) -> bool:  # noqa: ARG001  (as all that take lines)
    """Takes no line, before it is known what they are."""
    return False


def _of_columns(columns: list[str], taker: _Taker) -> Callable[[int, str], bool]:
    """What takes lines of sacct with such columns."""
    at = {name: place for place, name in enumerate(columns) if name}

    def take(number: int, text: str) -> bool:
        cells = text.split("|")
        if len(cells) < len(columns) or not re.match(r"[0-9][\w.+\[\]%-]*$", cells[at["JobID"]]):
            return False

        def cell(name: str) -> str:
            return cells[at[name]].strip() if name in at else ""

        started = cell("Start")
        ended = cell("End")
        taker.job(
            _Job(
                cell("JobID"),
                cell("JobName"),
                cell("State"),
                cell("ExitCode"),
                ended if ended not in ("Unknown", "") else started,
                cell("NodeList"),
            ),
            number,
        )
        return True

    return take


def _of_sinfo(taker: _Taker) -> Callable[[int, str], bool]:
    """What takes lines of sinfo -R."""

    def take(number: int, text: str) -> bool:
        match = _SINFO.fullmatch(text[:4000])
        if match is None:
            return False
        state = f"{match['state']}: " if match["state"] else "out of service: "
        for host in nodes(match["nodes"]):
            taker.node(host, f"{state}{match['reason']} (set by {match['user']})", match["time"], number)
        return True

    return take


class _Nodes:
    """Reads what scontrol tells of nodes: lines of fields, of which a node's first begins with its name."""

    def __init__(self, taker: _Taker) -> None:
        self._taker = taker
        self._told: dict[str, str] = {}
        self._line = 0

    def take(self, number: int, text: str) -> bool:
        """Takes a line."""
        if text.startswith("NodeName="):
            self.finish()
            self._line = number
        reason = _REASON.search(text)
        for name, value in _FIELD.findall(text[: reason.start()] if reason else text):
            self._told.setdefault(name, value)
        if reason:
            self._told |= {"Reason": reason[1], "By": reason[2] or "", "Since": reason[3] or ""}
        return True

    def finish(self) -> None:
        """Tells what was read of a node."""
        told, self._told = self._told, {}
        host = told.get("NodeName")
        if host is None:
            return
        state = told.get("State", "")
        if (booted := told.get("BootTime")) and self._taker.is_time(booted):
            self._taker.node(host, "the node started", booted, self._line)
        flags = {one.strip("*~#!%$@^-") for one in state.upper().split("+")}
        if state and (not flags <= _SERVING or "*" in state):
            by = f" (set by {told['By']})" if told.get("By") else ""
            why = f": {told['Reason']}{by}" if told.get("Reason") else ""
            self._taker.node(host, f"{state}{why}", told.get("Since"), self._line)
        self._taker.read += 1


def _begins_with_brace(path: Path) -> bool:
    first = next((text for _, text in Lines(path) if text.strip()), "")
    return first.lstrip().startswith("{")


def _take_json(path: Path, taker: _Taker) -> None:
    try:
        content = json.loads(read_bounded(path, _MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is cut off or damaged") from error
    jobs = content.get("jobs") if isinstance(content, dict) else None
    for job in _dicts(jobs):
        taker.job(_json_job(job, str(job.get("job_id", "?"))[:40], _text(job.get("nodes"))), None)
        for step in _dicts(job.get("steps")):
            told = step.get("step")
            number = told.get("id") if isinstance(told, dict) else None
            where = step.get("nodes")
            listed = _text(where.get("list") if isinstance(where, dict) else where) or _text(job.get("nodes"))
            taker.job(_json_job({**step, **(told if isinstance(told, dict) else {})}, _text(number), listed), None)


def _json_job(told: Mapping[str, Any], number: str, listed: str) -> _Job:
    state = told.get("state")
    current = state.get("current") if isinstance(state, dict) else state
    time = told.get("time")
    ended = (_whole(time.get("end")) or _whole(time.get("start"))) if isinstance(time, dict) else 0
    code = told.get("exit_code")
    exit_code = ""
    if isinstance(code, dict):
        signal = code.get("signal")
        signalled = _whole(signal.get("id", signal.get("signal_id"))) if isinstance(signal, dict) else 0
        exit_code = f"{_whole(code.get('return_code'))}:{signalled}"
    return _Job(number or "?", _text(told.get("name")), _text(current), exit_code, str(ended or ""), listed)


def _dicts(value: object) -> Iterable[Mapping[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else ()


def _text(value: object) -> str:
    """A text, or the texts of a list as one."""
    if isinstance(value, list):
        return ",".join(one for one in value if isinstance(one, str))[:4000]
    return value[:4000] if isinstance(value, str) else str(value) if type(value) is int and value < 1 << 62 else ""


def _whole(value: object) -> int:
    """A number, which newer versions write as {"set": true, "number": 1}."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) else 0
    return value if type(value) is int and 0 <= value < 1 << 62 else 0
