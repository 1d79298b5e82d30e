"""What the metrics of exporters mean: DCGM's and its exporter's, node_exporter's, AMD's device-metrics-exporter's.

Names are those of NVIDIA/DCGM `dcgm_fields.h` (before and after its renaming in 4.x), of dcgm-exporter's
`etc/*.csv`, of node_exporter's collectors, and of ROCm/device-metrics-exporter's list of metrics. A metric whose unit
differs between releases and cannot be told from its values is left out: DCGM_FI_DEV_PCIE_TX_THROUGHPUT and
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, which exporters call counters and which are rates.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal

from kair_engine.frozen import dataclass
from kair_engine.trace.identity import pci_address, uuid_of
from kair_engine.trace.measures import HOST, disk, gpu, gpu_index, nic, pci

Of = Literal["gpu", "host", "disk", "mount", "interface", "port"]
"""What a series is about; labels say which one."""
Form = Literal["value", "sum", "mean", "state", "last code", "codes", "growth"]
"""How series become rows.

value: as they are. sum, mean: over the parts of the entity, which `parts` tells apart. state: a text, which stands for
the value or is a label where the value is 1. last code: the value is the code of the last event, and stays: a change is
an event. codes: how many events of a code, a label, there were of late: a rise is an event. growth: of a counter of
events; each time that it grows is one.
"""


@dataclass(frozen=True)
class Meaning:
    """What the series of one metric become."""

    measure: str
    """Of MEASURES."""
    of: Of = "gpu"
    factor: float = 1.0
    """From the metric's unit to the measure's."""
    form: Form = "value"
    where: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    """label → what it has to match."""
    parts: tuple[str, ...] = ()
    """Labels that tell the parts of an entity apart, which are added up."""
    states: Mapping[int, str] | str = ""
    """Of a state: value → text, or the label that holds it."""
    instead: bool = False
    """Whether it only stands in where nothing else tells the measure of that entity."""
    unit_in_doubt: bool = False
    """Whether its unit has to be checked against what can be."""


_SHARE: Final = 0.01
_NS: Final = 1e-9
_MIB: Final = float(1 << 20)
_GIGABITS: Final = 8e-9
PAGE_BYTES: Final = 4096
"""Of the kernel's counts of pages, whose size node_exporter does not tell."""

