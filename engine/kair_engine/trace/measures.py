"""What evidence beside traces is about: measures, entities, and the sources that tell them."""

from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal

from kair_engine.frozen import dataclass
from kair_engine.trace.identity import pci_address, uuid_of

MeasureKind = Literal["gauge", "counter", "state", "event"]
"""A value that holds until the next; one that only grows, but for resets; a text that holds; something that happened
once."""


@dataclass(frozen=True)
class Measure:
    """What a row's `name` stands for."""

    kind: MeasureKind
    unit: str
    """`MHz`, `W`, `°C`, `s`, `B`, `B/s`, `Gb/s`, `GB/s`, `1` (a share, a number of things), '' of texts."""
    words: str
    """For people: `SM clock`."""


MEASURES: Final[Mapping[str, Measure]] = {
    # Of a device.
    "gpu_sm_clock": Measure("gauge", "MHz", "SM clock"),
    "gpu_memory_clock": Measure("gauge", "MHz", "memory clock"),
    "gpu_power": Measure("gauge", "W", "power"),
    "gpu_power_limit": Measure("gauge", "W", "power limit"),
    "gpu_temperature": Measure("gauge", "°C", "temperature"),
    "gpu_memory_temperature": Measure("gauge", "°C", "memory temperature"),
    "gpu_temperature_margin": Measure("gauge", "°C", "margin to the temperature at which it slows down"),
    "gpu_utilization": Measure("gauge", "1", "share of time with a kernel"),
    "gpu_sm_active": Measure("gauge", "1", "share of SMs at work"),
    "gpu_tensor_active": Measure("gauge", "1", "share of time that tensor cores work"),
    "gpu_dram_active": Measure("gauge", "1", "share of time that its memory works"),
    "gpu_throttle_reasons": Measure("gauge", "1", "reasons of its clock (bits as NVML has them)"),
    "gpu_throttle_thermal_time": Measure("counter", "s", "time slowed down by temperature"),
    "gpu_throttle_power_time": Measure("counter", "s", "time slowed down by its power limit"),
    "gpu_throttle_brake_time": Measure("counter", "s", "time slowed down by the power brake"),
    "gpu_throttle_sync_boost_time": Measure("counter", "s", "time slowed down with devices it is boosted with"),
    "gpu_pcie_generation": Measure("gauge", "1", "PCIe generation"),
    "gpu_pcie_width": Measure("gauge", "1", "PCIe lanes"),
    "gpu_pcie_generation_max": Measure("gauge", "1", "PCIe generation that it can have"),
    "gpu_pcie_width_max": Measure("gauge", "1", "PCIe lanes that it can have"),
    "gpu_pcie_replays": Measure("counter", "1", "PCIe replays"),
    "gpu_pcie_sent": Measure("gauge", "B/s", "bytes sent over PCIe"),
    "gpu_pcie_received": Measure("gauge", "B/s", "bytes received over PCIe"),
    "gpu_remapped_rows_uncorrectable": Measure("counter", "1", "memory rows remapped after uncorrectable errors"),
    "gpu_remapped_rows_correctable": Measure("counter", "1", "memory rows remapped after correctable errors"),
    "gpu_row_remap_pending": Measure("gauge", "1", "a row is to be remapped"),
    "gpu_row_remap_failure": Measure("gauge", "1", "a row could not be remapped"),
    "gpu_ecc_corrected": Measure("counter", "1", "corrected ECC errors"),
    "gpu_ecc_uncorrected": Measure("counter", "1", "uncorrected ECC errors"),
    "gpu_nvlink_errors": Measure("counter", "1", "NVLink errors"),
    "gpu_nvlink_replays": Measure("counter", "1", "NVLink replays"),
    "gpu_nvlink_recoveries": Measure("counter", "1", "NVLink recoveries"),
    "gpu_nvlink_active_links": Measure("gauge", "1", "NVLinks that are active"),
    "gpu_nvlink_bytes": Measure("gauge", "B/s", "bytes over NVLink"),
    "gpu_other_processes": Measure("gauge", "1", "processes of others on the device"),
    "gpu_other_memory": Measure("gauge", "B", "memory that others have on the device"),
    "gpu_other_utilization": Measure("gauge", "1", "share of SMs that others use"),
    "gpu_memory_used": Measure("gauge", "B", "device memory in use"),
    "xid": Measure("event", "1", "XID"),
    "sxid": Measure("event", "1", "NVSwitch error (SXID)"),
    # Of a host.
    "cpu_frequency": Measure("gauge", "MHz", "CPU frequency"),
    "cpu_governor": Measure("state", "", "CPU governor"),
    "cpu_steal_time": Measure("counter", "s", "CPU time that the hypervisor took"),
    "cpu_busy_time": Measure("counter", "s", "CPU time of all processes"),
    "cpu_count": Measure("gauge", "1", "cores"),
    "psi_cpu_time": Measure("counter", "s", "time that some task lacked a core"),
    "psi_memory_time": Measure("counter", "s", "time that some task waited for memory"),
    "psi_memory_full_time": Measure("counter", "s", "time that all tasks waited for memory"),
    "psi_io_time": Measure("counter", "s", "time that some task waited for a disk"),
    "psi_io_full_time": Measure("counter", "s", "time that all tasks waited for a disk"),
    "memory_available": Measure("gauge", "B", "memory that is available"),
    "memory_total": Measure("gauge", "B", "memory"),
    "swap_in": Measure("counter", "B", "swapped in"),
    "swap_out": Measure("counter", "B", "swapped out"),
    "major_faults": Measure("counter", "1", "page faults that read a disk"),
    "edac_corrected": Measure("counter", "1", "corrected errors of host memory"),
    "edac_uncorrected": Measure("counter", "1", "uncorrected errors of host memory"),
    # Of a disk or a mount.
    "disk_busy_time": Measure("counter", "s", "time that the disk was busy"),
    "disk_read": Measure("counter", "B", "read from the disk"),
    "nfs_retransmits": Measure("counter", "1", "NFS requests sent again"),
    "nfs_request_time": Measure("counter", "s", "time of NFS requests"),
    "nfs_requests": Measure("counter", "1", "NFS requests"),
    # Of a NIC's port.
    "nic_speed": Measure("gauge", "Gb/s", "link speed"),
    "nic_state": Measure("state", "", "link state"),
    "nic_received": Measure("counter", "B", "received"),
    "nic_sent": Measure("counter", "B", "sent"),
    "nic_drops": Measure("counter", "1", "dropped packets"),
    "nic_errors": Measure("counter", "1", "damaged packets"),
    "tcp_retransmits": Measure("counter", "1", "TCP segments sent again"),
    "ib_symbol_errors": Measure("counter", "1", "symbol errors"),
    "ib_link_recoveries": Measure("counter", "1", "link recoveries"),
    "ib_link_downed": Measure("counter", "1", "times that the link went down"),
    "ib_receive_errors": Measure("counter", "1", "receive errors"),
    "ib_transmit_discards": Measure("counter", "1", "packets discarded at sending"),
    "ib_transmit_wait": Measure("counter", "1", "ticks that data waited to be sent"),
    "ib_integrity_errors": Measure("counter", "1", "local link integrity errors"),
    "ib_buffer_overruns": Measure("counter", "1", "buffer overruns"),
    "ib_receiver_not_ready": Measure("counter", "1", "RNR NAK retries"),
    "ib_packet_sequence_errors": Measure("counter", "1", "packet sequence errors"),
    "ib_out_of_sequence": Measure("counter", "1", "packets out of sequence"),
    "roce_slow_restarts": Measure("counter", "1", "RoCE slow restarts"),
    "roce_retransmits": Measure("counter", "1", "RoCE retransmissions"),
    "congestion_marks": Measure("counter", "1", "congestion notifications (CNP, ECN)"),
    # Of a process.
    "process_cpu_time": Measure("counter", "s", "CPU time of the process"),
    "process_kernel_time": Measure("counter", "s", "CPU time that the kernel worked for the process"),
    "process_run_delay": Measure("counter", "s", "time that its training thread was ready and had no core"),
    "process_throttled_time": Measure("counter", "s", "time that its quota of CPU time stopped it"),
    "process_throttled": Measure("counter", "1", "times that its quota of CPU time stopped it"),
    "process_quota": Measure("gauge", "1", "cores that its quota leaves it"),
    "process_cores": Measure("gauge", "1", "cores that it may run on"),
    "process_nice": Measure("gauge", "1", "niceness"),
    "process_major_faults": Measure("counter", "1", "its page faults that read a disk"),
    "process_minor_faults": Measure("counter", "1", "its page faults that read no disk"),
    "process_memory": Measure("gauge", "B", "its resident memory"),
    "process_swapped": Measure("gauge", "B", "its memory that is swapped out"),
    "process_memory_limit": Measure("gauge", "B", "memory that its cgroup may have"),
    "process_memory_stalls": Measure("counter", "s", "time that its cgroup waited for memory"),
    "process_read": Measure("counter", "B", "that it read, from wherever"),
    "process_read_calls": Measure("counter", "1", "its reads"),
    "process_disk_read": Measure("counter", "B", "that it read from disks"),
    "process_disk_time": Measure("counter", "s", "time that it waited for disks"),
    "process_gc_time": Measure("counter", "s", "time that it collected garbage"),
    "process_blocked_time": Measure("counter", "s", "time that its training thread slept, waiting for no other rank"),
    "process_wait_time": Measure("counter", "s", "time that its training thread waited in what the text says"),
    "neighbour_time": Measure("counter", "s", "CPU time of other processes on its cores"),
    "neighbour": Measure("state", "", "the other process that uses its cores most"),
    "threads": Measure("gauge", "1", "its threads"),
    "loader_workers": Measure("gauge", "1", "its data workers"),
    "torch_allocator_retries": Measure("counter", "1", "allocations that had to free cached memory first"),
    "torch_out_of_memory": Measure("counter", "1", "allocations that failed"),
    "torch_segment_allocations": Measure("counter", "1", "segments of device memory that PyTorch asked the driver for"),
    "torch_reserved": Measure("gauge", "B", "device memory that PyTorch keeps"),
    "torch_allocated": Measure("gauge", "B", "device memory that tensors take"),
    # Of a communicator on a rank.
    "nccl_time": Measure("gauge", "s", "time of a collective"),
    "nccl_bus_bandwidth": Measure("gauge", "GB/s", "bus bandwidth of a collective"),
    "nccl_algorithm_bandwidth": Measure("gauge", "GB/s", "algorithm bandwidth of a collective"),
    # Events of a host, a process, a link or a node of the scheduler; the text says what happened.
    "oom_kill": Measure("event", "", "killed for lack of memory"),
    "machine_check": Measure("event", "", "machine check"),
    "pcie_error": Measure("event", "", "PCIe error (AER)"),
    "link_down": Measure("event", "", "the link went down"),
    "link_up": Measure("event", "", "the link came up"),
    "soft_lockup": Measure("event", "", "a core was stuck"),
    "nic_hot": Measure("event", "", "a NIC's module is too hot"),
    "nic_power": Measure("event", "", "a NIC's slot gives too little power"),
    "cpu_hot": Measure("event", "", "a CPU slowed down by temperature"),
    "storage_stall": Measure("event", "", "storage did not answer"),
    "disk_error": Measure("event", "", "a disk could not be read or written"),
    "node_state": Measure("event", "", "a node's state changed"),
    "pod_event": Measure("event", "", "event of a pod"),
    "job_event": Measure("event", "", "event of the job in its scheduler"),
    "nccl_report": Measure("event", "", "what NCCL says"),
}
"""name → what it is; a row of another name is refused."""

