"""Records kernels and copies of NVIDIA GPUs by CUPTI, for jobs whose framework has no profiler.

CUPTI has one owner per process: if PyTorch's profiler, Nsight or another tool has it, this module does not use it. It
is used in sampled windows only, because a record costs 2 µs of Python.

Events are written as Kineto JSON, which every reader of PyTorch profiles understands. If capture does not know the
job's framework, the script marks steps and scopes, and CUPTI sees the GPU.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from kair_capture.control import NOTHING_MORE, ProfileOptions
from kair_capture.job.framework import Framework, Profile


@dataclass(frozen=True)
class KinetoEvent:
    """One operation, its times in ns since 1970."""

    category: str
    """`kernel`, `gpu_memcpy`, `gpu_memset`, `cuda_runtime` or `user_annotation`."""
    name: str
    begin: int
    end: int
    process: int
    """The device's number for its operations, else the process id."""
    thread: int
    """The stream's number, else the thread's."""
    args: Mapping[str, Any] = field(default_factory=dict)


def write_kineto(path: Path, events: Iterable[KinetoEvent], header: Mapping[str, Any]) -> None:
    """Write a recording. Raises OSError."""
    ordered = sorted(events, key=lambda event: event.begin)
    base = ordered[0].begin // 10**9 * 10**9 if ordered else 0
    document = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        **header,
        "traceEvents": [_written(event, base) for event in ordered],
    }
    with path.open("w") as file:
        json.dump(document, file)


def _written(event: KinetoEvent, base: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": event.category,
        "name": event.name,
        "pid": event.process,
        "tid": event.thread,
        # µs with three decimals, from integers: a float64 holds an hour to the nanosecond.
        "ts": (event.begin - base) / 1000,
        "dur": max(event.end - event.begin, 0) / 1000,
        "args": dict(event.args),
    }


BUFFER_BYTES: Final = 8 << 20
MOST_RECORDS: Final = 2_000_000
OTHER_OWNERS: Final = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
"""Variables of tools that load themselves into a process and own CUPTI there."""


class CuptiRefusedError(Exception):
    """Raised if CUPTI is not available; the text says why."""


@dataclass(frozen=True)
class ClockPair:
    """CUPTI's clock and Unix time at one moment, both in ns."""

    cupti: int
    unix: int


def load_cupti(environment: Mapping[str, str] = os.environ) -> Any:  # noqa: ANN401  # a library without types
    """Return the library, unless something else has CUPTI. Raises CuptiRefusedError."""
    if owner := next((name for name in OTHER_OWNERS if environment.get(name)), None):
        raise CuptiRefusedError(f"another profiler is loaded into this process ({owner} is set)")
    torch = sys.modules.get("torch")
    if torch is not None and torch._C._autograd._profiler_enabled():
        raise CuptiRefusedError("PyTorch's profiler is on")
    try:
        from cupti import cupti
    except ImportError as error:
        raise CuptiRefusedError(f"cupti-python is not installed ({error}): pip install 'kair[cupti]'") from error
    return cupti


class CuptiProfile(Profile):
    """One window. Scopes and launches are joined by the launch's time and correlation id."""

    def __init__(self, cupti: Any, unix_ns: Callable[[], int] = time.time_ns) -> None:  # noqa: ANN401  # see above
        """Start recording. Raises CuptiRefusedError without a driver, or if CUPTI has another owner."""
        self._cupti, self._unix_ns = cupti, unix_ns
        kinds = cupti.ActivityKind
        self._readers: dict[int, Callable[[Any], KinetoEvent | None]] = {
            int(kinds.CONCURRENT_KERNEL): self._kernel,
            int(kinds.MEMCPY): self._copy,
            int(kinds.MEMSET): self._fill,
            int(kinds.RUNTIME): self._call,
        }
        self._annotations: list[KinetoEvent] = []
        self._raw: list[tuple[int, Any]] = []
        self._stage_of: dict[int, int] = {}
        self._scopes: dict[int, str] = {}
        self._step: tuple[str, int] | None = None
        self._enabled: list[Any] = []
        self.dropped = 0
        """Records beyond the limit, or for which CUPTI had no buffer."""
        try:
            cupti.activity_register_callbacks(_buffer, self._completed)
            for kind in (
                kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET, kinds.EXTERNAL_CORRELATION, kinds.RUNTIME,
            ):  # fmt: skip
                cupti.activity_enable(kind)
                self._enabled.append(kind)
            _lost_by(cupti)  # reset the count of earlier recordings
            self._begin = self._clock_pair()
        except Exception as error:
            self._disable()
            raise CuptiRefusedError(_reason(error)) from error
        self._end = self._begin

    def begin_step(self, step: int) -> None:
        """Mark a step's begin."""
        self._step = (f"ProfilerStep#{step}", self._unix_ns())

    def end_step(self) -> None:
        """Mark its end."""
        step, self._step = self._step, None
        if step is not None:
            self._annotate(*step)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Mark a stage of the step: launches within it carry its number (CUPTI's external correlation)."""
        number, begin = len(self._scopes) + 1, self._unix_ns()
        self._scopes[number] = name
        custom = self._cupti.ExternalCorrelationKind.CUSTOM0
        self._cupti.activity_push_external_correlation_id(custom, number)
        try:
            yield
        finally:
            self._cupti.activity_pop_external_correlation_id(custom)
            self._annotate(name, begin)

    def stop(self) -> None:
        """Wait for the device's records, and end the recording."""
        if not self._enabled:
            return
        self._cupti.activity_flush_all(1)
        self.dropped += _lost_by(self._cupti)
        self._end = self._clock_pair()
        self._disable()

    def save(self, path: Path, details: Mapping[str, Any]) -> None:
        """Write Kineto JSON, with `details` as its `kair`. Raises OSError."""
        events = [event for kind, fields in self._raw if (event := self._readers[kind](fields)) is not None]
        clock = {"offset_ns": self._begin.unix - self._begin.cupti, "dropped": self.dropped}
        distributed = {"backend": "none", "rank": details.get("rank", 0), "world_size": details.get("world_size", 1)}
        header = {"deviceProperties": [], "distributedInfo": distributed, "kair": {**details, "cupti": clock}}
        write_kineto(path, [*self._annotations, *events], header)

    def _completed(self, activities: Sequence[Any]) -> None:
        """Copy a buffer's records, in CUPTI's own thread: they point into the buffer."""
        kinds = self._cupti.ActivityKind
        external = int(kinds.EXTERNAL_CORRELATION)
        for activity in activities:
            kind = int(activity.kind)
            if kind == external:
                self._stage_of[int(activity.correlation_id)] = int(activity.external_id)
            elif kind in self._readers:
                if len(self._raw) >= MOST_RECORDS:
                    self.dropped += 1
                else:
                    self._raw.append((kind, _COPIED[_name_of(kinds, kind)](activity)))

    def _kernel(self, fields: Any) -> KinetoEvent:  # noqa: ANN401  # a tuple as _COPIED makes it
        name, begin, end, device, stream, correlation = fields
        return self._on_device("kernel", name, begin, end, device, stream, correlation, {})

    def _copy(self, fields: Any) -> KinetoEvent:  # noqa: ANN401
        kind, size, begin, end, device, stream, correlation = fields
        name = f"Memcpy {_COPY_KINDS.get(int(kind), int(kind))}"
        return self._on_device("gpu_memcpy", name, begin, end, device, stream, correlation, {"bytes": size})

    def _fill(self, fields: Any) -> KinetoEvent:  # noqa: ANN401
        size, begin, end, device, stream, correlation = fields
        return self._on_device("gpu_memset", "Memset", begin, end, device, stream, correlation, {"bytes": size})

    def _call(self, fields: Any) -> KinetoEvent:  # noqa: ANN401
        cbid, begin, end, thread, correlation = fields
        args = {"correlation": correlation, "cbid": int(cbid)}
        name = _LAUNCHES.get(int(cbid), f"cudaRuntime#{int(cbid)}")
        return KinetoEvent("cuda_runtime", name, self._unix(begin), self._unix(end), os.getpid(), thread, args)

    def _on_device(  # noqa: PLR0917  # one call site per kind, just above
        self,
        category: str,
        name: str,
        begin: int,
        end: int,
        device: int,
        stream: int,
        correlation: int,
        args: Any,  # noqa: ANN401
    ) -> KinetoEvent:
        stage = self._scopes.get(self._stage_of.get(correlation, 0))
        more = {"device": device, "stream": stream, "correlation": correlation, **args}
        if stage is not None:
            more["stage"] = stage
        return KinetoEvent(category, name, self._unix(begin), self._unix(end), device, stream, more)

    def _annotate(self, name: str, begin: int) -> None:
        thread = threading.get_native_id()
        self._annotations.append(KinetoEvent("user_annotation", name, begin, self._unix_ns(), os.getpid(), thread))

    def _clock_pair(self) -> ClockPair:
        """Return the tightest of a few readings of CUPTI's clock between two of the system's."""
        readings = []
        for _ in range(5):
            before = self._unix_ns()
            device = int(self._cupti.get_timestamp())
            after = self._unix_ns()
            readings.append((after - before, ClockPair(device, (before + after) // 2)))
        return min(readings, key=lambda reading: reading[0])[1]

    def _unix(self, cupti: int) -> int:
        """Return CUPTI's time as Unix time, by the line through the pairs at the window's begin and end."""
        begin, end = self._begin, self._end
        elapsed = end.cupti - begin.cupti
        offset = begin.unix - begin.cupti
        if elapsed <= 0:
            return cupti + offset
        drift = (end.unix - end.cupti) - offset
        return cupti + offset + drift * (cupti - begin.cupti) // elapsed

    def _disable(self) -> None:
        enabled, self._enabled = self._enabled, []
        for kind in enabled:
            with suppress(Exception):
                self._cupti.activity_disable(kind)


def _buffer() -> tuple[int, int]:
    """Return a buffer's bytes, and the most records in it; 0 for as many as fit."""
    return BUFFER_BYTES, 0


def _lost_by(cupti: Any) -> int:  # noqa: ANN401  # see above
    """Return how many records CUPTI had no buffer for since the last call."""
    import ctypes

    lost = ctypes.c_size_t(0)
    # The recording is valid without this figure, which depends on the release.
    with suppress(Exception):
        cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(lost))
    return lost.value


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "MULTIPLE_SUBSCRIBERS" in text:
        return "another profiler has CUPTI"
    return text[:200] or type(error).__name__


def _name_of(kinds: Any, kind: int) -> str:  # noqa: ANN401  # see above
    return str(kinds(kind).name)


_ON_DEVICE: Final = ("start", "end", "device_id", "stream_id", "correlation_id")
_COPIED: Final[Mapping[str, Callable[[Any], tuple[Any, ...]]]] = {
    "CONCURRENT_KERNEL": attrgetter("name", *_ON_DEVICE),
    "MEMCPY": attrgetter("copy_kind", "bytes", *_ON_DEVICE),
    "MEMSET": attrgetter("bytes", *_ON_DEVICE),
    "RUNTIME": attrgetter("cbid", "start", "end", "thread_id", "correlation_id"),
}
"""Kind → the fields that are kept of a record."""
_COPY_KINDS: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_LAUNCHES: Final = {13: "cudaLaunch", 211: "cudaLaunchKernel", 41: "cudaMemcpyAsync"}
"""Callback ids of the runtime's calls that matter; others keep their number."""


class PlainJob(Framework):
    """A job without a known framework: only the launcher knows the rank."""

    def start_profile(self, _: ProfileOptions = NOTHING_MORE, /) -> CuptiProfile | None:
        """Start CUPTI; None if it is not available, for the reason in `refusal`."""
        try:
            return CuptiProfile(load_cupti())
        except CuptiRefusedError as error:
            self.refusal = str(error)
            return None
