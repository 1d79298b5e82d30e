"""The job and its trace: the input of every analysis.

Warnings about the input are one line of bounded length, because file names in them can be anything. Also checks what
analyses require (a chosen step, a recorded rank), and finds ranks' hosts.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import msgspec

from kair_engine.errors import UsageError
from kair_engine.frozen import dataclass
from kair_engine.ranks import Rank, in_order
from kair_engine.trace.calls import GroupProgress
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.sayings import Saying

if TYPE_CHECKING:
    import polars as pl

    from kair_engine.arrays import Ints
    from kair_engine.trace.batches import StepMemory, Workers


SourceFormat = str
"""The name of a row of `readers/formats.py`, or of another source of a job."""
INSPECTOR: Final = "nccl_inspector"
"""The format of a job whose collectives NCCL's Inspector recorded."""


class KairWarning(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """A caveat about the input for readers of an answer; `code` is stable, for machines."""

    code: str
    """Stable, for machines."""
    message: str = ""
    """Empty if there are figures: the sentence is made from them."""
    ranks: tuple[Rank, ...] = ()
    """Affected ranks; empty if there are none."""
    about: str | None = None
    """The affected class of operations, group or host."""
    run: str | None = None
    """Which of two runs it is about; null if an answer is about one, or it is about both."""
    template: ClassVar[str] = ""

    def wording(self) -> str:
        """Return the template for its figures; empty for a warning that is a text."""
        return self.template


OF_RUNS = frozenset(("other_run", "several_runs"))
"""Codes of warnings about ranks whose recordings may be of another run than the rest: nothing clears them."""


@dataclass(frozen=True)
class Layout:
    """The places of a job's ranks in its parallel dimensions; sizes are None if the metadata lacks them."""

    dp: int | None = None
    """Data-parallel ranks."""
    pp: int | None = None
    """Pipeline stages."""
    tp: int | None = None
    """Tensor-parallel ranks."""
    pipeline_stage: dict[int, int] = field(default_factory=dict)
    """rank → pipeline stage, for the ranks whose place is known."""
    dp_rank: dict[int, int] = field(default_factory=dict)
    """The data-parallel rank of each rank."""


@dataclass(frozen=True)
class ProcessGroup:
    """A process group that a recording lists: `name` as in the table, the ranks in the group's own order."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class DerivedGroups:
    """Process groups of operations that state none, found from all ranks' recordings together."""

    of_lane: dict[int, dict[str, str]]
    """rank → lane → the known group of its collectives that state none."""
    of_transfers: dict[int, ProcessGroup | None]
    """rank → the group of its sends and receives that state none, None if it is unknown.

    Their `peer` in the table is a place in that group. Ranks that are not listed number peers as ranks of the job."""
    of_rank: dict[int, str] = field(default_factory=dict)
    """rank → the group of all its communication that states none: its peers show that the job has no other."""


NOT_RECORDED = -1
"""Unknown, in a column of measurements."""


@dataclass(frozen=True)
class StepTimes:
    """Begin, duration and size of every step on every rank: equally long columns, one entry per (rank, step).

    The other columns are measurements of the kernel, such as capture makes in sampled steps. Unknown values are
    NOT_RECORDED; a column is empty if it is unknown for all steps.
    """

    rank: tuple[int, ...] = ()
    step: tuple[int, ...] = ()
    begin_ns: tuple[int, ...] = ()
    duration_ns: tuple[int, ...] = ()
    operations: tuple[int, ...] = ()
    cpu_ns: tuple[int, ...] = ()
    """Computing time of the training thread."""
    delay_ns: tuple[int, ...] = ()
    """Time that it was ready and had no core."""
    throttled: tuple[int, ...] = ()
    """How often a CPU quota stopped its process."""
    communication_delay_ns: tuple[int, ...] = ()
    """Time that a communicating thread of its process was ready and had no core; the thread with the longest counts."""
    halted: tuple[int, ...] = ()
    """How often a signal stopped its process, all threads at once."""
    given_bytes: tuple[int, ...] = ()
    """Bytes given to its models, the tensors of all their calls together."""
    helpers_cpu_ns: tuple[int, ...] = ()
    """Computing time of the other threads of its process, without those that communicate."""
    samples: tuple[int, ...] = ()
    """Samples that it processed, as its job reported."""
    device_begin_ns: tuple[int, ...] = ()
    """Begin of its first device operation that computed or communicated; NOT_RECORDED for a step without any."""
    device_end_ns: tuple[int, ...] = ()
    """End of the last of these: after the step's own end, if the host runs ahead of its device."""

    def __post_init__(self) -> None:
        """Raise ValueError for columns of different lengths: they may come from a file."""
        if len({*map(len, (*self._needed, *filter(None, self._optional)))}) > 1:
            raise ValueError("the columns of step times are of different lengths")

    @property
    def is_plain(self) -> bool:
        """Whether only begin, duration and size of steps are known."""
        return not any(self._optional)

    def rows(self, *, plain: bool = False) -> Iterator[tuple[int, ...]]:
        """Yield an entry of each column, also of unknown ones; `plain`: without the optional columns."""
        if plain:
            return zip(*self._needed, strict=True)
        unknown = (NOT_RECORDED,) * len(self.rank)
        return zip(*self._needed, *(column or unknown for column in self._optional), strict=True)

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[int, ...]]) -> "StepTimes":
        """Return the step times that `rows` yielded."""
        columns = tuple(zip(*rows, strict=True)) or ((),) * 5
        known = (() if all(one == NOT_RECORDED for one in column) else column for column in columns[5:])
        return cls(*columns[:5], *known)

    def of_ranks(self, ranks: Collection[int]) -> "StepTimes":
        """Return the step times of these ranks."""
        return StepTimes.of_rows(row for row in self.rows() if row[0] in ranks)

    @property
    def _needed(self) -> tuple[tuple[int, ...], ...]:
        return self.rank, self.step, self.begin_ns, self.duration_ns, self.operations

    @property
    def _optional(self) -> tuple[tuple[int, ...], ...]:
        return (
            self.cpu_ns,
            self.delay_ns,
            self.throttled,
            self.communication_delay_ns,
            self.halted,
            self.given_bytes,
            self.helpers_cpu_ns,
            self.samples,
            self.device_begin_ns,
            self.device_end_ns,
        )


