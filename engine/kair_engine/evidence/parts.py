"""Lists the parts that can slow a rank: what shows each of them, how its cost is sized, and how to fix it.

All parts are decided by the same rules (deciding.py); a new part is a new row here.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

from kair_engine.causes import Cause
from kair_engine.evidence.series import Combined
from kair_engine.frozen import dataclass
from kair_engine.trace.xids import SignOf

Contrast = Literal["more", "less", "bits"]
"""The rank has more than its peers, or less, or a bit is set that is not set on the peers."""
SizedAs = Literal["time", "clock", "share", "pcie", "link"]
"""How a measure becomes µs of a step (contrasts.py): it is time itself; work takes longer at a lower clock; other
processes take a share of a device; bytes take longer on a narrower or slower link.
"""
Kind = Literal["host", "device", "link"]
"""Where the part belongs: host (cores, memory, disks), device, or link between ranks."""


@dataclass(frozen=True)
class Sign:
    """A contrast with the peers that is required as well."""

    measure: str
    contrast: Contrast
    bits: int = 0
    texts: re.Pattern[str] | None = None
    combined: Combined = "sum"


@dataclass(frozen=True)
class Size:
    """A measure from which the part's cost per step is computed."""

    sized_as: SizedAs
    measure: str
    less: str | None = None
    """A measure to subtract, since another part accounts for it."""
    plus: str | None = None
    """A measure to add where it was read."""
    texts: re.Pattern[str] | None = None
    """Texts that count, for a counter that is labelled by text."""
    combined: Combined = "sum"


@dataclass(frozen=True)
class Part:
    """One part. Sentences may contain {device} (its name, or `its device`) and {who}."""

    words: str
    """Its name: `thermal throttling`."""
    kind: Kind
    causes: frozenset[Cause]
    """Causes of findings that it can explain."""
    sizes: tuple[Size, ...] = ()
    """The first one observed is used; with none the cost is not known, and the part explains nothing."""
    signs: tuple[tuple[Sign, ...], ...] = ()
    """Each inner tuple needs one of its contrasts."""
    counts: tuple[str, ...] = ()
    """Error counters of unknown cost that are compared with the peers'."""
    events: tuple[str, ...] = ()
    """Events that are evidence of it."""
    xids_of: SignOf | None = None
    """What an XID must indicate to count; None accepts any that a device caused itself."""
    grows: str | None = None
    """A gauge that grows on this rank but not on its peers."""
    shows_itself: bool = False
    """Whether a sign is reported without a known cost: healthy peers have exactly the same setting."""
    vanishes: bool = False
    """Whether the part is telemetry that stops on this rank but not on its peers."""
    goes_with_job: bool = False
    """Whether it moves with the job to another host, so that draining this one does not help."""
    do: str = ""
    """How to fix it."""
    observe: str = ""
    """The command that would show it."""

    @property
    def measures(self) -> frozenset[str]:
        """Return the measures that decide it, without events."""
        sizes = {name for size in self.sizes for name in (size.measure, size.less, size.plus) if name}
        signs = {sign.measure for some in self.signs for sign in some}
        return frozenset({*sizes, *signs, *self.counts, *([self.grows] if self.grows else [])})


# Bits of NVML's clocks event reasons.
SW_POWER_CAP, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE, APPLICATION_CLOCKS = 0x4, 0x20, 0x40, 0x80, 0x2
GPU_IDLE: Final = 0x1

_ON_HOST: Final = frozenset(
    {
        "compute", "contention", "host", "input", "unmarked_input", "periodic_pause", "garbage_collection",
        "launch_bound", "unknown",
    }
)  # fmt: skip
_ON_DEVICE: Final = frozenset({"compute", "unknown", "device_contention"})
_OF_INPUT: Final = frozenset({"input", "unmarked_input", "host", "periodic_pause", "contention", "unknown", "compute"})
_OF_LINKS: Final = frozenset({"communication", "unknown"})
_COPIES: Final = frozenset({"compute", "host_link", "communication", "input", "unmarked_input", "host", "unknown"})

FILE_WAITS: Final = re.compile(r"\w+ /")
"""Waits in calls on a file, whose text has a path."""
SOCKET_WAITS: Final = re.compile(r"(?:read|recv\w*|connect|accept\w*) (?:socket|pipe)")
FAULT_WAITS: Final = re.compile(r"page fault")
SLEEP_WAITS: Final = re.compile(r"(?:clock_)?nanosleep|sleep|pause")

