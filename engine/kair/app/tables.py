"""The tables of a trace, as `kair query` and Python programs read them; each column is described here, once.

Durations are floats in µs (`_us`), as in every other answer: they read the same in SQL, CSV and JSON, where Polars'
Duration would be a text or a number without its unit. Moments are whole ns (`_ns`): since the Unix epoch they do not
fit a float. Texts are Strings, since LIKE fails on categories.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kair_engine.frozen import dataclass
from kair_engine.results.query import ColumnType, QueryColumn
from kair_engine.trace.identity import RankIdentity
from kair_engine.trace.model import NOT_RECORDED, StepTimes, Trace, host_of, require_steps

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from kair_engine.results.triage import Finding

    Codes = np.ndarray[Any, np.dtype[np.integer[Any]]]

Findings = Callable[[], "Sequence[Finding]"]
"""Gives the findings of the trace's triage; it is called only for the table of findings."""
US_IN_NS: Final = 1e3


@dataclass(frozen=True)
class TableColumn:
    """Describes one column of a table: name, type, unit."""

    name: str
    about: str
    holds: ColumnType | None = None
    """None for durations, which are numbers, and for whole numbers."""

    @property
    def type(self) -> ColumnType:
        """Return the type of its values in words."""
        return self.holds or ("number" if self.unit == "µs" else "integer")

    @property
    def unit(self) -> str:
        """Return the unit at the end of its name; empty for text, and for numbers without a unit."""
        return next((unit for end, unit in _UNITS.items() if end in self.name), "")


_UNITS: Final = {"_us": "µs", "_ns": "ns", "bytes": "bytes"}


@dataclass(frozen=True)
class Table:
    """Describes one table, and how it is made from a trace."""

    name: str
    about: str
    columns: tuple[TableColumn, ...]
    make: "Callable[[Trace, Findings], pl.LazyFrame]"

    def frame(self, trace: Trace, findings: Findings) -> "pl.LazyFrame":
        """Return the table of the chosen steps. Raises UsageError if no step is chosen."""
        require_steps(trace)
        return self.make(trace, findings).select(column.name for column in self.columns)

    def empty(self) -> "pl.LazyFrame":
        """Return the table without rows."""
        import polars as pl

        return pl.LazyFrame(schema=schema_of(self.columns))


