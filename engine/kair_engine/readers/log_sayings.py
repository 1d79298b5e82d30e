"""Recognises texts in a job's log that show a rank's fate: launchers' reports, libraries' time-outs, last errors.

Each row of `_TEXTS` is a known text: a part of the line by which it is found, its expression, and the method that takes
it. Texts of several lines (a traceback, a launcher's report) are kept per process that prints them.
"""

import re
import signal
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from kair_engine.readers.paths import MAX_RANKS
from kair_engine.readers.watchdog import in_year
from kair_engine.trace.sayings import Saying, quoted

_MOST_LINES: Final = 400
"""Lines of a traceback or a launcher's report: later ones are something else."""
_MOST_SAYINGS: Final = 4096
_ERROR: Final = re.compile(
    r"(?P<error>(?:[A-Za-z_]\w*\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Timeout|Exit|Expired)"
    r"(?:\(\w{1,80}\))?(?:: .*)?)$"
)
_OF_LAUNCHER: Final = re.compile(r"(?:\w+\.)*(?:ChildFailedError|SignalException|CalledProcessError)\b")
"""Exceptions that a launcher raises because other processes ended."""
_GOES_ON: Final = re.compile(
    r"(?i)^(?!wandb:).{0,200}?(?:\b(?:steps?|iter|iteration|epoch|loss)\b\W{0,4}\d|\d ?(?:it/s|s/it)\b)"
)
"""Output of a rank that is training."""
_PID_IN_TEXT: Final = re.compile(r"\bpid=(\d{1,10})\b")
_NCCL_PROCESS: Final = re.compile(r"(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}):\d{1,10} \[\d{1,4}\]")
_NUMBERS: Final = re.compile(r"\d{1,7}")
_TASKS: Final = re.compile(r"/job:\w{1,60}/replica:\d{1,7}/task:(\d{1,7})")
_KEY: Final = re.compile(r"^\s*\*?\s*(?P<key>time|host|rank|exitcode|error_file|msg|traceback)\s*:\s*(?P<value>.*)$")
_EXIT: Final = re.compile(r"(-?\d{1,5})(?: \(pid: (\d{1,10})\))?")
_RANK_OF_REPORT: Final = re.compile(r"(\d{1,7})(?: \(local_rank: (\d{1,7})\))?")
_REPORT_TIME: Final = re.compile(r"\d{4}-(\d\d)-(\d\d)_(\d\d):(\d\d):(\d\d)")
_HOWS: Final = {
    "Killed": signal.SIGKILL,
    "Out Of Memory": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Aborted": signal.SIGABRT,
    "Terminated": signal.SIGTERM,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}


@dataclass
class _Entry:
    """A launcher's report of one process, or a library's of several, over several lines."""

    found: dict[str, str] = field(default_factory=dict)
    error: str = ""
    lines: int = _MOST_LINES


@dataclass
class _Communicator:
    """Members of a communicator whose initialisation NCCL logged."""

    size: int
    started: set[int] = field(default_factory=set)
    complete: set[int] = field(default_factory=set)


