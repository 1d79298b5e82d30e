"""Reads the devices of this host every second: NVML's readings, and other processes on them."""

from collections.abc import Callable
from typing import Final

from kair_capture.agent.telemetry.pacing import EACH, SELDOM, Task
from kair_capture.agent.telemetry.rows import Rows
from kair_capture.nvml import DEAR, Device, Nvml
from kair_engine.trace.measures import gpu, gpu_index, pci


class Devices:
    """All devices visible to this process; ranks themselves report which is theirs."""

    def __init__(self, rows: Rows, nvml: Nvml, family: Callable[[], set[int]]) -> None:
        """`family` returns the processes of this host's ranks with all their descendants."""
        self._of = [_OfDevice(rows, device, family) for device in nvml.devices()]

    def tasks(self) -> list[Task]:
        """Return the tasks that read them."""
        return [Task("devices", EACH, self._each), Task("processes on devices", SELDOM, self._seldom)]

    def notes(self) -> tuple[str, ...]:
        """Return what is missing, in words."""
        if not self._of:
            return ("NVML: no device may be seen",)
        return ("NVML: no permission for a part",) if any(one.device.was_refused for one in self._of) else ()

    def _each(self, time_ns: int) -> None:
        for one in self._of:
            one.each(time_ns)

    def _seldom(self, time_ns: int) -> None:
        for one in self._of:
            one.seldom(time_ns)


class _OfDevice:
    def __init__(self, rows: Rows, device: Device, family: Callable[[], set[int]]) -> None:
        self.device: Final = device
        self._rows, self._family = rows, family
        self._entity = entity_of(device)

    def each(self, time_ns: int) -> None:
        for name, value in self.device.readings().items():
            self._add(name, time_ns, value)

    def seldom(self, time_ns: int) -> None:
        """Read other jobs' processes.

        Only if the job's own are among a device's: a container may number them differently, and all would seem foreign.
        """
        family = self._family()
        found = self.device.memory_of_processes()
        if not family & found.keys():
            return
        others = {pid: memory for pid, memory in found.items() if pid not in family}
        known = [memory for memory in others.values() if memory is not None]
        self._add("gpu_other_processes", time_ns, float(len(others)))
        self._add("gpu_other_memory", time_ns, sum(known) if len(known) == len(others) else None)
        used = self.device.utilization_of(others.__contains__) if others else 0.0
        self._add("gpu_other_utilization", time_ns, used)

    def _add(self, name: str, time_ns: int, value: float | None) -> None:
        pace = SELDOM if name in DEAR or name.startswith("gpu_other_") else EACH
        self._rows.note(self._entity, name, pace, time_ns, value)


def entity_of(device: Device) -> str:
    """Return a device's entity by UUID, else by address, else by the driver's number."""
    for name, of in ((device.uuid, gpu), (device.pci, pci)):
        try:
            if name is not None:
                return of(name)
        except ValueError:
            continue
    return gpu_index(device.index)