_DCGM: Final[Mapping[str, Meaning]] = {
    "DEV_SM_CLOCK": Meaning("gpu_sm_clock"),
    "DEV_MEM_CLOCK": Meaning("gpu_memory_clock"),
    "DEV_POWER_USAGE": Meaning("gpu_power"),
    "DEV_BOARD_POWER_WATTS": Meaning("gpu_power"),
    "DEV_POWER_USAGE_INSTANT": Meaning("gpu_power", instead=True),
    "DEV_BOARD_POWER_RAW_WATTS": Meaning("gpu_power", instead=True),
    "DEV_ENFORCED_POWER_LIMIT": Meaning("gpu_power_limit"),
    "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS": Meaning("gpu_power_limit"),
    "DEV_POWER_MGMT_LIMIT": Meaning("gpu_power_limit", instead=True),
    "DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS": Meaning("gpu_power_limit", instead=True),
    "DEV_GPU_TEMP": Meaning("gpu_temperature"),
    "DEV_GPU_TEMP_CELSIUS": Meaning("gpu_temperature"),
    "DEV_MEMORY_TEMP": Meaning("gpu_memory_temperature"),
    "DEV_MEMORY_TEMP_CELSIUS": Meaning("gpu_memory_temperature"),
    "DEV_GPU_TEMP_LIMIT": Meaning("gpu_temperature_margin"),
    "DEV_GPU_TEMP_MARGIN_CELSIUS": Meaning("gpu_temperature_margin"),
    "DEV_GPU_UTIL": Meaning("gpu_utilization", factor=_SHARE),
    "PROF_SM_ACTIVE": Meaning("gpu_sm_active"),
    "PROF_SM_UTIL_RATIO": Meaning("gpu_sm_active"),
    "PROF_PIPE_TENSOR_ACTIVE": Meaning("gpu_tensor_active"),
    "PROF_TENSOR_UTIL_RATIO": Meaning("gpu_tensor_active"),
    "PROF_DRAM_ACTIVE": Meaning("gpu_dram_active"),
    "PROF_DRAM_UTIL_RATIO": Meaning("gpu_dram_active"),
    "DEV_CLOCKS_EVENT_REASONS": Meaning("gpu_throttle_reasons"),
    "DEV_CLOCK_THROTTLE_REASONS": Meaning("gpu_throttle_reasons"),
    "DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS": Meaning("gpu_throttle_power_time", factor=_NS),
    "DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS": Meaning("gpu_throttle_thermal_time", factor=_NS, form="sum"),
    "DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS": Meaning("gpu_throttle_thermal_time", factor=_NS, form="sum"),
    "DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": Meaning("gpu_throttle_brake_time", factor=_NS),
    "DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS": Meaning("gpu_throttle_sync_boost_time", factor=_NS),
    "DEV_POWER_VIOLATION": Meaning("gpu_throttle_power_time", factor=_NS, instead=True, unit_in_doubt=True),
    "DEV_THERMAL_VIOLATION": Meaning("gpu_throttle_thermal_time", factor=_NS, instead=True, unit_in_doubt=True),
    "DEV_SYNC_BOOST_VIOLATION": Meaning("gpu_throttle_sync_boost_time", factor=_NS, instead=True, unit_in_doubt=True),
    "DEV_PCIE_LINK_GEN": Meaning("gpu_pcie_generation"),
    "DEV_PCIE_LINK_WIDTH": Meaning("gpu_pcie_width"),
    "DEV_PCIE_MAX_LINK_GEN": Meaning("gpu_pcie_generation_max"),
    "DEV_PCIE_MAX_LINK_WIDTH": Meaning("gpu_pcie_width_max"),
    "DEV_PCIE_REPLAY_COUNTER": Meaning("gpu_pcie_replays"),
    "DEV_PCIE_REPLAY_TOTAL": Meaning("gpu_pcie_replays"),
    "PROF_PCIE_TX_BYTES": Meaning("gpu_pcie_sent"),
    "PROF_PCIE_RX_BYTES": Meaning("gpu_pcie_received"),
    "DEV_UNCORRECTABLE_REMAPPED_ROWS": Meaning("gpu_remapped_rows_uncorrectable"),
    "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": Meaning("gpu_remapped_rows_uncorrectable"),
    "DEV_CORRECTABLE_REMAPPED_ROWS": Meaning("gpu_remapped_rows_correctable"),
    "DEV_ROW_REMAP_CORRECTABLE_TOTAL": Meaning("gpu_remapped_rows_correctable"),
    "DEV_ROW_REMAP_PENDING": Meaning("gpu_row_remap_pending"),
    "DEV_ROW_REMAP_FAILURE": Meaning("gpu_row_remap_failure"),
    "DEV_ROW_REMAP_FAILED": Meaning("gpu_row_remap_failure"),
    "DEV_ECC_SBE_VOL_TOTAL": Meaning("gpu_ecc_corrected"),
    "DEV_ECC_DBE_VOL_TOTAL": Meaning("gpu_ecc_uncorrected"),
    "DEV_ECC_SBE_AGG_TOTAL": Meaning("gpu_ecc_corrected", instead=True),
    "DEV_ECC_DBE_AGG_TOTAL": Meaning("gpu_ecc_uncorrected", instead=True),
    "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": Meaning("gpu_nvlink_errors", form="sum"),
    "DEV_NVLINK_CRC_FLIT_ERROR_TOTAL": Meaning("gpu_nvlink_errors", form="sum"),
    "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": Meaning("gpu_nvlink_errors", form="sum"),
    "DEV_NVLINK_CRC_DATA_ERROR_TOTAL": Meaning("gpu_nvlink_errors", form="sum"),
    "DEV_NVLINK_COUNT_RX_ERRORS": Meaning("gpu_nvlink_errors", form="sum", parts=("nvlink",)),
    "DEV_NVLINK_RX_ERROR_TOTAL": Meaning("gpu_nvlink_errors", form="sum", parts=("nvlink",)),
    "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": Meaning("gpu_nvlink_replays", form="sum"),
    "DEV_NVLINK_REPLAY_ERROR_TOTAL": Meaning("gpu_nvlink_replays", form="sum"),
    "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": Meaning("gpu_nvlink_recoveries", form="sum"),
    "DEV_NVLINK_RECOVERY_ERROR_TOTAL": Meaning("gpu_nvlink_recoveries", form="sum"),
    "DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS": Meaning("gpu_nvlink_recoveries", form="sum", parts=("nvlink",)),
    "DEV_NVLINK_RECOVERY_SUCCESSFUL_TOTAL": Meaning("gpu_nvlink_recoveries", form="sum", parts=("nvlink",)),
    "PROF_NVLINK_TX_BYTES": Meaning("gpu_nvlink_bytes", form="sum"),
    "PROF_NVLINK_RX_BYTES": Meaning("gpu_nvlink_bytes", form="sum"),
    "DEV_FB_USED": Meaning("gpu_memory_used", factor=_MIB),
    "DEV_XID_ERRORS": Meaning("xid", form="last code"),
    "DEV_XID_ERROR": Meaning("xid", form="last code"),
}

