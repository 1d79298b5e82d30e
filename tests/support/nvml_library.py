# ruff: noqa: ANN401, N802  (what stands in for C functions has their names, and takes whatever they take)
"""NVIDIA's library, as far as Kair asks it by pynvml: what stands in for it, with one device."""

import sys
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import Any


def pynvml_of(library: Any) -> Any:
    """A pynvml of its own, whose functions call those of `library`."""
    known = find_spec("pynvml")
    assert known is not None and known.origin is not None
    spec = spec_from_file_location(f"pynvml_{id(library)}", known.origin)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # while it is read: it looks itself up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    module.nvmlLib = library
    return module


NOT_SUPPORTED, NO_PERMISSION, TOO_SMALL, LOST = 3, 4, 7, 15
UINT_BLANK, LONG_BLANK = 2**32 - 1, 9223372036854775794
SW_THERMAL, HW_THERMAL, BRAKE = 251, 252, 253


class NvmlLibrary:
    """One device; the calls that were made are counted."""

    def __init__(self, driver: str = "580.65.06") -> None:
        self.driver = driver
        self.calls: list[str] = []
        self.asked_together: list[set[int]] = []
        self.numbers: dict[str, int] = {
            "nvmlDeviceGetPowerUsage": 412_500,
            "nvmlDeviceGetTemperature": 71,
            "nvmlDeviceGetCurrPcieLinkGeneration": 3,
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetPersistenceMode": 1,
        }
        self.status: dict[str, int] = {}
        self.fields: dict[tuple[int, int], int] = {
            (74, 0): 5_000_000_000, (SW_THERMAL, 0): 2_000_000_000, (HW_THERMAL, 0): 500_000_000, (BRAKE, 0): 0,
            (82, 0): 88, (94, 0): 4, (197, 0): 1000,
            (161, 0): 3, (161, 1): 4, (162, 0): 1, (162, 1): 0, (163, 0): 10, (163, 1): 20,
            (138, UINT_BLANK): 100, (139, UINT_BLANK): 50,
        }  # fmt: skip
        self.links = {0: 1, 1: 0}
        self.ecc = [7, 0]
        self.processes = [(100, 1 << 30), (200, 2**64 - 1)]
        self.utilization = [(100, 5_000, 40), (100, 6_000, 60), (200, 6_000, 30), (200, 7_000, 255)]
        """(process, µs, %) of each sample."""
        self.api = pynvml_of(self)

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name in self.status:
                return self.status[name]
            return int(getattr(self, f"do_{name}", self.number_of(name))(*arguments))

        return call

    def number_of(self, name: str) -> Callable[..., int]:
        if name not in self.numbers:
            return lambda *_: NOT_SUPPORTED

        def call(*arguments: Any) -> int:
            arguments[-1]._obj.value = self.numbers[name]
            return 0

        return call

    def do_nvmlInitWithFlags(self, _flags: Any) -> int:
        return 0

    def do_nvmlShutdown(self) -> int:
        return 0

    def do_nvmlSystemGetDriverVersion(self, buffer: Any, _length: Any) -> int:
        buffer.value = self.driver.encode()
        return 0

    def do_nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def do_nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.contents = handle._obj._type_()
        return 2 if index.value else 0

    def do_nvmlDeviceGetUUID(self, _handle: Any, buffer: Any, _length: Any) -> int:
        buffer.value = b"GPU-5f3e0000-0000-0000-0000-000000000000"
        return 0

    def do_nvmlDeviceGetClockInfo(self, _handle: Any, kind: Any, number: Any) -> int:
        number._obj.value = {1: 1395, 2: UINT_BLANK}[kind.value]
        return 0

    def do_nvmlDeviceGetUtilizationRates(self, _handle: Any, used: Any) -> int:
        used._obj.gpu = 97
        return 0

    def do_nvmlDeviceGetCurrentClocksEventReasons(self, _handle: Any, bits: Any) -> int:
        bits._obj.value = 0x24
        return 0

    def do_nvmlDeviceGetFieldValues(self, _handle: Any, count: Any, values: Any) -> int:
        self.asked_together.append({one.fieldId for one in values._obj})
        for one in values._obj[: count.value]:
            number = self.fields.get((one.fieldId, one.scopeId))
            one.nvmlReturn = NOT_SUPPORTED if number is None else 0
            one.valueType, one.value.ullVal = 3, number or 0
        return 0

    def do_nvmlDeviceGetTotalEccErrors(self, _handle: Any, kind: Any, _counter: Any, count: Any) -> int:
        count._obj.value = self.ecc[kind.value]
        return 0

    def do_nvmlDeviceGetNvLinkState(self, _handle: Any, link: Any, state: Any) -> int:
        if link not in self.links:
            return NOT_SUPPORTED
        state._obj.value = self.links[link]
        return 0

    def do_nvmlDeviceGetComputeRunningProcesses_v2(self, _handle: Any, count: Any, found: Any) -> int:
        room, count._obj.value = count._obj.value, len(self.processes)
        if room < len(self.processes):
            return TOO_SMALL
        for place, (pid, memory) in enumerate(self.processes):
            found[place].pid, found[place].usedGpuMemory = pid, memory
        return 0

    def do_nvmlDeviceGetProcessUtilization(self, _handle: Any, found: Any, count: Any, since: Any) -> int:
        told = [one for one in self.utilization if one[1] > since.value]
        count._obj.value = len(told)
        if found is None:
            return TOO_SMALL if told else 0
        for place, (pid, time_us, percent) in enumerate(told):
            found[place].pid, found[place].timeStamp, found[place].smUtil = pid, time_us, percent
        return 0
