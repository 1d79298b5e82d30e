"""Reads facts about a host and a rank's process from `/proc`, `/sys` and `/etc`.

Every function takes the folder of the host's root. Missing facts are None or left out.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from kair_capture.files import text_in

_GIB: Final = 1 << 30
_RUNTIMES: Final = (
    ("cri-containerd", "containerd"), ("containerd", "containerd"), ("crio", "cri-o"), ("libpod", "podman"),
    ("docker", "docker"), ("lxc", "lxc"), ("kubepods", "kubernetes"),
)  # fmt: skip
"""Part of a control group's name → the container runtime."""
_MARKS: Final = ((".dockerenv", "docker"), ("run/.containerenv", "podman"), (".singularity.d", "apptainer"))


def cpus_in(listed: str) -> frozenset[int]:
    """Return `0-3,8` as numbers; empty for other texts."""
    found: set[int] = set()
    for part in listed.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip(), re.ASCII)
        if match is None:
            return frozenset()
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def boot_id(root: Path) -> str | None:
    """Return an id that changes with every boot."""
    return text_in(root / "proc/sys/kernel/random/boot_id") or None


def host_versions(root: Path, process_root: Path) -> dict[str, str]:
    """Return versions of kernel, BIOS, microcode and NIC firmware, and of the OS in the process's own root."""
    firmware = {text_in(path) for path in (root / "sys/class/infiniband").glob("*/fw_ver")}
    found = {
        "kernel": text_in(root / "proc/sys/kernel/osrelease"),
        "os": _of_release(text_in(process_root / "etc/os-release")),
        "bios": text_in(root / "sys/class/dmi/id/bios_version"),
        "microcode": _of_processor(root, "microcode"),
        "nic_firmware": ", ".join(sorted(filter(None, firmware))),
    }
    return {name: version for name, version in found.items() if version}


def _of_release(release: str) -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', release, re.MULTILINE)
    return match[1] if match else ""


def _of_processor(root: Path, name: str) -> str:
    match = re.search(rf"^{re.escape(name)}\s*:\s*(.+)$", text_in(root / "proc/cpuinfo"), re.MULTILINE)
    return match[1] if match else ""