_OF_AMD: Final = {"gpu_id": re.compile(r"\d+")}
"""The names are general; this label, which device-metrics-exporter always has, is not."""


def _of_clock(kind: str) -> Mapping[str, re.Pattern[str]]:
    return {**_OF_AMD, "clock_type": re.compile(f"(?i)(?:GPU_CLOCK_TYPE_)?{kind}")}


_NO_WORK: Final = r"idle|iowait|steal|guest|guest_nice"
"""Modes of a core that are no work of this host: time of guests is in that of `user` already."""
_IB_STATES: Final = {1: "down", 2: "init", 3: "armed", 4: "active", 5: "active_defer"}

_NODE: Final[Mapping[str, tuple[Meaning, ...]]] = {
    "cpu_seconds_total": (
        Meaning("cpu_steal_time", "host", form="sum", parts=("cpu",), where={"mode": re.compile("steal")}),
        Meaning(
            "cpu_busy_time",
            "host",
            form="sum",
            parts=("cpu", "mode"),
            where={"mode": re.compile(f"(?!(?:{_NO_WORK})$).+")},
        ),
    ),
    "cpu_scaling_frequency_hertz": (Meaning("cpu_frequency", "host", 1e-6, "mean", parts=("cpu",)),),
    "cpu_scaling_governor": (Meaning("cpu_governor", "host", form="state", states="governor"),),
    "pressure_cpu_waiting_seconds_total": (Meaning("psi_cpu_time", "host"),),
    "pressure_memory_waiting_seconds_total": (Meaning("psi_memory_time", "host"),),
    "pressure_memory_stalled_seconds_total": (Meaning("psi_memory_full_time", "host"),),
    "pressure_io_waiting_seconds_total": (Meaning("psi_io_time", "host"),),
    "pressure_io_stalled_seconds_total": (Meaning("psi_io_full_time", "host"),),
    "memory_MemAvailable_bytes": (Meaning("memory_available", "host"),),
    "memory_MemTotal_bytes": (Meaning("memory_total", "host"),),
    "vmstat_pswpin": (Meaning("swap_in", "host", PAGE_BYTES),),
    "vmstat_pswpout": (Meaning("swap_out", "host", PAGE_BYTES),),
    "vmstat_pgmajfault": (Meaning("major_faults", "host"),),
    "vmstat_oom_kill": (Meaning("oom_kill", "host", form="growth"),),
    "edac_correctable_errors_total": (Meaning("edac_corrected", "host", form="sum", parts=("controller",)),),
    "edac_uncorrectable_errors_total": (Meaning("edac_uncorrected", "host", form="sum", parts=("controller",)),),
    "disk_io_time_seconds_total": (Meaning("disk_busy_time", "disk"),),
    "disk_read_bytes_total": (Meaning("disk_read", "disk"),),
    "nfs_rpc_retransmissions_total": (Meaning("nfs_retransmits", "host"),),
    "mountstats_nfs_operations_requests_total": (
        Meaning("nfs_requests", "mount", form="sum", parts=("operation", "protocol", "mountaddr")),
    ),
    "mountstats_nfs_operations_request_time_seconds_total": (
        Meaning("nfs_request_time", "mount", form="sum", parts=("operation", "protocol", "mountaddr")),
    ),
    "netstat_Tcp_RetransSegs": (Meaning("tcp_retransmits", "host"),),
    "network_speed_bytes": (Meaning("nic_speed", "interface", _GIGABITS),),
    "network_up": (Meaning("nic_state", "interface", form="state", states={0: "down", 1: "up"}),),
    "network_receive_bytes_total": (Meaning("nic_received", "interface"),),
    "network_transmit_bytes_total": (Meaning("nic_sent", "interface"),),
    "network_receive_drop_total": (Meaning("nic_drops", "interface", form="sum"),),
    "network_transmit_drop_total": (Meaning("nic_drops", "interface", form="sum"),),
    "network_receive_errs_total": (Meaning("nic_errors", "interface", form="sum"),),
    "network_transmit_errs_total": (Meaning("nic_errors", "interface", form="sum"),),
    "network_carrier_down_changes_total": (Meaning("link_down", "interface", form="growth"),),
    "network_carrier_up_changes_total": (Meaning("link_up", "interface", form="growth"),),
    "infiniband_rate_bytes_per_second": (Meaning("nic_speed", "port", _GIGABITS),),
    "infiniband_state_id": (Meaning("nic_state", "port", form="state", states=_IB_STATES),),
    "infiniband_port_data_received_bytes_total": (Meaning("nic_received", "port"),),
    "infiniband_port_data_transmitted_bytes_total": (Meaning("nic_sent", "port"),),
    "infiniband_out_of_buffer_drops_total": (Meaning("nic_drops", "port"),),
    "infiniband_symbol_error_total": (Meaning("ib_symbol_errors", "port"),),
    "infiniband_link_error_recovery_total": (Meaning("ib_link_recoveries", "port"),),
    "infiniband_link_downed_total": (Meaning("ib_link_downed", "port"),),
    "infiniband_port_errors_received_total": (Meaning("ib_receive_errors", "port"),),
    "infiniband_port_discards_transmitted_total": (Meaning("ib_transmit_discards", "port"),),
    "infiniband_port_transmit_wait_total": (Meaning("ib_transmit_wait", "port"),),
    "infiniband_local_link_integrity_errors_total": (Meaning("ib_integrity_errors", "port"),),
    "infiniband_excessive_buffer_overrun_errors_total": (Meaning("ib_buffer_overruns", "port"),),
    "infiniband_rnr_nak_retry_packets_received_total": (Meaning("ib_receiver_not_ready", "port"),),
    "infiniband_packet_sequence_errors_total": (Meaning("ib_packet_sequence_errors", "port"),),
    "infiniband_out_of_sequence_packets_received_total": (Meaning("ib_out_of_sequence", "port"),),
    "infiniband_roce_slow_restart_used_total": (Meaning("roce_slow_restarts", "port"),),
    "infiniband_roce_adp_retransmits_total": (Meaning("roce_retransmits", "port"),),
    "infiniband_np_ecn_marked_roce_packets_received_total": (Meaning("congestion_marks", "port", form="sum"),),
    "infiniband_rp_cnp_packets_handled_total": (Meaning("congestion_marks", "port", form="sum"),),
}

