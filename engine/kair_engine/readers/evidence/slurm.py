"""Reads output of Slurm's tools: jobs (`sacct -P`, `sacct --json`) and nodes (`scontrol show node`, `sinfo -R`).

An event of a job has the entity `job:4711`, because a cluster's accounting has other users' jobs too. It has a host
only if the job or step ran on one node; with several the node is not known.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kair_engine.errors import InputError
from kair_engine.frozen import dataclass
from kair_engine.readers.evidence.moments import is_possible, iso_ns, modified_ns
from kair_engine.readers.evidence.opening import CUT, FileRows, Lines, json_of, read_bounded
from kair_engine.readers.json_values import mapping, mappings, whole
from kair_engine.readers.json_values import text as text_of
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.measures import HOST

KIND: Final = "slurm"

_MOST_NODES: Final = 20_000
"""Most nodes that one list expands to."""
_MOST_BYTES: Final = 256 << 20
_MOST_ROWS: Final = 500_000
_WELL: Final = frozenset(("COMPLETED", "RUNNING", "PENDING", "COMPLETING", "SUSPENDED", "RESIZING", "CONFIGURING"))
"""States of jobs that are not reported."""
_SERVING: Final = frozenset(
    ("IDLE", "ALLOCATED", "ALLOC", "MIXED", "MIX", "COMPLETING", "PLANNED", "CLOUD", "RESERVED")
)
"""States and flags of nodes that are not reported."""
_NO_ZONE: Final = "its times state no zone: they are taken for UTC; SLURM_TIME_FORMAT=%s makes Slurm print real times"
_OF_WRITING: Final = (
    "Slurm does not always say since when a node is in its state: such times are when the file was written"
)
_NO_TIMES: Final = (
    "jobs whose times it does not state are passed over: ask with -o JobID,JobName,State,ExitCode,Start,End,NodeList"
)


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (the content is enough)
    """Return whether it begins like the output of one of the tools."""
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
    """Return events of jobs that did not end well, and of nodes that were drained, went down or started.

    Raises InputError if the file is damaged, or not the output of a tool of Slurm.
    """
    rows = _Rows(path, KIND)
    first = next((line for _, line in Lines(path) if line.strip()), "")
    if first.lstrip().startswith("{"):
        _take_json(path, rows)
    else:
        lines, tools = Lines(path), _Tools(rows)
        for number, line in lines:
            tools.take(number, line)
        tools.finish()
        rows.is_cut = rows.is_cut or lines.is_cut
    if not rows.read:
        raise InputError(f"{path} holds nothing that sacct, scontrol or sinfo prints")
    rows.note(_NO_ZONE, holds=not rows.has_zone, is_doubt=True)
    rows.note(_OF_WRITING, holds=rows.is_of_writing)
    rows.note(_NO_TIMES, holds=rows.lacks_times)
    rows.note(CUT, holds=rows.is_cut)
    return rows.evidence(bound_s=1.0 if rows.has_zone and not rows.is_of_writing else None)


def nodes(text: str) -> list[str]:
    """Return the nodes of a list, at most 20,000: `node[01-03,07]` is node01, node02, node03 and node07.

    Damaged parts of a list are returned unchanged.
    """
    found: list[str] = []
    for one in _parts(text):
        found += _expanded(one, _MOST_NODES - len(found))
    return found


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between commas outside brackets."""
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
    """Yield `01`, `02`, `03`, `07` of `01-03,07`."""
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
    """The state of a job or of one of its steps."""

    job: str
    name: str
    state: str
    exit_code: str
    ended: str
    nodes: str


class _Rows(FileRows):
    """Collects events of jobs and nodes."""

    has_zone = True
    is_of_writing = lacks_times = is_cut = False
    read = 0

    def job(self, job: _Job, line: int | None) -> None:
        """Add a job or step that did not end well."""
        self.read += 1
        words = job.state.split()
        state = words[0].rstrip("+") if words else ""
        if not state or state in _WELL:
            return
        time_ns = self.time(job.ended)
        if time_ns is None:
            self.lacks_times = self.lacks_times or not job.ended
            return
        ran_on = nodes(job.nodes) if job.nodes not in ("None assigned", "") else []
        where = f" on {job.nodes}" if ran_on else ""
        exit_code = f", exit {job.exit_code}" if job.exit_code else ""
        text = f"{job.job} ({job.name}): {job.state}{exit_code}{where}"
        host = ran_on[0] if len(ran_on) == 1 else None
        self._add(time_ns, f"job:{job.job.partition('.')[0]}", "job_event", text, host=host, line=line)

    def node(self, host: str, text: str, time: str | None, line: int | None) -> None:
        """Add a change of a node's state; `time` None means some time before the file was written."""
        self.read += 1
        if len(self.hosts) < _MOST_NODES:
            self.hosts.add(host)
        time_ns = None if time is None else self.time(time)
        self.is_of_writing = self.is_of_writing or time_ns is None
        changed_ns = modified_ns(self.path) if time_ns is None else time_ns
        self._add(changed_ns, HOST, "node_state", text, host=host, line=line)

    def _add(self, time_ns: int, entity: str, name: str, text: str, *, host: str | None, line: int | None) -> None:
        if len(self) < _MOST_ROWS:
            self.add(time_ns, entity, name, host=host, text=text, raw=self.at(line))
        else:
            self.is_cut = True

    def time(self, text: str) -> int | None:
        """Return Unix ns; None if the time is not known or damaged."""
        if text in ("Unknown", "None", "N/A", "", "0"):
            return None
        if re.fullmatch(r"[0-9]{9,11}", text):
            ns = int(text) * 10**9
            return ns if is_possible(ns) else None
        moment = iso_ns(text)
        if moment is None:
            self.passed_over += 1
            return None
        self.has_zone = self.has_zone and moment[1]
        return moment[0]