_STEP: Final = TableColumn("step", "The step's number.")
_RANK: Final = TableColumn("rank", "The rank's number.")
_BEGIN: Final = TableColumn(
    "begin_ns", "When it began on its rank's clock, since the Unix epoch or the recording's own zero."
)
_GROUP: Final = TableColumn("process_group", "Of communication: its process group, where that is recorded.", "text")
_OPERATIONS: Final = (
    _STEP,
    _RANK,
    TableColumn(
        "kind",
        "compute, collective, send, recv, memory, input, host, sync, gc; scope: a step, or a part that scripts mark.",
        "text",
    ),
    TableColumn("name", "The operator's or the kernel's name.", "text"),
    _BEGIN,
    TableColumn("duration_us", "How long it took: what it calls, and its waiting for others, included."),
    TableColumn("lane", "What ran it: `thread 7` of the host, `stream 20` of the device.", "text"),
    TableColumn("on_device", "Whether a stream of a device ran it.", "boolean"),
    TableColumn("phase", "forward, backward, optimizer or input; null elsewhere.", "text"),
    TableColumn("occurrence", "Which of its name it is in its step on its rank, from 0 on."),
    _GROUP,
    TableColumn("sequence", "Of communication: its number in the process group."),
    TableColumn("bytes", "Of communication and copies: how much is moved."),
    TableColumn("input_shapes", "Dimensions of its inputs: `2048,1408;8` of two tensors.", "text"),
    TableColumn("peer", "Of a send or receive: its other end, as recorded."),
    TableColumn("microbatch", "The micro-batch, where that is recorded."),
    TableColumn("correlation", "Equal for a kernel and the call that launched it."),
)
_STEPS: Final = (
    _STEP,
    _RANK,
    _BEGIN,
    TableColumn("duration_us", "How long the step took; on its device where hosts run ahead of it."),
    TableColumn("host_us", "How long its host took for it; else the same."),
    TableColumn("operations", "Operations recorded in it."),
    TableColumn("cpu_us", "CPU time of the training thread. This and what follows only capture records."),
    TableColumn("other_cpu_us", "CPU time of the process's other threads, but for those that communicate."),
    TableColumn("descheduled_us", "How long the training thread was ready to run and had no core."),
    TableColumn("comm_descheduled_us", "The same of the communication thread with most of it."),
    TableColumn("throttled", "How often a CPU quota stopped the process."),
    TableColumn("stops", "How often a signal stopped the process."),
    TableColumn("input_bytes", "The tensors that the models were given."),
    TableColumn("samples", "Samples trained, as the job reports them."),
    TableColumn("device_begin_ns", "When the device began its first operation of the step."),
    TableColumn("device_end_ns", "When the device ended the last one."),
)
_RANK_SUMS: Final = (
    TableColumn("steps", "Chosen steps."),
    TableColumn("operations", "Operations in these."),
    TableColumn("time_us", "How long these took, summed."),
    TableColumn("median_step_us", "The median of these."),
)
_WHO: Final = (
    _RANK,
    TableColumn("host", "Where it runs; null where that is not recorded, as for what follows.", "text"),
    TableColumn("device", "The model of its device.", "text"),
    TableColumn("device_uuid", "The device's UUID: `GPU-5f3e…`.", "text"),
    TableColumn("device_address", "The device's PCI address: `0000:1b:00.0`.", "text"),
    TableColumn("device_index", "The device's number on its host, as nvidia-smi counts."),
    TableColumn("local_rank", "The rank's number on its host, as the launcher counts."),
    TableColumn("pid", "Its process."),
    TableColumn("pipeline_stage", "Its pipeline stage."),
    TableColumn("dp_rank", "Its data-parallel rank."),
)
_COLLECTIVES: Final = (
    _STEP,
    TableColumn("collective", "Equal for the members of one collective within a step, from 0 on."),
    _RANK,
    TableColumn("kind", "collective, send or recv.", "text"),
    TableColumn("name", "The operator's or the kernel's name.", "text"),
    _GROUP,
    TableColumn("members", "Ranks that took part; a send and its receive are two."),
    _BEGIN,
    TableColumn("duration_us", "How long it took the rank: transfer and waiting."),
    TableColumn("transfer_us", "What it took once the last member had come."),
    TableColumn("waiting_us", "How long the rank waited for the last member."),
    TableColumn("last_rank", "The member that came last."),
    TableColumn("bytes", "What a member gives or gets, whichever is more."),
)
_ACCOUNT: Final = (
    _STEP,
    _RANK,
    TableColumn(
        "kind",
        "compute, copies, transfer, waiting, unmatched (communication whose members are not known), launching, queued, "
        "begins, input, garbage_collection, compilation, allocator, profiler, host or synchronising.",
        "text",
    ),
    TableColumn("part", "Of the host's time: before, between, launches or after; else within.", "text"),
    TableColumn("operator", "What ran then; null where nothing is recorded.", "text"),
    TableColumn("waited_for", "Of waiting: the rank that came last."),
    TableColumn("duration_us", "The rows of a step and rank add up to the step's time."),
)
_FINDINGS: Final = (
    TableColumn("finding", "Its place in triage's list, from 1 on; a row for each rank to blame."),
    TableColumn("rank", "The rank to blame; null where nobody is."),
    TableColumn("cause", "Why the time is lost.", "text"),
    TableColumn("pattern", "When it is seen.", "text"),
    TableColumn("operator", "Where it is seen.", "text"),
    TableColumn("edge", "`from → to` of a delay between two operations or ranks.", "text"),
    TableColumn("steps", "Steps in which it is seen."),
    TableColumn("since_step", "The step in which it began, where that was recorded."),
    TableColumn("until_step", "The last step in which it showed, where it is over."),
    TableColumn("time_lost_us_per_step", "What a step would be shorter by without this finding."),
    TableColumn("least_us_per_step", "Where several ranks are accused: its part at least."),
    TableColumn("most_us_per_step", "Its part at most."),
    TableColumn("slowdown", "Step time over the step time without it.", "number"),
    TableColumn("p_value", "Corrected for everything that triage tried.", "number"),
)


def table(name: str, trace: Trace, findings: Findings) -> "pl.LazyFrame":
    """Return the table of that name. Raises UsageError if no step is chosen."""
    return TABLES[name].frame(trace, findings)


def _operations(trace: Trace, _: Findings) -> "pl.LazyFrame":
    import polars as pl

    return trace.scan().with_columns(
        pl.col("lane", "name", "kind", "phase").cast(pl.String),
        pl.col("step", "rank", "occurrence", "peer", "microbatch").cast(pl.Int64),
        begin_ns=pl.col("start_ns"),
        duration_us=pl.col("duration_ns") / US_IN_NS,
        on_device=pl.col("lane").cast(pl.String).str.starts_with("stream "),
        process_group=pl.col("group").cast(pl.String),
        sequence=pl.col("group_seq"),
        input_shapes=pl.col("inputs").cast(pl.String),
    )


def _steps(trace: Trace, _: Findings) -> "pl.LazyFrame":
    import polars as pl

    job = trace.job
    host = job.host_times
    on_host = {} if host is None else {(rank, step): ns for rank, step, _, ns, _ in host.rows(plain=True)}
    chosen = set(trace.steps)
    rows = [
        (*row, on_host.get((row[0], row[1]), row[3]))
        for row in job.step_times.rows()
        if row[1] in chosen and row[0] not in job.cut_off.get(row[1], ())
    ]
    names = [*StepTimes.__dataclass_fields__, "host_ns"]
    read = pl.LazyFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")
    known = read.with_columns(
        pl.when(pl.col(name) != NOT_RECORDED).then(pl.col(name)).alias(name) for name in names[5:]
    )
    return known.with_columns(
        duration_us=pl.col("duration_ns") / US_IN_NS,
        host_us=pl.col("host_ns") / US_IN_NS,
        cpu_us=pl.col("cpu_ns") / US_IN_NS,
        other_cpu_us=pl.col("helpers_cpu_ns") / US_IN_NS,
        descheduled_us=pl.col("delay_ns") / US_IN_NS,
        comm_descheduled_us=pl.col("communication_delay_ns") / US_IN_NS,
        stops=pl.col("halted"),
        input_bytes=pl.col("given_bytes"),
    ).sort("step", "rank")


def _ranks(trace: Trace, findings: Findings) -> "pl.LazyFrame":
    import polars as pl

    job = trace.job
    layout, identity = job.layout, job.identity
    known = pl.LazyFrame(
        [
            {
                "rank": rank,
                "host": _utf8(host_of(job, rank)),
                "device": _utf8(who.device.model or job.device),
                "device_uuid": _utf8(who.device.uuid),
                "device_address": _utf8(who.device.pci),
                "device_index": who.device.index,
                "local_rank": who.local_rank,
                "pid": who.pid,
                "pipeline_stage": layout and layout.pipeline_stage.get(rank),
                "dp_rank": layout and layout.dp_rank.get(rank),
            }
            for rank in job.ranks
            for who in (identity.get(rank) or RankIdentity(rank),)
        ],
        schema=schema_of(_WHO),
    )
    sums = (
        _steps(trace, findings)
        .group_by("rank")
        .agg(
            steps=pl.len().cast(pl.Int64),
            operations=pl.col("operations").sum(),
            time_us=pl.col("duration_us").sum(),
            median_step_us=pl.col("duration_us").median(),
        )
    )
    return known.join(sums, on="rank", how="left").sort("rank")


