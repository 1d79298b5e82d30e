"""A rank's identity: host, process, device and software, from capture, recordings and clusters.

Device names have one spelling, whatever their source.
"""

import re
from dataclasses import field, fields, replace
from typing import Any, Final

from kair_engine.frozen import dataclass


@dataclass(frozen=True)
class DeviceIdentity:
    """An accelerator; None where unknown."""

    uuid: str | None = None
    """As `uuid_of` spells it: `GPU-5f3e…`, or a MIG device's."""
    pci: str | None = None
    """Its address, as `pci_address` spells it: `0000:1b:00.0`."""
    index: int | None = None
    """The driver tools' number on its host (nvidia-smi), which may differ from the process' own number."""
    ordinal: int | None = None
    """The process' own number, among the devices that it may see."""
    model: str | None = None
    """`NVIDIA H100 80GB HBM3`."""
    visible: int | None = field(default=None, compare=False)
    """Number of devices that its process sees, if all are of one model: with several models CUDA numbers the fastest
    first, whatever the driver's order. The other fields do not depend on it."""


@dataclass(frozen=True)
class RankIdentity:
    """The identity of one rank in one attempt; unknown fields are None or empty."""

    rank: int
    """Its number in the job."""
    host: str | None = None
    """The host it runs on; null if not recorded."""
    boot: str | None = None
    """The host's boot id, which changes with a reboot."""
    pid: int | None = None
    """Its process id on its host, or in the container that it was recorded in."""
    process_s: int | None = None
    """Begin of its process, Unix."""
    local_rank: int | None = None
    """The launcher's number of it among the ranks of its host."""
    device: DeviceIdentity = field(default_factory=DeviceIdentity)
    """Its device."""
    numa_node: int | None = None
    """The NUMA node of its device, else the one of all its cores."""
    nics: tuple[str, ...] = ()
    """NICs in use, else those nearest to its device: `mlx5_3/1`, `eth0`."""
    cpus: tuple[int, ...] = ()
    """Cores that its training thread may run on."""
    cgroup: str | None = None
    """The control group of its process, as in `/proc/PID/cgroup`."""
    container: str | None = None
    """Its image, or the runtime's name of it."""
    scheduled: tuple[str, ...] = ()
    """Schedulers' names for its pod or job: `pod:NAMESPACE/NAME` (or `pod:NAME`), `job:4711`."""
    versions: dict[str, str] = field(default_factory=dict)
    """`driver`, `cuda`, `nccl`, `framework`, `kernel`, `python`, `os`, `cuda_driver`, …"""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that change how it runs: NCCL_*, OMP_*, CUDA_*, …"""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of its host and device: `governor`, `pcie_generation`, `pcie_width`, `power_limit_w`, `ecc`,
    `persistence`, …"""

    def device_in_words(self) -> str | None:
        """Return `node-7 GPU 3, GPU-5f3e…, 0000:1b:00.0`, for looking the device up; None if none is known."""
        of = self.device
        if of.uuid is None and of.pci is None and of.index is None:
            return None
        where = " ".join(part for part in (self.host, None if of.index is None else f"GPU {of.index}") if part)
        return ", ".join(part for part in (where, of.uuid, of.pci) if part)


def merged(first: RankIdentity, other: RankIdentity) -> RankIdentity:
    """Return the combined identity of one rank; `first` wins where they differ. Mappings are joined key by key."""
    of: dict[str, Any] = {}
    for one in fields(RankIdentity):
        mine, theirs = getattr(first, one.name), getattr(other, one.name)
        if isinstance(mine, dict):
            of[one.name] = {**theirs, **mine}
        elif isinstance(mine, DeviceIdentity):
            known = {name: value for name, value in vars(mine).items() if value is not None}
            of[one.name] = replace(theirs, **known)
        else:
            of[one.name] = theirs if mine is None or mine == () else mine
    return RankIdentity(**of)


_PCI: Final = re.compile(r"(?:pci:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)
_NCCL_BUS: Final = re.compile(r"(?:0x)?[0-9a-f]{4,9}", re.IGNORECASE)
_UUID: Final = re.compile(
    r"(?:(GPU|MIG)-)?([0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12})", re.IGNORECASE
)


def pci_address(text: str) -> str | None:
    """Return `0000:1b:00.0` for `00000000:1B:00.0`, `0000:1b:00`, `1b:00.0` and NCCL's busId `1b000`; else None."""
    text = text.strip()
    if match := _PCI.fullmatch(text):
        domain, bus, device, function = match.groups()
        number = int(domain or "0", 16)
        # The upper four of NVML's eight digits are zero except for virtual machines' own domains.
        return f"{number:04x}:{bus.lower()}:{device.lower()}.{function or '0'}"
    return _of_number(int(text, 16)) if _NCCL_BUS.fullmatch(text) else None


def _of_number(number: int) -> str | None:
    """Return the address for NCCL's busId: domain, bus, device and function as hexadecimal digits."""
    function, device, bus, domain = number & 0xF, number >> 4 & 0xFF, number >> 12 & 0xFF, number >> 20
    if function > 7 or device > 0x1F:
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def uuid_of(text: str) -> str | None:
    """Return `GPU-5f3e0000-…`, lower case after its kind; None for anything else."""
    match = _UUID.fullmatch(text.strip())
    if match is None:
        return None
    digits = match[2].replace("-", "").lower()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return f"{(match[1] or 'GPU').upper()}-{'-'.join(parts)}"
