"""Who a rank is, as a report of Nsight Systems tells it: its process, its device, its host's software.

A process counts the devices that it may see; TARGET_INFO_CUDA_DEVICE tells which of the host's each of them is. Reports
without that table tell a device only where the host has one.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from kair_engine.frozen import dataclass
from kair_engine.readers.nsys_report import Process, Report
from kair_engine.readers.rank_identity import cuda_version, positive, process_id, telling, told, variables_that_matter
from kair_engine.trace.identity import DeviceIdentity, RankIdentity, pci_address, uuid_of

_ASSIGNMENT: Final = re.compile(r"(?:^|[;\n])\s*([A-Z][A-Z0-9_]{1,63})=(\"[^\"\n]*\"|[^;\n]*)")
_VERSIONS: Final = {"driver": ("NvDriverVersion", "DriverVersion"), "kernel": ("KernelVersion",), "os": ("OsName",)}
"""Ours → the report's names of it, in the order in which they are looked for."""


@dataclass(frozen=True)
class Target:
    """What a report says of the host that was profiled, and of its devices."""

    devices: tuple[Mapping[str, Any], ...]
    """Rows of TARGET_INFO_GPU."""
    seen: tuple[tuple[Any, ...], ...]
    """(the host's number of a device, the process' own number of it, pid, UUID): rows of TARGET_INFO_CUDA_DEVICE."""
    versions: Mapping[str, str]
    environment: Mapping[str, str]
    nics: tuple[str, ...]


def target_of(report: Report) -> Target:
    """Return what the report's tables say beside operations."""
    names = ("id", "name", "busLocation", "uuid", "smCount", "totalMemory")
    system = {
        name: value
        for name, value in report.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
        if isinstance(name, str) and isinstance(value, str)
    }
    known = {ours: next((system[one] for one in theirs if one in system), None) for ours, theirs in _VERSIONS.items()}
    nics = [told(name) for (name,) in report.rows("TARGET_INFO_NIC_INFO", ("name",))]
    return Target(
        devices=tuple(dict(zip(names, row, strict=True)) for row in report.rows("TARGET_INFO_GPU", ("id",), names[1:])),
        seen=tuple(report.rows("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId"), ("pid", "uuid"))),
        versions=telling(
            cuda_driver=cuda_version(system.get("CudaDriverVersion")),
            **{name: told(value) for name, value in known.items()},
        ),
        environment=variables_that_matter(dict(variables(report))),
        # Which of several a rank uses is not told.
        nics=tuple(name for name in nics if name) if len(nics) == 1 else (),
    )


def variables(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the environment of the launched process, variable by variable; later ones go before earlier ones."""
    for name, value in report.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")):
        if name == "DeviceEnvironment" and isinstance(value, str):
            yield from _assignments(value)
    for name, value in report.rows("META_DATA_CAPTURE", ("name", "value")):
        if isinstance(name, str) and name.endswith("ENVIRONMENT_VARIABLE") and isinstance(value, str):
            yield from _assignments(value)


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for name, value in _ASSIGNMENT.findall(text):
        yield name, value.strip().strip('"')


def identity_of(process: Process, rank: int, target: Target) -> RankIdentity:
    """Who the rank is whose process this is."""
    device, settings = _device(process, target)
    return RankIdentity(
        rank,
        pid=process_id(process.pid),
        device=device,
        nics=target.nics,
        versions=dict(target.versions),
        environment=dict(target.environment),
        settings=settings,
    )


def _device(process: Process, target: Target) -> tuple[DeviceIdentity, dict[str, str]]:
    """Return the device that ran most of its operations."""
    numbers, times = np.unique(process.device.device, return_counts=True)
    ordinal = int(numbers[times.argmax()])
    seen = [(gpu, uuid) for gpu, cuda, pid, uuid in target.seen if cuda == ordinal and pid in (process.pid, None)]
    if not seen:
        # Of another process: all that count alike see the same devices.
        seen = [(gpu, uuid) for gpu, cuda, _, uuid in target.seen if cuda == ordinal]
    gpus = {gpu for gpu, _ in seen}
    if len(gpus) == 1:
        own = next((one for one in target.devices if one["id"] in gpus), {})
    else:
        own = target.devices[0] if len(target.devices) == 1 and not gpus else {}
    uuids = {uuid_of(uuid) for _, uuid in seen if isinstance(uuid, str)} - {None}
    of_table = uuid_of(own["uuid"]) if isinstance(own.get("uuid"), str) else None
    bus, models = own.get("busLocation"), {told(one["name"]) for one in target.devices}
    device = DeviceIdentity(
        uuid=uuids.pop() if len(uuids) == 1 else of_table,
        pci=pci_address(bus) if isinstance(bus, str) else None,
        ordinal=ordinal if 0 <= ordinal < 1024 else None,
        model=told(own.get("name")) or (models.pop() if len(models) == 1 else None),
    )
    return device, telling(
        device_memory_bytes=positive(own.get("totalMemory")), multiprocessors=positive(own.get("smCount"))
    )
