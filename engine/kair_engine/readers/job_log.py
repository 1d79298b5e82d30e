"""Reads logs of jobs, one for all ranks or one per rank: time-outs, how ranks ended, and ranks that the log accuses.

A file may hold several jobs, distinguished by the prefixes of their lines (Ray's class of worker, kubectl's pod), and
several attempts of each. Only the last attempt counts, and the job that stopped first.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kair_engine.readers import log_sayings, watchdog
from kair_engine.readers.blocks import BlockReader
from kair_engine.readers.formats import NotATraceError
from kair_engine.readers.log_sayings import Sayings
from kair_engine.readers.paths import MAX_RANKS, host_of, rank_from_name
from kair_engine.readers.prefixes import Peeled, peel, plain
from kair_engine.readers.ras import read_ras
from kair_engine.readers.watchdog import Report, Reports, report_in
from kair_engine.trace.calls import GroupProgress
from kair_engine.trace.format import write_fragment
from kair_engine.trace.model import FragmentInfo, KairWarning, short_warning
from kair_engine.trace.sayings import Saying

_LONGEST_LINE: Final = 16 << 10
_FIRST_BLOCKS: Final = 16
"""Blocks in which a text must be recognised."""
_WORLD: Final = re.compile(r"""(?i)\bworld[ _-]?size['"]?\s*[:=]\s*(\d{1,7})\b|\bnranks (\d{1,7})\b""")
_WORLD_WORDS: Final = ("orld", "ORLD", "nranks")
_RANK: Final = re.compile(r"\[rank(\d{1,7})\]")
_RANK_OF_PROCESS: Final = re.compile(r"(?i)\b(?:global[_ ]?|world[_ ]?)?rank\s?[=:]\s?(\d{1,7})\b")
_PROGRAM: Final = re.compile(
    r"\(([\w.<>-]{1,80})(?:\([^)]{0,80}\))? pid=\d{1,10}(?:, ip=([\w.:]{1,60}))?\)|\[pod/([^/\]\s]{1,253})/"
)
_RESTART: Final = "will restart worker group"
"""torchrun's message when it restarts a job."""
_REQUEUED: Final = re.compile(r"DUE TO (?:NODE FAIL|PREEMPTION)|requeu(?:e|ing)", re.IGNORECASE)
_COMPOSED: Final = re.compile(r"([A-Za-z][\w.-]{0,80}?)-\d{1,5} +\| ")
"""Docker Compose's prefix of a line."""
_BLOCKS_AFTER: Final = 4
"""This many blocks after an error show whether its rank goes on."""
_SIGNS: Final = tuple(
    sign.encode() for sign in (*watchdog.SIGNS, *log_sayings.SIGNS, *_WORLD_WORDS, _RESTART, "rank=", "equeu", "EQUEU")
)
"""Every meaningful line contains one of them: a block without any need not be parsed."""
_CONCLUSIVE: Final = frozenset(("missing", "ended", "stuck", "link", "unclear", "error", "cancelled"))
"""Kinds of sayings that allow a verdict."""
_FEW_RANKS: Final = 8
"""With at most this many ranks on a node, a rank there may be the rank in the job."""
_UNUSABLE: Final = (
    # Such logs are common next to traces: they are skipped silently.
    (
        "a log of NCCL without a time-out of PyTorch's watchdog",
        re.compile(rb"NCCL (?:INFO|WARN|TRACE) "),
        "ask the hung job with ncclras -v, or run it with TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1: "
        "Flight Recorder dumps show who has called what",
    ),
    (
        "a table of nccl-tests",
        re.compile(rb"(?m)^# nThread \d+ nGpus \d+|^#\s+size\s+count.{0,200}algbw\s+busbw"),
        "it measures the network without the job: run kair probe on every node to find a slow one, or give traces of "
        "the job",
    ),
    (
        "a table of key_averages()",
        re.compile(rb"Self CPU %\s+Self CPU\s+CPU total %"),
        "it sums up one rank, without steps: write each rank's trace, prof.export_chrome_trace(f'rank{rank}.json')",
    ),
    (
        "telemetry of nvidia-smi",
        re.compile(rb"\A[^\n]{0,2000}, (?:utilization|clocks|temperature|power|memory|pcie)\."),
        "give it with the job's recording: kair triage JOB --evidence FILE",
    ),
)


def read_job_log(source: Path, out: Path, *, rank_hint: int | None = None) -> FragmentInfo:
    """Write an empty fragment `out`, and return the ranks' progress and other findings from the log.

    Lines state their ranks; `rank_hint`, or the file's name, is the rank of other lines. Raises NotATraceError if the
    log reports about no rank, with a hint if the kind of text is known.
    """
    of_file = rank_hint if rank_hint is not None else rank_from_name(source)
    log = _Log(of_file, _local_rank(source) if of_file is None else None)
    unusable: tuple[str, str] | None = None
    has_answer, after = False, 0
    for number, block in enumerate(_whole_lines(source)):
        if unusable is None and number < _FIRST_BLOCKS:
            unusable = next(((words, way) for words, sign, way in _UNUSABLE if sign.search(block)), None)
        has_answer = has_answer or b"in group  per comm" in block
        if log.has_errors:
            after = after or number + _BLOCKS_AFTER
        if log.is_open or number < after or any(sign in block for sign in _SIGNS):
            for line in block.split(b"\n"):
                log.take(line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip())
    jobs = log.jobs()
    if not jobs:
        if has_answer:
            # Ray's log contains the output of NCCL's RAS.
            return read_ras(source, out, rank_hint=rank_hint)
        if unusable is not None:
            raise NotATraceError(f"it is {unusable[0]}", unusable[1])
        raise NotATraceError("it is text, and has no time of a step, no time-out and no end of a rank")
    info = _info(source, jobs, log.untold)
    write_fragment(out, (), info)
    return info


def _local_rank(source: Path) -> int | None:
    """Return the rank on its node from torchrun's folders: `attempt_0/3/stderr.log`."""
    folder = source.absolute().parent
    is_own = folder.name.isdigit() and folder.parent.name.startswith("attempt_")
    return int(folder.name[:7]) if is_own else None


def _info(source: Path, jobs: Sequence["_Job"], untold: Sequence[KairWarning]) -> FragmentInfo:
    """Return the description of the job that stopped first."""
    job, *others = jobs
    progress, said = job.progress, job.said
    ranks = tuple(sorted({*progress, *job.heard})) or (0,)
    host = host_of(source)
    hosts = job.hosts | (dict.fromkeys(ranks, host) if host else {})
    warnings = [*untold]
    if others:
        rest = ", ".join(f"{one.name or 'lines without a process'} ({len(one.ranks)} ranks)" for one in others[:4])
        text = f"the log holds {len(jobs)} jobs: {job.name} stopped first and is judged; {rest} stopped later"
        warnings.append(short_warning("several_jobs", text))
    return FragmentInfo(
        str(source),
        "job_log",
        ranks,
        True,
        job.world if job.world > max(ranks) else None,
        {rank: hosts[rank] for rank in ranks if rank in hosts},
        warnings=tuple(warnings),
        calls=progress or {ranks[0]: ()},
        said=tuple(said),
    )


def _whole_lines(source: Path) -> Iterator[bytes]:
    """Yield the job's output in blocks that end at a line's end, or within a line that is too long."""
    rest = b""
    for block in BlockReader(source):
        end = block.rfind(b"\n") + 1
        if not end and len(rest) < _LONGEST_LINE:
            rest += block
            continue
        yield plain(rest + block[:end])
        rest = block[end:]
    yield plain(rest)


class _Log:
    """The jobs of one file, by the prefixes of their lines."""

    def __init__(self, rank_of_file: int | None, local_rank: int | None) -> None:
        self._rank_of_file, self._local_rank = rank_of_file, local_rank
        self._jobs: dict[str, _Job] = {}
        self._order = 0
        self._last: _Job | None = None

    @property
    def is_open(self) -> bool:
        """Whether the next lines may continue an earlier one."""
        return any(job.is_open for job in self._jobs.values())

    @property
    def has_errors(self) -> bool:
        """Whether errors were printed, by ranks that may go on."""
        return any(job.has_errors for job in self._jobs.values())

    def take(self, line: str) -> None:
        """Take the next line of the log."""
        self._order += 1
        composed = _COMPOSED.match(line) if " | " in line else None
        line = line if composed is None else line[composed.end() :]
        program = _PROGRAM.search(line, 0, 400) if "pid=" in line or "[pod/" in line else None
        name, host = "" if composed is None else composed[1], ""
        if program is not None:
            name = re.sub(r"[-_]?\d+", "", program[1] or program[3] or "")
            host = program[2] or ""
        job = self._jobs.get(name)
        if job is None:
            is_pod = composed is not None or (program is not None and bool(program[3]))
            job = _Job(name, self._rank_of_file, self._local_rank, is_pod=is_pod)
            self._jobs[name] = job
        job.take(line, peel(line), host, self._order)

    @property
    def untold(self) -> list[KairWarning]:
        """Return warnings for jobs that cannot be separated."""
        names = [job.name for job in self._jobs.values() if job.is_of_several]
        text = "processes of {} report as one rank at one time: they are of several jobs, which the log does not keep"
        return [
            short_warning("jobs_untold", f"{text.format(name)} apart: give the workers' own logs") for name in names
        ]

    def jobs(self) -> list["_Job"]:
        """Return the jobs with findings, the one that stopped first in front; pods of different ranks are one job."""
        found: list[_Job] = []
        for job in self._jobs.values():
            for driver in self._jobs.values():
                job.hear_of(driver)
        for job in self._jobs.values():
            job.close()
            if not job.is_conclusive:
                continue
            other = next((one for one in found if one.is_pod and job.is_pod and not one.ranks & job.ranks), None)
            if other is None:
                found.append(job)
            else:
                other.join(job)
        if len(found) > 1:
            # A driver's own lines are about its workers.
            own = [one for job in found if not job.name and not job.progress for one in job.said]
            found = [job for job in found if job.name or job.progress]
            for job in found:
                job.said += own
        return sorted(found, key=lambda job: job.stopped)


class _Job:
    """The findings of one job, from its last attempt."""

    def __init__(self, name: str, rank_of_file: int | None, local_rank: int | None, *, is_pod: bool) -> None:
        self.name, self.is_pod = name, is_pod
        self.world = 0
        self.is_of_several = False
        self.progress: dict[int, tuple[GroupProgress, ...]] = {}
        self.said: list[Saying] = []
        self.hosts: dict[int, str] = {}
        self.heard: set[int] = set()
        """Ranks that printed or are mentioned."""
        self._rank_of_file, self._local_rank = rank_of_file, local_rank
        self._is_requeued = False
        self._begin()

    def _begin(self) -> None:
        self._reports, self._sayings = Reports(), Sayings()
        self._process_of: dict[int, str] = {}
        self._folded: dict[str, int] = {}
        self._first_report: int | None = None
        self._is_old_world = True

    @property
    def is_open(self) -> bool:
        """Whether the next lines may continue an earlier one."""
        return self._reports.is_in_stack or self._sayings.is_open

    @property
    def has_errors(self) -> bool:
        """Whether errors were printed, by ranks that may go on."""
        return self._sayings.has_errors

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks with findings."""
        return frozenset(self.progress) | {rank for one in self.said for rank in one.ranks}

    @property
    def is_conclusive(self) -> bool:
        """Whether the findings allow a verdict."""
        kinds = {one.kind for one in self.said}
        return bool(self.progress) or bool(kinds & _CONCLUSIVE)

    @property
    def stopped(self) -> int:
        """The position in the log where the first of its ranks stopped."""
        known = [one for one in (self._first_report, self._sayings.first) if one is not None]
        return min(known, default=1 << 62)

    def take(self, line: str, peeled: Peeled, host: str, order: int) -> None:
        """Take one line."""
        if _RESTART in line:
            self._begin()
        if ("equeu" in line or "EQUEU" in line or "DUE TO" in line) and _REQUEUED.search(line) is not None:
            self._is_requeued = True
        if self._reports.is_in_stack:
            self._reports.take_frame(line)
        if any(word in line for word in _WORLD_WORDS) and (size := _WORLD.search(line)) is not None:
            self._next_attempt()
            world = int(size[1] or size[2])
            if world <= MAX_RANKS:
                self.world, self._is_old_world = world if self._is_old_world else max(self.world, world), False
        report = report_in(line)
        process = self._process(peeled)
        rank = self._rank(line, peeled, report)
        if rank is not None and rank >= MAX_RANKS:
            return
        if rank is not None and peeled.process is not None:
            self._sayings.is_of_process(process, rank, host)
        if rank is not None and report is not None:
            self._report(rank, report, process, order)
            if peeled.repeated > 1 and (report.work is not None or report.status is not None):
                kind = "work" if report.work is not None else "status"
                self._folded[kind] = self._folded.get(kind, 0) + peeled.repeated - 1
        self._sayings.take(peeled.text, process, rank, order, peeled.repeated)

    def _next_attempt(self) -> None:
        if self._is_requeued:
            self._is_requeued = False
            self._begin()

    def _report(self, rank: int, report: Report, process: str, order: int) -> None:
        self._next_attempt()
        before: dict[str, str] = {}
        known = self._process_of.get(rank)
        is_other = known is not None and process not in ("", known)
        if self._reports.is_of_next_attempt(rank, report):
            before = self._reports.latest_of(rank) if report.work is None else {}
            self._begin()
        elif is_other and report.work is not None:
            self.is_of_several = True
        if process and (report.work is not None or rank not in self._process_of):
            self._process_of[rank] = process
        if report.work is not None and self._first_report is None:
            self._first_report = order
        self._reports.take(rank, report, before)

    def _process(self, peeled: Peeled) -> str:
        if peeled.process is not None:
            return peeled.process
        numbered = (("rank", peeled.rank), ("task", peeled.task), ("local", peeled.local_rank))
        return next((f"{kind}{number}" for kind, number in numbered if number is not None), "")

    def _rank(self, line: str, peeled: Peeled, report: Report | None) -> int | None:
        """Return the rank in the job: from the logging prefix, else the process, else the file's name."""
        prefix = _RANK.search(line)
        if prefix is not None and self._local_rank is not None:
            self._rank_of_file = int(prefix[1])
        own = None if peeled.process is None else _RANK_OF_PROCESS.search(peeled.text)
        local = self._local_rank if self.world <= _FEW_RANKS else None
        known = (
            None if prefix is None else int(prefix[1]),
            None if report is None else report.rank,
            None if own is None else int(own[1]),
            None if peeled.process is None else self._sayings.rank_of(peeled.process),
            self._rank_of_file,
            None if report is None else report.rank_in_group,
            local,
            peeled.task if peeled.local_rank is None else None,
        )
        return next((rank for rank in known if rank is not None), None)

    def hear_of(self, driver: "_Job") -> None:
        """Take what another job's lines report about processes of this one, as a driver's do."""
        if driver is not self:
            driver._sayings.hand_over(self._sayings)

    def close(self) -> None:
        """Evaluate all lines."""
        self.world = max(self.world, self._sayings.size)
        self.progress = self._reports.progress(self.world)
        self.said = self._sayings.all_of(
            self._reports.ranks, self._first_report, self._reports.first_seconds, self.world
        )
        self.hosts = self._sayings.hosts
        self.heard = {*self._sayings.processes, *(rank for one in self.said for rank in (*one.ranks, *one.by))}
        if self.is_of_several:
            self.progress = {}
            self.said = [Saying("unclear", f"processes of {self.name} report as one rank at one time")]
        if folded := max(self._folded.values(), default=0):
            self.said.append(Saying("folded", count=folded))
        if self.name:
            self.said += [
                Saying("process", f"{self.name}, pid {process.rpartition(':')[2]}", (rank,))
                for rank, process in self._sayings.processes.items()
                if process.rpartition(":")[2].isdigit()
            ]

    def join(self, other: "_Job") -> None:
        """Merge another pod of the same job."""
        self.progress = dict(sorted({**self.progress, **other.progress}.items()))
        self.said += other.said
        self.hosts |= other.hosts
        self.heard |= other.heard
        self.world = max(self.world, other.world)
