"""Reads the host as a whole: cores, pressure, memory, disks, NFS mounts, and links to other hosts."""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from kair_capture.agent.host_facts import cpus_in
from kair_capture.agent.telemetry.kept_files import (
    PAGE,
    PROC,
    SYS,
    TICKS,
    KeptFile,
    names_in,
    number_after,
    number_in,
    read_once,
)
from kair_capture.agent.telemetry.pacing import EACH, OFTEN, RARE, SELDOM, Task
from kair_capture.agent.telemetry.rows import Rows
from kair_capture.files import text_in
from kair_engine.trace.measures import HOST, disk, nic

_NO_DISK: Final = re.compile(r"(loop|ram|zram|sr|fd|nbd)\d+")
_MOST_ENTITIES: Final = 64
"""Most disks, mounts, interfaces or ports that are read."""
_SECTOR: Final = 512
"""Bytes in the kernel's counts, whatever the disk's sectors are."""
_RATE: Final = re.compile(rb"\s*([\d.]+) Gb/sec")

_COUNTERS: Final = {
    "symbol_error": "ib_symbol_errors",
    "link_error_recovery": "ib_link_recoveries",
    "link_downed": "ib_link_downed",
    "port_rcv_errors": "ib_receive_errors",
    "port_xmit_discards": "ib_transmit_discards",
    "port_xmit_wait": "ib_transmit_wait",
    "local_link_integrity_errors": "ib_integrity_errors",
    "excessive_buffer_overrun_errors": "ib_buffer_overruns",
    "port_rcv_data": "nic_received",
    "port_xmit_data": "nic_sent",
}
"""Files in `counters/` of an InfiniBand or RoCE port → measures."""
_HARDWARE_COUNTERS: Final = {
    "rnr_nak_retry_err": "ib_receiver_not_ready",
    "packet_seq_err": "ib_packet_sequence_errors",
    "out_of_sequence": "ib_out_of_sequence",
    "roce_slow_restart": "roce_slow_restarts",
    "roce_adp_retrans": "roce_retransmits",
    "rp_cnp_handled": "congestion_marks",
    "np_ecn_marked_roce_packets": "congestion_marks",
    "rx_drops": "nic_drops",
}
"""The same in `hw_counters/`; those of one measure are summed."""
_WORDS: Final = frozenset({"nic_received", "nic_sent"})
"""Counted in words of four bytes."""


_PRESSURE: Final = (
    ("pressure/cpu", "psi_cpu_time", b"some", b"total=", 1e-6),
    ("pressure/memory", "psi_memory_time", b"some", b"total=", 1e-6),
    ("pressure/memory", "psi_memory_full_time", b"full", b"total=", 1e-6),
    ("pressure/io", "psi_io_time", b"some", b"total=", 1e-6),
    ("pressure/io", "psi_io_full_time", b"full", b"total=", 1e-6),
)
"""Time that tasks lacked a core, memory or a disk: file, measure, begin of its line, label, unit."""
_MEMORY: Final = (
    ("meminfo", "memory_available", b"\n", b"MemAvailable:", 1024),
    ("meminfo", "memory_total", b"\n", b"MemTotal:", 1024),
    ("vmstat", "swap_in", b"\n", b"\npswpin ", PAGE),
    ("vmstat", "swap_out", b"\n", b"\npswpout ", PAGE),
    ("vmstat", "major_faults", b"\n", b"\npgmajfault ", 1),
)
"""Free memory, and traffic to and from disks."""


def host_tasks(rows: Rows, proc: Path = PROC, sys: Path = SYS) -> list[Task]:
    """Return the tasks that read this host."""
    host = _Host(rows, proc, sys)
    return [
        Task("pressure", EACH, partial(host.read_counts, _PRESSURE, EACH)),
        Task("memory", OFTEN, partial(host.read_counts, _MEMORY, OFTEN)),
        Task("cores", SELDOM, host.read_cores),
        Task("the number of cores", RARE, host.count_cores),
        Task("which disks there are", RARE, host.find_disks),
        Task("disks", OFTEN, host.read_disks),
        Task("NFS mounts", SELDOM, host.read_nfs_mounts),
        Task("network interfaces", RARE, host.find_interfaces),
        Task("network", OFTEN, host.read_network),
        Task("errors of memory", RARE, host.read_memory_errors),
        *_port_tasks(rows, sys),
    ]