def _collectives(trace: Trace, _: Findings) -> "pl.LazyFrame":
    import numpy as np
    import polars as pl

    from kair_engine.arrays import NONE
    from kair_engine.timeline.clocks import synchronise
    from kair_engine.trace.loading import each_step
    from kair_engine.trace.operations import KIND_NAMES

    parts = [pl.DataFrame(schema=schema_of(_COLLECTIVES))]
    for ops in each_step(trace):
        sync = synchronise(ops)
        members = sync.collectives
        row, number = members.row, members.instance
        last = np.full(len(members), NONE)
        last[number[members.last]] = ops.ranks[ops.rank[row[members.last]]]
        transfer = np.minimum(sync.own_ns[number], members.duration_ns)
        sent = np.full(len(row), NONE) if ops.message_bytes is None else ops.message_bytes[row]
        part = pl.DataFrame(
            {
                "step": np.full(len(row), ops.step),
                "collective": number,
                "rank": ops.ranks[ops.rank[row]],
                "kind": _texts(ops.kind[row], dict(enumerate(KIND_NAMES))),
                "name": _texts(ops.name[row], ops.name_text),
                "process_group": _texts(ops.group[row], ops.group_text),
                "members": members.sizes[number],
                "begin_ns": ops.start_ns[row] + ops.origin_ns,
                "duration_us": members.duration_ns / US_IN_NS,
                "transfer_us": transfer / US_IN_NS,
                "waiting_us": (members.duration_ns - transfer) / US_IN_NS,
                "last_rank": last[number],
                "bytes": sent,
            }
        )
        known = (pl.when(pl.col(name) != NONE).then(pl.col(name)).alias(name) for name in ("last_rank", "bytes"))
        parts.append(part.with_columns(known).cast(parts[0].schema))
    return pl.concat(parts).lazy()


def _account(trace: Trace, _: Findings) -> "pl.LazyFrame":
    import polars as pl

    from kair_engine.timeline.account import account

    return (
        account(trace)
        .lazy()
        .with_columns(
            pl.col("kind", "when").cast(pl.String), duration_us=pl.col("ns") / US_IN_NS, waited_for=pl.col("owner")
        )
        .rename({"when": "part"})
    )


def _findings(_: Trace, findings: Findings) -> "pl.LazyFrame":
    import polars as pl

    rows = [
        {
            "finding": number,
            "rank": rank,
            "cause": finding.cause,
            "pattern": finding.pattern,
            "operator": _utf8(finding.operator),
            "edge": _utf8(finding.edge),
            "steps": len(finding.steps),
            "since_step": finding.since,
            "until_step": finding.until,
            "time_lost_us_per_step": finding.time_lost_us_per_step,
            "least_us_per_step": finding.least_us_per_step,
            "most_us_per_step": finding.most_us_per_step,
            "slowdown": finding.slowdown,
            "p_value": finding.p_value,
        }
        for number, finding in enumerate(findings(), start=1)
        for rank in finding.ranks or (None,)
    ]
    return pl.LazyFrame(rows, schema=schema_of(_FINDINGS))


def _texts(codes: "Codes", names: Mapping[int, str]) -> "pl.Series":
    """Return the texts of codes, null for those that stand for none."""
    import numpy as np
    import polars as pl

    each, place = np.unique(codes, return_inverse=True)
    return pl.Series([_utf8(names.get(code)) for code in each.tolist()], dtype=pl.String).gather(place.reshape(-1))


def _utf8(text: str | None) -> str | None:
    """Return a text that Polars can hold: half characters of damaged JSON are escaped."""
    return None if text is None else text.encode(errors="backslashreplace").decode()


def schema_of(columns: "Iterable[TableColumn | QueryColumn]") -> "dict[str, pl.DataType]":
    """Return Polars' names and types of the columns."""
    import polars as pl

    types = {"integer": pl.Int64(), "number": pl.Float64(), "text": pl.String(), "boolean": pl.Boolean()}
    return {column.name: types[column.type] for column in columns}


TABLES: Final[Mapping[str, Table]] = {
    of.name: of
    for of in (
        Table(
            "operations",
            "Every operation as recorded; nested ones count in the outer ones too.",
            _OPERATIONS,
            _operations,
        ),
        Table("steps", "Every step on every rank.", _STEPS, _steps),
        Table("ranks", "Every rank: where it runs, and how long its steps took.", (*_WHO, *_RANK_SUMS), _ranks),
        Table(
            "collectives",
            "Every matched collective, and send with its receive, on every rank.",
            _COLLECTIVES,
            _collectives,
        ),
        Table("account", "Where each step's time went on each rank: each moment counts once.", _ACCOUNT, _account),
        Table("findings", "What triage found.", _FINDINGS, _findings),
    )
}
