"""Recognises events in messages of the kernel: the device, link, disk or process, and what happened to it.

Patterns match from the first character, because a process can choose any name and messages quote it.
"""

import re
from collections.abc import Callable
from typing import Final

from kair_engine.frozen import dataclass
from kair_engine.trace import xids
from kair_engine.trace.identity import pci_address, uuid_of
from kair_engine.trace.measures import HOST, disk, nic, pci, process

OBSERVED: Final = (
    "xid",
    "sxid",
    "pcie_error",
    "machine_check",
    "oom_kill",
    "link_down",
    "link_up",
    "nic_hot",
    "nic_power",
    "soft_lockup",
    "cpu_hot",
    "storage_stall",
    "disk_error",
)
"""Names of events that a kernel log would contain."""


@dataclass(frozen=True)
class KernelEvent:
    """One event of a kernel log."""

    name: str
    entity: str
    text: str
    value: float | None = None
    """Code of an XID or SXID."""
    subject: str = ""
    """Identifies an event that spans several lines; '' for single lines."""
    is_announced: bool = False
    """Whether a later line may describe the same event of this subject in full."""


_MOST_PID: Final = 1 << 22
"""Highest process id that Linux assigns."""
_PCI: Final = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_Rule = Callable[[re.Match[str]], KernelEvent | None]


def _pci_or_host(address: str | None) -> str:
    known = pci_address(address) if address else None
    return HOST if known is None else pci(known)


def _process_or_host(pid: str) -> str:
    return process(int(pid)) if len(pid) <= 7 and 0 < int(pid) <= _MOST_PID else HOST


_XID: Final = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{5,16})(?: GPU-I:\d{1,3})?\): (\d{1,4}),? ?(.*)")


def _xid(match: re.Match[str]) -> KernelEvent:
    code = int(match[2])
    return KernelEvent("xid", _pci_or_host(match[1]), f"{xids.of_code(code).words}: {match[3]}", code)


_LOST: Final = re.compile(rf"NVRM: The NVIDIA GPU ({_PCI})\s.*\bfallen off the bus.*", re.DOTALL)


def _lost(match: re.Match[str]) -> KernelEvent:
    """Return a lost device as XID 79, which some drivers do not log."""
    return KernelEvent("xid", _pci_or_host(match[1]), f"{xids.of_code(79).words}: {match[0]}", 79)


_SXID: Final = re.compile(rf"nvidia-nvswitch\d{{0,3}}: SXid \(PCI:({_PCI})\): (\d{{1,6}}), (?!Severity |Data )(.*)")
"""Lines that begin with these words list registers of the line before."""


def _sxid(match: re.Match[str]) -> KernelEvent:
    return KernelEvent("sxid", _pci_or_host(match[1]), match[3], int(match[2]))


_AER_RECEIVED: Final = re.compile(
    rf"pcieport ({_PCI}): AER: (?:Multiple )?(Correct(?:ed|able)|Uncorrect(?:ed|able)(?: \([\w-]+\))?) "
    rf"error (?:message )?received(?:: | from )({_PCI})?"
)
_BUS_ERROR: Final = re.compile(rf"[\w-]{{1,32}} ({_PCI}): (?:AER: )?PCIe Bus Error: severity=([\w ()-]{{3,40}}), (.*)")
_SLOT: Final = re.compile(rf"[\w-]{{1,32}} ({_PCI}): (?:pciehp: )?Slot\([^)]{{1,16}}\): (Link Down|Card not present)")


def _severity(text: str) -> str:
    """Return `corrected`, `uncorrected`, `uncorrected, not fatal`, or `fatal`, from any kernel's spelling."""
    small = text.lower()
    if small.startswith("correct"):
        return "corrected"
    if "non-fatal" in small or "nonfatal" in small:
        return "uncorrected, not fatal"
    return "fatal" if "fatal" in small else "uncorrected"


def _aer_received(match: re.Match[str]) -> KernelEvent:
    entity = _pci_or_host(match[3] or match[1])
    return KernelEvent("pcie_error", entity, _severity(match[2]), subject=f"aer {entity}", is_announced=True)


def _bus_error(match: re.Match[str]) -> KernelEvent:
    entity = _pci_or_host(match[1])
    return KernelEvent("pcie_error", entity, f"{_severity(match[2])}: {match[3]}", subject=f"aer {entity}")


