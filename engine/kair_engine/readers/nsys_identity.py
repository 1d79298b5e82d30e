"""Reads a rank's identity from an Nsight Systems report: its process, its device, its host's software.

A process numbers the devices that it may see; TARGET_INFO_CUDA_DEVICE maps them to the host's. Reports without that
table identify a device only if the host has a single one.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from kair_engine.frozen import dataclass
from kair_engine.readers.nsys_report import Process, Report
from kair_engine.readers.rank_identity import (
    cuda_version,
    one_line,
    positive,
    process_id,
    variables_that_matter,
    without_unknown,
)
from kair_engine.trace.identity import DeviceIdentity, RankIdentity, pci_address, uuid_of

_ASSIGNMENT: Final = re.compile(r"(?:^|[;\n])\s*([A-Z][A-Z0-9_]{1,63})=(\"[^\"\n]*\"|[^;\n]*)")
_VERSIONS: Final = {"driver": ("NvDriverVersion", "DriverVersion"), "kernel": ("KernelVersion",), "os": ("OsName",)}
"""Our name → the report's names in order of preference."""


@dataclass(frozen=True)
class Target:
    """The profiled host and its devices."""

    devices: tuple[Mapping[str, Any], ...]
    """Rows of TARGET_INFO_GPU."""
    seen: tuple[tuple[Any, ...], ...]
    """(the host's number of a device, the process' own number of it, pid, UUID): rows of TARGET_INFO_CUDA_DEVICE."""
    versions: Mapping[str, str]
    environment: Mapping[str, str]
    nics: tuple[str, ...]


def target_of(report: Report) -> Target:
    """Return the target from the report's tables."""
    names = ("id", "name", "busLocation", "uuid", "smCount", "totalMemory")
    system = {
        name: value
        for name, value in report.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
        if isinstance(name, str) and isinstance(value, str)
    }
    known = {ours: next((system[one] for one in theirs if one in system), None) for ours, theirs in _VERSIONS.items()}
    nics = [one_line(name) for (name,) in report.rows("TARGET_INFO_NIC_INFO", ("name",))]
    return Target(
        devices=tuple(dict(zip(names, row, strict=True)) for row in report.rows("TARGET_INFO_GPU", ("id",), names[1:])),
        seen=tuple(report.rows("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId"), ("pid", "uuid"))),
        versions=without_unknown(
            cuda_driver=cuda_version(system.get("CudaDriverVersion")),
            **{name: one_line(value) for name, value in known.items()},
        ),
        environment=variables_that_matter(dict(variables(report))),
        # It is not recorded which of several a rank uses.
        nics=tuple(name for name in nics if name) if len(nics) == 1 else (),
    )


def variables(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the environment of the launched process, variable by variable; later ones take precedence."""
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
    """Return the identity of the rank with this process."""
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
    """Return the device that ran most of the process' operations."""
    numbers, times = np.unique(process.device.device, return_counts=True)
    ordinal = int(numbers[times.argmax()])
    seen = [(gpu, uuid) for gpu, cuda, pid, uuid in target.seen if cuda == ordinal and pid in (process.pid, None)]
    if not seen:
        # From another process: all with the same numbering see the same devices.
        seen = [(gpu, uuid) for gpu, cuda, _, uuid in target.seen if cuda == ordinal]
    gpus = {gpu for gpu, _ in seen}
    if len(gpus) == 1:
        own = next((one for one in target.devices if one["id"] in gpus), {})
    else:
        own = target.devices[0] if len(target.devices) == 1 and not gpus else {}
    uuids = {uuid_of(uuid) for _, uuid in seen if isinstance(uuid, str)} - {None}
    of_table = uuid_of(own["uuid"]) if isinstance(own.get("uuid"), str) else None
    bus, models = own.get("busLocation"), {one_line(one["name"]) for one in target.devices}
    device = DeviceIdentity(
        uuid=uuids.pop() if len(uuids) == 1 else of_table,
        pci=pci_address(bus) if isinstance(bus, str) else None,
        ordinal=ordinal if 0 <= ordinal < 1024 else None,
        model=one_line(own.get("name")) or (models.pop() if len(models) == 1 else None),
    )
    return device, without_unknown(
        device_memory_bytes=positive(own.get("totalMemory")), multiprocessors=positive(own.get("smCount"))
    )