class Sayings:
    """The findings in the lines of one attempt of a job."""

    def __init__(self) -> None:
        self._said: list[Saying] = []
        self._errors: list[tuple[int, str, str, int]] = []
        """(order, process, error, number of ranks): the rank is only known at the end of the log."""
        self._of_rank: list[tuple[int, int, str, int]] = []
        self._ended_pids: list[tuple[int, str, str, int]] = []
        self._rank_of: dict[str, int] = {}
        """Process → rank."""
        self._hosts: dict[int, str] = {}
        self._open: dict[str, dict[str, _Entry]] = defaultdict(dict)
        self._communicators: dict[str, _Communicator] = {}
        self._barriers: dict[str, str] = {}
        self._linked: list[tuple[str, str, str]] = []
        self._active: set[str] = set()
        self._local_ends: list[tuple[int, int, str, int]] = []
        self._is_out_of_memory = False
        self._is_cancelled = False
        self._by_torchrun = False
        self.size = 0
        """The number of ranks, if a text states it."""
        self.first: int | None = None
        """Position in the log of the first text about a rank's fate."""

    def is_of_process(self, process: str, rank: int, host: str = "") -> None:
        """Record the rank of a process."""
        self._rank_of.setdefault(process, rank)
        if host:
            self._hosts.setdefault(rank, host)

    @property
    def is_open(self) -> bool:
        """Whether the next lines may continue an earlier one."""
        return any(self._open.values())

    @property
    def has_errors(self) -> bool:
        """Whether errors were printed, by ranks that may go on."""
        return bool(self._errors or self._of_rank)

    def take(self, text: str, process: str, rank: int | None, order: int, repeated: int) -> None:
        """Take a line of a process, whose rank may be known."""
        where = _Where(process, rank, order, repeated)
        if rank is not None and process:
            self._rank_of.setdefault(process, rank)
        opened = self._open.get(process)
        if opened:
            self._go_on(opened, text, where)
        elif self.has_errors and _GOES_ON.match(text) is not None:
            # The error was caught: a rank that goes on has not ended.
            self._of_rank = [one for one in self._of_rank if one[1] != rank]
            self._errors = [one for one in self._errors if one[1] != process]
        for needle, expression, method in _TEXTS:
            if needle in text and (found := expression.search(text)) is not None:
                method(self, found, where)

    def _add(self, saying: Saying, order: int) -> None:
        if len(self._said) < _MOST_SAYINGS and all(0 <= rank < MAX_RANKS for rank in (*saying.ranks, *saying.by)):
            self._said.append(saying if saying.at_ns else replace(saying, at_ns=order))
            if saying.kind in ("missing", "ended", "stuck"):
                self.first = order if self.first is None else min(self.first, order)

    def _go_on(self, opened: dict[str, _Entry], text: str, where: "_Where") -> None:
        for kind, entry in list(opened.items()):
            entry.lines -= 1
            is_over = entry.lines <= 0
            if kind == "traceback":
                error = _ERROR.match(text)
                is_over = is_over or error is not None
                if error is not None and _OF_LAUNCHER.match(text) is None:
                    self._error(error["error"], where)
            elif kind == "report":
                is_over = self._in_report(entry, text, where) or is_over
            elif kind == "tasks":
                tasks = _TASKS.findall(text)
                is_over = is_over or not tasks
                entry.found |= dict.fromkeys(tasks, "")
            elif kind == "analysis":
                is_over = self._in_analysis(entry, text, where) or is_over
            elif kind == "actor":
                is_over = self._in_actor(entry, text, where) or is_over
            elif (killed := re.search(r"(?:KILLED BY SIGNAL|EXIT CODE): (\d{1,3})", text)) is not None:
                self._end(where, int(entry.found["rank"]), f"-{killed[1]}" if "KILLED" in text else killed[1], text)
                is_over = True
            if is_over:
                self._close(opened, kind, where)

    def _close(self, opened: dict[str, _Entry], kind: str, where: "_Where") -> None:
        entry = opened.pop(kind)
        if kind == "tasks" and entry.found:
            ranks = tuple(sorted({int(task) for task in entry.found}))
            self._add(Saying("missing", quoted(entry.error), ranks, call="a barrier of JAX"), where.order)
        if kind == "report":
            self._report_ends(entry, where)

    # One text per method.

    def _traceback(self, _: re.Match[str], where: "_Where") -> None:
        self._open[where.process]["traceback"] = _Entry()

    def _error(self, error: str, where: "_Where") -> None:
        if where.rank is not None:
            self._of_rank.append((where.order, where.rank, quoted(error), where.repeated))
        else:
            pid = _PID_IN_TEXT.search(error)
            process = where.process if pid is None else f":{pid[1]}"
            self._errors.append((where.order, process, quoted(error), where.repeated))

    def _own_error(self, found: re.Match[str], where: "_Where") -> None:
        if "Watchdog caught" not in found[0]:
            self._error(found["error"], where)

    def _cuda_failure(self, found: re.Match[str], where: "_Where") -> None:
        process = _NCCL_PROCESS.search(found.string)
        key = where.process if process is None else f"{process['host']}:{process['pid']}"
        self._errors.append((where.order, key, quoted(found["error"]), where.repeated))

    def _monitored_barrier(self, found: re.Match[str], where: "_Where") -> None:
        ranks = tuple(int(rank) for rank in _NUMBERS.findall(found["ranks"]))
        by = (int(found["by"] or 0),)
        self._add(Saying("missing", quoted(found["text"]), ranks, by, "monitored_barrier"), where.order)

    def _reached(self, found: re.Match[str], where: "_Where") -> None:
        self._add(Saying("missing", quoted(found[0]), (), (int(found["rank"]),), "monitored_barrier"), where.order)

    def _hccl(self, found: re.Match[str], where: "_Where") -> None:
        line = found.string
        pid = re.search(r"\[PID: (\d{1,10})\]", line)
        own = re.search(r"rankId\[(\d{1,7})\]", line)
        size = re.search(r"rankSize\[(\d{1,7})\]", line)
        by = int(own[1]) if own is not None else self._rank_of.get(f":{pid[1]}") if pid is not None else where.rank
        tag = re.search(r"tag\[(?:Hcom)?([A-Za-z]{1,40})_", line)
        call = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", tag[1]).lower() if tag is not None else "a collective"
        text = quoted(found[0])
        if not found["remote"].isdigit():
            self._add(Saying("unclear", text), where.order)
            return
        said = Saying("missing", text, (int(found["remote"]),), () if by is None else (by,), call)
        self._add(replace(said, count=int(size[1]) if size is not None else 0), where.order)

    def _hccl_device(self, found: re.Match[str], where: "_Where") -> None:
        self._add(Saying("unclear", quoted(found[0]), host=found["host"]), where.order)

    def _of_pid(self, found: re.Match[str], _: "_Where") -> None:
        if 0 <= int(found["rank"]) < MAX_RANKS:
            self._rank_of.setdefault(f":{found['pid']}", int(found["rank"]))

    def _barrier(self, found: re.Match[str], where: "_Where") -> None:
        self._barriers[where.process] = found[0]

    def _tasks_there(self, found: re.Match[str], where: "_Where") -> None:
        there, tasks = int(found["there"]), int(found["tasks"])
        if there <= tasks <= MAX_RANKS:
            self.size = max(self.size, tasks)
            self._barriers[where.process] = f"{self._barriers.get(where.process, '')}; {there} of {tasks} tasks came"

    def _jax(self, found: re.Match[str], where: "_Where") -> None:
        tasks = _TASKS.findall(found.string, found.end())
        text = self._barriers.get(where.process, "") if found[0].startswith("imed") else found[0]
        self._open[where.process]["tasks"] = _Entry(dict.fromkeys(tasks, ""), text)
        if tasks:
            self._close(self._open[where.process], "tasks", where)

    def _unclear(self, found: re.Match[str], where: "_Where") -> None:
        self._add(Saying("unclear", quoted(found[0])), where.order)

    def _names(self, found: re.Match[str], where: "_Where") -> None:
        ranks = tuple(int(rank) for rank in _NUMBERS.findall(found["ranks"]))
        self._add(Saying("missing", quoted(found[0]), ranks, call="a collective"), where.order)

    def _stuck(self, found: re.Match[str], where: "_Where") -> None:
        if where.rank is not None:
            self._add(Saying("stuck", quoted(found[0]), (where.rank,)), where.order)

    def _analysis(self, found: re.Match[str], where: "_Where") -> None:
        self._open[where.process]["analysis"] = _Entry({"text": found[0]}, lines=24)
        self._in_analysis(self._open[where.process]["analysis"], found.string, where)

    def _in_analysis(self, entry: _Entry, text: str, where: "_Where") -> bool:
        call = re.search(r"collective:? (?:\w+:)?(\w{1,60})(?: |$)", text)
        if call is not None and call[1] not in ("sequence", "state", "stack", "at"):
            entry.found["call"] = call[1]
        missing = re.search(r"[Mm]issing ranks(?: are|:) \{([\d, ]{1,2000})\}", text)
        culprits = re.findall(r"[Cc]ulprit rank (\d{1,7})", text)
        if missing is None and not culprits:
            return False
        ranks = tuple(int(one) for one in (culprits or _NUMBERS.findall(missing[1] if missing is not None else "")))
        said = f"{entry.found.get('text', '')}: {text.strip()}"
        if not any(one.call == "flight" or one.kind == "missing" for one in self._said):
            call_name = entry.found.get("call", "a collective")
            self._add(Saying("missing", quoted(said), ranks, call=call_name), where.order)
        return True

    def _report(self, found: re.Match[str], where: "_Where") -> None:
        self._by_torchrun = True
        if (former := self._open[where.process].get("report")) is not None:
            self._report_ends(former, where)
        self._open[where.process]["report"] = _Entry({"others": ""} if found[0].startswith("Failures") else {})

    def _in_report(self, entry: _Entry, text: str, where: "_Where") -> bool:
        if re.match(r"\s*\[\d{1,6}\]:\s*$", text):
            self._report_ends(entry, where)
            kept = {"others": ""} if "others" in entry.found else {}
            entry.found, entry.error, entry.lines = kept, "", _MOST_LINES
            return False
        pair = _KEY.match(text)
        if pair is not None:
            entry.found[pair["key"]] = pair["value"].strip()
        elif (error := _ERROR.match(text.strip())) is not None:
            entry.error = error["error"]
        return text.startswith(("======", "******")) and "exitcode" in entry.found

    def _report_ends(self, entry: _Entry, where: "_Where") -> None:
        rank, code = _RANK_OF_REPORT.match(entry.found.get("rank", "")), entry.found.get("exitcode", "")
        if rank is None or not code:
            return
        pid = _EXIT.match(code)
        if pid is not None and pid[2] and int(rank[1]) < MAX_RANKS:
            self._rank_of.setdefault(f":{pid[2]}", int(rank[1]))
        if "others" in entry.found:
            # torchrun ended these itself.
            return
        moment = _REPORT_TIME.match(entry.found.get("time", ""))
        at = None if moment is None else in_year(*map(int, moment.groups()))
        host = entry.found.get("host", "")
        text = entry.error or entry.found.get("traceback", "") or entry.found.get("msg", "")
        self._end(where, int(rank[1]), code, text, host=host, seconds=at)

    def _end(
        self, where: "_Where", rank: int, code: str, text: str, *, host: str = "", seconds: int | None = None
    ) -> None:
        number = _EXIT.match(code)
        if number is None or self._is_cancelled:
            return
        status, error = int(number[1]), _ERROR.match(text)
        said = Saying("ended", quoted(error["error"]) if error is not None else "", (rank,), host=host)
        said = replace(said, signal=-status) if status < 0 else replace(said, exit_status=status)
        said = replace(said, at_ns=seconds * 10**9 if seconds is not None else where.order)
        self._add(said, where.order)
        if host:
            self._hosts.setdefault(rank, host)

    def _local_end(self, found: re.Match[str], where: "_Where") -> None:
        self._local_ends.append((where.order, int(found["local"]), found["code"], int(found["pid"] or 0)))

    def _srun(self, found: re.Match[str], where: "_Where") -> None:
        how = found["how"]
        number = re.search(r"exit code (\d{1,3})", how)
        sent = next((sent for word, sent in _HOWS.items() if how.startswith(word)), None)
        code = number[1] if number is not None else None if sent is None else f"-{int(sent)}"
        tasks = list(_tasks_of(found["tasks"])) if code is not None else []
        if number is not None and len(tasks) > 1:
            # The line does not show which was first.
            self._add(Saying("unclear", quoted(found[0]), host=found["host"]), where.order)
            return
        for task in tasks:
            self._local_ends.append((where.order, -1 - task, code or "", 0))
            self._hosts.setdefault(task, found["host"])

    def _mpi(self, found: re.Match[str], where: "_Where") -> None:
        code = f"-{found['signal']}" if found["signal"] else found["code"]
        self._end(where, int(found["rank"]), code, "", host=found["host"] or "")

    def _mpich(self, found: re.Match[str], where: "_Where") -> None:
        self._open[where.process]["end"] = _Entry({"rank": found["rank"]}, lines=4)
        self._hosts.setdefault(int(found["rank"]), found["host"])

    def _spawned(self, found: re.Match[str], where: "_Where") -> None:
        sent = getattr(signal, found["signal"] or "", None)
        code = f"-{int(sent)}" if sent is not None else found["code"] or "1"
        self._end(where, int(found["rank"]), code, "")

    def _pid_died(self, found: re.Match[str], where: "_Where") -> None:
        self._ended_pids.append((where.order, f":{found['pid']}", quoted(found["how"]), 1))

    def _actor(self, _: re.Match[str], where: "_Where") -> None:
        self._open[where.process]["actor"] = _Entry(lines=12)

    def _in_actor(self, entry: _Entry, text: str, where: "_Where") -> bool:
        if (pid := re.match(r"\s+pid: (\d{1,10})", text)) is not None:
            entry.found["pid"] = pid[1]
        if text.startswith("The actor") and "pid" in entry.found:
            self._ended_pids.append((where.order, f":{entry.found['pid']}", quoted(text), 1))
            return True
        return False

    def _init(self, found: re.Match[str], _: "_Where") -> None:
        rank, size, process = int(found["rank"]), int(found["size"]), _NCCL_PROCESS.search(found.string)
        if not rank < size <= MAX_RANKS:
            return
        known = re.search(r"commId (0x[0-9a-f]{1,20})", found.string)
        key = f"{size} {known[1] if known is not None else ''}"
        one = self._communicators.setdefault(key, _Communicator(size))
        (one.complete if found["how"] == "COMPLETE" else one.started).add(rank)
        if process is not None and all(size >= other.size for other in self._communicators.values()):
            self._rank_of[f"{process['host']}:{process['pid']}"] = rank
            self._hosts.setdefault(rank, process["host"])

    def _port(self, found: re.Match[str], where: "_Where") -> None:
        process = _NCCL_PROCESS.search(found.string)
        host, key = ("", where.process) if process is None else (process["host"], f"{process[1]}:{process['pid']}")
        if found["event"] == "port active":
            self._active.add(f"{key} {found['port']}")
        else:
            self._linked.append((host, key, quoted(found.string[found.start() :])))

    def _peer(self, found: re.Match[str], _: "_Where") -> None:
        self._linked.append((found["host"], "", quoted(found[0])))

    def _oom(self, *_: object) -> None:
        self._is_out_of_memory = True

    def _cancelled(self, found: re.Match[str], where: "_Where") -> None:
        self._is_cancelled = True
        self._add(Saying("cancelled", quoted(found["text"])), where.order)

    def hand_over(self, other: "Sayings") -> None:
        """Hand a driver's findings about processes to the job that they belong to."""
        for mine, theirs in ((self._ended_pids, other._ended_pids), (self._errors, other._errors)):
            theirs += [one for one in mine if one[1].startswith(":") and other.rank_of(one[1]) is not None]

    # Evaluation.

    def all_of(
        self, reported: Collection[int], first_report: int | None, seconds: int | None, world: int
    ) -> list[Saying]:
        """Return the findings; `reported` ranks timed out, the first at position `first_report`, at `seconds`."""
        for process in list(self._open):
            for kind in list(self._open[process]):
                self._close(self._open[process], kind, _Where(process, None, 0, 1))
        said = [*self._said, *self._ends_of_processes(reported, world), *self._of_errors()]
        said += [*self._of_init(reported), *self._of_links()]
        hccl = max((one.count for one in said if one.kind == "missing" and one.count > 1), default=0)
        known = {rank for one in said for rank in (*one.ranks, *one.by)} | {*self._rank_of.values()}
        if 0 < hccl < max(world, max(known, default=0) + 1):
            said = [replace(one, kind="unclear") if one.kind == "missing" and one.count > 1 else one for one in said]
        found = [replace(one, is_late=_is_late(one, first_report, seconds)) for one in said]
        if self._is_out_of_memory:
            found = [
                replace(one, text=one.text or "oom_kill") if one.signal == signal.SIGKILL else one for one in found
            ]
        return list(dict.fromkeys(found))

    @property
    def hosts(self) -> dict[int, str]:
        """Rank → its host, if the log states it."""
        return {rank: host for rank, host in self._hosts.items() if rank < MAX_RANKS}

    @property
    def processes(self) -> dict[int, str]:
        """Rank → its process."""
        return {rank: process for process, rank in reversed(self._rank_of.items()) if 0 <= rank < MAX_RANKS}

    def rank_of(self, process: str) -> int | None:
        """Return the rank of a process, if it is known."""
        known = self._rank_of.get(process)
        if known is None and process.startswith(":"):
            return next((rank for one, rank in self._rank_of.items() if one.endswith(process)), None)
        return known

    def _of_errors(self) -> Iterator[Saying]:
        ranked = ((order, self.rank_of(process), text, count) for order, process, text, count in self._errors)
        for order, rank, text, count in (*self._of_rank, *ranked):
            if rank is not None and rank < MAX_RANKS:
                yield Saying("error", text, (rank,), at_ns=order, count=count)

    def _ends_of_processes(self, reported: Collection[int], world: int) -> Iterator[Saying]:
        """Yield ends that name a process, a task, or a rank on its node."""
        kept, self._said = self._said, []
        for order, process, text, _ in self._ended_pids:
            if (rank := self.rank_of(process)) is not None:
                self._add(Saying("ended", text, (rank,)), order)
        ended = {rank for one in kept if one.kind == "ended" for rank in one.ranks}
        most = max((-1 - local for _, local, _, _ in self._local_ends if local < 0), default=-1)
        tasks_are_ranks = not self._by_torchrun and max(reported, default=-1) <= max(most, world - 1)
        for order, local, code, pid in self._local_ends:
            rank = self.rank_of(f":{pid}") if pid else None
            if rank is None and local >= 0 and not ended and 0 < world <= 8:
                rank = local
            if local < 0 and tasks_are_ranks:
                rank = -1 - local
            if rank is not None and rank not in ended:
                self._end(_Where("", None, order, 1), rank, code, "")
        found, self._said = self._said, kept
        yield from found

    def _of_init(self, reported: Collection[int]) -> Iterator[Saying]:
        """Yield ranks that did not begin, or end, the initialisation of the largest communicator."""
        one = max(self._communicators.values(), key=lambda one: one.size, default=None)
        if one is None or reported:
            return
        missing = {*range(one.size)} - one.started - one.complete
        what, others = "did not begin", one.started | one.complete
        if not missing and one.started and one.complete:
            missing, what, others = {*range(one.size)} - one.complete, "did not end", one.complete
        if 0 < 2 * len(missing) < one.size:
            text = f"{len(others)} of {one.size} ranks logged it (Init START, Init COMPLETE), and these {what} it"
            ranks, by = tuple(sorted(missing)), tuple(sorted(others))
            yield Saying("missing", text, ranks, by, "NCCL's initialisation")
        elif not missing and not one.complete:
            text = f"all {one.size} ranks began NCCL's initialisation, and none ended it: look at its bootstrap network"
            yield Saying("unclear", text)

    def _of_links(self) -> Iterator[Saying]:
        for host, process, text in dict.fromkeys(self._linked):
            if process and any(active.startswith(f"{process} ") for active in self._active):
                continue
            rank = self.rank_of(process) if process else None
            ranks = (rank,) if rank is not None else tuple(at for at, name in self._hosts.items() if name == host)
            yield Saying("link", text, tuple(sorted(ranks)), host=host)