_AMD: Final[Mapping[str, tuple[Meaning, ...]]] = {
    "gpu_clock": (
        Meaning("gpu_sm_clock", form="mean", parts=("clock_index",), where=_of_clock("system")),
        Meaning("gpu_memory_clock", form="mean", parts=("clock_index",), where=_of_clock("memory")),
    ),
    "gpu_package_power": (Meaning("gpu_power", where=_OF_AMD),),
    "gpu_power_usage": (Meaning("gpu_power", where=_OF_AMD, instead=True),),
    "gpu_average_package_power": (Meaning("gpu_power", where=_OF_AMD, instead=True),),
    "gpu_junction_temperature": (Meaning("gpu_temperature", where=_OF_AMD),),
    "gpu_edge_temperature": (Meaning("gpu_temperature", where=_OF_AMD, instead=True),),
    "gpu_memory_temperature": (Meaning("gpu_memory_temperature", where=_OF_AMD),),
    "gpu_gfx_activity": (Meaning("gpu_utilization", factor=_SHARE, where=_OF_AMD),),
    "gpu_used_vram": (Meaning("gpu_memory_used", factor=_MIB, where=_OF_AMD),),
    "gpu_ecc_correct_total": (Meaning("gpu_ecc_corrected", where=_OF_AMD),),
    "gpu_ecc_uncorrect_total": (Meaning("gpu_ecc_uncorrected", where=_OF_AMD),),
    "pcie_replay_count": (Meaning("gpu_pcie_replays", where=_OF_AMD),),
}