_NO_CORE: Final = Size("time", "process_run_delay", less="process_throttled_time")
_CLOCK: Final = (Size("clock", "gpu_sm_clock", combined="least"),)
_BLOCKED: Final = Size("time", "process_blocked_time")
_FOR_PAGES: Final = Size("time", "process_blocked_time", plus="process_kernel_time")
"""A page fault waits for its page, and the kernel spends time on finding one to drop."""


def _bits(bits: int) -> Sign:
    return Sign("gpu_throttle_reasons", "bits", bits)


def _more(measure: str, texts: re.Pattern[str] | None = None) -> Sign:
    return Sign(measure, "more", texts=texts)


def _less(measure: str) -> Sign:
    return Sign(measure, "less", combined="least")


PARTS: Final[Mapping[str, Part]] = {
    "cpu_quota": Part(
        words="its quota of CPU time",
        kind="host",
        causes=_ON_HOST,
        sizes=(Size("time", "process_throttled_time"),),
        goes_with_job=True,
        do="Raise or remove the quota of CPU time of {who}'s process (cpu.max of its cgroup, limits.cpu of its pod).",
        observe="cat /sys/fs/cgroup/…/cpu.stat on its host: throttled_usec",
    ),
    "low_priority": Part(
        words="its low priority",
        kind="host",
        causes=_ON_HOST,
        sizes=(_NO_CORE,),
        signs=((_more("process_nice"),),),
        goes_with_job=True,
        do="Start {who} with the priority of its peers (nice, renice).",
        observe="ps -o pid,ni,comm on its host",
    ),
    "fewer_cores": Part(
        words="fewer cores than its peers",
        kind="host",
        causes=_ON_HOST,
        sizes=(_NO_CORE,),
        signs=((_less("process_cores"),),),
        goes_with_job=True,
        do="Let {who} run on as many cores as its peers (taskset, numactl, cpuset of its cgroup, --cpus-per-task).",
        observe="taskset -pc PID on its host",
    ),
    "other_process_on_cores": Part(
        words="another process on its cores",
        kind="host",
        causes=_ON_HOST,
        sizes=(_NO_CORE,),
        signs=((_more("neighbour_time"),),),
        do="End the other process on {who}'s cores, or pin it elsewhere.",
        observe="top on its host",
    ),
    "no_core": Part(
        words="lack of a core to run on",
        kind="host",
        causes=_ON_HOST,
        sizes=(_NO_CORE,),
        do="Find out what runs on {who}'s cores, its own threads among it (OMP_NUM_THREADS, data workers).",
        observe="cat /proc/PID/schedstat on its host",
    ),
    "cpu_steal": Part(
        words="its virtual machine's cores are taken",
        kind="host",
        causes=_ON_HOST,
        sizes=(Size("time", "cpu_steal_time"),),
        do="Move {who}'s virtual machine to a host that is not overcommitted.",
        observe="vmstat 1 on its host: st",
    ),
    "cpu_clock": Part(
        words="its CPU's clock",
        kind="host",
        causes=_ON_HOST,
        sizes=(Size("clock", "cpu_frequency", combined="least"),),
        do="Set the CPU governor of {who}'s host to performance, and look at its cooling and power.",
        observe="cpupower frequency-info on its host",
    ),
    "garbage_collection": Part(
        words="its garbage collection",
        kind="host",
        causes=_ON_HOST,
        sizes=(Size("time", "process_gc_time"),),
        goes_with_job=True,
        do="Collect garbage at the same step on all ranks: gc.disable() and gc.collect() every few hundred steps.",
        observe="kair capture run, which measures it in every step",
    ),
    "memory_pressure": Part(
        words="lack of memory on its host",
        kind="host",
        causes=_ON_HOST,
        sizes=(_FOR_PAGES, Size("time", "process_memory_stalls"), Size("time", "process_wait_time", texts=FAULT_WAITS)),
        signs=((_more("process_major_faults"), _more("process_memory_stalls")),),
        do="Give {who}'s process more memory, or find what takes it: it waits for pages that were swapped or dropped.",
        observe="cat /proc/PID/stat (majflt), /proc/pressure/memory on its host",
    ),
    "slow_storage": Part(
        words="slow storage",
        kind="host",
        causes=_OF_INPUT,
        sizes=(_BLOCKED, Size("time", "process_disk_time"), Size("time", "process_wait_time", texts=FILE_WAITS)),
        signs=((_more("process_wait_time", FILE_WAITS), _more("process_disk_time")),),
        do="Look at the storage that {who} reads: copy its shard to a local disk, cache it, or fetch ahead.",
        observe="cat /proc/PID/syscall and ls -l /proc/PID/fd on its host",
    ),
    "slow_service": Part(
        words="its reads from another process or host",
        kind="host",
        causes=_OF_INPUT,
        sizes=(_BLOCKED, Size("time", "process_wait_time", texts=SOCKET_WAITS)),
        signs=((_more("process_wait_time", SOCKET_WAITS),),),
        goes_with_job=True,
        do="Look at the service or the data workers that {who} reads from, and fetch ahead.",
        observe="cat /proc/PID/syscall and ls -l /proc/PID/fd on its host",
    ),
    "sleeps": Part(
        words="its own code, which sleeps",
        kind="host",
        causes=_OF_INPUT,
        sizes=(_BLOCKED, Size("time", "process_wait_time", texts=SLEEP_WAITS)),
        signs=((_more("process_wait_time", SLEEP_WAITS),),),
        goes_with_job=True,
        do="Look for time.sleep, polling or a rate limit in what {who}'s script does.",
        observe="py-spy dump --pid PID on its host",
    ),
    "memory_leak": Part(
        words="memory that grows",
        kind="host",
        causes=_ON_HOST,
        grows="process_memory",
        goes_with_job=True,
        do="Find the objects that {who}'s script or data loader keeps: its memory grows, its peers' does not.",
        observe="watch ps -o rss= -p PID on its host",
    ),
    "thermal": Part(
        words="its device's temperature",
        kind="device",
        causes=_ON_DEVICE,
        sizes=_CLOCK,
        signs=((_bits(SW_THERMAL | HW_THERMAL), _more("gpu_throttle_thermal_time")),),
        do="Look at the cooling of {device}, and drain it while it is hot.",
        observe="nvidia-smi -q -d PERFORMANCE,TEMPERATURE on its host",
    ),
    "power_brake": Part(
        words="its device's power brake",
        kind="device",
        causes=_ON_DEVICE,
        sizes=_CLOCK,
        signs=((_bits(HW_POWER_BRAKE), _more("gpu_throttle_brake_time")),),
        do="Look at the power supply of {device}: the host asked it to slow down.",
        observe="nvidia-smi -q -d PERFORMANCE,POWER on its host",
    ),
    "power_cap": Part(
        words="its device's power limit",
        kind="device",
        causes=_ON_DEVICE,
        sizes=_CLOCK,
        signs=((_less("gpu_power_limit"), _bits(SW_POWER_CAP), _more("gpu_throttle_power_time")),),
        do="Set the power limit of {device} to its peers' (nvidia-smi -pl), and look at its power supply.",
        observe="nvidia-smi -q -d PERFORMANCE,POWER on its host",
    ),
    "locked_clock": Part(
        words="its device's clock, which is set lower",
        kind="device",
        causes=_ON_DEVICE,
        sizes=_CLOCK,
        signs=((_bits(APPLICATION_CLOCKS),),),
        do="Reset the clocks of {device}: nvidia-smi -rgc, nvidia-smi -rac.",
        observe="nvidia-smi -q -d CLOCK,PERFORMANCE on its host",
    ),
    "low_clock": Part(
        words="its device's clock",
        kind="device",
        causes=_ON_DEVICE,
        sizes=_CLOCK,
        do="Find out why {device} runs at a lower clock: nvidia-smi -q -d PERFORMANCE.",
        observe="nvidia-smi -q -d CLOCK,PERFORMANCE on its host",
    ),
    "other_process_on_device": Part(
        words="another process on its device",
        kind="device",
        causes=_ON_DEVICE | {"host", "launch_bound"},
        sizes=(Size("share", "gpu_other_utilization", combined="most"),),
        signs=((_more("gpu_other_processes"), _more("gpu_other_utilization"), _more("gpu_other_memory")),),
        do="End the other process on {device} (nvidia-smi), or place {who} elsewhere.",
        observe="nvidia-smi on its host",
    ),
    "device_memory": Part(
        words="errors of its device's memory",
        kind="device",
        causes=_ON_DEVICE,
        counts=(
            "gpu_remapped_rows_uncorrectable",
            "gpu_remapped_rows_correctable",
            "gpu_ecc_uncorrected",
            "gpu_ecc_corrected",
        ),
        events=("xid",),
        xids_of="memory",
        do="Reset {device} so that rows are remapped; if the errors come back, have it replaced.",
        observe="nvidia-smi -q -d ECC,ROW_REMAPPER on its host",
    ),
    "pcie_link": Part(
        words="its device's PCIe link, which is narrower or slower",
        kind="device",
        causes=_COPIES,
        sizes=(Size("pcie", "gpu_pcie_received", combined="least"),),
        signs=((_less("gpu_pcie_width"), _less("gpu_pcie_generation")),),
        shows_itself=True,
        do="Reseat {device} or its riser, check the slot and the BIOS: under load, compare Current with Max of its "
        "Link Width and PCIe Generation (nvidia-smi -q).",
        observe="nvidia-smi --query-gpu=index,uuid,pcie.link.width.current,pcie.link.gen.current --format=csv while it "
        "is busy, lspci -vv on its host",
    ),
    "pcie_errors": Part(
        words="errors of its device's PCIe link",
        kind="device",
        causes=_COPIES,
        counts=("gpu_pcie_replays",),
        events=("pcie_error", "xid"),
        xids_of="pcie",
        do="Reseat {device}: its PCIe link repeats what it sends.",
        observe="dmesg (AER), nvidia-smi -q -d PCIE on its host",
    ),
    "nvlink": Part(
        words="its device's NVLinks",
        kind="link",
        causes=_OF_LINKS,
        signs=((_less("gpu_nvlink_active_links"),),),
        counts=("gpu_nvlink_errors", "gpu_nvlink_replays", "gpu_nvlink_recoveries"),
        events=("xid", "sxid"),
        xids_of="nvlink",
        do="Drain the host of {device}, reset the device and its switch, and have the link looked at.",
        observe="nvidia-smi nvlink -e, nvidia-smi nvlink -s on its host",
    ),
    "nic_speed": Part(
        words="its NIC's link, which is slower",
        kind="link",
        causes=_OF_LINKS,
        sizes=(Size("link", "nic_speed", combined="least"),),
        signs=((_less("nic_speed"),),),
        do="Look at the cable and the switch port of {who}'s NIC: its link is slower than its peers'.",
        observe="ibstat, ethtool eth0 on its host",
    ),
    "nic_errors": Part(
        words="errors of its NIC, cable or switch port",
        kind="link",
        causes=_OF_LINKS,
        counts=(
            "ib_symbol_errors",
            "ib_link_recoveries",
            "ib_link_downed",
            "ib_receive_errors",
            "ib_transmit_discards",
            "ib_integrity_errors",
            "ib_buffer_overruns",
            "ib_packet_sequence_errors",
            "ib_out_of_sequence",
            "roce_slow_restarts",
            "roce_retransmits",
            "nic_drops",
            "nic_errors",
        ),
        events=("link_down", "nic_hot", "nic_power"),
        do="Change the cable, the module or the switch port of {who}'s NIC.",
        observe="perfquery, ethtool -S on its host",
    ),
    "lost_packets": Part(
        words="packet loss on its path",
        kind="link",
        causes=_OF_LINKS | {"host", "input", "unmarked_input"},
        counts=("tcp_retransmits", "nfs_retransmits"),
        do="Look at {who}'s network path: NIC, cable, switch port, and what drops packets.",
        observe="nstat -az TcpRetransSegs on its host",
    ),
    "device_allocations": Part(
        words="its allocations of device memory",
        kind="device",
        causes=frozenset({"compute", "host", "launch_bound", "unknown", "periodic_pause"}),
        counts=("torch_allocator_retries",),
        goes_with_job=True,
        do="Use expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), or less memory on {who}.",
        observe="torch.cuda.memory_stats()['num_alloc_retries']",
    ),
    "ended_by_system": Part(
        words="an event of its host or the scheduler",
        kind="host",
        causes=frozenset({"hang", "host", "unknown", "periodic_pause"}),
        events=("oom_kill", "soft_lockup", "machine_check", "node_state", "cpu_hot"),
        do="Look at what happened on {who}'s host, and drain it if it recurs.",
        observe="journalctl -k on its host; scontrol show node, kubectl get nodes -o json",
    ),
    "device_error": Part(
        words="an error that its device's driver reported",
        kind="device",
        causes=frozenset({"hang", "compute", "host", "communication", "unknown"}),
        events=("xid", "sxid"),
        do="Look the XID up, drain {device}, and reset it.",
        observe="dmesg on its host: NVRM: Xid",
    ),
    "lost_telemetry": Part(
        words="its telemetry, which stopped",
        kind="host",
        causes=_ON_HOST | _ON_DEVICE | _OF_LINKS | {"hang"},
        vanishes=True,
        do="Look at {device} and its host: its sampler went silent while it was slow.",
        observe="nvidia-smi on its host, and the log of its sampler",
    ),
}
"""Name → part, in the order of reports."""