class _Host:
    def __init__(self, rows: Rows, proc: Path, sys: Path) -> None:
        self._note, self._proc, self._sys = rows.note, proc, sys
        self._files: dict[str, KeptFile] = {}
        self._disks: frozenset[bytes] = frozenset()
        self._interfaces: frozenset[bytes] = frozenset()
        self._seen: dict[str, set[str]] = {"disk": set(), "mount": set()}

    def _text(self, name: str, size: int = 4096) -> bytes:
        if name not in self._files:
            self._files[name] = KeptFile(self._proc / name, size)
        return self._files[name].read_whole()

    def _is_looked_at(self, kind: str, name: str) -> bool:
        seen = self._seen[kind]
        if name not in seen and len(seen) < _MOST_ENTITIES:
            seen.add(name)
        return name in seen

    def read_counts(self, counts: Sequence[tuple[str, str, bytes, bytes, float]], pace: int, time_ns: int) -> None:
        texts = {file: b"\n" + self._text(file) for file in dict.fromkeys(file for file, *_ in counts)}
        for file, name, section, label, unit in counts:
            _, begin, rest = texts[file].partition(section)
            self._note(HOST, name, pace, time_ns, _scaled(number_after(begin + rest, label), unit))

    def read_cores(self, time_ns: int) -> None:
        """Read the busy time of all cores, and the time the hypervisor took from them."""
        words = self._text("stat").partition(b"\n")[0].split()
        if len(words) >= 9 and words[0] == b"cpu":
            user, nice, system, _, _, interrupts, soft, steal = (number_in(one) or 0.0 for one in words[1:9])
            busy = (user + nice + system + interrupts + soft) / TICKS
            self._note(HOST, "cpu_busy_time", SELDOM, time_ns, busy)
            self._note(HOST, "cpu_steal_time", SELDOM, time_ns, steal / TICKS)

    def count_cores(self, time_ns: int) -> None:
        count = len(cpus_in(text_in(self._sys / "devices/system/cpu/online")))
        self._note(HOST, "cpu_count", RARE, time_ns, float(count) or None)

    def find_disks(self, _time_ns: int) -> None:
        names = (name.encode() for name in names_in(self._sys / "block") if not _NO_DISK.fullmatch(name))
        self._disks = frozenset(names)

    def read_disks(self, time_ns: int) -> None:
        """Read disks that were used since boot."""
        for line in self._text("diskstats").splitlines():
            words = line.split()
            if len(words) < 13 or words[2] not in self._disks or words[3] == words[7] == b"0":
                continue
            if self._is_looked_at("disk", name := words[2].decode(errors="replace")):
                self._note(disk(name), "disk_busy_time", OFTEN, time_ns, _scaled(number_in(words[12]), 1e-3))
                self._note(disk(name), "disk_read", OFTEN, time_ns, _scaled(number_in(words[5]), _SECTOR))

    def read_nfs_mounts(self, time_ns: int) -> None:
        text = self._text("self/mountstats", 1 << 16)
        if b" with fstype nfs" not in text:
            return
        for mount, *values in nfs_requests(text.decode(errors="replace")):
            if self._is_looked_at("mount", mount):
                names = ("nfs_requests", "nfs_retransmits", "nfs_request_time")
                for name, value in zip(names, values, strict=True):
                    self._note(disk(mount), name, SELDOM, time_ns, value)

    def find_interfaces(self, time_ns: int) -> None:
        """Find Ethernet devices, if any; in a container, all interfaces except the loopback."""
        folder = self._sys / "class/net"
        names = [name for name in names_in(folder) if name != "lo"]
        devices = [name for name in names if (folder / name / "device").exists()]
        chosen = (devices or names)[:_MOST_ENTITIES]
        self._interfaces |= {name.encode() for name in chosen}
        for name in chosen:
            speed = number_in(read_once(folder / name / "speed"))
            gbps = speed / 1e3 if speed is not None and speed > 0 else None
            self._note(nic(name), "nic_speed", RARE, time_ns, gbps)
            state = text_in(folder / name / "operstate")
            self._note(nic(name), "nic_state", RARE, time_ns, state if state and state != "unknown" else None)

    def read_network(self, time_ns: int) -> None:
        for line in self._text("net/dev").splitlines():
            name, _, rest = line.partition(b":")
            numbers = [number_in(word) for word in rest.split()] if name.strip() in self._interfaces else []
            if len(numbers) < 12:
                continue
            entity = nic(name.strip().decode(errors="replace"))
            errors, drops = ((numbers[at] or 0) + (numbers[at + 8] or 0) for at in (2, 3))
            counts = {"nic_received": numbers[0], "nic_sent": numbers[8], "nic_errors": errors, "nic_drops": drops}
            for counter, value in counts.items():
                self._note(entity, counter, OFTEN, time_ns, value)
        self._note(HOST, "tcp_retransmits", OFTEN, time_ns, _tcp_retransmits(self._text("net/snmp")))

    def read_memory_errors(self, time_ns: int) -> None:
        """Read error counts of the host's own memory (EDAC)."""
        folder = self._sys / "devices/system/edac/mc"
        controllers = [name for name in names_in(folder) if re.fullmatch(r"mc\d+", name)]
        for file, measure in (("ce_count", "edac_corrected"), ("ue_count", "edac_uncorrected")):
            counts = [number_in(read_once(folder / name / file)) for name in controllers]
            known = [one for one in counts if one is not None]
            self._note(HOST, measure, RARE, time_ns, sum(known) if known else None)


