"""The host as a whole: cores, pressure, memory, disks, NFS mounts, and links to other hosts."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

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
from kair_capture.agent.telemetry.rows import Rows, Series
from kair_engine.trace.measures import HOST, disk, nic

_NO_DISK: Final = re.compile(r"(loop|ram|zram|sr|fd|nbd)\d+")
_MOST_ENTITIES: Final = 64
"""Disks, mounts, interfaces or ports that are looked at."""
_SECTOR: Final = 512
"""Bytes, of the kernel's counts, whatever the disk's are."""
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
"""Files in `counters/` of a port of InfiniBand or RoCE → measures."""
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


def host_tasks(rows: Rows, proc: Path = PROC, sys: Path = SYS) -> list[Task]:
    """What there is to read on this host."""
    parts = (
        _Pressure(rows, proc),
        _Memory(rows, proc),
        _Cores(rows, proc, sys),
        _Disks(rows, proc, sys),
        _NfsMounts(rows, proc),
        _Interfaces(rows, proc, sys),
        _MemoryErrors(rows, sys),
    )
    return [*(task for part in parts for task in part.tasks()), *_port_tasks(rows, sys)]


class _Pressure:
    """How long tasks of the host lacked a core, memory or a disk."""

    def __init__(self, rows: Rows, proc: Path) -> None:
        self._rows = rows
        self._files = [
            (KeptFile(proc / "pressure" / of), Series(HOST, some, EACH), Series(HOST, full, EACH) if full else None)
            for of, some, full in (
                ("cpu", "psi_cpu_time", ""),
                ("memory", "psi_memory_time", "psi_memory_full_time"),
                ("io", "psi_io_time", "psi_io_full_time"),
            )
        ]

    def tasks(self) -> list[Task]:
        return [Task("pressure", EACH, self._read)]

    def _read(self, time_ns: int) -> None:
        for file, some, full in self._files:
            first, _, second = file.read().partition(b"\n")
            self._rows.add(some, time_ns, _scaled(number_after(first, b"total="), 1e-6))
            if full is not None:
                self._rows.add(full, time_ns, _scaled(number_after(second, b"total="), 1e-6))


class _Memory:
    """What is free, and what went to disks and back."""

    def __init__(self, rows: Rows, proc: Path) -> None:
        self._rows = rows
        self._info, self._events = KeptFile(proc / "meminfo"), KeptFile(proc / "vmstat")
        self._of_info = ((b"MemAvailable:", Series(HOST, "memory_available", OFTEN)), (b"MemTotal:", _total_memory()))
        self._of_events = (
            (b"\npswpin ", Series(HOST, "swap_in", OFTEN), PAGE),
            (b"\npswpout ", Series(HOST, "swap_out", OFTEN), PAGE),
            (b"\npgmajfault ", Series(HOST, "major_faults", OFTEN), 1),
        )

    def tasks(self) -> list[Task]:
        return [Task("memory", OFTEN, self._read)]

    def _read(self, time_ns: int) -> None:
        text = self._info.read()
        for label, series in self._of_info:
            self._rows.add(series, time_ns, _scaled(number_after(text, label), 1024))
        text = b"\n" + self._events.read_whole()
        for label, series, factor in self._of_events:
            self._rows.add(series, time_ns, _scaled(number_after(text, label), factor))


def _total_memory() -> Series:
    return Series(HOST, "memory_total", OFTEN)


class _Cores:
    """What all cores did, and what the hypervisor took of them."""

    def __init__(self, rows: Rows, proc: Path, sys: Path) -> None:
        self._rows = rows
        self._stat = KeptFile(proc / "stat", 512)
        self._online = sys / "devices/system/cpu/online"
        self._busy, self._steal = Series(HOST, "cpu_busy_time", SELDOM), Series(HOST, "cpu_steal_time", SELDOM)
        self._count = Series(HOST, "cpu_count", RARE)

    def tasks(self) -> list[Task]:
        return [Task("cores", SELDOM, self._read), Task("the number of cores", RARE, self._read_count)]

    def _read(self, time_ns: int) -> None:
        words = self._stat.read().partition(b"\n")[0].split()
        if len(words) >= 9 and words[0] == b"cpu":
            user, nice, system, _, _, interrupts, soft, steal = (number_in(one) or 0.0 for one in words[1:9])
            self._rows.add(self._busy, time_ns, (user + nice + system + interrupts + soft) / TICKS)
            self._rows.add(self._steal, time_ns, steal / TICKS)

    def _read_count(self, time_ns: int) -> None:
        count = len(numbers_in_list(read_once(self._online).decode("ascii", "replace")))
        self._rows.add(self._count, time_ns, float(count) if count else None)


class _Disks:
    """Those that did something since the host began."""

    def __init__(self, rows: Rows, proc: Path, sys: Path) -> None:
        self._rows, self._folder = rows, sys / "block"
        self._stats = KeptFile(proc / "diskstats")
        self._names: frozenset[bytes] = frozenset()
        self._series: dict[bytes, tuple[Series, Series]] = {}

    def tasks(self) -> list[Task]:
        return [Task("which disks there are", RARE, self._find), Task("disks", OFTEN, self._read)]

    def _find(self, _time_ns: int) -> None:
        self._names = frozenset(name.encode() for name in names_in(self._folder) if not _NO_DISK.fullmatch(name))

    def _read(self, time_ns: int) -> None:
        for line in self._stats.read_whole().splitlines():
            words = line.split()
            if len(words) < 13 or words[2] not in self._names or words[3] == words[7] == b"0":
                continue
            series = self._series.get(words[2])
            if series is None:
                if len(self._series) >= _MOST_ENTITIES:
                    continue
                entity = disk(words[2].decode(errors="replace"))
                series = Series(entity, "disk_busy_time", OFTEN), Series(entity, "disk_read", OFTEN)
                self._series[words[2]] = series
            self._rows.add(series[0], time_ns, _scaled(number_in(words[12]), 1e-3))
            self._rows.add(series[1], time_ns, _scaled(number_in(words[5]), _SECTOR))


class _NfsMounts:
    """By /proc/self/mountstats: of all operations of a mount together."""

    def __init__(self, rows: Rows, proc: Path) -> None:
        self._rows, self._stats = rows, KeptFile(proc / "self/mountstats", 1 << 16)
        self._series: dict[str, tuple[Series, Series, Series]] = {}

    def tasks(self) -> list[Task]:
        return [Task("NFS mounts", SELDOM, self._read)]

    def _read(self, time_ns: int) -> None:
        text = self._stats.read_whole()
        if b" with fstype nfs" not in text:
            return
        for mount, requests, again, time_s in nfs_requests(text.decode(errors="replace")):
            series = self._series.get(mount)
            if series is None:
                if len(self._series) >= _MOST_ENTITIES:
                    continue
                names = ("nfs_requests", "nfs_retransmits", "nfs_request_time")
                first, second, third = (Series(disk(mount), name, SELDOM) for name in names)
                self._series[mount] = series = (first, second, third)
            for one, value in zip(series, (requests, again, time_s), strict=True):
                self._rows.add(one, time_ns, value)


def nfs_requests(text: str) -> Iterable[tuple[str, float, float, float]]:
    """Of /proc/PID/mountstats: each NFS mount, its requests, those of them sent again, and their time, s.

    Of an operation the kernel tells requests, transmissions, timeouts, bytes out and in, and ms in the queue, on the
    way, and altogether.
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