@dataclass(frozen=True)
class _Where:
    """The line of a text."""

    process: str
    rank: int | None
    order: int
    repeated: int


def _is_late(one: Saying, first_report: int | None, seconds: int | None) -> bool:
    if one.kind not in ("ended", "error") or first_report is None:
        return False
    is_time = one.at_ns >= 10**9 and one.kind == "ended"
    return seconds is not None and one.at_ns > (seconds + 1) * 10**9 if is_time else one.at_ns > first_report


def _tasks_of(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            yield from range(int(first), min(int(last or first), int(first) + 4096, MAX_RANKS - 1) + 1)


_TEXTS: Final = tuple(
    (needle, re.compile(expression), method)
    for needle, expression, method in (
        ("Traceback (most recent call last)", r"Traceback \(most recent call last\)", Sayings._traceback),
        ("what():", r"^\s*what\(\):\s+(?P<error>.+)$", Sayings._own_error),
        ("terminated with exception: ", r"terminated with exception: (?P<error>.+)$", Sayings._own_error),
        ("NCCL WARN Cuda failure", r"NCCL WARN (?P<error>Cuda failure.+)$", Sayings._cuda_failure),
        (
            "failed to pass monitoredBarrier",
            r"(?:\[Rank (?P<by>\d{1,7})\]: )?(?P<text>Ranks? (?P<ranks>\d{1,7}(?:, ?\d{1,7})*) failed to pass "
            r"monitoredBarrier in \d+ ms)",
            Sayings._monitored_barrier,
        ),
        ("reached monitoredBarrier", r"Rank (?P<rank>\d{1,7}) successfully reached monitoredBarrier", Sayings._reached),
        (
            "Notify record from remote rank",
            r"The Notify register has not received the Notify record from remote rank:? ?\[(?P<remote>[^\]]{1,40})\]",
            Sayings._hccl,
        ),
        (
            "Cluster Exception Location",
            r"Cluster Exception Location\[IP/ID\]:\[(?P<host>[^\]/]{1,60})/(?P<device>[^\]]{1,10})\].{0,200}",
            Sayings._hccl_device,
        ),
        (
            "fails to connect to dstRank",
            r"fails to connect to dstRank \(server (?P<host>[^,)]{1,60})[^)]*\)",
            Sayings._hccl_device,
        ),
        ("RankID:", r"\(PID: ?(?P<pid>\d{1,10}), Device: ?-?\d+, RankID: ?(?P<rank>-?\d{1,7})\)", Sayings._of_pid),
        ("Barrier timed out", r"Barrier timed out.{0,60}?(?=\. This usually|\. Timed out|$)", Sayings._barrier),
        ("reached the barrier: ", r"reached the barrier: (?P<there>\d{1,7})/(?P<tasks>\d{1,7})", Sayings._tasks_there),
        ("imed out task names:", r"imed out task names:", Sayings._jax),
        (
            "(stopped sending heartbeats)",
            r"The following tasks are unhealthy \(stopped sending heartbeats\)",
            Sayings._jax,
        ),
        (
            "heartbeat time",
            r"Task /job:\w{1,60}/replica:\d{1,7}/task:(?P<ranks>\d{1,7}) heartbeat time\w+",
            Sayings._names,
        ),
        ("missing ranks:", r"\[missing ranks: (?P<ranks>\d{1,7}(?:, ?\d{1,7}){0,999})\]", Sayings._names),
        (
            "Mismatched collective detected",
            r"Mismatched collective detected, please check your collective calls at and around rank (?P<ranks>\d{1,7})",
            Sayings._names,
        ),
        ("missed FR dumps", r"we missed FR dumps from ranks \(\{[\d, ]{1,200}\}\)", Sayings._unclear),
        ("got stuck for", r"watchdog got stuck for \d+ seconds without making progress", Sayings._stuck),
        ("Heartbeat monitor timed out", r"Heartbeat monitor timed out", Sayings._stuck),
        ("Not all ranks joining", r"Not all ranks joining collective.{0,80}", Sayings._analysis),
        ("has errors", r"Collective sequence number: \d+ has errors", Sayings._analysis),
        ("Failures:", r"^Failures:\s*$", Sayings._report),
        ("Root Cause", r"Root Cause(?: \(first observed failure\))?:", Sayings._report),
        (
            "(exitcode: ",
            r"exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d{1,7}) \(pid: (?P<pid>\d+)\)",
            Sayings._local_end,
        ),
        (
            "exits with return code = ",
            r"--local_rank=(?P<local>\d{1,7}).*exits with return code = (?P<code>-?\d{1,5})(?P<pid>$|)",
            Sayings._local_end,
        ),
        ("srun: error: ", r"srun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)$", Sayings._srun),
        (
            "noticed that process rank",
            r"process rank (?P<rank>\d{1,7}) with PID \d+ on node (?P<host>\S+) exited "
            r"(?:on signal (?P<signal>\d{1,2})|with (?:exit )?(?:code|status) (?P<code>\d{1,3}))",
            Sayings._mpi,
        ),
        ("RANK ", r"=\s+RANK (?P<rank>\d{1,7}) PID \d+ RUNNING AT (?P<host>\S+)", Sayings._mpich),
        (
            "terminated with ",
            r"[Pp]rocess (?P<rank>\d{1,7}) terminated with "
            r"(?:signal (?P<signal>SIG\w{2,8})|exit code (?P<code>\d{1,3})|the following error)",
            Sayings._spawned,
        ),
        ("Worker PID: ", r"Worker PID: (?P<pid>\d{1,10})\s+(?P<how>Worker exit type: .+)$", Sayings._pid_died),
        ("ActorDiedError", r"ActorDiedError", Sayings._actor),
        (
            " - Init ",
            r"\brank (?P<rank>\d{1,7}) nranks (?P<size>\d{1,7}) .{0,200} - Init (?P<how>START|COMPLETE)",
            Sayings._init,
        ),
        (
            "Got async event",
            r"NET/IB : (?:(?P<port>[\w.-]{1,40}:\d{1,3}) )?Got async event : "
            r"(?P<event>port error|port active|local catastrophic error|device fatal)",
            Sayings._port,
        ),
        (
            "Got completion from peer",
            r"Got completion from peer (?P<host>[\w.:-]{1,253}?)<\d+> with (?:error|status=)\s?\d+.{0,120}",
            Sayings._peer,
        ),
        ("oom", r"oom[_-]kill", Sayings._oom),
        ("OOM Killed", r"OOM Killed", Sayings._oom),
        ("got signal: ", r"(?P<text>Process \d{1,10} got signal: (?:15|2|1)\b)", Sayings._cancelled),
        ("CANCELLED AT", r"(?P<text>(?:JOB|STEP) \S+ ON \S+ CANCELLED AT .+?)(?: \*\*\*|$)", Sayings._cancelled),
    )
)
SIGNS: Final = (*(needle for needle, _, _ in _TEXTS if needle != "oom"), "oom_kill", "oom-kill", "KILLED BY")
"""Every line that begins a known text contains one of them."""
