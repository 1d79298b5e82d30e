"""The causes of lost time: one row for each, with all that is said and done about it.

A new cause is a row here, and the code that detects it (`triage/findings.py` for causes of ranks' lateness,
`localize/localization.py` for those of the whole job): its words, its suggestion, the fix by which it is priced and the
remedy that applies follow from the row.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal, get_args

from kair_engine.frozen import dataclass

Cause = str
"""The name of a row of CAUSES."""
FixKind = Literal["compute", "communication", "input", "host", "gc", "stops"]
"""What a part of a step's time can be, and a fix take away; delays that are nobody's are none of these."""
RemedyName = Literal[
    "even_stages",
    "sorted_microbatches",
    "planned_gc",
    "zb_h1",
    "zb_2p",
    "zb_cpu",
    "reschedule",
    "larger_microbatches",
    "redealt_microbatches",
    "partial_collectives",
]
"""What helps a job whose ranks are not at fault: three are offered by themselves, the others when asked for."""
ASKED_REMEDIES: Final[tuple[RemedyName, ...]] = get_args(RemedyName)[3:]
"""What `kair whatif --remedy` prices."""

PROFILER_OVERHEADS = ("Activity Buffer Request", "Buffer Flush", "Instrumentation", "Resource")
"""CUPTI's own work, as Kineto calls it. Modules and functions, which it also records, a job has to load without it."""
COMPILES: Final = re.compile(r".*(\(dynamo_timed\)|compil(e(?!d|r|andexecute)|ing|ation))", re.IGNORECASE)
"""Names of compilers' calls: Dynamo and Inductor's timers, Triton, XLA (PJRT, TSL), NVRTC, Habana's graphs. What is
compiled runs under names with "compiled", and Ascend's aclopCompileAndExecute is how an operator is called."""

_TOGETHER = "{Who} are slow together: check what they share (host, power, cooling, switch) and drain it."
_BEFORE_DRAINING = (
    "Before draining: kair probe --rank {rank} --out rank{rank}.json on its node, the same on a healthy peer, then "
    "kair probe --compare rank{rank}.json PEER.json."
)
_SHARED = (
    "No rank is to blame: delays fall on changing ranks. Look for what the hosts share: other jobs, storage, power and "
    "clock limits, daemons."
)

_ALLOCATIONS = (
    "In PyTorch set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, look at num_alloc_retries in "
    "torch.cuda.memory_stats(), and leave memory free: smaller batches, fewer shapes, no empty_cache() in the loop."
)
_RECOMPILATIONS = (
    "TORCH_LOGS=recompiles (jax_log_compiles) says why: mark dimensions that change as dynamic "
    "(torch._dynamo.mark_dynamic) or pad them to a few sizes, compile before the first step on all ranks alike, and "
    "keep the caches of compiled code."
)


@dataclass(frozen=True)
class CauseRow:
    """One cause.

    Suggestions may hold {who} (`rank 3`; {Who} begins a sentence), {rank} (`3`: the first of them, of several) and
    {operator} (` (name)` or ''), {device} (` (node-7 GPU 3, GPU-5f3e…)` or ''), {fuse} and {warm_up} (what the job's
    framework has for that).
    """

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
    """The same of all ranks at once, where it can be separated from the ordinary noise in every rank's time."""
    job_wide_operators: tuple[str, ...] = ()
    """Patterns of the operators that a fix of all ranks at once takes away."""
    remedy: RemedyName | None = None
    """What-if's remedy that evens it out."""
    even_kind: FixKind | None = None
    """The kind of time that a replay evens out over ranks and steps, where the model has no such remedy."""
    undone: str = "without that"
    """How a replay with the fix or the remedy is called in a sentence."""
    undone_of_ranks: str | None = None
    """The same of single ranks, where that is something else."""
    look_at: str = "look at what the hosts share"
    """Where it is job-wide, what to turn to, in the answer's one sentence."""
    stops_job: bool = False
    """Whether the job does not go on: there is no step, and no price of one."""
    of_recording: bool = False
    """Whether only recorded steps have it: a job that is not recorded gains nothing without it."""
    not_by_draining: str | None = None
    """Why it goes on when the hosts of its ranks are drained, as a part of a sentence; None where draining may help."""