_SINFO: Final = re.compile(
    r"(?P<reason>\S.*?) +(?P<user>[\w.()-]{1,64}) +(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|Unknown|\d{9,11}) +"
    r"(?:(?P<state>[a-zA-Z*~#!%$@^+-]{2,32}) +)?(?P<nodes>\S+) *",
    re.ASCII,
)
_REASON: Final = re.compile(r"Reason=(.*?)(?: \[([\w.-]{1,64})@([^\]\s]{1,40})\])? *$")
_FIELD: Final = re.compile(r"(?:^|\s)(NodeName|State|BootTime)=(\S{1,300})")


class _Tools:
    """Reads the lines of Slurm's tools: lines after a header have its columns, lines of a node its fields."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self._take: Callable[[int, str], bool] | None = None
        """Reads lines in the format of the last header, and returns whether a line matches it."""
        self._columns: list[str] = []
        self._node: dict[str, str] = {}
        """Fields of the current node."""
        self._line = 0

    def take(self, number: int, text: str) -> None:
        """Read a line."""
        columns = text.strip().split("|")
        if "JobID" in columns and "State" in columns:
            self._columns, self._take = columns, self._job
        elif text.startswith("REASON "):
            self._take = self._out_of_service
        elif text.strip():
            self._take = self._of_node if text.startswith("NodeName=") else self._take
            self._rows.passed_over += self._take is None or not self._take(number, text)

    def _job(self, number: int, text: str) -> bool:
        cells = [cell.strip() for cell in text.split("|")]
        row = dict(zip(self._columns, cells, strict=False))
        if len(cells) < len(self._columns) or not re.match(r"[0-9][\w.+\[\]%-]*$", row["JobID"]):
            return False
        ended = row.get("End", "")
        name, state, code, where = (row.get(of, "") for of in ("JobName", "State", "ExitCode", "NodeList"))
        over = ended if ended not in ("Unknown", "") else row.get("Start", "")
        self._rows.job(_Job(row["JobID"], name, state, code, over, where), number)
        return True

    def _out_of_service(self, number: int, text: str) -> bool:
        match = _SINFO.fullmatch(text[:4000])
        if match is None:
            return False
        state = f"{match['state']}: " if match["state"] else "out of service: "
        for host in nodes(match["nodes"]):
            self._rows.node(host, f"{state}{match['reason']} (set by {match['user']})", match["time"], number)
        return True

    def _of_node(self, number: int, text: str) -> bool:
        if text.startswith("NodeName="):
            self.finish()
            self._line = number
        reason = _REASON.search(text)
        for name, value in _FIELD.findall(text[: reason.start()] if reason else text):
            self._node.setdefault(name, value)
        if reason:
            self._node |= {"Reason": reason[1], "By": reason[2] or "", "Since": reason[3] or ""}
        return True

    def finish(self) -> None:
        """Add the last node."""
        node, self._node = self._node, {}
        host = node.get("NodeName")
        if host is None:
            return
        state = node.get("State", "")
        if (booted := node.get("BootTime")) and self._rows.time(booted) is not None:
            self._rows.node(host, "the node started", booted, self._line)
        flags = {one.strip("*~#!%$@^-") for one in state.upper().split("+")}
        if state and (not flags <= _SERVING or "*" in state):
            by = f" (set by {node['By']})" if node.get("By") else ""
            why = f": {node['Reason']}{by}" if node.get("Reason") else ""
            self._rows.node(host, f"{state}{why}", node.get("Since"), self._line)
        self._rows.read += 1


def _take_json(path: Path, rows: _Rows) -> None:
    content = json_of(path, read_bounded(path, _MOST_BYTES))
    for job in mappings(mapping(content).get("jobs")):
        rows.job(_json_job(job, str(job.get("job_id", "?"))[:40], _text(job.get("nodes"))), None)
        for step in mappings(job.get("steps")):
            named, where = mapping(step.get("step")), step.get("nodes")
            listed = _text(where.get("list") if isinstance(where, dict) else where) or _text(job.get("nodes"))
            rows.job(_json_job({**step, **named}, _text(named.get("id")), listed), None)


def _json_job(told: Mapping[str, Any], number: str, listed: str) -> _Job:
    state, time, code = told.get("state"), mapping(told.get("time")), told.get("exit_code")
    current = state.get("current") if isinstance(state, dict) else state
    ended = _number(time.get("end")) or _number(time.get("start"))
    exit_code = ""
    if isinstance(code, dict):
        signal = mapping(code.get("signal"))
        exit_code = f"{_number(code.get('return_code'))}:{_number(signal.get('id', signal.get('signal_id')))}"
    return _Job(number or "?", _text(told.get("name")), _text(current), exit_code, str(ended or ""), listed)


def _text(value: object) -> str:
    """Return a text, or the texts of a list as one."""
    if isinstance(value, list):
        return ",".join(one for one in value if isinstance(one, str))[:4000]
    return str(value) if type(value) is int and value < 1 << 62 else text_of(value, 4000)


def _number(value: object) -> int:
    """Return a number, which newer versions write as {"set": true, "number": 1}."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) else 0
    return whole(value)
