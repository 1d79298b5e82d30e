"""Reads devices of this host from NVIDIA's driver: readings, settings and processes, by nvidia-ml-py (`pynvml`).

The agent does it, never the training process. Anything that a device does not support or permit is left out and not
read again; no method raises.
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

DEAR_S: Final = 10.0
"""Seconds between readings that take the driver long."""
DEAR: Final = frozenset(
    {
        "gpu_ecc_corrected",
        "gpu_ecc_uncorrected",
        "gpu_remapped_rows_correctable",
        "gpu_remapped_rows_uncorrectable",
        "gpu_row_remap_pending",
        "gpu_row_remap_failure",
        "gpu_nvlink_errors",
        "gpu_nvlink_replays",
        "gpu_nvlink_recoveries",
        "gpu_nvlink_active_links",
        "gpu_nvlink_bytes",
        "gpu_power_limit",
        "gpu_pcie_generation_max",
        "gpu_pcie_width_max",
        "gpu_memory_used",
    }
)
"""Names in `Device.readings` that are read every DEAR_S only."""

_HOPELESS: Final = frozenset({2, 3, 4, 13, 25, 26})
"""Invalid argument, not supported, no permission, no such function, another version, deprecated: tried once."""
_NO_PERMISSION: Final = 4
_NO_VALUE: Final = frozenset({2**32 - 1, 2**64 - 1})
_BLANK_FROM: Final = 2**63 - 32
"""DCGM and the driver mark unknown values with numbers around 2⁶³."""
_CHEAP: Final = (
    ("gpu_sm_clock", "ClockInfo", (1,), 1.0),
    ("gpu_memory_clock", "ClockInfo", (2,), 1.0),
    ("gpu_power", "PowerUsage", (), 1e-3),
    ("gpu_temperature", "Temperature", (0,), 1.0),
    ("gpu_pcie_generation", "CurrPcieLinkGeneration", (), 1.0),
    ("gpu_pcie_width", "CurrPcieLinkWidth", (), 1.0),
    ("gpu_temperature_margin", "MarginTemperature", (), 1.0),
)
"""Name, the function `nvmlDeviceGet…`, its arguments, and the unit of its result."""
_LIMITS: Final = (
    ("gpu_power_limit", "EnforcedPowerLimit", (), 1e-3),
    ("gpu_pcie_generation_max", "MaxPcieLinkGeneration", (), 1.0),
    ("gpu_pcie_width_max", "MaxPcieLinkWidth", (), 1.0),
)
_ECC: Final = (
    ("gpu_ecc_corrected", "TotalEccErrors", (0, 0), 1.0),
    ("gpu_ecc_uncorrected", "TotalEccErrors", (1, 0), 1.0),
)
_ALL_LINKS: Final = 2**32 - 1
_MOST_LINKS: Final = 18
_UNSIGNED_LONG_LONG: Final = 3

# Fields of nvmlDeviceGetFieldValues.
_POWER_CAP_TIME, _SYNC_BOOST_TIME = 74, 76
_MEMORY_TEMPERATURE, _PCIE_REPLAYS = 82, 94
_PCIE_SENT, _PCIE_RECEIVED = 197, 198
_LINK_SENT, _LINK_RECEIVED = 138, 139
_FAST: Final = (_POWER_CAP_TIME, _SYNC_BOOST_TIME, _MEMORY_TEMPERATURE, _PCIE_REPLAYS, _PCIE_SENT, _PCIE_RECEIVED)
_ReasonFields = tuple[int, int, int]
"""Throttling times: by software for temperature, by hardware for temperature, and by the power brake."""
_REASON_FIELDS: Final[Sequence[tuple[int, _ReasonFields]]] = ((590, (269, 270, 271)), (575, (251, 252, 253)))
"""By the driver's first number: from CUDA 13.1 on these fields have other numbers."""
_LINK_COUNTERS: Final[Sequence[tuple[str, Sequence[tuple[bool, tuple[int, ...]]]]]] = (
    ("gpu_nvlink_errors", ((True, (208,)), (True, (163,)), (False, (38, 45)))),
    ("gpu_nvlink_replays", ((True, (161,)), (False, (52,)))),
    ("gpu_nvlink_recoveries", ((True, (215,)), (True, (162,)), (False, (59,)))),
)
"""name → ways to read it, newest devices first: whether it is per link, and fields, which are summed."""


