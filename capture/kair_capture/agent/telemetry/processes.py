"""Reads the processes of this host's ranks and those that they started, mainly data workers."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kair_capture.agent.telemetry.control_groups import ControlGroups
from kair_capture.agent.telemetry.kept_files import (
    PAGE,
    PROC,
    SYS,
    TICKS,
    KeptFile,
    number_after,
    number_in,
    read_once,
)
from kair_capture.agent.telemetry.pacing import EACH, PACES, SELDOM, Task
from kair_capture.agent.telemetry.process_table import ProcessStat, ProcessTable, stat_in
from kair_capture.agent.telemetry.rows import HEARTBEAT_S, Rows, Series
from kair_capture.agent.telemetry.waiting import Waiting, waits_for_a_file, waits_of
from kair_capture.job.limits import GROUPS
from kair_engine.trace.measures import HOST, process

_MOST_WORKERS: Final = 128
"""Most workers read per rank."""
_WORKERS_LOOKED_AT: Final = 2
"""Workers per rank whose waits are read at once."""
_MOST_WAITS: Final = 64
"""Most texts of waits per process."""
_GROUPS_FOR_S: Final = 600.0
"""Control groups without a process are forgotten after this long."""
_LONGEST_LOOK: Final = 10
"""Longest gap in intervals; waits within a longer one are not known."""
_READ: Final = (
    ("process_read", b"rchar: "),
    ("process_read_calls", b"syscr: "),
    ("process_disk_read", b"read_bytes: "),
)
"""Measures in /proc/PID/io."""
_OF_WORKERS: Final = ("major_faults", "disk_ticks")


class RankProcess:
    """The process of one rank; its rows have the process as entity, and the rank."""

    def __init__(self, rank: int, pid: int, rows: Rows, places: "Places", table: ProcessTable) -> None:
        self.rank: Final = rank
        self.pid: Final = pid
        self.cores = 0
        """Bit mask of the cores that it may use; 0 while not known."""
        self.run_delay_s = 0.0
        """How long its training thread has been ready without a core."""
        self._rows, self._places, self._table, self._entity = rows, places, table, process(pid)
        self._folder = places.proc / str(pid)
        self._stat = KeptFile(self._folder / "stat", 1024)
        # A process's first thread, which trains, has the process's number.
        self._schedule = KeptFile(self._folder / "task" / str(pid) / "schedstat", 128)
        self._status, self._reads = KeptFile(self._folder / "status"), KeptFile(self._folder / "io", 512)
        self._waiting = Waiting(self._folder)
        self._groups: ControlGroups | None = None
        self._last: ProcessStat | None = None
        self._workers = _Workers(places, table)
        self._waits = WaitTimes(rows, process(pid), EACH, rank)
        self._waits_of_workers = WaitTimes(rows, process(pid), SELDOM, rank)

    @property
    def is_gone(self) -> bool:
        """Return whether it has ended."""
        return self._stat.is_gone

    @property
    def core(self) -> int | None:
        """Return the core on which its training thread last ran."""
        return None if self._last is None else self._last.core

    def each(self, time_ns: int) -> None:
        """Read what is read every second."""
        stat = stat_in(self._stat.read())
        if stat is None or stat.state in "ZX":
            return
        self._last = stat
        self._add(EACH, "process_cpu_time", time_ns, stat.ticks / TICKS)
        self._add(EACH, "process_kernel_time", time_ns, stat.kernel_ticks / TICKS)
        self._add(EACH, "process_minor_faults", time_ns, float(stat.minor_faults))
        self._add(EACH, "process_major_faults", time_ns, float(stat.major_faults + self._workers.total("major_faults")))
        self._add(EACH, "process_memory", time_ns, float(stat.resident_pages * PAGE) + self._workers.memory)
        ticks = stat.disk_ticks + self._workers.total("disk_ticks")
        if self._places.counts_disk_time(ticks):
            self._add(EACH, "process_disk_time", time_ns, ticks / TICKS)
        words = self._schedule.read().split()
        if len(words) == 3 and words != [b"0"] * 3:
            self.run_delay_s = (number_in(words[1]) or 0.0) / 1e9
            self._add(EACH, "process_run_delay", time_ns, self.run_delay_s)
        self._waits.add([self._waiting.text(stat.state, time_ns)], time_ns)
        if self._groups is None:
            return
        if (throttling := self._groups.throttling(time_ns)) is not None:
            self._add(EACH, "process_throttled_time", time_ns, throttling.time_s)
            self._add(EACH, "process_throttled", time_ns, throttling.times)
        self._add(EACH, "process_memory_stalls", time_ns, self._groups.memory_stalls_s(time_ns))

    def seldom(self, time_ns: int) -> None:
        """Read what is read every ten seconds, after the table was refreshed."""
        self._last = self._last or stat_in(self._stat.read())
        if self._last is None or self.is_gone:
            return
        workers = self._workers
        workers.look(sorted(self._table.descendants([self.pid]))[:_MOST_WORKERS])
        status, reads = self._status.read(), self._reads.read()
        swapped = number_after(status, b"VmSwap:")
        self._add(SELDOM, "process_swapped", time_ns, None if swapped is None else swapped * 1024)
        self.cores = cores_in(status)
        self._add(SELDOM, "process_cores", time_ns, float(self.cores.bit_count()) if self.cores else None)
        for name, label in _READ:
            number = number_after(reads, label)
            self._add(SELDOM, name, time_ns, None if number is None else number + workers.total(name))
        self._add(SELDOM, "process_nice", time_ns, float(self._last.nice))
        self._add(SELDOM, "threads", time_ns, float(self._last.threads))
        self._add(SELDOM, "loader_workers", time_ns, float(len(workers)))
        # The training thread itself only waits for its workers.
        waits = workers.waits(time_ns)
        of_files = [f"{text}, of data workers" if text and waits_for_a_file(text) else None for text in waits]
        self._waits_of_workers.add(of_files, time_ns)
        self._tell_limits(self._last.core, time_ns)

    def _tell_limits(self, core: int, time_ns: int) -> None:
        """Note the limits of its groups, and the clock of its core."""
        self._groups = self._places.groups_of(self._table.text(self.pid, "cgroup"), time_ns)
        self._add(SELDOM, "process_quota", time_ns, self._groups.quota)
        self._add(SELDOM, "process_memory_limit", time_ns, self._groups.memory_limit)
        frequency, governor = self._places.clock_of(core)
        self._add(SELDOM, "cpu_frequency", time_ns, frequency)
        self._add(SELDOM, "cpu_governor", time_ns, governor)

    def close(self) -> None:
        """Close the files."""
        for one in (self._stat, self._schedule, self._status, self._reads, self._waiting):
            one.close()

    def _add(self, pace: int, name: str, time_ns: int, value: float | str | None) -> None:
        self._rows.note(self._entity, name, pace, time_ns, value, self.rank)


class WaitTimes:
    """Time a thread waited, by what it waited in, from samples: each counts for the time since the previous one."""

    def __init__(self, rows: Rows, entity: str, pace: int, rank: int) -> None:
        self._rows, self._entity, self._pace, self._rank = rows, entity, pace, rank
        self._looked_ns: int | None = None
        self._all_told_ns = 0
        self._of: dict[str, tuple[Series, float]] = {}

    def add(self, seen: Sequence[str | None], time_ns: int) -> None:
        """Add what several threads wait in, which share the time equally; None entries are not counted."""
        before, self._looked_ns = self._looked_ns, time_ns
        if before is None:
            return
        elapsed_s = min((time_ns - before) / 1e9, _LONGEST_LOOK * PACES[self._pace])
        for text in seen:
            if text is None:
                continue
            if text not in self._of:
                if len(self._of) >= _MOST_WAITS:
                    continue
                series = Series(self._entity, "process_wait_time", self._pace, self._rank, text=text)
                self._of[text] = (series, 0.0)
                self._rows.add(series, before, 0.0)
            series, total = self._of[text]
            self._of[text] = (series, total := total + max(elapsed_s, 0.0) / len(seen))
            self._rows.add(series, time_ns, total)
        # Unseen waits stay constant, which is reported now and then.
        if time_ns - self._all_told_ns > HEARTBEAT_S / 3 * 1e9:
            self._all_told_ns = time_ns
            for series, total in self._of.values():
                self._rows.add(series, time_ns, total)


class _Workers:
    """The processes that a rank started. Their counts stay included after they end."""

    def __init__(self, places: "Places", table: ProcessTable) -> None:
        self._places, self._table = places, table
        self._last: dict[int, dict[str, float]] = {}
        self._totals: dict[str, float] = {}
        self.memory = 0.0
        """Resident bytes; memory shared with their parent counts for each."""
        self._states: dict[int, str] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._last)

    def total(self, name: str) -> float:
        """Return the total of a counter over all of them so far."""
        return self._totals.get(name, 0.0)

    def look(self, pids: Iterable[int]) -> None:
        """Read the present ones."""
        before, self._last = self._last, {}
        self.memory, self._states = 0.0, {}
        for pid in pids:
            stat = self._table.stat(pid)
            if stat is None or stat.state in "ZX":
                continue
            reads = self._table.text(pid, "io")
            now = {name: number for name, label in _READ if (number := number_after(reads, label)) is not None}
            now |= {name: float(getattr(stat, name)) for name in _OF_WORKERS}
            self.memory += stat.resident_pages * PAGE
            self._states[pid] = stat.state
            for name, value in now.items():
                grown = value - before.get(pid, {}).get(name, 0.0)
                # A smaller value means that another process has its number.
                self._totals[name] = self.total(name) + (grown if grown >= 0 else value)
            self._last[pid] = now

    def waits(self, time_ns: int) -> list[str | None]:
        """Return what a few of them wait in, different ones each time."""
        pids = list(self._states)
        self._turn += _WORKERS_LOOKED_AT
        chosen = {pids[(self._turn + one) % len(pids)] for one in range(_WORKERS_LOOKED_AT)} if pids else set()
        return [waits_of(self._places.proc / str(pid), self._states[pid], time_ns) for pid in sorted(chosen)]


class Places:
    """Where the system exposes its readings, and which it does not have."""

    def __init__(self, proc: Path = PROC, sys: Path = SYS, groups: Path = GROUPS) -> None:
        self.proc: Final = proc
        self._root = groups
        self._groups: dict[bytes, ControlGroups] = {}
        self._looked_ns: dict[bytes, int] = {}
        self._cores = sys / "devices/system/cpu"
        self._clocks: dict[int, tuple[KeptFile, KeptFile]] = {}
        switch = read_once(proc / "sys/kernel/task_delayacct", 16).strip()
        self._counts_disk_time = {b"1": True, b"0": False}.get(switch)

    def counts_disk_time(self, ticks: float) -> bool:
        """Return whether the kernel counts waits for disks; if it does not say, whether it ever counted one."""
        if self._counts_disk_time is None and ticks > 0:
            self._counts_disk_time = True
        return self._counts_disk_time is True

    def groups_of(self, cgroup: bytes, time_ns: int) -> ControlGroups:
        """Return the groups of a text of /proc/PID/cgroup, which a job's processes mostly share; read once per time."""
        if cgroup not in self._groups:
            self._groups[cgroup] = ControlGroups(cgroup.decode(errors="replace"), self._root)
        if self._looked_ns.get(cgroup) != time_ns:
            self._looked_ns[cgroup] = time_ns
            self._groups[cgroup].look()
        for other in [one for one, looked in self._looked_ns.items() if time_ns - looked > _GROUPS_FOR_S * 1e9]:
            self._groups.pop(other).close()
            del self._looked_ns[other]
        return self._groups[cgroup]

    def clock_of(self, core: int) -> tuple[float | None, str | None]:
        """Return a core's clock (MHz) and governor; None if not known, as in most virtual machines."""
        if core not in self._clocks:
            folder = self._cores / f"cpu{core}" / "cpufreq"
            self._clocks[core] = KeptFile(folder / "scaling_cur_freq", 64), KeptFile(folder / "scaling_governor", 64)
        clock, governor = self._clocks[core]
        khz = clock.number()
        name = governor.read().decode("ascii", "replace").strip()
        return None if khz is None else khz / 1e3, name or None


