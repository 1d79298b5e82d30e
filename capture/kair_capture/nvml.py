"""What NVIDIA's driver says of the devices of this host: readings, settings and processes, by libnvidia-ml.

Nothing but ctypes is used: the training process, which has not what the engine needs, may ask as well. What a device
does not support, or does not let this user read, is left out and not asked for again; no question raises.

Functions, fields and structures are those of NVIDIA's nvml.h (versions 11.8 to 13.3).
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

LIBRARY: Final = "libnvidia-ml.so.1"
DEAR_S: Final = 10.0
"""What takes the driver long is asked for so seldom, s."""
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
"""Names among `Device.readings` that are asked for every DEAR_S alone."""

_OK: Final = 0
_HOPELESS: Final = frozenset({2, 3, 4, 13, 25, 26})
"""Invalid argument, not supported, no permission, no such function, another version, deprecated: asked once."""
_TOO_SMALL: Final = 7
_NO_PERMISSION: Final = 4
_NO_VALUE: Final = frozenset({2**32 - 1, 2**64 - 1})
_BLANK_FROM: Final = 2**63 - 32
"""DCGM and the driver mark what they do not know with values around 2⁶³."""
_SM, _MEMORY = 1, 2
_ALL_LINKS: Final = 2**32 - 1
_MOST_LINKS: Final = 18
_MOST_PROCESSES: Final = 1024
_UNSIGNED_LONG_LONG: Final = 3

# Fields of nvmlDeviceGetFieldValues.
_POWER_CAP_TIME, _SYNC_BOOST_TIME = 74, 76
_MEMORY_TEMPERATURE, _PCIE_REPLAYS = 82, 94
_PCIE_SENT, _PCIE_RECEIVED = 197, 198
_LINK_SENT, _LINK_RECEIVED = 138, 139
_FAST: Final = (_POWER_CAP_TIME, _SYNC_BOOST_TIME, _MEMORY_TEMPERATURE, _PCIE_REPLAYS, _PCIE_SENT, _PCIE_RECEIVED)
_ReasonFields = tuple[int, int, int]
"""Times of slowing down by software for temperature, by hardware for temperature, and by the power brake."""
_REASON_FIELDS: Final[Sequence[tuple[int, _ReasonFields]]] = ((590, (269, 270, 271)), (575, (251, 252, 253)))
"""By the driver's first number: from CUDA 13.1 on these fields have other numbers."""
_LINK_COUNTERS: Final[Sequence[tuple[str, Sequence[tuple[bool, tuple[int, ...]]]]]] = (
    ("gpu_nvlink_errors", ((True, (208,)), (True, (163,)), (False, (38, 45)))),
    ("gpu_nvlink_replays", ((True, (161,)), (False, (52,)))),
    ("gpu_nvlink_recoveries", ((True, (215,)), (True, (162,)), (False, (59,)))),
)
"""name → what tells it, the newest devices' first: whether it is asked of each link, and fields, which are summed."""


class _Value(ctypes.Union):
    _fields_ = (
        ("double", ctypes.c_double),
        ("uint", ctypes.c_uint),
        ("ulong", ctypes.c_ulong),
        ("ulonglong", ctypes.c_ulonglong),
        ("longlong", ctypes.c_longlong),
        ("int", ctypes.c_int),
        ("ushort", ctypes.c_ushort),
    )