Clock = Literal["unix", "host", "boot", "unknown"]
"""What the times of a source are: kept by a time server; a host's own clock; since a host's start, made Unix by an
assumption; unknown."""


@dataclass(frozen=True)
class EvidenceSource:
    """One file, endpoint or sampler that rows are from."""

    name: str
    """The file's name, the address asked, `capture`."""
    kind: str
    """`prometheus`, `dcgm`, `kernel log`, `slurm`, `kubernetes`, `nccl inspector`, `ncclras`, `nvidia-smi`, `torch
    memory`, `capture`."""
    clock: Clock = "unknown"
    """What its times are: kept by a time server (unix), by a host's own clock (host), since a host's start and made
    Unix by an assumption (boot), or unknown.
    """
    bound_s: float | None = None
    """By how much its times may be off; None where that is not known."""
    interval_s: float | None = None
    """Between readings of one thing, the median; None of events."""
    first_ns: int | None = None
    """Of its rows, the first, Unix; null where it has none."""
    last_ns: int | None = None
    """The last of them."""
    gaps: int = 0
    """Times that nothing came for more than three intervals."""
    longest_gap_s: float = 0.0
    """The longest time that nothing came."""
    rows: int = 0
    """Readings and events that it has."""
    passed_over: int = 0
    """Lines or values that say nothing known, or are damaged."""
    holds_s: float | None = None
    """So long a value holds that is not told again, of sources that tell changes alone; None: three intervals."""
    hosts: tuple[str, ...] = field(default_factory=tuple)
    """That it is about, where it is about a host whether it has rows of it or not."""
    notes: tuple[str, ...] = field(default_factory=tuple)
    """What a reader of the answer should know, in words: `events of the kernel are of its clock since boot`."""
    observes: tuple[str, ...] = field(default_factory=tuple)
    """Names of events that it would have told, had they happened: without them silence says nothing."""