@dataclass(frozen=True)
class LaunchQueue:
    """How far a rank's host can run ahead of its device: a launch waits while `depth` earlier ones are unfinished."""

    depth: int
    """In launches: a CUDA graph is one."""
    per_stream: bool = False
    """Whether each stream has its own queue; else all launches of the process share one."""


def usual_queue(queues: Collection[LaunchQueue]) -> LaunchQueue:
    """Return the queue of most of a job's ranks, with their median depth: few waits may give a wrong one."""
    per_stream = 2 * sum(one.per_stream for one in queues) > len(queues)
    depths = sorted(one.depth for one in queues if one.per_stream == per_stream)
    return LaunchQueue(depths[len(depths) // 2], per_stream)


@dataclass(frozen=True)
class ProcessorLimits:
    """The system's limits on the cores that a rank's training thread may use, if recorded."""

    nice: int | None = None
    """Its priority: from −20, which precedes others, to 19; 0 is usual."""
    cpus: tuple[int, ...] = ()
    """Cores that it may run on; empty if unknown."""
    quota: float | None = None
    """The quota of its process, in cores; None if it has none."""


@dataclass(frozen=True)
class SentToHost:
    """Data that a rank's connections to another host sent in the steps of a window, if recorded."""

    own: str
    """Their local address; ranks of one host may share it."""
    peer: str
    steps: int
    """Steps in which they sent anything."""
    bytes_per_step: float
    """Mean over these."""
    bytes_per_s: float
    """Delivery rate while there was something to send, by the rule of stats.py."""
    retransmitted_per_step: float
    """Segments."""
    round_trip_ns: float | None = None
    """Median time from sending to acknowledgement; None if unknown, as in earlier versions."""
    queued_ns: float | None = None
    """Median delay of acknowledgements beyond that of an idle path."""
    busy_ns_per_step: float | None = None
    """Mean time with unacknowledged data for which the receiver had room."""


GIFT: Final = b"kair gift 1\n"
"""First bytes of each file of a gift; a fragment follows."""
PeersCounted = Literal["ranks", "places", "either"]
"""Whether the numbers of peers are ranks of the job, or places in the process group, or unclear."""


@dataclass(frozen=True)
class FirstSend:
    """A rank's first send in a step, and whether it received nothing before: then a pipeline begins with it."""

    group: str
    peer: int
    begins: bool


@dataclass(frozen=True)
class FragmentInfo:
    """The description of one fragment of the operations table, kept in its Parquet metadata."""

    source: str
    format: SourceFormat
    ranks: tuple[int, ...]
    rank_known: bool
    """False if neither the file nor its name states the rank."""
    world_size: int | None
    hosts: dict[int, str] = field(default_factory=dict)
    device: str | None = None
    has_device: bool = False
    """True if the recording holds device operations (kernels, copies), False for a CPU-only one."""
    absolute_time: bool = True
    """True if start_ns counts from the Unix epoch, False if its zero is the recording's own."""
    operations: int = 0
    layout: Layout | None = None
    step_times: StepTimes = field(default_factory=StepTimes)
    warnings: tuple[KairWarning, ...] = ()
    only_group: str | None = None
    """The process group of all communication, if the file states that the job has no other."""
    group_names: dict[str, str] = field(default_factory=dict)
    """Descriptions of process groups in the recording: `1 [0, 1, 2, 3]` → `mesh_cp`."""
    process_groups: tuple[ProcessGroup, ...] = ()
    """The rank's groups of two or more ranks, if its operations do not state which one is theirs."""
    calls: dict[int, tuple[GroupProgress, ...]] = field(default_factory=dict)
    """rank → its progress, for a recording of calls without times. Empty for one of operations."""
    said: tuple[Saying, ...] = ()
    """Findings about its ranks in the job's log, in words."""
    asked_at: str = ""
    """When NCCL's RAS answered, as digits from the year on; empty if unknown."""
    limits: dict[int, ProcessorLimits] = field(default_factory=dict)
    """rank → its limits on its host's cores, if recorded."""
    sent: dict[int, tuple[SentToHost, ...]] = field(default_factory=dict)
    """rank → the data it sent to other hosts, window by window."""
    launch_queue: dict[int, LaunchQueue] = field(default_factory=dict)
    """rank → its launch queue, if a launch waited in it."""
    identity: dict[int, RankIdentity] = field(default_factory=dict)
    """rank → its identity, if the recording states more than its host."""
    peers: dict[int, PeersCounted] = field(default_factory=dict)
    """rank → how it numbers the peers of sends and receives; unclear ones were taken for places."""
    first_send: dict[int, FirstSend] = field(default_factory=dict)
    """rank → the first send of most of its steps."""
    same_batches: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """rank → the ranks of its pipeline and tensor groups, if listed: they run the same batches."""


@dataclass(frozen=True)
class ImportOutcome:
    """The result of reading a file: its info, or why it has no info."""

    info: FragmentInfo | None
    error: str | None = None
    hint: str | None = None
    is_trace: bool = True
    """False for a file that was readable and turned out to be something else."""
    is_supported: bool = True
    """False for a recording in a recognised format that is not read; `hint` says how to convert it."""
    write_error: tuple[int, str] | None = None
    """The system's error number and text if the fragment could not be written; further ones would fail, too."""


def sent_of_all(infos: Sequence[FragmentInfo]) -> dict[int, tuple[SentToHost, ...]]:
    """Return per rank the data sent in all windows."""
    of_rank: dict[int, list[SentToHost]] = defaultdict(list)
    for info in infos:
        for rank, sent in sorted(info.sent.items()):
            of_rank[rank] += sent
    return {rank: tuple(sent) for rank, sent in of_rank.items()}


@dataclass(frozen=True)
class Job:
    """The known facts about the job as a whole."""

    name: str
    source: str
    format: SourceFormat
    world_size: int
    ranks: tuple[Rank, ...]
    hosts: dict[int, str]
    layout: Layout | None
    device: str | None
    has_device: bool
    absolute_time: bool
    steps: tuple[int, ...]
    """The steps an analysis may use: marked, complete, and recorded by most ranks."""
    step_times: StepTimes
    """Times of every recorded step, also of incomplete ones."""
    operations: int
    warnings: tuple[KairWarning, ...]
    cut_off: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """step → the ranks whose record of it is cut, for steps that are complete on the others."""
    step_shift: dict[int, int] = field(default_factory=dict)
    """rank → how much higher it numbers its steps than the job does; other ranks use the job's numbers."""
    truncated: tuple[Rank, ...] = ()
    """Ranks whose files are cut off: their communication is known in part."""
    peers_are_ranks: tuple[Rank, ...] = ()
    """Ranks whose fragments took ranks at the other ends of transfers for places in the group, as the other ranks'
    recordings show."""
    files: dict[int, int] = field(default_factory=dict)
    """rank → the number of files that hold its recording."""
    clock_of: dict[int, int] = field(default_factory=dict)
    """rank → a number, equal for ranks that one host's recorder wrote into one file: they share its clock. Other ranks
    have clocks of their own."""
    by_order: dict[int, str] = field(default_factory=dict)
    """rank → its file's name, for ranks that are numbered in the order of names because no file states its rank."""
    derived: DerivedGroups | None = None
    """None if every operation states its process group, or there is only one."""
    communicates: tuple[str, ...] = ()
    """Kernels that are communication though the table has them as compute, because their name does not show it."""
    progress: dict[int, tuple[GroupProgress, ...]] = field(default_factory=dict)
    """rank → its progress in each process group, for recordings of calls without times; else empty."""
    said: tuple[Saying, ...] = ()
    """Findings about its ranks in its logs, in words."""
    limits: dict[int, ProcessorLimits] = field(default_factory=dict)
    """rank → its limits on its host's cores, if recorded."""
    sent: dict[int, tuple[SentToHost, ...]] = field(default_factory=dict)
    """rank → the data it sent to other hosts, window by window."""
    launch_queue: dict[int, LaunchQueue] = field(default_factory=dict)
    """rank → its launch queue, if a launch waited in it."""
    identity: dict[int, RankIdentity] = field(default_factory=dict)
    """rank → its identity: host, process, device, versions, as far as known."""
    group_names: dict[str, str] = field(default_factory=dict)
    """Descriptions of process groups in the recording: `1 [0, 1, 2, 3]` → `mesh_cp`."""
    host_times: StepTimes | None = None
    """The steps' times on their hosts, if these run ahead: then `step_times` are the devices'."""
    stored_in: str | None = None
    """The folder of the recording in the store; None for traces that were not imported."""

    @property
    def is_recorded_only(self) -> bool:
        """Return whether only steps' times are known: a coordinator's, or those of collectives alone."""
        return self.format in ("steps", INSPECTOR)

    @property
    def is_of_collectives(self) -> bool:
        """Return whether only collectives were recorded, by NCCL's Inspector."""
        return self.format == INSPECTOR

    @property
    def is_log(self) -> bool:
        """Return whether the job is known only from its log."""
        return self.format == "log"

    @cached_property
    def recorded_steps(self) -> frozenset[int]:
        """Every step that some rank recorded, completely or in part."""
        return frozenset(self.step_times.step)

    @cached_property
    def times_of(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(rank, step) → begin and duration of the step, ns."""
        of = self.step_times
        return dict(
            zip(
                zip(of.rank, of.step, strict=True),
                zip(of.begin_ns, of.duration_ns, strict=True),
                strict=True,
            )
        )

    def slowest_of(self, steps: Collection[int]) -> int:
        """Return the step of these that took longest on any rank, the first of equals."""
        longest = dict.fromkeys(sorted(steps), 0)
        for step, duration in zip(self.step_times.step, self.step_times.duration_ns, strict=True):
            if step in longest:
                longest[step] = max(longest[step], duration)
        return max(longest, key=lambda step: longest[step])

    @property
    def missing_ranks(self) -> tuple[Rank, ...]:
        """The ranks of the world without a trace.

        A what-if recording has one worker per (dp, pp) position, named after the first rank that it stands for.
        """
        layout, stride = self.layout, 1
        if self.format == "whatif" and layout is not None and layout.dp and layout.pp:
            stride = max(self.world_size // (layout.dp * layout.pp), 1)
        present = set(self.ranks)
        return tuple(Rank(rank) for rank in range(0, self.world_size, stride) if rank not in present)


@dataclass(frozen=True)
class Trace:
    """The operations table (Parquet fragments, read lazily), its job, and the steps chosen for the analysis."""

    job: Job
    fragments: tuple[Path, ...]
    steps: tuple[int, ...]
    memory: "StepMemory | None" = field(default=None, compare=False, repr=False)
    """Steps kept in memory for later questions; None if each question reads its own."""
    held: object = field(default=None, compare=False, repr=False)
    """Keeps the fragments from being removed while the trace is in use."""
    workers: "Workers | None" = field(default=None, compare=False, repr=False)
    """Other processes that reduce it part by part; None if this one does."""
    only: frozenset[int] | None = None
    """The ranks whose operations are read; None for all."""
    lines: object = field(default=None, compare=False, repr=False)
    """The step lines of the job's log, if one was opened; else None."""
    known: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """Small results about its steps, such as which ranks run the same program, for later questions (`known_once`)."""
    derived: dict[Hashable, Any] | None = field(default=None, compare=False, repr=False)
    """Results of one question's stages for its later ones (`shared_by_stages`), where steps are not kept in memory."""

    def select(self, steps: Sequence[int]) -> "Trace":
        """Return the same trace narrowed to `steps`. Raises UsageError for a step that cannot be analysed."""
        unknown = sorted(set(steps) - set(self.job.steps))
        if unknown:
            have = self.job.steps
            known = f"{have[0]}-{have[-1]}" if len(have) > 1 else ", ".join(map(str, have)) or "none"
            raise UsageError(f"step {unknown[0]} is not among the complete steps of this job ({known})")
        return replace(self, steps=tuple(sorted(set(steps))))

    def of_ranks(self, ranks: Collection[int]) -> "Trace":
        """Return the same trace as if only these ranks had been recorded."""
        kept, job = frozenset(ranks), self.job
        job = replace(
            job,
            ranks=tuple(rank for rank in job.ranks if rank in kept),
            step_times=job.step_times.of_ranks(kept),
            host_times=None if job.host_times is None else job.host_times.of_ranks(kept),
        )
        return replace(self, job=job, only=kept, memory=None, workers=None, known={}, derived=None)

    def scan(self) -> "pl.LazyFrame":
        """Return the operations table of the chosen steps, without ranks whose record of a step is cut.

        Filters on step, rank and kind reach the Parquet scan.
        """
        import polars as pl  # polars costs 110 ms of start-up; `kair --help` must not pay it

        chosen = pl.col("step").is_in(list(self.steps))
        if self.steps and len(self.steps) == sum(
            self.steps[0] <= step <= self.steps[-1] for step in self.job.recorded_steps
        ):
            # Without gaps a range is equivalent, and takes half the time.
            chosen = pl.col("step").is_between(self.steps[0], self.steps[-1])
        rows = self._numbered_alike(pl.scan_parquet(list(self.fragments))).filter(chosen)
        if self.only is not None:
            rows = rows.filter(pl.col("rank").is_in(sorted(self.only)))
        for step, ranks in self.job.cut_off.items():
            rows = rows.filter((pl.col("step") != step) | ~pl.col("rank").is_in(ranks))
        return rows

    def _numbered_alike(self, rows: "pl.LazyFrame") -> "pl.LazyFrame":
        """Return the rows with the job's step numbers; rows of other steps are dropped in the Parquet scan."""
        import polars as pl

        shift = self.job.step_shift
        if not shift or not self.steps:
            return rows
        lowest, highest = min(0, *shift.values()), max(0, *shift.values())
        within = pl.col("step").is_between(self.steps[0] + lowest, self.steps[-1] + highest)
        more = pl.col("rank").replace_strict(shift, default=0, return_dtype=pl.Int32)
        return rows.filter(within).with_columns(step=pl.col("step") - more)


MAX_MESSAGE_LENGTH: Final = 200
_MAX_LISTED: Final = 8


def short_warning(code: str, message: str, ranks: Iterable[int] = ()) -> KairWarning:
    """Return a warning about `ranks` whose message is one line of at most MAX_MESSAGE_LENGTH characters."""
    line = " ".join(message.splitlines())
    short = line if len(line) <= MAX_MESSAGE_LENGTH else f"{line[: MAX_MESSAGE_LENGTH - 1]}…"
    return KairWarning(code, short, in_order(ranks))


def listed(numbers: list[int] | tuple[int, ...]) -> str:
    """Return `1, 2, 5-9`: numbers in order, runs of three or more joined, the rest of a long list counted."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    parts = [text for run in runs for text in _run_texts(*run)]
    if len(parts) > _MAX_LISTED:
        return f"{', '.join(parts[:_MAX_LISTED])} and {len(parts) - _MAX_LISTED} more"
    return ", ".join(parts)


def _run_texts(first: int, last: int) -> list[str]:
    if last - first >= 2:
        return [f"{first}-{last}"]
    return [str(number) for number in range(first, last + 1)]


def require_steps(trace: Trace) -> None:
    """Raise UsageError if no step is chosen."""
    if trace.job.progress:
        text = "these recordings show which collectives were called, and no steps"
        raise UsageError(text, "kair triage says who has not arrived at which")
    if not trace.steps:
        raise UsageError("no complete step to analyse")


def require_rank(trace: Trace, rank: int) -> None:
    """Raise UsageError if the rank was not recorded."""
    ranks = trace.job.ranks
    if rank not in ranks:
        listed = ", ".join(map(str, ranks[:8])) + (f", … {ranks[-1]}" if len(ranks) > 8 else "")
        raise UsageError(f"rank {rank} left no trace in this job (ranks: {listed})")


def host_of(job: Job, rank: int) -> str | None:
    """Return the host a rank ran on, if known."""
    return job.hosts.get(rank)


def hosts_of(job: Job, ranks: Iterable[int]) -> tuple[str, ...]:
    """Return the hosts of some ranks, each once."""
    return tuple(dict.fromkeys(host for rank in ranks if (host := host_of(job, rank)) is not None))


def host_numbers(job: Job) -> "Ints | None":
    """Return per rank of the job a number, equal on one host (below 0: unknown host); None if no host is known."""
    import numpy as np

    number = {host: code for code, host in enumerate(dict.fromkeys(job.hosts.values()))}
    if not number:
        return None
    return np.array([number[host] if (host := job.hosts.get(rank)) else -1 - rank for rank in job.ranks], np.int64)
