"""The causes of lost time: one row for each, with all that is said and done about it.

A new cause is a row here, and the code that detects it (`triage/findings.py` for causes of ranks' lateness,
`localize/job_patterns.py` for those of the whole job): its words, its suggestion, the fix by which it is priced and the
remedy that applies follow from the row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Cause = str
"""The name of a row of CAUSES."""
FixKind = Literal["compute", "communication", "input", "host", "gc", "stops"]
"""What a part of a step's time can be, and a fix take away; delays that are nobody's are none of these."""
RemedyName = Literal["even_stages", "sorted_microbatches"]
"""What evens out the work of a job whose ranks are not at fault."""

_TOGETHER = "{Who} are slow together: check what they share (host, power, cooling, switch) and drain it."
_SHARED = (
    "No rank is to blame: delays fall on changing ranks. Look for what the hosts share: other jobs, storage, power and "
    "clock limits, daemons."
)


@dataclass(frozen=True)
class CauseRow:
    """One cause. Suggestions may hold {who} (`rank 3`; {Who} begins a sentence) and {operator} (` (name)` or '')."""

    words: str
    """For people."""
    time_class: str | None
    """The class of ranks' self time (`localize.excess.CLASSES`) in which it shows; None for patterns of the job."""
    spends_on: str
    """What a rank that has it spends more time on: `{their} own compute`."""
    suggestion: str
    """Where one rank has it, or several that share nothing."""
    group_suggestion: str = _TOGETHER
    """Where ranks that belong together have it."""
    job_wide_suggestion: str | None = None
    """Where it falls on changing ranks; None where that makes no difference."""
    operator_from_blame: bool = False
    """The operator is what blame found behind the lateness; otherwise the one that makes up most of the excess."""
    seen_by_blame_as: str | None = None
    """The row that it is to blame, which looks at single delays; None for the same."""
    fix_kind: FixKind | None = None
    """The kind of time that a fix of it takes away (`kind=` of a fix); None where none does."""
    job_wide_fix_kind: FixKind | None = None
    """The same of all ranks at once, where it can be told from the ordinary noise in every rank's time."""
    remedy: RemedyName | None = None
    """What-if's remedy that evens it out."""
    undone: str = "without that"
    """How a replay with the fix or the remedy is called in a sentence."""


CAUSES: Mapping[Cause, CauseRow] = {
    "compute": CauseRow(
        words="compute",
        time_class="compute",
        spends_on="{their} own compute",
        suggestion="Compare clocks, temperature, ECC and other load of {who}'s device with a peer's{operator}; if it "
        "stays slow, drain it and restart elsewhere.",
        job_wide_suggestion=_SHARED,
        fix_kind="compute",
    ),
    "communication": CauseRow(
        words="communication",
        time_class="communication",
        spends_on="{their} sends and receives",
        suggestion="Check the link of {who}: error counters, negotiated width and speed, its switch port.",
        group_suggestion="Check the link of {who}: error counters, negotiated width and speed, its switch port.",
        operator_from_blame=True,
        fix_kind="communication",
    ),
    "input": CauseRow(
        words="input",
        time_class="input",
        spends_on="fetching {their} input",
        suggestion="Look at {who}'s data loading: its shard's size and storage, workers, decoding on the host.",
        job_wide_suggestion=_SHARED,
        fix_kind="input",
    ),
    "host": CauseRow(
        words="host",
        time_class="host",
        spends_on="keeping {their} device (or thread) idle",
        suggestion="Look at {who}'s host thread{operator}: other processes on its cores, CPU frequency, NUMA "
        "placement, logging or checkpointing, Python work between launches.",
        job_wide_suggestion=_SHARED,
        operator_from_blame=True,
        fix_kind="host",
    ),
    "periodic_pause": CauseRow(
        words="periodic pauses",
        time_class="host",
        spends_on="keeping {their} device (or thread) idle",
        suggestion="{Who} pauses every few steps, as for checkpointing, logging or evaluation: is that meant to run on "
        "that rank alone? Make it asynchronous, or do it less often.",
        group_suggestion="{Who} pause every few steps, as for checkpointing, logging or evaluation: is that meant to "
        "run on these ranks alone? Make it asynchronous, or do it less often.",
        operator_from_blame=True,
        seen_by_blame_as="host",
        fix_kind="host",
        undone="without the pauses",
    ),
    "garbage_collection": CauseRow(
        words="garbage collection",
        time_class="host",
        spends_on="garbage collection",
        suggestion="Collect garbage at the same step on all ranks: gc.disable() and gc.collect() every few hundred "
        "steps.",
        operator_from_blame=True,
        fix_kind="host",
        job_wide_fix_kind="gc",
    ),
    "uneven_work": CauseRow(
        words="uneven work",
        time_class="compute",
        spends_on="{their} own compute",
        suggestion="{Who} does more than its peers{operator}, its device is not to blame: look for longer batches or "
        "sequences, experts that draw more tokens, retries, and debugging or logging code that runs there alone.",
        group_suggestion="{Who} do more than their peers{operator}: look for longer batches or sequences, experts that "
        "draw more tokens, and code that runs there alone.",
        fix_kind="compute",
        undone="with its peers' work",
    ),
    "contention": CauseRow(
        words="CPU contention",
        time_class="compute",
        spends_on="waiting for a core to run on",
        suggestion="{Who}'s threads stand still in the middle of operations: look at what else runs on their cores "
        "(top, /proc/PID/schedstat), at pinning and NUMA placement, and at the cgroup's cpu.max and nr_throttled.",
        group_suggestion="The threads of {who} stand still in the middle of operations: look at what else runs on "
        "their cores, at pinning, and at the cgroup's cpu.max and nr_throttled.",
        job_wide_suggestion="Threads of all ranks stand still in the middle of operations: compare nproc with ranks × "
        "threads of each (OMP_NUM_THREADS, data workers), look at the cgroup's cpu.max and nr_throttled, at pinning, "
        "and at what else runs on the hosts.",
        fix_kind="stops",
        job_wide_fix_kind="stops",
        undone="without the stops",
    ),
    "stage_imbalance": CauseRow(
        words="stage imbalance",
        time_class=None,
        spends_on="{their} own compute",
        suggestion="Move layers from the slow pipeline stage to the others.",
        remedy="even_stages",
        undone="with even stages",
    ),
    "sequence_imbalance": CauseRow(
        words="sequence imbalance",
        time_class=None,
        spends_on="{their} own compute",
        suggestion="Balance sequence lengths across ranks when batches are built.",
        remedy="sorted_microbatches",
        undone="with microbatches dealt to the ranks by their length",
    ),
    "unknown": CauseRow(
        words="unknown",
        time_class=None,
        spends_on="{their} self time",
        suggestion="Record {who} again with more steps.",
    ),
}