_TYPES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""nvmlValueType_t → the member that has the value."""


class _Field(NamedTuple):
    number: int
    scope: int = 0


class _Asking:
    """Calls of pynvml about one object, which does not repeat hopeless ones."""

    def __init__(self, api: Any, *about: object) -> None:  # noqa: ANN401  (pynvml has no types)
        self._api, self._about = api, about
        self._hopeless: set[object] = set()
        self.was_refused = False
        """Whether something was not permitted."""

    def __call__(self, name: str, *arguments: object, of: object = None) -> Any:  # noqa: ANN401
        """Return the result of the function `nvml…` with that name; None if it fails or is known to be hopeless.

        `of` separates calls of one function.
        """
        key = (name, of)
        if key in self._hopeless:
            return None
        try:
            return getattr(self._api, f"nvml{name}")(*self._about, *arguments)
        except self._api.NVMLError as error:
            if error.value in _HOPELESS:
                self._hopeless.add(key)
                self.was_refused |= error.value == _NO_PERMISSION
        except (AttributeError, ctypes.ArgumentError, TypeError, ValueError):
            self._hopeless.add(key)
        return None


class Device:
    """One device, as the driver numbers it. Its methods never raise."""

    def __init__(self, api: Any, handle: object, index: int, driver: str | None) -> None:  # noqa: ANN401
        self._ask = _Asking(api, handle)
        self.index: Final = index
        self.uuid: Final[str | None] = self._ask("DeviceGetUUID") or None
        """`GPU-…`."""
        info = self._ask("DeviceGetPciInfo")
        self.pci: Final[str | None] = (info and info.busId) or None
        """`00000000:1B:00.0`, as the driver writes it."""
        self.model: Final[str | None] = self._ask("DeviceGetName") or None
        self._reason_fields = _reason_fields(driver)
        self._dead_fields: set[_Field] = set()
        self._dear_at = float("-inf")
        self._bytes: dict[str, tuple[float, int]] = {}
        """Name of a rate → time (s) and value of its counter's last reading."""
        self._links: tuple[int, ...] | None = None
        self._link_ways: dict[str, tuple[bool, tuple[int, ...]] | None] = {}
        self._seen_until = 0

    @property
    def was_refused(self) -> bool:
        """Return whether this user may not read something."""
        return self._ask.was_refused

    def readings(self, now_s: float | None = None) -> dict[str, float]:
        """Return present readings, with the names and units of the engine's MEASURES.

        DEAR readings are included once in DEAR_S only. `now_s` is monotonic.
        """
        now = time.monotonic() if now_s is None else now_s
        found = dict(self._cheap(now))
        if now - self._dear_at >= DEAR_S:
            self._dear_at = now
            found |= self._memory_errors()
            found |= self._link_readings(now)
            found |= self._limits()
        return found

    def settings(self) -> dict[str, str]:
        """Return its setup: possible `pcie_generation` and `pcie_width`, `power_limit_w`, `ecc`, …"""
        found: dict[str, str] = {}
        limits = self._limits()
        for name, key in (("gpu_pcie_generation_max", "pcie_generation"), ("gpu_pcie_width_max", "pcie_width")):
            if name in limits:
                found[key] = f"{limits[name]:.0f}"
        if "gpu_power_limit" in limits:
            found["power_limit_w"] = f"{limits['gpu_power_limit']:g}"
        for key, function in (("ecc", "EccMode"), ("persistence", "PersistenceMode"), ("mig", "MigMode")):
            answer = self._ask(f"DeviceGet{function}")
            mode = answer[0] if isinstance(answer, list) else answer  # the second is the value after the next start
            if mode in (0, 1):
                found[key] = ("off", "on")[mode]
        return found

    def processes(self) -> tuple[int, ...]:
        """Return the processes that compute on it, by numbers outside of containers; empty if not known."""
        return tuple(self.memory_of_processes())

    def memory_of_processes(self) -> dict[int, float | None]:
        """Return process → its device memory in bytes, None if not known."""
        for version in ("v2", "v3"):
            answer = self._ask(f"DeviceGetComputeRunningProcesses_{version}")
            if answer is not None:
                return {one.pid: one.usedGpuMemory and _known(one.usedGpuMemory) for one in answer if one.pid}
        return {}

    def utilization_of(self, is_meant: Callable[[int], bool]) -> float | None:
        """Return the share of its SMs' time that the selected processes have used since the last call.

        Return None if it is not known.
        """
        samples = self._ask("DeviceGetProcessUtilization", self._seen_until) or ()
        valid = [one for one in samples if one.timeStamp and one.smUtil <= 100]
        self._seen_until = max([self._seen_until, *(one.timeStamp for one in valid)])
        by_process: dict[int, list[int]] = {}
        for one in valid:
            if is_meant(one.pid):
                by_process.setdefault(one.pid, []).append(one.smUtil)
        return min(sum(sum(of) / len(of) for of in by_process.values()) / 100, 1.0) if valid else None

    def _cheap(self, now: float) -> Iterable[tuple[str, float]]:
        yield from self._told(_CHEAP)
        busy = self._ask("DeviceGetUtilizationRates")
        yield from _named("gpu_utilization", busy.gpu if busy and busy.gpu <= 100 else None, 1e-2)
        bits = self._ask("DeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self._ask("DeviceGetCurrentClocksThrottleReasons")  # its name in older drivers
        yield from _named("gpu_throttle_reasons", bits)
        yield from self._times_and_counters(now)

    def _times_and_counters(self, now: float) -> Iterable[tuple[str, float]]:
        reasons = self._reason_fields or ()
        fields = self._fields([*map(_Field, _FAST), *map(_Field, reasons)], long_alone=frozenset(reasons))
        yield from _named("gpu_throttle_power_time", fields.get(_Field(_POWER_CAP_TIME)), 1e-9)
        yield from _named("gpu_throttle_sync_boost_time", fields.get(_Field(_SYNC_BOOST_TIME)), 1e-9)
        yield from _named("gpu_memory_temperature", fields.get(_Field(_MEMORY_TEMPERATURE)) or None)
        yield from _named("gpu_pcie_replays", fields.get(_Field(_PCIE_REPLAYS)))
        if thermal := [_Field(one) for one in reasons[:2] if _Field(one) not in self._dead_fields]:
            # The sum counts both at once twice: hardware throttles only if software's throttling was not enough.
            if all(one in fields for one in thermal):
                yield "gpu_throttle_thermal_time", sum(fields[one] for one in thermal) * 1e-9
        else:
            of_temperature = self._ask("DeviceGetViolationStatus", 1)
            yield from _named("gpu_throttle_thermal_time", of_temperature and of_temperature.violationTime, 1e-9)
        for one in reasons[2:]:
            yield from _named("gpu_throttle_brake_time", fields.get(_Field(one)), 1e-9)
        for name, field in (("gpu_pcie_sent", _PCIE_SENT), ("gpu_pcie_received", _PCIE_RECEIVED)):
            yield from self._rate(name, fields.get(_Field(field)), now, 1)

    def _memory_errors(self) -> dict[str, float]:
        found = dict(self._told(_ECC))
        names = (
            "gpu_remapped_rows_correctable",
            "gpu_remapped_rows_uncorrectable",
            "gpu_row_remap_pending",
            "gpu_row_remap_failure",
        )
        for name, count in zip(names, self._ask("DeviceGetRemappedRows") or (), strict=False):
            found |= dict(_named(name, count))
        return found

    def _link_readings(self, now: float) -> dict[str, float]:
        """Read NVLink separately from memory errors: some drivers return neither if both are requested at once."""
        active = self._active_links()
        if not self._links:
            return {}
        found: dict[str, float] = {} if active is None else {"gpu_nvlink_active_links": float(active)}
        for name, ways in _LINK_COUNTERS:
            if name not in self._link_ways:
                self._link_ways[name] = next((way for way in ways if self._sum(way) is not None), None)
            way = self._link_ways[name]
            total = None if way is None else self._sum(way)
            found |= dict(_named(name, total))
        both = [_Field(_LINK_SENT, _ALL_LINKS), _Field(_LINK_RECEIVED, _ALL_LINKS)]
        moved = self._fields(both)
        if len(moved) == len(both):
            found |= dict(self._rate("gpu_nvlink_bytes", sum(moved.values()), now, 1024))
        return found

    def _active_links(self) -> int | None:
        """Return how many links are active; after the first look only answering ones are read."""
        states: dict[int, int] = {}
        for link in range(_MOST_LINKS) if self._links is None else self._links:
            state = self._ask("DeviceGetNvLinkState", link, of=link)
            if state is not None:
                states[link] = state
        if self._links is None:
            self._links = tuple(states)
        return sum(state == 1 for state in states.values()) if states else None

    def _sum(self, way: tuple[bool, tuple[int, ...]]) -> int | None:
        """Return the sum of fields over all links, or of the device; None if any is missing."""
        of_each, numbers = way
        scopes = self._links or () if of_each else (0,)
        asked = [_Field(number, scope) for number in numbers for scope in scopes]
        fields = self._fields(asked)
        return sum(fields.values()) if asked and len(fields) == len(asked) else None

    def _limits(self) -> dict[str, float]:
        memory = self._ask("DeviceGetMemoryInfo")
        return dict((*self._told(_LIMITS), *_named("gpu_memory_used", memory and memory.used)))

    def _told(self, table: Sequence[tuple[str, str, tuple[int, ...], float]]) -> Iterable[tuple[str, float]]:
        for name, function, arguments, unit in table:
            yield from _named(name, self._ask(f"DeviceGet{function}", *arguments, of=arguments), unit)

    def _fields(self, asked: Sequence[_Field], long_alone: frozenset[int] = frozenset()) -> dict[_Field, int]:
        """Return the fields that answer, in one call; those in `long_alone` must be long, as times in ns are."""
        living = [one for one in asked if one not in self._dead_fields]
        if not living:
            return {}
        found: dict[_Field, int] = {}
        for one, value in zip(living, self._ask("DeviceGetFieldValues", living) or (), strict=False):
            is_other = one.number in long_alone and value.valueType != _UNSIGNED_LONG_LONG
            if value.nvmlReturn in _HOPELESS or (value.nvmlReturn == 0 and is_other):
                self._dead_fields.add(one)
            elif value.nvmlReturn == 0 and value.valueType < len(_TYPES):
                number = getattr(value.value, _TYPES[value.valueType])
                if _known(number) is not None and number >= 0:
                    found[one] = int(number)
        return found

    def _rate(self, name: str, count: int | None, now: float, unit: int) -> Iterable[tuple[str, float]]:
        """Yield the rate per second since the last reading; nothing if the counter was reset."""
        if count is None:
            return
        before = self._bytes.get(name)
        self._bytes[name] = (now, count)
        if before is not None and now > before[0] and count >= before[1]:
            yield name, (count - before[1]) * unit / (now - before[0])


class Nvml:
    """The driver's library, initialised. Its methods never raise."""

    def __init__(self, api: Any) -> None:  # noqa: ANN401
        """Take `api`, which is pynvml. Raises its NVMLError if the library cannot be initialised."""
        api.nvmlInit()
        self._ask = _Asking(api)
        driver = self.driver_version()
        # A device that fell off its bus has no handle, but later indices may have one.
        handles = [
            self._ask("DeviceGetHandleByIndex", index, of=index)
            for index in range(min(self._ask("DeviceGetCount") or 0, 256))
        ]
        self._devices = tuple(
            Device(api, handle, index, driver) for index, handle in enumerate(handles) if handle is not None
        )

    @classmethod
    def open(cls) -> "Nvml | None":
        """Return the library of this host; None if it is missing or cannot be initialised."""
        return opened()[0]

    def driver_version(self) -> str | None:
        """Return `580.65.06`."""
        version: str | None = self._ask("SystemGetDriverVersion")
        return version or None

    def devices(self) -> tuple[Device, ...]:
        """Return the devices visible to this process, in the driver's order, not that of CUDA_VISIBLE_DEVICES."""
        return self._devices

    def close(self) -> None:
        """Shut down; devices have no readings afterwards."""
        self._devices = ()
        self._ask("Shutdown")


def opened(api: Any = None) -> tuple[Nvml | None, str]:  # noqa: ANN401
    """Return the library and "", or None and the reason in words."""
    if api is None:
        import pynvml  # takes 5 MB, in a host's agent alone

        api = pynvml
    try:
        return Nvml(api), ""
    except api.NVMLError as error:
        return None, f"no NVML: {_BEGIN_ERRORS.get(error.value) or str(error)[:120]}"


_BEGIN_ERRORS: Final = {
    4: "no permission",
    9: "NVIDIA's driver is not loaded",
    12: "libnvidia-ml.so.1 is not there",
    18: "the library and the driver are of different versions",
}
"""Error of nvmlInit → in words."""


def _reason_fields(driver: str | None) -> _ReasonFields | None:
    first = (driver or "").partition(".")[0]
    number = int(first) if first.isdecimal() else 0
    return next((fields for since, fields in _REASON_FIELDS if number >= since), None)


def _known(number: float) -> float | None:
    """Return None for values that mean "not known"."""
    return None if number in _NO_VALUE or number >= _BLANK_FROM else float(number)


def _named(name: str, number: float | None, factor: float = 1.0) -> Iterable[tuple[str, float]]:
    if number is not None and (known := _known(number)) is not None:
        yield name, known * factor
