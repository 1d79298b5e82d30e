"""Samples the host during the job's steps, and delivers the readings as files of evidence.

It has three threads, so that a hang (a driver with a lost device, a store that is away) blocks neither the agent nor
the other two: one reads the host and its processes, one the devices, one writes and delivers.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from kair_capture.agent.telemetry.devices import Devices
from kair_capture.agent.telemetry.host import host_tasks
from kair_capture.agent.telemetry.joining import DeliveredFiles, in_order
from kair_capture.agent.telemetry.kept_files import PROC, SYS
from kair_capture.agent.telemetry.neighbours import Neighbours
from kair_capture.agent.telemetry.pacing import BUDGET, BURST_S, EACH, PACES, SHAKEN, Pacer
from kair_capture.agent.telemetry.process_table import ProcessTable
from kair_capture.agent.telemetry.processes import Places, RankProcesses
from kair_capture.agent.telemetry.rows import Rows
from kair_capture.files import make_secure_dir, remove_beyond
from kair_capture.job.limits import GROUPS
from kair_capture.nvml import Nvml, opened
from kair_engine.trace.evidence_table import write_evidence
from kair_engine.trace.files import remove_unwritten

FLUSH_S: Final = 60.0
"""Seconds between files, for an hour; later a sixtieth of the sampler's age, so that a long job has few files."""
_MOST_FLUSH_S: Final = 600.0
FULL_ROWS: Final = 20_000
"""Rows that are written without waiting longer."""
SPOOL_BYTES: Final = 64 << 20
"""Most bytes that wait for a store; the oldest files are dropped."""
_LEAST_RETRY_S, _MOST_RETRY_S = 5.0, 60.0
_BURST_FOR_S: Final = 10.0
_DEVICES_SHARE: Final = 0.5
"""Share of the budget for devices, if there are any."""
_MOST_TROUBLES: Final = 8
_LAST_S: Final = 3.0
"""Time to wait for each thread at the end."""
NvmlOpener = Callable[[], tuple[Nvml | None, str]]
"""Returns the driver's library, or None and the reason."""


