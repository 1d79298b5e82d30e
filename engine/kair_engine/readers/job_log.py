"""Logs of jobs, one of all ranks or one of each: of whom NCCL's watchdog says that a call timed out.

Lines of PyTorch's NCCL watchdog, in the wordings of 1.13 to 2.10: who timed out in what, and how far it was.

A report names a work (`WorkNCCL(SeqNum=808, OpType=ALLREDUCE, …)`) and not its process group; the line behind it names
the group, and the last works that were enqueued and completed in it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kair_engine.readers.blocks import BlockReader
from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.paths import MAX_RANKS, host_of, rank_from_name
from kair_engine.trace.calls import (
    NOT_NUMBERED,
    UNTOLD,
    UNTOLD_GROUP,
    CollectiveCall,
    GroupProgress,
    is_of_all,
    location_in,
)
from kair_engine.trace.format import write_fragment
from kair_engine.trace.model import FragmentInfo

_LONGEST_LINE: Final = 16 << 10
_NCCL: Final = re.compile(rb"NCCL (INFO|WARN|TRACE) ")
_WORLD: Final = re.compile(rb"""(?i)\bworld[ _-]?size['"]?\s*[:=]\s*(\d{1,7})\b|\bnranks (\d{1,7})\b""")
_WORLD_WORDS: Final = (b"orld", b"ORLD", b"nranks")
_WAY_OUT: Final = (
    "ask the hung job with ncclras -v, or run it with TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1: "
    "Flight Recorder dumps tell who has called what"
)


def read_job_log(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Writes an empty fragment `out`, and says how far the ranks came that the watchdog reports on.

    A line's rank is in it; `rank_hint`, or the file's name, is that of lines without. Raises NotATraceError where
    the watchdog says nothing, with the way out where the log is one of NCCL.
    """
    of_file = rank_hint if rank_hint is not None else rank_from_name(source)
    reports, is_of_nccl, world = Reports(of_file), False, 0
    for block in _whole_lines(source):
        is_of_nccl = is_of_nccl or (b"NCCL " in block and _NCCL.search(block) is not None)
        if any(word in block for word in _WORLD_WORDS):
            world = max([world, *(int(one[1] or one[2]) for one in _WORLD.finditer(block))])
        if reports.is_in_stack or any(sign in block for sign in SIGNS):
            for line in block.split(b"\n"):
                reports.take(line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip())
    progress = reports.progress(world)
    if not progress:
        if is_of_nccl:
            # Beside traces such logs are usual: they are passed over in silence.
            raise NotATraceError("it is a log of NCCL without a time-out of PyTorch's watchdog", _WAY_OUT)
        raise NotATraceError("it is text, and no time-out of NCCL's watchdog is in it")
    host = host_of(source)
    hosts = dict.fromkeys(progress, host) if host else {}
    size = world if world > max(progress) else None
    info = FragmentInfo(str(source), "job_log", tuple(progress), True, size, hosts, calls=progress)
    write_fragment(out, (), info)
    return info


def _whole_lines(source: Path) -> Iterator[bytes]:
    """The file in blocks that end where a line does, or where one is too long."""
    rest = b""
    for block in BlockReader(source):
        end = block.rfind(b"\n") + 1
        if not end and len(rest) < _LONGEST_LINE:
            rest += block
            continue
        yield rest + block[:end]
        rest = block[end:]
    yield rest


SIGNS: Final = (b"atchdog caught collective", b"nqueued", b"failed collective:", b"will restart worker group")
"""One of them is in every line that says something: a block without any need not be taken apart."""
_RANK: Final = re.compile(r"\[rank(\d{1,7})\]")
_GROUP: Final = re.compile(
    r"\[PG (?:ID \d+ PG GUID )?(?P<name>[^\s()\]]{1,80})\s?(?:\((?P<words>[^)\]]{0,120})\))? Rank (?P<rank>\d{1,7})\]"
)
_WORK: Final = re.compile(
    r"(?:\[Rank (?P<rank>\d{1,7})\] )?Watchdog caught collective operation timeout: "
    r"WorkNCCL\((?P<fields>.{0,400}?)\) ran for"
)
_FIELD: Final = re.compile(r"(\w+)(?:\(ms\))?=(\[[^\]]*\]|[^,]*)")
_STATUS: Final = re.compile(
    r"last enqueued (?:\w+ )?work: (?P<enqueued>-?\d{1,18})"
    r"(?:, last started (?:\w+ )?work: -?\d{1,18})?, last completed (?:\w+ )?work: (?P<completed>-?\d{1,18})",
    re.IGNORECASE,
)
_AT_WORK: Final = re.compile(r"(?:work sequence id|at work|at NCCL work): (\d{1,18})")
_RESTART: Final = "will restart worker group"
"""What torchrun says when it starts a job again."""
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


class Reports:
    """What the lines of one log say, rank by rank; of a job that was started again, those of its last attempt."""

    def __init__(self, rank_of_file: int | None) -> None:
        self._rank_of_file = rank_of_file
        self._of_rank: dict[int, _OfRank] = {}
        self._in_stack: _OfRank | None = None

    @property
    def is_in_stack(self) -> bool:
        """Whether the next lines may be the frames of a stack."""
        return self._in_stack is not None

    def take(self, line: str) -> None:
        """Looks at one line, which is in the log's order."""
        if _RESTART in line:
            self._of_rank, self._in_stack = {}, None
        frame = _FRAME.search(line)
        if frame is not None and self._in_stack is not None:
            self._in_stack.add_frame((frame["file"], int(frame["line"]), frame["name"]))
            return
        if not line.strip():
            self._in_stack = None
        group, work, status = _GROUP.search(line), _WORK.search(line), _STATUS.search(line)
        rank = self._rank(line, group, work)
        if rank is None or rank >= MAX_RANKS:
            return
        if _STACK in line:
            self._in_stack = self._of_rank.get(rank)
        if work is not None:
            self._one(rank).timed_out(dict(_FIELD.findall(work["fields"])), group)
        if group is not None and status is not None:
            at = _AT_WORK.search(line)
            self._one(rank).status(group, status, NOT_NUMBERED if at is None else int(at[1]))

    def progress(self, world: int) -> dict[int, tuple[GroupProgress, ...]]:
        """rank → how far it came in the groups that it reports on; of `world` ranks, if that is more than these."""
        everybody = tuple(range(world)) if world > max(self._of_rank, default=0) else ()
        found = {rank: tuple(of_rank.progress(everybody)) for rank, of_rank in sorted(self._of_rank.items())}
        return {rank: groups for rank, groups in found.items() if groups}

    def _one(self, rank: int) -> "_OfRank":
        return self._of_rank.setdefault(rank, _OfRank())

    def _rank(self, line: str, group: re.Match[str] | None, work: re.Match[str] | None) -> int | None:
        """The job's rank: the logging prefix has it; in brackets it is that in the process group."""
        prefix = _RANK.search(line)
        if prefix is not None:
            return int(prefix[1])
        if group is not None and is_of_all(group["name"], group["words"] or ""):
            return int(group["rank"])
        if self._rank_of_file is not None:
            return self._rank_of_file
        return int(work["rank"]) if work is not None and work["rank"] else None


class _OfRank:
    """The reports of one rank; of a group the first of a time-out, as an abort completes what is left."""

    def __init__(self) -> None:
        self._works: dict[int, dict[str, str]] = {}
        self._works_of: dict[str, int] = {}
        self._status: dict[str, tuple[str, int, int]] = {}
        self._frames: dict[int, list[tuple[str, int, str]]] = {}
        self._latest = NOT_NUMBERED

    def timed_out(self, fields: dict[str, str], group: re.Match[str] | None) -> None:
        number = _number(fields.get("SeqNum"))
        if number not in self._works:
            self._works[number] = fields
        self._latest = number
        if group is not None:
            self._works_of.setdefault(group["name"], number)

    def status(self, group: re.Match[str], status: re.Match[str], at: int) -> None:
        name = group["name"]
        words, enqueued, completed = group["words"] or "", int(status["enqueued"]), int(status["completed"])
        if at != NOT_NUMBERED:
            # A later attempt of the job numbers its works anew.
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
        told = set()
        for name, (words, enqueued, completed) in sorted(self._status.items()):
            number = self._works_of.get(name, NOT_NUMBERED)
            told.add(number)
            ranks = everybody if is_of_all(name, words) else ()
            yield self._group((name, words, ranks), number, enqueued, completed)
        for number in sorted(self._works.keys() - told):
            name = next((name for name, one in self._works_of.items() if one == number), UNTOLD_GROUP)
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
            input_elements=inputs if inputs >= 0 else UNTOLD,
            output_elements=outputs if outputs >= 0 else UNTOLD,
            location=location_in(self._frames.get(number, [])),
        )


def _number(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch(r"\d{1,18}", text.strip()) else -1