class _Interfaces:
    """Ethernet: of devices, where there are any; inside a container of whatever is not the host itself."""

    def __init__(self, rows: Rows, proc: Path, sys: Path) -> None:
        self._rows, self._folder = rows, sys / "class/net"
        self._counts, self._tcp = KeptFile(proc / "net/dev"), KeptFile(proc / "net/snmp")
        self._retransmits = Series(HOST, "tcp_retransmits", OFTEN)
        self._series: dict[str, dict[str, Series]] = {}

    def tasks(self) -> list[Task]:
        return [Task("network interfaces", RARE, self._find), Task("network", OFTEN, self._read)]

    def _find(self, time_ns: int) -> None:
        names = [name for name in names_in(self._folder) if name != "lo"]
        devices = [name for name in names if (self._folder / name / "device").exists()]
        for name in (devices or names)[:_MOST_ENTITIES]:
            if name not in self._series:
                counters = ("nic_received", "nic_sent", "nic_errors", "nic_drops")
                entity = nic(name)
                self._series[name] = {one: Series(entity, one, OFTEN) for one in counters}
                self._series[name] |= {one: Series(entity, one, RARE) for one in ("nic_speed", "nic_state")}
            speed = number_in(read_once(self._folder / name / "speed"))
            series = self._series[name]
            self._rows.add(series["nic_speed"], time_ns, speed / 1e3 if speed is not None and speed > 0 else None)
            state = read_once(self._folder / name / "operstate").decode(errors="replace").strip()
            self._rows.add(series["nic_state"], time_ns, state if state and state != "unknown" else None)

    def _read(self, time_ns: int) -> None:
        for line in self._counts.read_whole().splitlines():
            name, _, rest = line.partition(b":")
            series = self._series.get(name.decode(errors="replace").strip())
            numbers = [number_in(word) for word in rest.split()] if series is not None else []
            if series is None or len(numbers) < 12:
                continue
            self._rows.add(series["nic_received"], time_ns, numbers[0])
            self._rows.add(series["nic_sent"], time_ns, numbers[8])
            self._rows.add(series["nic_errors"], time_ns, (numbers[2] or 0) + (numbers[10] or 0))
            self._rows.add(series["nic_drops"], time_ns, (numbers[3] or 0) + (numbers[11] or 0))
        self._rows.add(self._retransmits, time_ns, _tcp_retransmits(self._tcp.read_whole()))