class RankProcesses:
    """The processes of all ranks of this host."""

    def __init__(self, rows: Rows, places: Places, table: ProcessTable) -> None:
        self._rows, self._places, self._table = rows, places, table
        self.of: dict[int, RankProcess] = {}
        """rank → its process."""

    def tasks(self) -> list[Task]:
        """Return the tasks that read them."""
        return [
            # Before the readings of each second, which would otherwise miss what workers did before the first look.
            Task("processes of ranks", SELDOM, self._seldom),
            Task("ranks", EACH, self._each),
        ]

    def follow(self, ranks: Mapping[int, int]) -> None:
        """Follow these processes (rank → process) from now on."""
        for rank, known in list(self.of.items()):
            if ranks.get(rank) != known.pid:
                self.of.pop(rank).close()
        for rank, pid in ranks.items():
            if rank not in self.of:
                self.of[rank] = RankProcess(rank, pid, self._rows, self._places, self._table)

    def family(self) -> set[int]:
        """Return the processes of ranks and all their descendants."""
        own = {one.pid for one in self.of.values()}
        return own | self._table.descendants(own)

    def _each(self, time_ns: int) -> None:
        for one in self.of.values():
            one.each(time_ns)

    def _seldom(self, time_ns: int) -> None:
        self._table.refresh()
        for one in self.of.values():
            one.seldom(time_ns)
        clocks = [self._places.clock_of(one.core) for one in self.of.values() if one.core is not None]
        frequencies = [frequency for frequency, _ in clocks if frequency is not None]
        governors = sorted({governor for _, governor in clocks if governor is not None})
        mean = sum(frequencies) / len(frequencies) if frequencies else None
        self._rows.note(HOST, "cpu_frequency", SELDOM, time_ns, mean)
        self._rows.note(HOST, "cpu_governor", SELDOM, time_ns, ", ".join(governors) or None)


def cores_in(status: bytes) -> int:
    """Return the cores that a process may use, from /proc/PID/status: bit n for core n; 0 if not stated."""
    at = status.find(b"Cpus_allowed:")
    if at < 0:
        return 0
    try:
        return int(status[at + 13 : status.find(b"\n", at)].replace(b",", b""), 16)
    except ValueError:
        return 0