class Telemetry:
    """Telemetry of one host. Its methods never raise, and only `close` waits for the host, a device or the store."""

    def __init__(
        self,
        folder: Path,
        host: str,
        put: Callable[[Path, str], None],
        remove: Callable[[str], None],
        nvml: NvmlOpener = opened,
        *,
        proc: Path = PROC,
        sys: Path = SYS,
        groups: Path = GROUPS,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`folder` holds waiting files; `put` copies a file to a name in the job's folder of the store, or raises.

        `remove` deletes one there, or raises. `now_ns` returns the time, Unix.
        """
        self._now_ns = now_ns
        self._folder, self._host, self._put, self._open = folder, host, put, nvml
        self.rows: Final = Rows(host, PACES)
        table, places = ProcessTable(proc), Places(proc, sys, groups)
        self._ranks = RankProcesses(self.rows, places, table)
        neighbours = Neighbours(self.rows, self._ranks, table)
        tasks = [*self._ranks.tasks(), *host_tasks(self.rows, proc, sys), *neighbours.tasks()]
        self.pacer: Final = Pacer(self.rows, tasks, BUDGET)
        self._devices: Devices | None = None
        self.device_pacer: Final = Pacer(self.rows, [], BUDGET * _DEVICES_SHARE)
        self._nvml: Nvml | None = None
        self._nvml_note = "NVML has not answered yet"
        self._has_asked_nvml = False
        self._family: frozenset[int] = frozenset()
        self._wanted: dict[int, int] = {}
        self._troubles: set[str] = set()
        self._last_ms = 0
        """Number of the last file: unique even among joined ones, and if the clock is set back."""
        there = f"evidence/host={host}"
        self._delivered = DeliveredFiles(
            folder / f"delivered-{host}",  # a later agent may name its host differently
            lambda path, name: put(path, f"{there}/{name}"),
            lambda name: remove(f"{there}/{name}"),
        )
        self._burst_until_s = float("-inf")
        self._began_s = time.monotonic()
        self._ended, self._full = threading.Event(), threading.Event()
        self._readers: Final = (
            threading.Thread(target=self._read_host, name="kair-host", daemon=True),
            threading.Thread(target=self._read_devices, name="kair-devices", daemon=True),
        )
        self._delivery = threading.Thread(target=self._deliver_all, name="kair-evidence", daemon=True)

    def start(self) -> None:
        """Start reading, as soon as there is a rank."""
        for thread in (*self._readers, self._delivery):
            with suppress(RuntimeError):  # no thread available: nothing is sampled
                thread.start()

    def look(self, ranks: Mapping[int, int]) -> None:
        """Set the present ranks (rank → process)."""
        self._wanted = dict(ranks)

    def hurry(self, seconds: float = _BURST_FOR_S) -> None:
        """Read four times as often for this long, around steps that will be sampled."""
        self._burst_until_s = time.monotonic() + seconds

    def close(self) -> None:
        """Deliver what was read, if the store is quick; the next agent delivers the rest."""
        self._ended.set()
        self._full.set()
        for thread in (*self._readers, self._delivery):
            if thread.is_alive():
                thread.join(_LAST_S)
        if self._nvml is not None and not any(thread.is_alive() for thread in self._readers):
            self._nvml.close()

    def sample_host(self, now_s: float, time_ns: int, *, is_burst: bool = False) -> None:
        """Read what is due on the host."""
        self._ranks.follow(self._wanted)
        self.pacer.run(now_s, time_ns, is_burst=is_burst)
        if self._devices is not None:
            self._family = frozenset(self._ranks.family())

    def sample_devices(self, now_s: float, time_ns: int, *, is_burst: bool = False) -> None:
        """Read what is due on the devices. The first call opens the driver's library."""
        if not self._has_asked_nvml:
            self._nvml, self._nvml_note = self._open()
            self._has_asked_nvml = True
            if self._nvml is not None:
                self._devices = Devices(self.rows, self._nvml, lambda: set(self._family))
                self.device_pacer.tasks.extend(self._devices.tasks())
        self.device_pacer.run(now_s, time_ns, is_burst=is_burst)

    def notes(self) -> tuple[str, ...]:
        """Return what readers of the samples should know, in words."""
        of_devices = self._devices.notes() if self._devices is not None else (self._nvml_note,)
        found = (*of_devices, *self.pacer.notes(), *self.device_pacer.notes(), *sorted(self._troubles))
        return tuple(note for note in found if note)

    def flush(self) -> None:
        """Write what was read into a file of the folder. Raises OSError."""
        stretched = max(self.pacer.stretched, self.device_pacer.stretched)
        evidence = self.rows.take(self.notes(), stretched)
        if evidence is None:
            return
        make_secure_dir(self._folder)
        ms = max(int(evidence.table["time_ns"][0].as_py()) // 1_000_000, self._last_ms + 1)
        while (self._folder / f"samples-{ms}.parquet").exists():
            ms += 1
        self._last_ms = ms
        write_evidence(self._folder / f"samples-{ms}.parquet", evidence)

    def deliver(self, *, is_last: bool = False) -> None:
        """Deliver waiting files, oldest first, and join delivered ones.

        Raises what `put` does if the store is missing.
        """
        for path in in_order(self._folder):
            self._put(path, f"evidence/host={self._host}/{path.name}")
            self._delivered.keep(path)
        self._delivered.join(is_last=is_last)

    def _read_host(self) -> None:
        self._beat(self.sample_host, self.pacer)

    def _read_devices(self) -> None:
        self._beat(self.sample_devices, self.device_pacer)

    def _beat(self, sample: Callable[..., None], pacer: Pacer) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            now = time.monotonic()
            is_burst = now < self._burst_until_s
            if self._wanted:
                try:
                    sample(now, self._now_ns(), is_burst=is_burst)
                except Exception as error:  # any unforeseen error: training continues
                    self._note(f"a reading failed: {type(error).__name__}: {error}")
            if self._has_asked_nvml and not pacer.tasks:
                return  # no devices
            if len(self.rows) >= FULL_ROWS:
                self._full.set()
            interval = BURST_S if is_burst else PACES[EACH] * pacer.stretched
            due = max(due, now - PACES[EACH]) + interval
            shaken = random.uniform(-SHAKEN, SHAKEN) * interval
            self._ended.wait(max(due + shaken - time.monotonic(), 0.01))

    def _note(self, trouble: str) -> None:
        if len(self._troubles) < _MOST_TROUBLES:
            self._troubles.add(trouble[:200])

    def _deliver_all(self) -> None:
        remove_unwritten(self._folder)
        retry = _LEAST_RETRY_S
        written = time.monotonic()
        wait = 0.0
        while True:
            self._full.wait(wait)
            is_last = self._ended.is_set()
            if is_last:
                for thread in self._readers:
                    if thread.is_alive():
                        thread.join(_LAST_S / 2)
            now = time.monotonic()
            if is_last or self._full.is_set() or now - written >= self._flush_after(now):
                self._full.clear()
                written = now
                try:
                    self.flush()
                except OSError as error:
                    self._note(f"samples were lost, for want of a place: {error.strerror}")
            try:
                self.deliver(is_last=is_last)
                retry = _LEAST_RETRY_S
                wait = written + self._flush_after(now) - time.monotonic()
            except Exception:  # store away, full, read-only or broken: retry later
                remove_beyond(in_order(self._folder), SPOOL_BYTES)
                wait, retry = retry, min(retry * 2, _MOST_RETRY_S)
            if is_last:
                return
            wait = max(wait, 0.05)

    def _flush_after(self, now: float) -> float:
        return min(max(FLUSH_S, (now - self._began_s) / 60), _MOST_FLUSH_S)