def _slot(match: re.Match[str]) -> KernelEvent:
    return KernelEvent("pcie_error", _pci_or_host(match[1]), f"fatal: PCIe slot, {match[2]}")


_MACHINE_CHECK: Final = re.compile(
    r"(?:mce: )?(?:\{\d+\})?\[Hardware Error\]: +(CPU \d+: Machine Check.*|Machine check events logged.*|"
    r"(?:Corrected|Uncorrected|Deferred) error.*|event severity: .*)"
)
_MEMORY_FAILURE: Final = re.compile(r"(mce: Uncorrected hardware memory error.*|Memory failure: 0x.*)")
_EDAC: Final = re.compile(r"EDAC (?:\w+ )?MC\d+: (\d{1,9} [CU]E .*)")


def _machine_check(match: re.Match[str]) -> KernelEvent:
    return KernelEvent("machine_check", HOST, match[1])


_OOM_ANNOUNCED: Final = re.compile(
    r"(?:Out of memory|Memory cgroup out of memory): Kill process (\d+) .*|oom-kill:constraint=.*,pid=(\d+),uid=\d+"
)
_OOM_KILLED: Final = re.compile(r"(?:Out of memory: |Memory cgroup out of memory: )?Killed process (\d+) .*")


def _oom_announced(match: re.Match[str]) -> KernelEvent:
    pid = match[1] or match[2]
    return KernelEvent("oom_kill", _process_or_host(pid), match[0], subject=f"oom {pid[:10]}", is_announced=True)


def _oom_killed(match: re.Match[str]) -> KernelEvent:
    return KernelEvent("oom_kill", _process_or_host(match[1]), match[0], subject=f"oom {match[1][:10]}")


_LINK: Final = re.compile(
    rf"(?P<driver>[a-z][\w-]{{0,31}}):? (?:(?P<pci>{_PCI}):? )?(?P<names>(?:[\w.@/:-]{{1,32}} ){{0,4}}|"
    r"\(slave [\w.@-]{1,32}\): )(?:NIC )?[Ll]ink (?:is |status )?(?:definitely )?"
    r"(?P<state>down|up|Down|Up|DOWN|UP|ACTIVE)\b.*"
)
_NO_NETWORK: Final = ("SATA", "PATA", "usb", "Slot", "pciehp")
_PORT: Final = re.compile(r"(?:(\S{1,32}): )?Port: (\d{1,3}) $")


def _link(match: re.Match[str]) -> KernelEvent | None:
    """Return the event of a NIC's port or interface, else of the device at the address; None for other links."""
    driver, names = match["driver"], match["names"]
    if driver.startswith("ata") or any(one in names for one in _NO_NETWORK):
        return None
    words = [one.strip("():") for one in names.split()]
    port = _PORT.search(names)
    if port is not None and port[1]:
        entity = nic(port[1].strip(":"), port[2])
    elif port is not None:
        entity = nic(driver, port[2])
    else:
        named = [one for one in words if one and one not in (driver, "slave", "NIC")]
        if not named and match["pci"] is None:
            return None
        entity = nic(named[-1]) if named else _pci_or_host(match["pci"])
    name = "link_up" if match["state"].lower() in ("up", "active") else "link_down"
    return KernelEvent(name, entity, match[0])


_NIC_HOT: Final = re.compile(rf"mlx5_core ({_PCI}): .*[Hh]igh [Tt]emperature.*")
_NIC_POWER: Final = re.compile(rf"mlx5_core ({_PCI}): .*Detected insufficient power on the PCIe slot.*")
_LOCKUP: Final = re.compile(
    r"(?:NMI )?(?:watchdog: )?(?:BUG: soft lockup - CPU#\d+ stuck for .*|Watchdog detected hard LOCKUP.*)|"
    r"rcu: INFO: \w+ (?:self-)?detected stalls? on CPU.*"
)
_HUNG: Final = re.compile(r"INFO: task .{1,64}:(\d+) blocked for more than \d+ seconds\..*")
_CPU_HOT: Final = re.compile(r"(?:mce: )?CPU\d+: (?:Core |Package )?[Tt]emperature above threshold.*throttled.*")
_NFS: Final = re.compile(r"nfs: server (\S{1,128}) not responding.*")
_LUSTRE: Final = re.compile(r"Lustre(?:Error)?: .*Connection to (\S{1,128}) \(at \S+\) was lost.*")
_DISK: Final = re.compile(
    r"(?:(?:print_req_error|blk_update_request): )?"
    r"(?:Buffer )?(?:I/O|critical (?:medium|target|space allocation)) error,? (?:on )?dev ([\w-]{1,32}),.*"
)
_NVME: Final = re.compile(r"nvme (nvme\d{1,3}): (?:I/O (?:tag )?\d+ .*timeout.*|controller is down.*)")