SAMPLED: Final = "capture"
"""The kind of sources that capture samples beside a job, in many files one after another."""
MOST_TEXT: Final = 400
"""Characters of a text that are kept."""


def gpu(uuid: str) -> str:
    """The entity of a device by its UUID. Raises ValueError."""
    known = uuid_of(uuid)
    if known is None:
        raise ValueError(f"no UUID of a device: {uuid[:60]!r}")
    return f"gpu:{known}"


def pci(address: str) -> str:
    """The entity of whatever is at a PCI address. Raises ValueError."""
    known = pci_address(address)
    if known is None:
        raise ValueError(f"no PCI address: {address[:60]!r}")
    return f"pci:{known}"


def gpu_index(index: int) -> str:
    """A device of its host by the driver's number alone: which rank's that is can only be assumed."""
    return f"gpu index:{index}"


def nic(device: str, port: str | int | None = None) -> str:
    """A NIC's port, `mlx5_3/1`, or an interface, `eth0`."""
    return f"nic:{device}" if port is None else f"nic:{device}/{port}"


def process(pid: int) -> str:
    """A process of its host."""
    return f"pid:{pid}"


def disk(name: str) -> str:
    """A disk, or a mount by its path."""
    return f"disk:{name}"


def of_rank(rank: int) -> str:
    """A rank, where the source says it itself."""
    return f"rank:{rank}"


HOST: Final = "host"
"""The entity of the host as a whole."""


def shown(text: str) -> str:
    """A text of a log on one line, without what a terminal would obey, and of bounded length."""
    plain = "".join(one if one.isprintable() else " " for one in text[: 4 * MOST_TEXT])
    return " ".join(plain.split())[:MOST_TEXT]