NAMES: Final[Mapping[str, tuple[Meaning, ...]]] = {
    **{f"DCGM_FI_{name}": (meaning,) for name, meaning in _DCGM.items()},
    "DCGM_EXP_XID_ERRORS_COUNT": (Meaning("xid", form="codes", parts=("xid",)),),
    **{f"node_{name}": meanings for name, meanings in _NODE.items()},
    **{f"{prefix}{name}": meanings for prefix in ("", "amd_") for name, meanings in _AMD.items()},
}
"""Metric → what it may mean; the first whose labels fit is it."""
HOST_NAMES: Final = "node_uname_info"
"""Tells by its label `nodename` what a scraped instance is called."""

_HOST_LABELS: Final = ("Hostname", "hostname", "nodename", "node", "kubernetes_node")
_UUID_LABELS: Final = ("UUID", "uuid", "gpu_uuid")
_PCI_LABELS: Final = ("pci_bus_id", "pcie_bus_id")
_INDEX_LABELS: Final = ("gpu", "gpu_id")
_VIRTUAL: Final = re.compile(r"(?:lo|veth|cali|docker|cni|flannel|br-|virbr|lxc|tunl|dummy|nodelocaldns|kube-)\w*.*")
_NO_DISK: Final = re.compile(r"(?:loop|ram|zram|sr)\d+")


def meaning_of(name: str, labels: Mapping[str, str]) -> Meaning | None:
    """What a series means; None where it says nothing that is known."""
    for one in NAMES.get(name, ()):
        if all(pattern.fullmatch(labels.get(label, "")) for label, pattern in one.where.items()):
            # What is measured of a slice of a device is not the device's.
            return None if labels.get("GPU_I_ID") and name.startswith("DCGM_FI_PROF_") else one
    return None


def entity_of(of: Of, labels: Mapping[str, str]) -> str | None:
    """Whom a series is about; None where its labels do not say, or it is of no hardware."""
    if of == "host":
        return HOST
    if of == "gpu":
        return _gpu(labels)
    device = labels.get("export" if of == "mount" else "device", "")
    if not device:
        return None
    if of in ("disk", "mount"):
        return None if of == "disk" and _NO_DISK.fullmatch(device) else disk(device)
    if of == "interface":
        return None if _VIRTUAL.fullmatch(device) else nic(device)
    return nic(device, labels.get("port") or "1")


def _gpu(labels: Mapping[str, str]) -> str | None:
    """By UUID, else PCI address, else the driver's number."""
    for text in (labels[name] for name in _UUID_LABELS if name in labels):
        if uuid_of(text):
            return gpu(text)
    address, index = device_names(labels)
    if address is not None:
        return pci(address)
    return None if index is None else gpu_index(index)


def device_names(labels: Mapping[str, str]) -> tuple[str | None, int | None]:
    """The PCI address of a device and the driver's number of it, as far as labels tell them."""
    addresses = (pci_address(labels[name]) for name in _PCI_LABELS if name in labels)
    numbers = (int(labels[name]) for name in _INDEX_LABELS if re.fullmatch(r"[0-9]{1,4}", labels.get(name, "")))
    return next((one for one in addresses if one), None), next(numbers, None)


@dataclass(frozen=True)
class Place:
    """The host that labels tell: by name, else as the address that was scraped."""

    host: str | None
    instance: str | None


def place_of(labels: Mapping[str, str]) -> Place:
    """The host of a series, and its scraped address without the port."""
    instance = labels.get("instance")
    address = None if not instance else re.sub(r"^\[(.*)\](?::\d+)?$|:\d+$", r"\1", instance)
    return Place(next((labels[name] for name in _HOST_LABELS if labels.get(name)), None), address or None)


_INT32_BLANKS: Final = (0x7FFFFFF0, 0x7FFFFFFF)
_FLOAT_BLANKS: Final = (float(1 << 47), float((1 << 47) + 15))
_INT64_BLANK: Final = 9.2e18


def is_blank(value: float, of: Of, name: str = "") -> bool:
    """Whether an exporter writes this value for `not known`.

    DCGM: 0x7ffffff0…, 0x7ffffffffffffff0… and 2⁴⁷… (dcgm_structs.h, DCGM_*_BLANK); AMD: all bits of 16, 32 or 64 set.
    """
    if not math.isfinite(value) or abs(value) >= _INT64_BLANK:
        return True
    if of != "gpu":
        return False
    return (
        _INT32_BLANKS[0] <= value <= _INT32_BLANKS[1]
        or _FLOAT_BLANKS[0] <= value <= _FLOAT_BLANKS[1]
        or value == 0xFFFFFFFF
        or (value == 0xFFFF and not name.startswith("DCGM_"))
    )