def _of_device(name: str) -> _Rule:
    return lambda match: KernelEvent(name, _pci_or_host(match[1]), match[0])


def _of_host(name: str) -> _Rule:
    return lambda match: KernelEvent(name, HOST, match[0])


def _of_disk(name: str) -> _Rule:
    return lambda match: KernelEvent(name, disk(match[1]), match[0])


def _hung(match: re.Match[str]) -> KernelEvent:
    return KernelEvent("soft_lockup", _process_or_host(match[1]), match[0])


_RULES: Final[tuple[tuple[str, re.Pattern[str], _Rule], ...]] = (
    ("Xid (", _XID, _xid),
    ("Xid (", _SXID, _sxid),
    ("The NVIDIA GPU ", _LOST, _lost),
    ("AER: ", _AER_RECEIVED, _aer_received),
    ("Bus Error", _BUS_ERROR, _bus_error),
    ("Slot(", _SLOT, _slot),
    ("[Hardware Error]", _MACHINE_CHECK, _machine_check),
    ("emory ", _MEMORY_FAILURE, _machine_check),
    ("EDAC ", _EDAC, _machine_check),
    ("process ", _OOM_KILLED, _oom_killed),
    ("process ", _OOM_ANNOUNCED, _oom_announced),
    ("oom-kill:", _OOM_ANNOUNCED, _oom_announced),
    ("ink ", _LINK, _link),
    ("emperature", _NIC_HOT, _of_device("nic_hot")),
    ("nsufficient power", _NIC_POWER, _of_device("nic_power")),
    ("emperature", _CPU_HOT, _of_host("cpu_hot")),
    ("ock", _LOCKUP, _of_host("soft_lockup")),
    ("stall", _LOCKUP, _of_host("soft_lockup")),
    (" blocked for", _HUNG, _hung),
    ("not responding", _NFS, _of_disk("storage_stall")),
    ("was lost", _LUSTRE, _of_disk("storage_stall")),
    (" error", _DISK, _of_disk("disk_error")),
    ("nvme ", _NVME, _of_disk("disk_error")),
)
_LONGEST: Final = 2_000
"""Characters of a message that are matched; the kernel's own messages are shorter."""


def event_of(message: str) -> KernelEvent | None:
    """Return the event in a message of the kernel; None for most messages."""
    for sign, pattern, rule in _RULES:
        if sign in message and (match := pattern.match(message[:_LONGEST])):
            return rule(match)
    return None


_DEVICE: Final = re.compile(rf"NVRM: GPU at PCI:({_PCI}): (GPU-[0-9a-fA-F-]{{32,36}})\b")


def device_of(message: str) -> tuple[str, str] | None:
    """Return (PCI address, UUID) of a device, which the driver logs before its first XID."""
    match = _DEVICE.match(message) if message.startswith("NVRM: GPU at ") else None
    known = (pci_address(match[1]), uuid_of(match[2])) if match else (None, None)
    return (known[0], known[1]) if known[0] and known[1] else None


_HOSTNAME: Final = re.compile(r"systemd\[1\]: (?:Hostname set to|Set hostname to) <([\w.-]{1,253})>\.")
_AUDIT: Final = re.compile(r"audit: type=\d+ audit\((\d{9,11}\.\d{3}):\d+\): ")
_RTC: Final = re.compile(r"\S+ \S+: setting system clock to \S+(?: \S+)? UTC \((\d{9,11})\)")


def hostname_in(message: str) -> str | None:
    """Return the host's name, which systemd logs when the host starts."""
    match = _HOSTNAME.match(message) if message.startswith("systemd[1]: ") else None
    return match[1] if match else None


def unix_s_in(message: str) -> tuple[float, bool] | None:
    """Return the Unix time in a message, and whether it is the host's clock (else the hardware clock's at start)."""
    if message.startswith("audit: ") and (match := _AUDIT.match(message)):
        return float(match[1]), True
    if "setting system clock to" in message and (match := _RTC.match(message)):
        return float(match[1]), False
    return None