CAUSES: Mapping[Cause, CauseRow] = {
    "compute": CauseRow(
        words="compute",
        time_class="compute",
        spends_on="on {their} own compute",
        suggestion="Compare clocks, temperature, ECC and other load of {who}'s device{device} with a peer's{operator}; "
        f"if it stays slow, drain it and restart elsewhere. {_BEFORE_DRAINING}",
        group_suggestion=f"{_TOGETHER} {_BEFORE_DRAINING}",
        job_wide_suggestion=_SHARED,
        fix_kind="compute",
    ),
    "communication": CauseRow(
        words="communication",
        time_class="communication",
        spends_on="on {their} sends and receives",
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
        job_wide_suggestion="No rank is to blame: look at what data loading shares (storage, network, cores), and load "
        "ahead of the step with more workers.",
        fix_kind="input",
        look_at="look at data loading",
        not_by_draining="another host would load the same data as slowly, unless its storage is its own: look there "
        "first",
    ),
    "host": CauseRow(
        words="host",
        time_class="host",
        spends_on="idling",
        suggestion="Look at {who}'s host thread{operator}: other processes on its cores, CPU frequency, NUMA "
        "placement, logging or checkpointing, Python work between launches.",
        job_wide_suggestion=_SHARED,
        operator_from_blame=True,
        fix_kind="host",
    ),
    "allocator": CauseRow(
        words="memory allocator",
        time_class="host",
        spends_on="allocating and freeing device memory",
        suggestion="{Who} allocates and frees device memory within its steps{operator}; the device runs out of work "
        f"each time. {_ALLOCATIONS}",
        group_suggestion="{Who} allocate and free device memory within their steps{operator}; the devices run "
        f"out of work each time. {_ALLOCATIONS}",
        job_wide_suggestion="No rank is to blame: all allocate and free device memory within their steps; the "
        f"devices run out of work each time. {_ALLOCATIONS}",
        operator_from_blame=True,
        seen_by_blame_as="host",
        fix_kind="host",
        undone="without these allocations",
        undone_of_ranks="with no wait for the allocator",
        look_at="look at memory that is allocated within steps",
        not_by_draining="the job needs more memory than a device of that size has",
    ),
    "compilation": CauseRow(
        words="compilation",
        time_class="host",
        spends_on="compiling",
        suggestion=f"{{Who}} compiles within its steps{{operator}}. {_RECOMPILATIONS}",
        group_suggestion=f"{{Who}} compile within their steps{{operator}}. {_RECOMPILATIONS}",
        job_wide_suggestion=f"No rank is to blame: all compile within their steps. {_RECOMPILATIONS}",
        operator_from_blame=True,
        seen_by_blame_as="host",
        fix_kind="host",
        undone="without compiling",
        look_at="find out what is recompiled",
        not_by_draining="the job itself compiles, on whatever host it runs",
    ),
    "unmarked_input": CauseRow(
        words="input",
        time_class="host",
        spends_on="idling",
        suggestion="Look at how {who} fetches its batch, before the model's first operator: its shard's size and "
        "storage, decoding on the host; or at what else the loop does there on that rank alone, such as logging. "
        'Nothing marks the fetch; a DataLoader would, or a range around it named "data".',
        operator_from_blame=True,
        seen_by_blame_as="host",
        fix_kind="host",
        undone="with input that is there in time",
        look_at="look at data loading",
        not_by_draining="another host would fetch the same batches as slowly, unless its storage is its own: look "
        "there first",
    ),
    "periodic_pause": CauseRow(
        words="periodic pauses",
        time_class="host",
        spends_on="idling",
        suggestion="{Who} pauses every few steps, perhaps for checkpointing, logging or evaluation: is that meant to "
        "run on that rank alone? Make it asynchronous, or do it less often.",
        group_suggestion="{Who} pause every few steps, perhaps for checkpointing, logging or evaluation: is that meant "
        "to run on these ranks alone? Make it asynchronous, or do it less often.",
        operator_from_blame=True,
        seen_by_blame_as="host",
        fix_kind="host",
        undone="without the pauses",
        not_by_draining="the job itself pauses, on whatever host it runs",
    ),
    "garbage_collection": CauseRow(
        words="garbage collection",
        time_class="host",
        spends_on="on garbage collection",
        suggestion="Collect garbage at the same step on all ranks: gc.disable() and gc.collect() every few hundred "
        "steps.",
        operator_from_blame=True,
        fix_kind="host",
        job_wide_fix_kind="gc",
        look_at="collect at the same step on all ranks",
        not_by_draining="Python collects garbage on whatever host the job runs",
    ),
    "contention": CauseRow(
        words="CPU contention",
        time_class="compute",
        spends_on="waiting for a core to run on",
        suggestion="{Who}'s threads stop in the middle of operations: look at what else runs on their cores "
        "(top, /proc/PID/schedstat), at pinning and NUMA placement, and at the cgroup's cpu.max and nr_throttled.",
        group_suggestion="The threads of {who} stop in the middle of operations: look at what else runs on "
        "their cores, at pinning, and at the cgroup's cpu.max and nr_throttled.",
        job_wide_suggestion="Threads of all ranks stop in the middle of operations: compare nproc with ranks × threads "
        "per rank (OMP_NUM_THREADS, data workers), look at the cgroup's cpu.max and nr_throttled, at pinning, "
        "and at what else runs on the hosts.",
        fix_kind="stops",
        job_wide_fix_kind="stops",
        undone="without the stops",
        undone_of_ranks="with threads as fast as the peers'",
        look_at="look at the hosts' cores",
    ),
    "uneven_work": CauseRow(
        words="uneven work",
        time_class="compute",
        spends_on="on {their} larger share of the work",
        suggestion="{Who} does more work than its peers{operator}; its device is not slow. Compare how batches, "
        "experts or layers are distributed.",
        group_suggestion="{Who} do more work than their peers; their devices are not slow. Compare how batches, "
        "experts or layers are distributed.",
        job_wide_suggestion="No rank is to blame: distribute batches, experts or layers more evenly.",
        fix_kind="compute",
        undone="with no more work than the peers'",
        look_at="look at how work is distributed",
        not_by_draining="the same work would be dealt out on other hosts",
    ),
    "host_link": CauseRow(
        words="link between host and device",
        time_class="compute",
        spends_on="on copies between host and device",
        suggestion="Compare the link of {who}'s device{device} with a peer's, not the device itself: PCIe width and "
        "generation (nvidia-smi --query-gpu=pcie.link.width.current,pcie.link.gen.current --format=csv while the job "
        "runs; LnkSta in lspci -vv), its slot, riser and switch, PCIe replays, and the NUMA node of the memory that is "
        "copied.",
        group_suggestion="Compare the links of {who}'s devices with peers', not the devices themselves: PCIe width and "
        "generation (nvidia-smi --query-gpu=pcie.link.width.current,pcie.link.gen.current --format=csv while the job "
        "runs; LnkSta in lspci -vv), the switch that they share, and the NUMA node of the memory that is copied.",
        fix_kind="compute",
        undone="with copies as fast as the peers'",
    ),
    "device_model": CauseRow(
        words="slower model of device",
        time_class="compute",
        spends_on="on {their} own compute",
        suggestion="Nothing is broken: {who} has a slower model of device than its peers. Give it less work (smaller "
        "batches or fewer layers, in the ratio above), or do not mix models in one synchronous job.",
        group_suggestion="Nothing is broken: {who} have a slower model of device than their peers. Give them less work "
        "(smaller batches or fewer layers, in the ratio above), or do not mix models in one synchronous job.",
        fix_kind="compute",
        undone="with devices like the peers'",
        not_by_draining="another device of this model would be as slow",
    ),
    "position_imbalance": CauseRow(
        words="uneven work by position",
        time_class=None,
        spends_on="on {their} own compute",
        suggestion="No rank is to blame, and no device is slow: how much a rank has to do depends on its place in the "
        "process group{operator}. For causal attention cut sequences in zigzag (head-tail) order, so that each place "
        "has an early and a late part of them; for experts limit the tokens of each (capacity factor), raise the "
        "load-balancing loss, or redistribute experts.",
        undone="with as much work at every place",
        look_at="look at how the group deals out sequences, or experts",
        not_by_draining="the same place would have the same work on another host",
    ),
    "stage_imbalance": CauseRow(
        words="stage imbalance",
        time_class=None,
        spends_on="on {their} own compute",
        suggestion="Move layers from the slow pipeline stage to the others.",
        remedy="even_stages",
        undone="with even stages",
        look_at="look at the layers of each stage",
        not_by_draining="the same layers would be in that stage on other hosts",
    ),
    "sequence_imbalance": CauseRow(
        words="sequence imbalance",
        time_class=None,
        spends_on="on {their} own compute",
        suggestion="Balance sequence lengths across ranks when batches are built.",
        remedy="sorted_microbatches",
        even_kind="compute",
        undone="with microbatches of even length",
        look_at="look at how batches are built",
        not_by_draining="the same batches would be dealt out on other hosts",
    ),
    "input_bound": CauseRow(
        words="input",
        time_class=None,
        spends_on="fetching input",
        suggestion="No rank is to blame: all wait for their input. Load ahead of the step with more workers, decode "
        "less, and look at the storage.",
        job_wide_fix_kind="input",
        undone="with input that is there in time",
        look_at="look at data loading",
        not_by_draining="all ranks wait for their input",
    ),
    "launch_bound": CauseRow(
        words="kernel launches",
        time_class="host",
        spends_on="launching kernels",
        suggestion="{Who}'s host takes longer for the same launches: look at its CPU's frequency and governor, at "
        "CUDA_LAUNCH_BLOCKING, and at profilers or debuggers that run on that rank alone.",
        group_suggestion="The hosts of {who} take longer for the same launches: look at CPU frequency and governor, at "
        "CUDA_LAUNCH_BLOCKING, and at profilers or debuggers that run on these ranks alone.",
        job_wide_suggestion="No rank is to blame: devices wait for the host to launch small kernels. Fuse them "
        "({fuse}), capture them (CUDA graphs), or use larger batches.",
        operator_from_blame=True,
        seen_by_blame_as="host",
        fix_kind="host",
        undone="with no wait for launches",
        look_at="look at the host's work between kernels",
    ),
    "device_contention": CauseRow(
        words="device contention",
        time_class=None,
        spends_on="waiting for {their} device",
        suggestion="No rank is to blame: launched kernels wait for a device that works for others. "
        "Look for other processes on it (nvidia-smi), other ranks among them (CUDA_VISIBLE_DEVICES, local ranks).",
        undone="with devices that no other process uses",
        look_at="look for other processes on the devices",
        not_by_draining="no single host causes it",
    ),
    "exposed_communication": CauseRow(
        words="exposed communication",
        time_class=None,
        spends_on="on communication that nothing hides",
        suggestion="No rank is to blame: nothing is computed while collectives run. Overlap them with compute "
        "(buckets, prefetching, other streams), send less, or look at the network's bandwidth.",
        job_wide_fix_kind="communication",
        undone="with communication hidden behind compute",
        look_at="look at its overlap with compute, and at the network",
        not_by_draining="all ranks communicate while nothing is computed",
    ),
    "copies": CauseRow(
        words="copies between host and device",
        time_class=None,
        spends_on="on copies between host and device",
        suggestion="No rank is to blame: pin the host's memory, copy asynchronously and ahead of the step, and avoid "
        ".item() and .cpu() in the loop.",
        job_wide_operators=("*emcpy*HtoD*", "*emcpy*DtoH*"),
        undone="without these copies",
        look_at="look at what the loop copies",
        not_by_draining="the job itself makes these copies, on whatever host it runs",
    ),
    "profiler": CauseRow(
        words="profiler overhead",
        time_class="host",
        spends_on="waiting for {their} profiler",
        suggestion="The profiler holds {who} up, not its hardware: there is nothing to drain. Let the "
        "profiler warm up ({warm_up}), record fewer kinds of activity, and record again.",
        group_suggestion="The profiler holds {who} up, not their hardware: there is nothing to drain. "
        "Let the profiler warm up ({warm_up}), record fewer kinds of activity, and record "
        "again.",
        job_wide_suggestion="No rank is to blame, and without the profiler the job does not take so long: launches "
        "wait while it asks for buffers. Let it warm up ({warm_up}), record fewer kinds of "
        "activity and fewer steps, and read other prices as shares of the shorter step.",
        fix_kind="host",
        job_wide_operators=PROFILER_OVERHEADS,
        undone="without the profiler's own work",
        look_at="look at how it was profiled",
        of_recording=True,
        not_by_draining="the profiler holds ranks up, not their hardware",
    ),
    "hang": CauseRow(
        words="hang",
        time_class=None,
        spends_on="outside the collective in which {their} peers wait",
        suggestion="Look at what {who} does instead of arriving{operator}: the last lines of its log, its stacks "
        "(py-spy dump --pid PID), whether its process is still there, its device's errors (dmesg, XID), and branches "
        "of the code that not every rank takes.",
        group_suggestion="Look at what {who} do instead of arriving{operator}: the last lines of their logs, their "
        "stacks (py-spy dump --pid PID), what they share (host, switch, storage), and branches of the code that not "
        "every rank takes.",
        job_wide_suggestion="All ranks are in the collective{operator} and none leaves it: look at the network between "
        "them (NCCL_DEBUG=INFO, link errors, a switch), and whether the dumps are of a job that still ran.",
        stops_job=True,
        not_by_draining="why these ranks do not arrive is not known to be their hosts' fault: look at their stacks "
        "and logs first",
    ),
    "unknown": CauseRow(
        words="unknown",
        time_class=None,
        spends_on="on {their} self time",
        suggestion="Record {who} again, with operators and more steps.",
        not_by_draining="the cause is not known",
    ),
}