def _tcp_retransmits(text: bytes) -> float | None:
    lines = [line.split() for line in text.splitlines() if line.startswith(b"Tcp:")]
    if len(lines) < 2 or b"RetransSegs" not in lines[0]:
        return None
    at = lines[0].index(b"RetransSegs")
    return number_in(lines[1][at]) if at < len(lines[1]) else None


class _MemoryErrors:
    """Of the host's own memory (EDAC)."""

    def __init__(self, rows: Rows, sys: Path) -> None:
        self._rows, self._folder = rows, sys / "devices/system/edac/mc"
        self._of = (
            ("ce_count", Series(HOST, "edac_corrected", RARE)),
            ("ue_count", Series(HOST, "edac_uncorrected", RARE)),
        )

    def tasks(self) -> list[Task]:
        return [Task("errors of memory", RARE, self._read)]

    def _read(self, time_ns: int) -> None:
        controllers = [name for name in names_in(self._folder) if re.fullmatch(r"mc\d+", name)]
        for file, series in self._of:
            counts = [number_in(read_once(self._folder / name / file)) for name in controllers]
            known = [one for one in counts if one is not None]
            self._rows.add(series, time_ns, sum(known) if known else None)


def _port_tasks(rows: Rows, sys: Path) -> list[Task]:
    """Of InfiniBand and RoCE, one for each port: a device's firmware is asked, which takes long."""
    folder = sys / "class/infiniband"
    ports = [(device, port) for device in names_in(folder) for port in names_in(folder / device / "ports")]
    of = [_Port(rows, folder / device / "ports" / port, nic(device, port)) for device, port in ports[:_MOST_ENTITIES]]
    return [Task(f"counters of {one.entity}", SELDOM, one.read) for one in of]


class _Port:
    def __init__(self, rows: Rows, folder: Path, entity: str) -> None:
        self.entity: Final = entity
        self._rows, self._folder = rows, folder
        self._counters: list[tuple[Series, list[KeptFile]]] = []
        for under, names in (("counters", _COUNTERS), ("hw_counters", _HARDWARE_COUNTERS)):
            files: dict[str, list[KeptFile]] = {}
            for file in names_in(folder / under):
                if file in names:
                    files.setdefault(names[file], []).append(KeptFile(folder / under / file, 64))
            self._counters += [(Series(entity, name, SELDOM), of) for name, of in files.items()]
        self._speed, self._state = Series(entity, "nic_speed", SELDOM), Series(entity, "nic_state", SELDOM)
        self._speed_file, self._state_file = KeptFile(folder / "rate", 64), KeptFile(folder / "state", 64)

    def read(self, time_ns: int) -> None:
        """All that it counts."""
        for series, files in self._counters:
            known = [number for file in files if (number := file.number()) is not None]
            factor = 4 if series.name in _WORDS else 1
            self._rows.add(series, time_ns, sum(known) * factor if known else None)
        rate = _RATE.match(self._speed_file.read())
        self._rows.add(self._speed, time_ns, number_in(rate[1]) if rate else None)
        state = self._state_file.read().partition(b":")[2].decode("ascii", "replace").strip().lower()
        self._rows.add(self._state, time_ns, state or None)


def numbers_in_list(text: str) -> Sequence[int]:
    """`0-3,8` → 0, 1, 2, 3, 8; none of what is no such list."""
    found: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII)
        if match is not None:
            found += range(int(match[1]), min(int(match[2] or match[1]), int(match[1]) + 65535) + 1)
    return found


def unescaped(path: str) -> str:
    r"""A path in a list of mounts, where a blank is written `\040`."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda found: chr(int(found[1], 8)), path)


def _scaled(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor
