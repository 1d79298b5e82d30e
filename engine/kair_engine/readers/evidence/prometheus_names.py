"""Maps metrics of exporters to measures: DCGM and its exporter, node_exporter, AMD's device-metrics-exporter.

Names are those of NVIDIA/DCGM `dcgm_fields.h` (before and after its renaming in 4.x), of dcgm-exporter's `etc/*.csv`,
of node_exporter's collectors, and of ROCm/device-metrics-exporter's list of metrics. Metrics whose unit differs between
releases and does not show in their values are left out: DCGM_FI_DEV_PCIE_TX_THROUGHPUT and
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, which exporters call counters but which are rates.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Final, Literal

from kair_engine.data_tables import data_table
from kair_engine.frozen import dataclass
from kair_engine.trace.identity import pci_address, uuid_of
from kair_engine.trace.measures import HOST, disk, gpu, gpu_index, nic, pci

Of = Literal["gpu", "host", "disk", "mount", "interface", "port"]
"""The kind of entity that a series describes; labels identify it."""
Form = Literal["value", "sum", "mean", "state", "last code", "codes", "growth"]
"""How series become rows.

value: unchanged. sum, mean: over the parts of the entity, which the labels in `parts` distinguish. state: a text,
mapped from the value or taken from a label if the value is 1. last code: the value is the code of the last event, and a
change is an event. codes: the recent count of each code, a label; a rise is an event. growth: a counter of events; each
increase is one.
"""


@dataclass(frozen=True)
class Meaning:
    """How the series of one metric are read."""

    measure: str
    """A key of MEASURES."""
    of: Of = "gpu"
    factor: float = 1.0
    """Converts the metric's unit to the measure's."""
    form: Form = "value"
    where: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    """label → pattern that it has to match."""
    parts: tuple[str, ...] = ()
    """Labels that distinguish the parts of an entity, which are added up."""
    states: Mapping[int, str] | str = ""
    """For a state: value → text, or the label with the text."""
    instead: bool = False
    """Whether it is used only if no other metric has the measure for that entity."""
    unit_in_doubt: bool = False
    """Whether its unit must be checked against what is physically possible."""


PAGE_BYTES: Final = 4096
"""Assumed page size of the kernel's page counts, because node_exporter does not report it."""

_OF_AMD: Final = {"gpu_id": re.compile(r"\d+")}
"""AMD's metric names are generic; device-metrics-exporter always sets this label."""


def _names() -> Iterator[tuple[str, tuple[Meaning, ...]]]:
    """Yield the entries of prometheus_names.json with exporters' prefixes; AMD's prefix is optional."""
    for prefix, meanings in data_table(__file__, dict[str, dict[str, tuple[Meaning, ...]]]).items():
        for name, several in meanings.items():
            if prefix == "amd_":
                of_amd = tuple(replace(one, where={**_OF_AMD, **one.where}) for one in several)
                yield from ((name, of_amd), (f"{prefix}{name}", of_amd))
            else:
                yield f"{prefix}{name}", several


NAMES: Final[Mapping[str, tuple[Meaning, ...]]] = dict(_names())
"""Metric → its possible meanings; the first whose labels match applies."""
HOST_NAMES: Final = "node_uname_info"
"""The metric whose label `nodename` names a scraped instance."""

_HOST_LABELS: Final = ("Hostname", "hostname", "nodename", "node", "kubernetes_node")
_UUID_LABELS: Final = ("UUID", "uuid", "gpu_uuid")
_PCI_LABELS: Final = ("pci_bus_id", "pcie_bus_id")
_INDEX_LABELS: Final = ("gpu", "gpu_id")
MACHINE_LABELS: Final = (
    "cluster",
    "cluster_name",
    "cluster_id",
    "k8s_cluster",
    "datacenter",
    "datacentre",
    "dc",
    "region",
    "site",
)
"""Each has one value per machine: a host name with two of them belongs to two machines."""
REPLICA_LABELS: Final = ("replica", "prometheus_replica", "__replica__")
"""They name which of several servers scraped the exporter: such series are copies."""
_VIRTUAL: Final = re.compile(r"(?:lo|veth|cali|docker|cni|flannel|br-|virbr|lxc|tunl|dummy|nodelocaldns|kube-)\w*.*")
_NO_DISK: Final = re.compile(r"(?:loop|ram|zram|sr)\d+")


def meaning_of(name: str, labels: Mapping[str, str]) -> Meaning | None:
    """Return the meaning of a series; None if it is not known."""
    for one in NAMES.get(name, ()):
        if all(pattern.fullmatch(labels.get(label, "")) for label, pattern in one.where.items()):
            # Measurements of a slice of a device are not the device's.
            return None if labels.get("GPU_I_ID") and name.startswith("DCGM_FI_PROF_") else one
    return None


def entity_of(of: Of, labels: Mapping[str, str]) -> str | None:
    """Return the entity of a series; None if its labels do not identify one, or it is not hardware."""
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
    """Return a device by UUID, else PCI address, else the driver's number."""
    for text in (labels[name] for name in _UUID_LABELS if name in labels):
        if uuid_of(text):
            return gpu(text)
    address, index = device_names(labels)
    if address is not None:
        return pci(address)
    return None if index is None else gpu_index(index)


def device_names(labels: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Return the PCI address and the driver's number of a device, as far as labels have them."""
    addresses = (pci_address(labels[name]) for name in _PCI_LABELS if name in labels)
    numbers = (int(labels[name]) for name in _INDEX_LABELS if re.fullmatch(r"[0-9]{1,4}", labels.get(name, "")))
    return next((one for one in addresses if one), None), next(numbers, None)


@dataclass(frozen=True)
class Place:
    """The host in a series' labels: its name, and the address that was scraped."""

    host: str | None
    instance: str | None


def place_of(labels: Mapping[str, str]) -> Place:
    """Return the host of a series, and its scraped address without the port."""
    instance = labels.get("instance")
    address = None if not instance else re.sub(r"^\[(.*)\](?::\d+)?$|:\d+$", r"\1", instance)
    return Place(next((labels[name] for name in _HOST_LABELS if labels.get(name)), None), address or None)


_INT32_BLANKS: Final = (0x7FFFFFF0, 0x7FFFFFFF)
_FLOAT_BLANKS: Final = (float(1 << 47), float((1 << 47) + 15))
_INT64_BLANK: Final = 9.2e18


def is_blank(value: float, of: Of, name: str = "") -> bool:
    """Return whether an exporter writes this value for `not known`.

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