def host_settings(root: Path, cpus: Iterable[int]) -> dict[str, str]:
    """Return what affects a host's speed: the processors that the rank may use, memory and clock."""
    system, kernel = root / "sys/devices/system", root / "proc/sys"
    governors = {text_in(system / f"cpu/cpu{number}/cpufreq/scaling_governor") for number in cpus}
    memory = _memory(root)
    online = cpus_in(text_in(system / "cpu/online"))
    found = {
        "machine": text_in(root / "sys/class/dmi/id/product_name"),
        "cpu_model": _of_processor(root, "model name"),
        "cpus_online": str(len(online)) if online else "",
        "governor": ", ".join(sorted(filter(None, governors))),
        "cpu_driver": text_in(system / "cpu/cpu0/cpufreq/scaling_driver"),
        "boost": _boost(system),
        "smt": {"1": "on", "0": "off"}.get(text_in(system / "cpu/smt/active"), ""),
        "idle_driver": text_in(system / "cpu/cpuidle/current_driver"),
        "clock_source": text_in(system / "clocksource/clocksource0/current_clocksource"),
        "transparent_hugepages": _chosen(text_in(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        "numa_balancing": text_in(kernel / "kernel/numa_balancing"),
        "numa_nodes": str(len(_node_cpus(root)) or ""),
        "swappiness": text_in(kernel / "vm/swappiness"),
        # In whole GiB: the kernel's own share differs between equal hosts.
        "memory_gib": str(round(memory["MemTotal"] * 1024 / _GIB)) if "MemTotal" in memory else "",
        "swap_gib": str(round(memory["SwapTotal"] * 1024 / _GIB)) if "SwapTotal" in memory else "",
        "hugepages": str(memory.get("HugePages_Total", "")),
    }
    return {name: value for name, value in found.items() if value}


def _boost(system: Path) -> str:
    """Return whether cores may exceed their base frequency: two drivers state it, one of them inverted."""
    if given := text_in(system / "cpu/cpufreq/boost"):
        return {"1": "on", "0": "off"}.get(given, "")
    return {"0": "on", "1": "off"}.get(text_in(system / "cpu/intel_pstate/no_turbo"), "")


def _chosen(options: str) -> str:
    """Return `madvise` of `always [madvise] never`."""
    match = re.search(r"\[(\w+)\]", options)
    return match[1] if match else ""


def _memory(root: Path) -> dict[str, int]:
    """Return `/proc/meminfo`; sizes in KiB."""
    lines = re.findall(r"^(\w+):\s+(\d+)", text_in(root / "proc/meminfo"), re.MULTILINE)
    return {name: int(number) for name, number in lines}


def control_group(root: Path, pid: int) -> str | None:
    """Return the process's group: of cgroup v2, or the one that limits its cores or memory; `/` if all are the root."""
    groups: dict[str, str] = {}
    for line in text_in(root / f"proc/{pid}/cgroup").splitlines():
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        groups |= {controller: name for controller in controllers.split(",") if name}
    wanted = [groups[controller] for controller in ("", "cpu", "memory") if controller in groups]
    return next((name for name in wanted if name != "/"), wanted[0] if wanted else None)


def container(root: Path, process_root: Path, group: str | None) -> str | None:
    """Return a container's image if the runtime states it, else the runtime; None outside of containers.

    The runtime's number in `group` changes with every attempt and does not identify the content.
    """
    for line in text_in(process_root / "run/.containerenv").splitlines():
        if match := re.fullmatch(r'image="([^"]+)"', line):
            return match[1]
    # A process may see its own group as `/`; the group of its host's first process may name the runtime.
    named = "\n".join(
        filter(None, (group, *(line.split(":")[-1] for line in text_in(root / "proc/1/cgroup").split("\n"))))
    )
    runtime = next((whose for part, whose in _RUNTIMES if re.search(_group_of(part), named)), None)
    if runtime is None:
        with suppress(OSError):  # the process's root may not be readable
            runtime = next((whose for mark, whose in _MARKS if (process_root / mark).exists()), None)
    return runtime


def _group_of(runtime: str) -> str:
    """Return a pattern for `docker-3f2a….scope`, `/docker/3f2a…`, `kubepods.slice`, not the runtime's own service."""
    return rf"(?m)(?:^|/){re.escape(runtime)}(?:[-/]|\.slice|$)"


def numa_of_device(root: Path, pci: str | None) -> int | None:
    """Return the NUMA node of the device at a PCI address."""
    number = text_in(root / f"sys/bus/pci/devices/{pci}/numa_node") if pci is not None else ""
    return int(number) if number.isdecimal() else None  # −1 if the firmware does not state it


def numa_of_cpus(root: Path, cpus: Iterable[int]) -> int | None:
    """Return the NUMA node of all these cores; None if they span several."""
    own = frozenset(cpus)
    return next((node for node, of in _node_cpus(root).items() if own and own <= of), None)


def _node_cpus(root: Path) -> dict[int, frozenset[int]]:
    folders = (root / "sys/devices/system/node").glob("node*")
    return {
        int(folder.name[4:]): cpus_in(text_in(folder / "cpulist"))
        for folder in sorted(folders)
        if folder.name[4:].isdecimal()
    }


def nics(root: Path, environment: Mapping[str, str], pci: str | None) -> tuple[str, ...]:
    """Return the NICs that the rank may use: active InfiniBand and RoCE ports (`mlx5_3/1`), else interfaces (`eth0`).

    NCCL's and Gloo's variables select them; of several, those nearest to the device at `pci` are returned.
    """
    ports = _ports(root) if environment.get("NCCL_IB_DISABLE", "0") == "0" else {}
    chosen = {name: at for name, at in ports.items() if _is_chosen(name, environment.get("NCCL_IB_HCA", ""))}
    if not chosen:
        wanted = environment.get("NCCL_SOCKET_IFNAME", "") or environment.get("GLOO_SOCKET_IFNAME", "")
        chosen = {name: at for name, at in _interfaces(root).items() if _is_chosen(name, wanted)}
    return _nearest(root, chosen, pci)


def _is_chosen(name: str, wanted: str) -> bool:
    """Return whether NCCL's list selects a name: by prefixes, exact names after `=`, or all others after `^`.

    Source: NCCL's documentation of NCCL_IB_HCA and NCCL_SOCKET_IFNAME.
    """
    without, exact = wanted.startswith("^"), wanted.lstrip("^").startswith("=")
    parts = [part.replace(":", "/") for part in wanted.lstrip("^=").split(",") if part]
    device = name.partition("/")[0]
    if not parts:
        return True
    if exact:
        found = any(part in (name, device) for part in parts)
    else:
        found = any(name == part if "/" in part else device.startswith(part) for part in parts)
    return found != without


def _ports(root: Path) -> dict[str, str]:
    """Return `mlx5_3/1` → its path in the device tree."""
    found = {}
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        if "ACTIVE" in text_in(port / "state"):
            device = port.parent.parent
            found[f"{device.name}/{port.name}"] = _place(device / "device")
    return found


def _interfaces(root: Path) -> dict[str, str]:
    """Return active interfaces → their path in the device tree.

    Members of a bond or bridge are not used themselves. A container may have only virtual ones.
    """
    up = [
        path
        for path in sorted((root / "sys/class/net").glob("*"))
        if path.name != "lo"
        and text_in(path / "operstate") in ("up", "unknown")
        and not any((path / mark).exists() for mark in ("master", "bridge", "tun_flags"))
    ]
    real = [path for path in up if (path / "device").exists() or (path / "bonding").exists()]
    virtual = [path for path in up if text_in(path / "speed").isdecimal()]
    return {path.name: _place(path / "device") for path in real or virtual}


def _place(device: Path) -> str:
    """Return `/sys/devices/pci0000:17/0000:17:01.0/…`; "" if it does not exist."""
    return str(device.resolve()) if device.exists() else ""


def _nearest(root: Path, places: Mapping[str, str], pci: str | None) -> tuple[str, ...]:
    """Return the NICs that share the longest PCI path with the device, else its NUMA node, else all."""
    of_device = _place(root / f"sys/bus/pci/devices/{pci}") if pci is not None else ""
    if not of_device or len(places) < 2:
        return tuple(places)
    shared = {name: _shared(at, of_device, _place(root / "sys/devices")) for name, at in places.items()}
    if most := max(shared.values()):
        return tuple(name for name, count in shared.items() if count == most)
    node = numa_of_device(root, pci)
    nodes = {name: text_in(Path(at) / "numa_node") for name, at in places.items() if at}
    same = tuple(name for name in places if node is not None and nodes.get(name) == str(node))
    return same or tuple(places)


def _shared(one: str, other: str, root: str) -> int:
    """Return how many folders below the tree's root both paths share."""
    parts = [Path(place).relative_to(root).parts if place.startswith(root) else () for place in (one, other)]
    count = 0
    for mine, theirs in zip(*parts, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
