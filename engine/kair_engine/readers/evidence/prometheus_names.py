"""What the metrics of exporters mean: DCGM's and its exporter's, node_exporter's, AMD's device-metrics-exporter's.

Names are those of NVIDIA/DCGM `dcgm_fields.h` (before and after its renaming in 4.x), of dcgm-exporter's
`etc/*.csv`, of node_exporter's collectors, and of ROCm/device-metrics-exporter's list of metrics. A metric whose unit
differs between releases and cannot be told from its values is left out: DCGM_FI_DEV_PCIE_TX_THROUGHPUT and
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, which exporters call counters and which are rates.
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


PAGE_BYTES: Final = 4096
"""Of the kernel's counts of pages, whose size node_exporter does not tell."""

_OF_AMD: Final = {"gpu_id": re.compile(r"\d+")}
"""The names are general; this label, which device-metrics-exporter always has, is not."""


def _names() -> Iterator[tuple[str, tuple[Meaning, ...]]]:
    """Of prometheus_names.json, by the prefixes of exporters; AMD's is left out by some."""
    for prefix, meanings in data_table(__file__, dict[str, dict[str, tuple[Meaning, ...]]]).items():
        for name, several in meanings.items():
            if prefix == "amd_":
                of_amd = tuple(replace(one, where={**_OF_AMD, **one.where}) for one in several)
                yield from ((name, of_amd), (f"{prefix}{name}", of_amd))
            else:
                yield f"{prefix}{name}", several


NAMES: Final[Mapping[str, tuple[Meaning, ...]]] = dict(_names())
"""Metric → what it may mean; the first whose labels fit is it."""
HOST_NAMES: Final = "node_uname_info"
"""Tells by its label `nodename` what a scraped instance is called."""

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
"""Of one machine each has one value: a host name with two of them is the name of two machines."""
REPLICA_LABELS: Final = ("replica", "prometheus_replica", "__replica__")
"""Which of several servers asked the exporter: their series say the same."""
_VIRTUAL: Final = re.compile(r"(?:lo|veth|cali|docker|cni|flannel|br-|virbr|lxc|tunl|dummy|nodelocaldns|kube-)\w*.*")
_NO_DISK: Final = re.compile(r"(?:loop|ram|zram|sr)\d+")


def meaning_of(name: str, labels: Mapping[str, str]) -> Meaning | None:
    """Return what a series means; None where it says nothing that is known."""
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
    """Return the PCI address of a device and the driver's number of it, as far as labels tell them."""
    addresses = (pci_address(labels[name]) for name in _PCI_LABELS if name in labels)
    numbers = (int(labels[name]) for name in _INDEX_LABELS if re.fullmatch(r"[0-9]{1,4}", labels.get(name, "")))
    return next((one for one in addresses if one), None), next(numbers, None)


@dataclass(frozen=True)
class Place:
    """The host that labels tell: by name, else as the address that was scraped."""

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