_TYPES: Final = ("double", "uint", "ulong", "ulonglong", "longlong", "int", "ushort")
"""nvmlValueType_t → the member that has the value."""


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("result", ctypes.c_uint),
        ("value", _Value),
    )


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v2_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class ProcessUtilization(ctypes.Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("timestamp", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("address", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Violation(ctypes.Structure):
    _fields_ = (("reference", ctypes.c_ulonglong), ("time", ctypes.c_ulonglong))


class _Margin(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("celsius", ctypes.c_int))


class _Field(NamedTuple):
    number: int
    scope: int = 0


class _Asking:
    """Calls of the library about one thing, which remembers what is hopeless."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401  (a shared library, or what stands in for one)
        self._library = library
        self._hopeless: set[object] = set()
        self.was_refused = False
        """Whether something was not permitted."""

    def call(self, name: str, *arguments: object, of: object = None) -> int | None:
        """What the function `name` returned; None where it is not there, or is known to say nothing.

        `of` tells calls of one function apart.
        """
        key = (name, of)
        if key in self._hopeless:
            return None
        try:
            status = int(getattr(self._library, name)(*arguments))
        except (AttributeError, ctypes.ArgumentError, TypeError, ValueError):
            self._hopeless.add(key)
            return None
        if status in _HOPELESS:
            self._hopeless.add(key)
            self.was_refused |= status == _NO_PERMISSION
        return status

    def text(self, name: str, *arguments: object, most: int = 96) -> str | None:
        """Of a function whose last arguments are a buffer and its length."""
        buffer = ctypes.create_string_buffer(most)
        if self.call(name, *arguments, buffer, ctypes.c_uint(most)) != _OK:
            return None
        return buffer.value.decode("utf-8", "replace") or None


class Device:
    """One device, as the driver numbers it. None of its methods raises."""

    def __init__(self, library: Any, handle: ctypes.c_void_p, index: int, driver: str | None) -> None:  # noqa: ANN401
        self._asking = _Asking(library)
        self._handle = handle
        self.index: Final = index
        self.uuid: Final = self._asking.text("nvmlDeviceGetUUID", handle)
        """`GPU-…`."""
        self.pci: Final = self._address()
        """`00000000:1B:00.0`, as the driver writes it."""
        self.model: Final = self._asking.text("nvmlDeviceGetName", handle)
        self._reason_fields = _reason_fields(driver)
        self._dead_fields: set[_Field] = set()
        self._dear_at = float("-inf")
        self._bytes: dict[str, tuple[float, int]] = {}
        """name of a rate → when its counter was read last, s, and what it said."""
        self._links: tuple[int, ...] | None = None
        self._link_ways: dict[str, tuple[bool, tuple[int, ...]] | None] = {}
        self._seen_until = 0

    @property
    def was_refused(self) -> bool:
        """Whether something may not be read by this user."""
        return self._asking.was_refused

    def readings(self, now_s: float | None = None) -> dict[str, float]:
        """What it says now, by the names and in the units of the engine's MEASURES.

        What is DEAR is there once in DEAR_S alone. `now_s`: of a clock that never goes back.
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
        """How it is set up: `pcie_generation` and `pcie_width` that it can have, `power_limit_w`, `ecc`, …"""
        found: dict[str, str] = {}
        limits = self._limits()
        for name, key in (("gpu_pcie_generation_max", "pcie_generation"), ("gpu_pcie_width_max", "pcie_width")):
            if name in limits:
                found[key] = f"{limits[name]:.0f}"
        if "gpu_power_limit" in limits:
            found["power_limit_w"] = f"{limits['gpu_power_limit']:g}"
        for key, function, has_pending in (
            ("ecc", "nvmlDeviceGetEccMode", True),
            ("persistence", "nvmlDeviceGetPersistenceMode", False),
            ("mig", "nvmlDeviceGetMigMode", True),
        ):
            mode, pending = ctypes.c_uint(), ctypes.c_uint()
            more = (ctypes.byref(pending),) if has_pending else ()
            if self._asking.call(function, self._handle, ctypes.byref(mode), *more) == _OK and mode.value in (0, 1):
                found[key] = ("off", "on")[mode.value]
        return found

    def processes(self) -> tuple[int, ...]:
        """The processes that compute on it, as numbered outside of containers; empty where that is not told."""
        return tuple(self.memory_of_processes())

    def memory_of_processes(self) -> dict[int, float | None]:
        """Process → its device memory in bytes, None where that is not told."""
        for version in ("v2", "v3"):
            count = ctypes.c_uint(64)
            while count.value <= _MOST_PROCESSES:
                asked = count.value
                of = (ProcessInfo * asked)()
                name = f"nvmlDeviceGetComputeRunningProcesses_{version}"
                status = self._asking.call(name, self._handle, ctypes.byref(count), of)
                if status == _OK:
                    told = of[: min(count.value, asked)]
                    return {int(one.pid): _known(one.memory) for one in told if one.pid}
                if status != _TOO_SMALL:
                    break
                count.value = max(2 * asked, count.value + 8)
        return {}

    def utilization_of(self, is_meant: Callable[[int], bool]) -> float | None:
        """The share of its SMs' time that the processes meant have used since the last call; None where unknown."""
        count = ctypes.c_uint(0)
        since = ctypes.c_ulonglong(self._seen_until)
        name = "nvmlDeviceGetProcessUtilization"
        if self._asking.call(name, self._handle, None, ctypes.byref(count), since) not in (_OK, _TOO_SMALL):
            return None
        if not 0 < count.value <= _MOST_PROCESSES:
            return None
        samples = (ProcessUtilization * count.value)()
        if self._asking.call(name, self._handle, samples, ctypes.byref(count), since) != _OK:
            return None
        told = [one for one in samples[: count.value] if one.timestamp and one.sm <= 100]
        self._seen_until = max([self._seen_until, *(one.timestamp for one in told)])
        by_process: dict[int, list[int]] = {}
        for one in told:
            if is_meant(one.pid):
                by_process.setdefault(one.pid, []).append(one.sm)
        return min(sum(sum(of) / len(of) for of in by_process.values()) / 100, 1.0) if told else None

    def _cheap(self, now: float) -> Iterable[tuple[str, float]]:
        for name, kind in (("gpu_sm_clock", _SM), ("gpu_memory_clock", _MEMORY)):
            yield from _named(name, self._number("nvmlDeviceGetClockInfo", ctypes.c_uint(kind), of=kind))
        yield from _named("gpu_power", self._number("nvmlDeviceGetPowerUsage"), 1e-3)
        yield from _named("gpu_temperature", self._number("nvmlDeviceGetTemperature", ctypes.c_uint(0)))
        yield from _named("gpu_pcie_generation", self._number("nvmlDeviceGetCurrPcieLinkGeneration"))
        yield from _named("gpu_pcie_width", self._number("nvmlDeviceGetCurrPcieLinkWidth"))
        margin = _Margin(version=ctypes.sizeof(_Margin) | 1 << 24)
        if self._asking.call("nvmlDeviceGetMarginTemperature", self._handle, ctypes.byref(margin)) == _OK:
            yield "gpu_temperature_margin", float(margin.celsius)
        busy = _Utilization()
        if self._asking.call("nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(busy)) == _OK:
            yield from _named("gpu_utilization", busy.gpu if busy.gpu <= 100 else None, 1e-2)
        for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            bits = ctypes.c_ulonglong()
            if self._asking.call(function, self._handle, ctypes.byref(bits)) == _OK:
                yield from _named("gpu_throttle_reasons", bits.value)
                break
        yield from self._times_and_counters(now)

    def _times_and_counters(self, now: float) -> Iterable[tuple[str, float]]:
        reasons = self._reason_fields or ()
        told = self._fields([*map(_Field, _FAST), *map(_Field, reasons)], long_alone=frozenset(reasons))
        yield from _named("gpu_throttle_power_time", told.get(_Field(_POWER_CAP_TIME)), 1e-9)
        yield from _named("gpu_throttle_sync_boost_time", told.get(_Field(_SYNC_BOOST_TIME)), 1e-9)
        yield from _named("gpu_memory_temperature", told.get(_Field(_MEMORY_TEMPERATURE)) or None)
        yield from _named("gpu_pcie_replays", told.get(_Field(_PCIE_REPLAYS)))
        if thermal := [_Field(one) for one in reasons[:2] if _Field(one) not in self._dead_fields]:
            # Both at once are counted twice: hardware slows down only where software's slowing was not enough.
            if all(one in told for one in thermal):
                yield "gpu_throttle_thermal_time", sum(told[one] for one in thermal) * 1e-9
        else:
            so_far, of_temperature = _Violation(), ctypes.c_uint(1)
            name = "nvmlDeviceGetViolationStatus"
            if self._asking.call(name, self._handle, of_temperature, ctypes.byref(so_far)) == _OK:
                yield from _named("gpu_throttle_thermal_time", so_far.time, 1e-9)
        for one in reasons[2:]:
            yield from _named("gpu_throttle_brake_time", told.get(_Field(one)), 1e-9)
        for name, field in (("gpu_pcie_sent", _PCIE_SENT), ("gpu_pcie_received", _PCIE_RECEIVED)):
            yield from self._rate(name, told.get(_Field(field)), now, 1)

    def _memory_errors(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, kind in (("gpu_ecc_corrected", 0), ("gpu_ecc_uncorrected", 1)):
            count, since_load = ctypes.c_ulonglong(), ctypes.c_uint(0)
            arguments = (self._handle, ctypes.c_uint(kind), since_load, ctypes.byref(count))
            if self._asking.call("nvmlDeviceGetTotalEccErrors", *arguments, of=kind) == _OK:
                found |= dict(_named(name, count.value))
        rows = [ctypes.c_uint() for _ in range(4)]
        names = (
            "gpu_remapped_rows_correctable",
            "gpu_remapped_rows_uncorrectable",
            "gpu_row_remap_pending",
            "gpu_row_remap_failure",
        )
        if self._asking.call("nvmlDeviceGetRemappedRows", self._handle, *map(ctypes.byref, rows)) == _OK:
            for name, one in zip(names, rows, strict=True):
                found |= dict(_named(name, one.value))
        return found

    def _link_readings(self, now: float) -> dict[str, float]:
        """Asked apart from memory errors: some drivers say nothing of either when asked for both at once."""
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
        """How many are active; from the first look on, those that answer are asked alone."""
        states: dict[int, int] = {}
        for link in range(_MOST_LINKS) if self._links is None else self._links:
            state = self._number("nvmlDeviceGetNvLinkState", after=ctypes.c_uint(link), of=link)
            if state is not None:
                states[link] = state
        if self._links is None:
            self._links = tuple(states)
        return sum(state == 1 for state in states.values()) if states else None

    def _sum(self, way: tuple[bool, tuple[int, ...]]) -> int | None:
        """Of fields of all links, or of those of the device; None where one of the links tells none of them."""
        of_each, numbers = way
        scopes = self._links or () if of_each else (0,)
        asked = [_Field(number, scope) for number in numbers for scope in scopes]
        told = self._fields(asked)
        return sum(told.values()) if asked and len(told) == len(asked) else None

    def _limits(self) -> dict[str, float]:
        found: dict[str, float] = {}
        found |= dict(_named("gpu_power_limit", self._number("nvmlDeviceGetEnforcedPowerLimit"), 1e-3))
        found |= dict(_named("gpu_pcie_generation_max", self._number("nvmlDeviceGetMaxPcieLinkGeneration")))
        found |= dict(_named("gpu_pcie_width_max", self._number("nvmlDeviceGetMaxPcieLinkWidth")))
        memory = _Memory()
        if self._asking.call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory)) == _OK:
            found |= dict(_named("gpu_memory_used", memory.used))
        return found

    def _number(self, function: str, *before: object, after: object = None, of: object = None) -> int | None:
        """Of a function whose last argument is where the number goes."""
        number = ctypes.c_uint()
        between = before if after is None else (after,)
        status = self._asking.call(function, self._handle, *between, ctypes.byref(number), of=of)
        return number.value if status == _OK and number.value not in _NO_VALUE else None

    def _fields(self, asked: Sequence[_Field], long_alone: frozenset[int] = frozenset()) -> dict[_Field, int]:
        """In one call, those that it tells; of `long_alone` only what is a long number, as times in ns are."""
        living = [one for one in asked if one not in self._dead_fields]
        if not living:
            return {}
        values = (FieldValue * len(living))(*(FieldValue(field=one.number, scope=one.scope) for one in living))
        status = self._asking.call("nvmlDeviceGetFieldValues", self._handle, ctypes.c_int(len(living)), values)
        if status != _OK:
            return {}
        found: dict[_Field, int] = {}
        for one, value in zip(living, values, strict=True):
            is_other = one.number in long_alone and value.type != _UNSIGNED_LONG_LONG
            if value.result in _HOPELESS or (value.result == _OK and is_other):
                self._dead_fields.add(one)
            elif value.result == _OK and value.type < len(_TYPES):
                number = getattr(value.value, _TYPES[value.type])
                if _known(number) is not None and number >= 0:
                    found[one] = int(number)
        return found

    def _rate(self, name: str, count: int | None, now: float, unit: int) -> Iterable[tuple[str, float]]:
        """Per second since the last reading; none where the counter began anew."""
        if count is None:
            return
        before = self._bytes.get(name)
        self._bytes[name] = (now, count)
        if before is not None and now > before[0] and count >= before[1]:
            yield name, (count - before[1]) * unit / (now - before[0])

    def _address(self) -> str | None:
        info = PciInfo()
        if self._asking.call("nvmlDeviceGetPciInfo_v3", self._handle, ctypes.byref(info)) != _OK:
            return None
        return bytes(info.address).decode("ascii", "replace") or None


class Nvml:
    """The driver's library, begun. None of its methods raises."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401
        """`library` has the functions of nvml.h as attributes. Raises OSError where it cannot begin."""
        self._asking = _Asking(library)
        status = self._asking.call("nvmlInit_v2")
        if status != _OK:
            raise OSError(_BEGIN_ERRORS.get(status or 0, f"its error {status}" if status else "it is another library"))
        self._devices = tuple(self._found(library))

    @classmethod
    def open(cls, path: str = LIBRARY) -> "Nvml | None":
        """The library of this host; None where there is none, or it cannot begin."""
        return opened(path)[0]

    def driver_version(self) -> str | None:
        """`580.65.06`."""
        return self._asking.text("nvmlSystemGetDriverVersion")

    def devices(self) -> tuple[Device, ...]:
        """Those that this process may see, in the driver's order: not the order of CUDA_VISIBLE_DEVICES."""
        return self._devices

    def close(self) -> None:
        """Ends it; devices say nothing any more."""
        self._devices = ()
        self._asking.call("nvmlShutdown")

    def _found(self, library: Any) -> Iterable[Device]:  # noqa: ANN401
        count, driver = ctypes.c_uint(), self.driver_version()
        if self._asking.call("nvmlDeviceGetCount_v2", ctypes.byref(count)) != _OK:
            return
        for index in range(min(count.value, 256)):
            handle = ctypes.c_void_p()
            name = "nvmlDeviceGetHandleByIndex_v2"
            # A device that fell off its bus has none; that of another index may.
            if self._asking.call(name, ctypes.c_uint(index), ctypes.byref(handle), of=index) == _OK:
                yield Device(library, handle, index, driver)


def opened(path: str = LIBRARY) -> tuple[Nvml | None, str]:
    """The library, or None and why there is none, in words; the text is empty where there is one."""
    try:
        return Nvml(ctypes.CDLL(path)), ""
    except OSError as error:
        missing = "No such file" in str(error) or "cannot open shared object" in str(error)
        return None, f"no NVML: {path} is not there" if missing else f"no NVML: {str(error)[:120]}"


_BEGIN_ERRORS: Final = {
    4: "no permission",
    9: "NVIDIA's driver is not loaded",
    12: "the driver's library is not there",
    18: "the library and the driver are of different versions",
    999: "its error is unknown to itself",
}
"""What nvmlInit_v2 returns → in words."""


def _reason_fields(driver: str | None) -> _ReasonFields | None:
    first = (driver or "").partition(".")[0]
    number = int(first) if first.isdecimal() else 0
    return next((fields for since, fields in _REASON_FIELDS if number >= since), None)


def _known(number: float) -> float | None:
    """None of values that stand for none."""
    return None if number in _NO_VALUE or number >= _BLANK_FROM else float(number)


def _named(name: str, number: float | None, factor: float = 1.0) -> Iterable[tuple[str, float]]:
    if number is not None and (known := _known(number)) is not None:
        yield name, known * factor
