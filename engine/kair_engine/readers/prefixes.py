"""Parses the prefixes that launchers, schedulers and containers put before log lines, and what they reveal of
processes.

`plain` restores the job's own output in a block of a log: without colours, one line for each redraw of a progress bar,
records of Docker, the kubelet and log collectors unpacked. `peel` removes the prefixes of one line, which may nest:
torchrun's, `srun -l`'s, Ray's, kubectl's. `ProcessRanks` turns them into ranks of the job.
"""

import re
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.readers.log_records import text_in_record
from kair_engine.readers.paths import MAX_RANKS

_ANSI: Final = re.compile(rb"\x1b(?:\[[0-9;?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\))")
_CRI: Final = re.compile(rb"(?m)^\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) std(?:out|err) ([FP])(?: |$)")
_CRI_PART: Final = b"\x00"
"""Marks a continuation of the line before: no text contains it."""


def plain(block: bytes) -> bytes:
    """Return whole lines of a log as the job printed them; carriage returns separate lines, too."""
    if block.startswith(b"{") or b"\n{" in block:
        block = b"\n".join(map(_text_of, block.split(b"\n")))
    if b" stdout " in block or b" stderr " in block:
        block = _joined(block)
    if b"\x1b" in block:
        block = _ANSI.sub(b"", block)
    return block.replace(b"\r", b"\n") if b"\r" in block else block


def _text_of(line: bytes) -> bytes:
    text = text_in_record(line)
    return line if text is None else text


def _joined(block: bytes) -> bytes:
    """Return the kubelet's records without their stamps; a partial record (P) is joined with the next one."""
    parts = _CRI.search(block)
    if parts is None:
        return block
    marked = _CRI.sub(lambda one: _CRI_PART if one[1] == b"P" else b"", block)
    if _CRI_PART not in marked:
        return marked
    lines = marked.split(b"\n")
    ends = (b"" if line.startswith(_CRI_PART) else b"\n" for line in lines)
    return b"".join(line.lstrip(_CRI_PART) + end for line, end in zip(lines, ends, strict=True)).removesuffix(b"\n")


@dataclass(frozen=True)
class Peeled:
    """One line without its prefixes, and what they state of the process that printed it."""

    text: str
    """The process' output."""
    rank: int | None = None
    """The rank in the job, from torchrun's `[rank3]:`."""
    local_rank: int | None = None
    """The rank on its node, from torchrun's `[default3]:`."""
    task: int | None = None
    """The task, from `srun -l`."""
    process: str | None = None
    """A pod and its container, or a process of Ray: these have no rank of their own."""
    repeated: int = 1
    """The number of processes with a similar line, if Ray folded them."""


_PREFIX: Final = re.compile(
    r"\s?(?:"
    r"\[(?P<role>[A-Za-z_][A-Za-z_-]{0,40}?)(?P<local>\d{1,7})\]: ?"
    r"|\[pod/(?P<pod>[^/\]\s]{1,253}/[^\]\s]{1,63})\] "
    r"|\((?P<actor>[\w.<>-]{1,80})(?:\([^)]{0,80}\))? pid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>[\w.:]{1,60}))?\) ?"
    r"|(?P<stamp>\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d)) (?=\[|\(| {0,6}\d{1,7}: )"
    r")"
)
_TASK: Final = re.compile(r" {0,6}(?P<task>\d{1,7}): ")
_REPEATED: Final = re.compile(r" ?\[repeated (?P<times>\d{1,7})x across cluster\]")
_MOST_NESTED: Final = 4


def peel(line: str) -> Peeled:
    """Remove the prefixes of a log line from `plain`."""
    found: dict[str, int | str] = {}
    at = 0
    for _ in range(_MOST_NESTED):
        prefix = _PREFIX.match(line, at) or (_TASK.match(line, at) if "task" not in found else None)
        if prefix is None:
            break
        at = prefix.end()
        found.update(_said(prefix))
    text = line[at:]
    if "[repeated " in text and (folded := _REPEATED.search(text)) is not None:
        text, found["repeated"] = text[: folded.start()] + text[folded.end() :], int(folded["times"])
    return Peeled(text, **found)  # type: ignore[arg-type]


def _said(prefix: "re.Match[str]") -> dict[str, int | str]:
    known = {name: value for name, value in prefix.groupdict().items() if value is not None}
    if "local" in known:
        return {"rank" if known["role"] == "rank" else "local_rank": int(known["local"])}
    if "task" in known:
        return {"task": int(known["task"])}
    if "pod" in known:
        return {"process": known["pod"]}
    if "pid" in known:
        return {"process": f"{known.get('ip', '')}:{known['pid']}"}
    return {}


_RAY_RANK: Final = re.compile(
    rb"[( ]ip=(?P<ip>[\w.:]{1,60}), pid=(?P<pid>\d{1,10})\) (?:world_)?rank=(?P<rank>\d{1,7})"
)


class ProcessRanks:
    """The ranks of the processes of one log, from its prefixes and from Ray Train's list of workers."""

    def __init__(self) -> None:
        self._of_process: dict[str, int] = {}
        self._most_local = 0
        self._tasks: set[int] = set()

    def learn(self, block: bytes) -> None:
        """Look for Ray Train's list of its workers."""
        if b"rank=" in block:
            for one in _RAY_RANK.finditer(block):
                rank = int(one["rank"])
                self._of_process[f"{one['ip'].decode()}:{one['pid'].decode()}"] = rank
                self._of_process.setdefault(f":{one['pid'].decode()}", rank)

    def key(self, line: Peeled) -> int:
        """Return a number for the process that printed a line, the key for `rank`; -1 if it is unknown."""
        if line.rank is not None:
            return min(line.rank, MAX_RANKS)
        if line.local_rank is not None:
            self._most_local = max(self._most_local, line.local_rank)
            task = line.task or 0
            self._tasks.add(task)
            return _LOCAL + min(task, MAX_RANKS) * _LOCAL_RANKS + min(line.local_rank, _LOCAL_RANKS - 1)
        if line.task is not None:
            return min(line.task, MAX_RANKS)
        if line.process is not None:
            return self._of_process.get(line.process, -1)
        return -1

    def rank(self, key: int) -> int:
        """Return the rank for a process's number, once the whole log was read."""
        if key < _LOCAL:
            return key
        task, local = divmod(key - _LOCAL, _LOCAL_RANKS)
        return task * (self._most_local + 1) + local

    @property
    def is_sure(self) -> bool:
        """Whether ranks are those of the job: local ranks are if all share one node, or if tasks name the nodes."""
        return not self._tasks or len(self._tasks) > 1


_LOCAL: Final = 1 << 40
"""Process numbers from here on encode a node's task and a rank on it."""
_LOCAL_RANKS: Final = 1 << 10