def nfs_requests(text: str) -> Iterable[tuple[str, float, float, float]]:
    """Yield each NFS mount of /proc/PID/mountstats with its requests, retransmissions, and their time in s.

    The kernel lists, per operation: requests, transmissions, timeouts, bytes out and in, and ms in the queue, on the
    way, and in total.
    """
    for block in re.split(r"^device ", text, flags=re.MULTILINE)[1:]:
        head, _, rest = block.partition("\n")
        found = re.search(r" mounted on (.*) with fstype nfs", head)
        _, has_operations, operations = rest.partition("per-op statistics")
        if found is None or not has_operations:
            continue
        requests = again = time_ms = 0.0
        for line in operations.splitlines():
            words = line.split()
            if len(words) >= 9 and words[0].endswith(":"):
                numbers = [number_in(word.encode()) or 0.0 for word in words[1:9]]
                requests += numbers[0]
                again += max(numbers[1] - numbers[0], 0)
                time_ms += numbers[7]
        yield unescaped(found[1]), requests, again, time_ms / 1e3


def _tcp_retransmits(text: bytes) -> float | None:
    lines = [line.split() for line in text.splitlines() if line.startswith(b"Tcp:")]
    if len(lines) < 2 or b"RetransSegs" not in lines[0]:
        return None
    at = lines[0].index(b"RetransSegs")
    return number_in(lines[1][at]) if at < len(lines[1]) else None


def _port_tasks(rows: Rows, sys: Path) -> list[Task]:
    """Return a task per InfiniBand or RoCE port, because the device's firmware answers slowly."""
    folder = sys / "class/infiniband"
    ports = [(device, port) for device in names_in(folder) for port in names_in(folder / device / "ports")]
    of = [_Port(rows, folder / device / "ports" / port, nic(device, port)) for device, port in ports[:_MOST_ENTITIES]]
    return [Task(f"counters of {one.entity}", SELDOM, one.read) for one in of]


class _Port:
    def __init__(self, rows: Rows, folder: Path, entity: str) -> None:
        self.entity: Final = entity
        self._note = partial(rows.note, entity)
        self._counters: dict[str, list[KeptFile]] = {}
        for under, names in (("counters", _COUNTERS), ("hw_counters", _HARDWARE_COUNTERS)):
            for file in names_in(folder / under):
                if file in names:
                    self._counters.setdefault(names[file], []).append(KeptFile(folder / under / file, 64))
        self._speed, self._state = KeptFile(folder / "rate", 64), KeptFile(folder / "state", 64)

    def read(self, time_ns: int) -> None:
        """Read all its counters."""
        for name, files in self._counters.items():
            known = [number for file in files if (number := file.number()) is not None]
            self._note(name, SELDOM, time_ns, sum(known) * (4 if name in _WORDS else 1) if known else None)
        rate = _RATE.match(self._speed.read())
        self._note("nic_speed", SELDOM, time_ns, number_in(rate[1]) if rate else None)
        state = self._state.read().partition(b":")[2].decode("ascii", "replace").strip().lower()
        self._note("nic_state", SELDOM, time_ns, state or None)


def unescaped(path: str) -> str:
    r"""Return a path from a list of mounts, where a blank is written `\040`."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda found: chr(int(found[1], 8)), path)


def _scaled(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor
