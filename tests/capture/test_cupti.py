"""CUPTI in a job without a framework's profiler: a stand-in for the library delivers records as a GPU would."""

import ctypes
import json
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.answers import shared_cache

from kair_capture import cupti as backend
from kair_capture.cupti import CuptiProfile, CuptiRefusedError, PlainJob, load_cupti
from kair_engine.recording.opening import open_trace
from kair_engine.trace.columns import read_columns

UNIX = 1_800_000_000_000_000_000
AHEAD = 123_456_789
"""What CUPTI's clock is behind Unix time by at first."""


class ActivityKind(IntEnum):
    MEMCPY = 1
    MEMSET = 2
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    EXTERNAL_CORRELATION = 39


class Library(SimpleNamespace):
    """cupti-python as far as capture uses it: a device whose clock gains 100 ppm on the host's."""

    ActivityKind = ActivityKind
    ExternalCorrelationKind = SimpleNamespace(CUSTOM0=3)

    def __init__(self, refuses: str | None = None) -> None:
        super().__init__()
        self.now = UNIX
        self.refuses = refuses
        self.enabled: list[ActivityKind] = []
        self.stack: list[int] = []
        self.pending: list[Any] = []
        self.correlation = 0
        self.lost = 0
        self.deliver: Callable[[list[Any]], None]

    def clock(self) -> int:
        self.now += 10
        return self.now

    def get_timestamp(self) -> int:
        return self.cupti_time(self.now)

    @staticmethod
    def cupti_time(unix: int) -> int:
        return unix - AHEAD + (unix - UNIX) // 10_000

    def activity_register_callbacks(
        self, requested: Callable[[], tuple[int, int]], completed: Callable[[list[Any]], None]
    ) -> None:
        assert requested()[0] >= 1 << 20
        self.deliver = completed

    def activity_enable(self, kind: ActivityKind) -> None:
        if self.refuses is not None and len(self.enabled) == 2:
            raise RuntimeError(self.refuses)
        self.enabled.append(kind)

    def activity_disable(self, kind: ActivityKind) -> None:
        self.enabled.remove(kind)

    def activity_push_external_correlation_id(self, _: int, number: int) -> None:
        self.stack.append(number)

    def activity_pop_external_correlation_id(self, _: int) -> None:
        self.stack.pop()

    def activity_flush_all(self, forced: int) -> None:
        assert forced == 1
        self.deliver(self.pending)
        # The buffer is the library's again: whoever kept a record instead of its fields reads other ones now.
        for record in self.pending:
            vars(record).update(name="overwritten", start=0, end=0, correlation_id=0)
        self.pending = []

    def activity_get_num_dropped_records(self, context: int, stream: int, address: int) -> None:
        assert (context, stream) == (0, 0)
        ctypes.c_size_t.from_address(address).value, self.lost = self.lost, 0

    def launch(self, name: str, length: int) -> None:
        """A kernel that runs at once."""
        self.correlation += 1
        begin = self.clock()
        times = {"start": self.cupti_time(begin), "end": self.cupti_time(begin + 5)}
        shared = {"correlation_id": self.correlation}
        if self.stack:
            self._add(ActivityKind.EXTERNAL_CORRELATION, external_id=self.stack[-1], **shared)
        self._add(ActivityKind.RUNTIME, cbid=211, thread_id=77, **times, **shared)
        times = {"start": self.cupti_time(begin + 5), "end": self.cupti_time(begin + 5 + length)}
        self._add(ActivityKind.CONCURRENT_KERNEL, name=name, device_id=0, stream_id=7, **times, **shared)
        self.now += length + 5

    def copy(self, size: int) -> None:
        self.correlation += 1
        begin = self.cupti_time(self.clock())
        where = {"device_id": 0, "stream_id": 9, "correlation_id": self.correlation}
        self._add(ActivityKind.MEMCPY, copy_kind=1, bytes=size, start=begin, end=begin + 300, **where)

    def _add(self, kind: ActivityKind, **fields: object) -> None:
        self.pending.append(SimpleNamespace(kind=int(kind), **fields))


def recorded_window(library: Library, path: Path) -> dict[str, Any]:
    profile = CuptiProfile(library, library.clock)
    for step in (4, 5):
        profile.begin_step(step)
        library.copy(4096)
        with profile.scope("forward"):
            library.launch("gemm", 1_000_000)
            with profile.scope("attention"):
                library.launch("softmax", 500_000)
        library.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2_000_000)
        profile.end_step()
        library.now += 1000
    profile.stop()
    profile.stop()
    assert library.enabled == []
    profile.save(path, {"rank": 3, "world_size": 8, "steps": []})
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_a_window_is_read_as_every_kineto_recording_is(tmp_path: Path) -> None:
    document = recorded_window(Library(), tmp_path / "rank-3-4-5.json")
    assert document["kair"]["cupti"]["dropped"] == 0
    trace = open_trace(tmp_path, cache=shared_cache())
    assert (trace.job.ranks, [*trace.steps]) == ((3,), [4, 5])
    rows = read_columns(trace, ["name", "kind", "duration_ns"])
    counts: dict[tuple[str, str], int] = {}
    for name, kind in zip(rows.text("name"), rows.text("kind"), strict=True):
        counts[name, kind] = counts.get((name, kind), 0) + 1
    assert counts["gemm", "compute"] == counts["softmax", "compute"] == 2
    assert counts["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "collective"] == 2
    assert counts["Memcpy HtoD", "memory"] == 2
    assert counts["forward", "scope"] == 2


def test_kernels_carry_the_innermost_stage_they_were_launched_in(tmp_path: Path) -> None:
    events = recorded_window(Library(), tmp_path / "w.json")["traceEvents"]
    stages = [(event["name"], event["args"].get("stage")) for event in events if event["cat"] == "kernel"]
    assert stages == [
        ("gemm", "forward"), ("softmax", "attention"), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", None),
    ] * 2  # fmt: skip


def test_device_times_become_unix_times_by_both_ends_of_the_window(tmp_path: Path) -> None:
    library = Library()
    document = recorded_window(library, tmp_path / "w.json")
    base = document["baseTimeNanoseconds"]
    (step, *_) = [event for event in document["traceEvents"] if event["name"] == "ProfilerStep#5"]
    last = [event for event in document["traceEvents"] if event["cat"] == "kernel"][-1]
    end = base + (last["ts"] + last["dur"]) * 1000
    # Without the drift's correction the last kernel would end 700 ns late, after its step.
    assert abs(end - (base + (step["ts"] + step["dur"]) * 1000)) <= 50
    assert base <= UNIX + 100


def test_cupti_that_someone_else_has_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CuptiRefusedError, match="CUDA_INJECTION64_PATH"):
        load_cupti({"CUDA_INJECTION64_PATH": "/opt/nsight/libToolsInjection64.so"})
    library = Library("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
    with pytest.raises(CuptiRefusedError, match="another profiler has CUPTI"):
        CuptiProfile(library)
    assert library.enabled == []
    profiling = ModuleType("torch")
    vars(profiling)["_C"] = SimpleNamespace(_autograd=SimpleNamespace(_profiler_enabled=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", profiling)
    with pytest.raises(CuptiRefusedError, match="PyTorch's profiler is on"):
        load_cupti({})


def test_without_the_library_or_a_gpu_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in backend.OTHER_OWNERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupti", None)
    job = PlainJob()
    assert job.start_profile() is None
    assert job.refusal is not None
    assert "pip install 'kair[cupti]'" in job.refusal
    package = ModuleType("cupti")
    vars(package)["cupti"] = Library("CUDA driver is not found (libcuda.so.1)")
    monkeypatch.setitem(sys.modules, "cupti", package)
    assert job.start_profile() is None
    assert job.refusal == "CUDA driver is not found (libcuda.so.1)"


def test_full_buffers_are_taken_as_they_come_and_records_without_one_are_counted(tmp_path: Path) -> None:
    library = Library()
    library.lost = 1  # of somebody before: CUPTI counts from when it is asked last
    profile = CuptiProfile(library, library.clock)
    profile.begin_step(4)
    for _ in range(3):
        with profile.scope("forward"):
            library.launch("gemm", 1000)
        library.activity_flush_all(1)  # a buffer is full in the middle of a step
    library.lost += 5
    profile.end_step()
    profile.stop()
    library.deliver([])  # one that comes late is empty
    profile.save(tmp_path / "w.json", {})
    document = json.loads((tmp_path / "w.json").read_text())
    kernels = [event for event in document["traceEvents"] if event["cat"] == "kernel"]
    assert [event["args"]["stage"] for event in kernels] == ["forward"] * 3
    assert document["kair"]["cupti"]["dropped"] == 5


def test_records_past_the_most_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "MOST_RECORDS", 5)
    document = recorded_window(Library(), tmp_path / "w.json")
    device = [event for event in document["traceEvents"] if event["cat"] != "user_annotation"]
    assert len(device) == 5
    assert document["kair"]["cupti"]["dropped"] == 2 * 7 - 5
