"""What the rows of a Kineto trace say: kinds, phases, steps, times."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import kineto_builder as kb
from support.kineto_rows import ALL_REDUCE, kinds, read, row

from kair_engine.readers.kineto.reader import read_kineto
from kair_engine.trace import format as format_of_fragments
from kair_engine.trace.format import MAX_NAME_LENGTH, read_metadata
from kair_engine.trace.model import FragmentInfo, ProcessorLimits, SentToHost


def test_every_step_has_its_scope_row(tmp_path: Path) -> None:
    source = kb.write(tmp_path / "rank3.json", kb.trace(kb.training_steps(3), rank=3, world=8))
    info = read_kineto(source, tmp_path / "out.parquet")
    rows = pl.read_parquet(tmp_path / "out.parquet")
    scopes = rows.filter(pl.col("name").cast(pl.String) == "step")
    assert scopes.select("step", "rank", "start_ns", "duration_ns").rows() == [
        (2, 3, 10_000_000, 990_000),
        (3, 3, 11_000_000, 990_000),
        (4, 3, 12_000_000, 990_000),
    ]
    assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups == 1
    assert rows["step"].to_list() == sorted(rows["step"].to_list())
    assert (info.ranks, info.world_size, info.has_device) == ((3,), 8, True)
    assert (info.operations, info.step_times.operations) == (42, (14, 14, 14))
    assert msgspec.convert(type=FragmentInfo, str_keys=True, obj=read_metadata(tmp_path / "out.parquet")) == info


def test_rows_stand_in_the_table_s_order() -> None:
    rows, _ = read(list(reversed(kb.training_steps(2))))
    keys = rows.select("step", "rank", "lane", "start_ns").rows()
    assert keys == sorted(keys)


def test_a_kernel_belongs_to_the_step_that_launched_it() -> None:
    events = [kb.step(0, 0, 100), kb.step(1, 100, 100), kb.launch(90, 5, 1), kb.kernel("late", 150, 10, 1)]
    events += [kb.launch(300, 5, 2), kb.kernel("outside", 150, 10, 2), kb.kernel("orphan", 160, 10, 99)]
    rows, info = read(events)
    assert row(rows, "late")["step"] == 0
    assert row(rows, "orphan")["step"] == 1
    assert rows.filter(pl.col("name") == "outside").is_empty()
    assert info.operations == len(rows) - 2  # the two steps themselves


def test_what_runs_within_a_compiler_s_call_computes_nothing() -> None:
    compiling = [kb.op("entire_frame_compile", 20, 40), kb.op("aten::mm", 30, 5), kb.op("aten::relu", 70, 5)]
    rows, _ = read([kb.step(0, 0, 100), *compiling])
    assert kinds(rows) == {
        "step": "scope", "entire_frame_compile": "host", "aten::mm": "host", "aten::relu": "compute",
    }  # fmt: skip


def test_an_external_id_stands_in_for_a_missing_correlation() -> None:
    memcpy = kb.event("Memcpy HtoD", "gpu_memcpy", 150, 5, pid=0, tid=7, **{"External id": 12, "bytes": 64})
    rows, _ = read([kb.step(0, 0, 100), kb.step(1, 100, 100), kb.op("aten::to", 50, 9, **{"External id": 12}), memcpy])
    found = row(rows, "Memcpy HtoD")
    assert (found["step"], found["kind"], found["bytes"], found["phase"]) == (0, "memory", 64, "forward")


def test_the_longest_mark_of_a_step_counts_and_device_marks_do_not() -> None:
    events = [kb.step(0, 0, 100), kb.step(0, 10, 5), kb.op("aten::add", 50, 1)]
    events.append(kb.event("ProfilerStep#0", "gpu_user_annotation", 0, 900, pid=0, tid=7))
    rows, info = read(events)
    assert info.step_times.duration_ns == (100_000,)
    assert rows["name"].to_list().count("step") == 1


def test_without_marks_the_whole_recording_is_one_step() -> None:
    rows, info = read([kb.op("aten::add", 5, 10), kb.op("aten::mul", 40, 20)])
    assert [warning.code for warning in info.warnings] == ["no_step_marks"]
    assert row(rows, "step")["start_ns"] == 5000
    assert row(rows, "step")["duration_ns"] == 55_000
    assert info.operations == 2


def test_the_last_instant_belongs_to_the_whole_recording() -> None:
    assert read([kb.op("a", 0, 10), kb.op("b", 10, 0)])[1].operations == 2


def test_kinds_of_a_gpu_recording() -> None:
    rows, _ = read(
        [
            kb.step(0, 0, 1000),
            kb.op("aten::mm", 1, 2),
            kb.op("c10d::allreduce_", 3, 2),
            kb.launch(5, 1, 1),
            kb.launch(6, 1, -1, name="cudaDeviceSynchronize"),
            kb.event("hipStreamSynchronize", "hip_runtime", 7, 1),
            kb.event("cuLaunchKernelEx", "cuda_driver", 8, 1, correlation=2),
            kb.event("Activity Buffer Request", "overhead", 9, 1, pid=-1, tid=0),
            kb.kernel("sgemm", 10, 5, 1),
            kb.kernel(ALL_REDUCE, 20, 5, 2, stream=20),
            kb.kernel("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", 30, 5, 3, stream=20),
            kb.kernel("mscclKernel_Sum", 36, 1, 4, stream=20),
            kb.kernel("at::native::nccl_like_op_but_not_first", 38, 1, 4),
            kb.event("Memset (Device)", "gpu_memset", 40, 1, pid=0, tid=7, correlation=4),
            kb.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 50, 5),
            kb.annotation("gc", 60, 5),
            kb.op("Python GC", 65, 1),
            kb.annotation("my_scope", 70, 5),
            kb.event("<built-in method run>", "python_function", 80, 5),
            kb.event("PyTorch Profiler (0)", "Trace", 0, 999, pid="Spans", tid="PyTorch Profiler"),
            {"ph": "i", "name": "[memory]", "ts": 5, "pid": 1, "tid": 1, "cat": "cpu_instant_event"},
            {"ph": "s", "id": 1, "pid": 100, "tid": 100, "ts": 5, "cat": "ac2g", "name": "ac2g"},
        ]
    )
    assert kinds(rows) == {
        "step": "scope",
        "aten::mm": "host",
        "c10d::allreduce_": "host",
        "cudaLaunchKernel": "host",
        "cudaDeviceSynchronize": "sync",
        "hipStreamSynchronize": "sync",
        "cuLaunchKernelEx": "host",
        "Activity Buffer Request": "host",
        "sgemm": "compute",
        ALL_REDUCE: "collective",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)": "collective",
        "mscclKernel_Sum": "collective",
        "at::native::nccl_like_op_but_not_first": "compute",
        "Memset (Device)": "memory",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": "input",
        "gc": "gc",
        "Python GC": "gc",
        "my_scope": "scope",
    }


def test_lanes_and_correlations() -> None:
    rows, _ = read([kb.step(0, 0, 100), kb.launch(5, 1, 42), kb.kernel("k", 10, 5, 42), kb.op("aten::mm", 1, 2)])
    assert {found["name"]: (found["lane"], found["correlation"]) for found in rows.to_dicts()} == {
        "step": ("thread 100", None),
        "aten::mm": ("thread 100", None),
        "cudaLaunchKernel": ("thread 100", 42),
        "k": ("stream 7", 42),
    }


def test_what_the_profiler_does_within_a_launch_is_on_its_thread_and_before_it() -> None:
    request = kb.event("Activity Buffer Request", "overhead", 110, 1800, pid=-1, tid=0)
    flush = kb.event("Buffer Flush", "overhead", 2500, 100, pid=-1, tid=0)
    loading = kb.event("Lazy Function Loading", "overhead", 3020, 50, pid=-1, tid=0)
    rows, _ = read(
        [
            kb.step(0, 0, 6000),
            kb.op("aten::mm", 90, 1850, tid=200),
            # The main thread waits meanwhile, not for what another one's launch needs.
            kb.launch(50, 3000, -1, name="cudaDeviceSynchronize"),
            kb.launch(45, 5000, 9, name="cudaMemcpy"),
            kb.launch(100, 1820, 1, tid=200),
            kb.launch(2400, 5, 2, tid=200),
            # A call of the driver within one of the runtime.
            kb.launch(3010, 80, 3, tid=200),
            kb.event("cuLaunchKernel", "cuda_driver", 3015, 70, tid=200, correlation=3),
            kb.kernel("sgemm", 1925, 5, 1),
            kb.launch(3500, 10, 4, tid=200),
            request,
            flush,
            loading,
            kb.event("Instrumentation", "overhead", 3504, 96, pid=-1, tid=0),
        ]
    )
    found = {
        (one["name"], one["start_ns"] // 1000): (one["lane"], one["duration_ns"] // 1000) for one in rows.to_dicts()
    }
    assert found["Activity Buffer Request", 110] == ("thread 200", 1800)
    assert found["cudaLaunchKernel", 1910] == ("thread 200", 10)
    assert found["aten::mm", 90] == ("thread 200", 1850)
    assert found["cudaDeviceSynchronize", 50] == ("thread 100", 3000)
    assert found["cudaMemcpy", 45] == ("thread 100", 5000)
    assert found["Buffer Flush", 2500] == ("thread 0", 100), "no call waits for it"
    assert found["Instrumentation", 3504] == ("thread 0", 96), "the call does not wait for its end"
    assert found["cudaLaunchKernel", 3500] == ("thread 200", 10)
    assert found["Lazy Function Loading", 3020] == ("thread 200", 50)
    assert found["cudaLaunchKernel", 3070] == ("thread 200", 20)
    assert found["cuLaunchKernel", 3070] == ("thread 200", 15)


def test_lanes_of_several_devices_name_the_device() -> None:
    events = [kb.step(0, 0, 100), kb.kernel("a", 1, 1, 1)]
    events.append(kb.event("b", "kernel", 2, 1, pid=1, tid="stream 7", correlation=2))
    rows, _ = read(events)
    assert (row(rows, "a")["lane"], row(rows, "b")["lane"]) == ("stream 0/7", "stream 1/7")


def test_stages_come_from_scopes_and_threads_and_reach_the_device() -> None:
    backward_thread = 200
    rows, _ = read(
        [
            kb.step(0, 0, 1000),
            kb.annotation("enumerate(DataLoader)#_Iter.__next__", 5, 10),
            kb.op("aten::stack", 7, 2),
            kb.op("aten::forward_op", 20, 5),
            kb.op("autograd::engine::evaluate_function: MmBackward0", 100, 50, tid=backward_thread),
            kb.launch(110, 2, 1, tid=backward_thread),
            kb.kernel("backward_kernel", 400, 5, 1),
            kb.op("between_functions", 160, 5, tid=backward_thread),
            kb.annotation("Optimizer.step#AdamW.step", 500, 100),
            kb.launch(510, 2, 2),
            kb.kernel("optimizer_kernel", 700, 5, 2),
            kb.annotation("backward", 300, 50),
            kb.op("in_my_backward", 310, 5),
            kb.kernel("unknown_launch", 800, 5, 99),
        ]
    )
    phases = {found["name"]: found["phase"] for found in rows.to_dicts()}
    assert phases["step"] is None
    assert phases["enumerate(DataLoader)#_Iter.__next__"] == "input"
    assert phases["aten::stack"] == "input"
    assert phases["aten::forward_op"] == "forward"
    assert phases["backward_kernel"] == "backward"
    assert phases["between_functions"] == "backward"
    assert phases["Optimizer.step#AdamW.step"] == "optimizer"
    assert phases["optimizer_kernel"] == "optimizer"
    assert phases["in_my_backward"] == "backward"
    assert phases["unknown_launch"] is None


def test_backward_on_the_main_thread_is_only_what_autograd_runs() -> None:
    rows, _ = read(
        [
            kb.step(0, 0, 100),
            kb.op("before", 5, 1),
            kb.op("autograd::engine::evaluate_function: X", 10, 10),
            kb.op("inside", 12, 1),
            kb.op("after", 25, 1),
        ]
    )
    assert [row(rows, name)["phase"] for name in ("before", "inside", "after")] == ["forward", "backward", "forward"]


def test_occurrences_count_by_stage_name_and_kind_in_order_of_start() -> None:
    events = [kb.step(0, 0, 100), kb.step(1, 100, 100)]
    events += [kb.op("aten::mm", ts, 1) for ts in (30, 10, 20, 110)]
    rows, _ = read(events)
    found = rows.filter(pl.col("name") == "aten::mm").select("step", "start_ns", "occurrence").rows()
    assert found == [(0, 10_000, 0), (0, 20_000, 1), (0, 30_000, 2), (1, 110_000, 0)]


def test_base_time_before_or_after_the_events_is_added_exactly(tmp_path: Path) -> None:
    for order in ("before", "after"):
        base = {"baseTimeNanoseconds": 1790000000000000000}
        events = {"traceEvents": [kb.step(0, 4394162679094.005, 10.001), kb.op("a", 4394162679095, 0.002)]}
        source = kb.write(tmp_path / f"{order}.json", {**base, **events} if order == "before" else {**events, **base})
        info = read_kineto(source, tmp_path / "out.parquet")
        assert info.step_times.begin_ns == (1790000000000000000 + 4394162679094005,)
        assert info.step_times.duration_ns == (10_001,)
        assert info.absolute_time


def test_what_capture_measured_of_a_step_is_read(tmp_path: Path) -> None:
    """And what could not be measured, or is no figure, is not told."""
    told = [
        [2, 7_000_000, 3000, None, 40],
        [3, 5_000_000, None, 12, "x"],
        [4, -1, 2**70, True, 0, 6],
        [5, 6_000_000, 2000, 0, 30, 0, 4_000_000],
        [6, None, 1000, 0, 20, 1, 3000],  # beside a GPU
        [9, 1, 1, 1, 1],
        7,
    ]
    content = kb.trace(kb.training_steps(5), kair={"processor": told})
    times = read_kineto(kb.write(tmp_path / "rank0.json", content), tmp_path / "out.parquet").step_times
    assert times.step == (2, 3, 4, 5, 6)
    assert times.cpu_ns == (7_000_000, 5_000_000, -1, 6_000_000, -1)
    assert times.delay_ns == (3000, -1, -1, 2000, 1000)
    assert times.throttled == (-1, 12, -1, 0, 0)
    assert times.communication_delay_ns == (40, -1, 0, 30, 20)
    assert times.halted == (-1, -1, 6, 0, 1)
    assert times.helpers_cpu_ns == (-1, -1, -1, 4_000_000, 3000)


@pytest.mark.parametrize("kair", [None, {"processor": []}, {"processor": {"2": [1, 1, 1, 1]}}, [1]])
def test_files_in_which_nothing_was_measured_tell_nothing(tmp_path: Path, kair: object) -> None:
    content = kb.trace(kb.training_steps(2), **({} if kair is None else {"kair": kair}))
    times = read_kineto(kb.write(tmp_path / "rank0.json", content), tmp_path / "out.parquet").step_times
    assert replace(times, device_begin_ns=(), device_end_ns=()).is_plain


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"nice": 10, "cpus": [3, 1], "quota": 1.5}, {0: ProcessorLimits(10, (1, 3), 1.5)}),
        ({"nice": 0, "cpus": [], "quota": None}, {0: ProcessorLimits(0)}),
        ({"nice": 99, "cpus": [True, -1, "2", 1e9, 4], "quota": float("nan")}, {0: ProcessorLimits(None, (4,))}),
        ({"nice": "10", "cpus": "0-3", "quota": -1}, {}),
        ([10], {}),
    ],
)
def test_what_a_rank_may_have_of_its_host_is_read(tmp_path: Path, told: object, expected: object) -> None:
    content = kb.trace(kb.training_steps(2), kair={"limits": told})
    assert read_kineto(kb.write(tmp_path / "rank0.json", content), tmp_path / "out.parquet").limits == expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([[2, "10.0.0.1", "10.0.0.2", 10, 5, 0]], (SentToHost("10.0.0.1", "10.0.0.2", 1, 10, 5, 0),)),
        (
            [[at, "10.0.0.1", "10.0.0.2", 10, rate, 0] for at, rate in enumerate((70, 5, 30, 50, 4, 3, 60, 2))],
            (SentToHost("10.0.0.1", "10.0.0.2", 8, 10, 30, 0),),
        ),
        (  # of fewer the upper quartile
            [[at, "10.0.0.1", "10.0.0.2", 10, rate, 0] for at, rate in enumerate((70, 5, 30, 50, 4, 3, 60))],
            (SentToHost("10.0.0.1", "10.0.0.2", 7, 10, 60, 0),),
        ),
        (  # the median round trip, 0 where the kernel has none; busy in the mean
            [
                [at, "10.0.0.1", "10.0.0.2", 10, 5, 0, round_trip, queued, busy]
                for at, (round_trip, queued, busy) in enumerate(
                    [(40, 0, 4000), (0, 0, 0), (300, 80, 4000), (900, 20, 0)]
                )
            ],
            (SentToHost("10.0.0.1", "10.0.0.2", 4, 10, 5, 0, 300_000, 10_000, 2_000_000),),
        ),
        (
            [[2, "10.0.0.1", "10.0.0.2", 10, 5, 0], [3, "10.0.0.1", "10.0.0.2", 10, 5, 0, -1, 0, 0]],
            (SentToHost("10.0.0.1", "10.0.0.2", 1, 10, 5, 0),),
        ),
        ([[2, "::ffff:10.0.0.1", "fe80::2%eth0", 10, 5, 0]], (SentToHost("10.0.0.1", "fe80::2", 1, 10, 5, 0),)),
        ([[2, "10.0.0.1", "10.0.0.1", 10, 5, 0]], ()),
        ([[2, "10.0.0.1", "\x1b[31m", 10, 5, 0], [2, "10.0.0.1", 7, 10, 5, 0]], ()),
        ([[2, "10.0.0.1", "10.0.0.2", 0, 5, 0], [2, "10.0.0.1", "10.0.0.2", 10, 0, 0]], ()),
        ([[2, "10.0.0.1", "10.0.0.2", 1e9, 5, 0], [2, "10.0.0.1", "10.0.0.2", -1, 5], "2"], ()),
        ({"2": 1}, ()),
    ],
)
def test_what_a_rank_sent_to_other_hosts_is_read(
    tmp_path: Path, told: object, expected: tuple[SentToHost, ...]
) -> None:
    content = kb.trace(kb.training_steps(2), kair={"sent": told})
    sent = read_kineto(kb.write(tmp_path / "rank0.json", content), tmp_path / "out.parquet").sent
    assert sent.get(0, ()) == expected


def test_small_times_are_the_recording_s_own() -> None:
    assert not read(kb.training_steps(1))[1].absolute_time
    assert read([kb.op("a", 1706850122821045, 1)])[1].absolute_time


def test_begin_and_end_events_are_paired_per_thread() -> None:
    def half(ph: str, name: str, ts: float, tid: int = kb.MAIN) -> kb.Event:
        return {"ph": ph, "cat": "cpu_op", "name": name, "ts": ts, "pid": kb.MAIN, "tid": tid}

    events = [half("B", "outer", 1), half("B", "other", 2, 7), half("B", "inner", 3), half("E", "", 5.5)]
    events += [half("E", "", 9), half("E", "", 10, 7), half("B", "never_ends", 11), half("E", "", 12, 9)]
    rows, info = read(events)
    assert {name: row(rows, name)["duration_ns"] for name in ("outer", "inner", "other")} == {
        "outer": 8000,
        "inner": 2500,
        "other": 8000,
    }
    assert "2 events" in info.warnings[0].message


def test_a_bare_array_is_a_trace(tmp_path: Path) -> None:
    source = kb.write(tmp_path / "rank5.json", kb.training_steps(1))
    info = read_kineto(source, tmp_path / "out.parquet")
    assert (info.ranks, info.operations, info.world_size) == ((5,), 14, None)


@pytest.mark.parametrize("form", ["plain", "gz", "two-member gz", "zst"])
def test_the_content_decides_how_it_is_unpacked(tmp_path: Path, form: str) -> None:
    text = json.dumps(kb.trace(kb.training_steps(2))).encode()
    half = len(text) // 2
    if form == "gz":
        text = gzip.compress(text)
    elif form == "two-member gz":
        text = gzip.compress(text[:half]) + gzip.compress(text[half:]) + b"\0" * 100
    elif form == "zst":
        text = pa.Codec("zstd").compress(text, asbytes=True)
    source = tmp_path / "trace.bin"
    source.write_bytes(text)
    info = read_kineto(source, tmp_path / "out.parquet")
    assert (info.operations, len(info.step_times.step)) == (28, 2)


def test_the_host_comes_from_the_folder_the_trace_or_the_name(tmp_path: Path) -> None:
    content = kb.trace(kb.training_steps(1))
    for name, host in (
        ("gpu-node12_4242.1700000000000000000.pt.trace.json.gz", "gpu-node12"),
        ("rank_3.1700000000000000000.pt.trace.json", None),
        ("frank_4242.1700000000000000000.pt.trace.json", "frank"),
        ("host=node7/x.json", "node7"),
        ("y.json", None),
    ):
        info = read_kineto(kb.write(tmp_path / name, content), tmp_path / "out.parquet")
        assert info.hosts == ({0: host} if host else {})
    stated = {**content, "host_name": "vm"}
    for name, host in (("z.json", "vm"), ("node3_4242.pt.trace.json", "vm"), ("host=node7/x.json", "node7")):
        info = read_kineto(kb.write(tmp_path / name, stated), tmp_path / "out.parquet")
        assert info.hosts == {0: host}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("job_rank_3.json", 3),
        ("rank12/trace.json", 12),
        ("kineto_0.json.gz", None),
        ("train_resnet18.json", None),
        ("worker3.pt.trace.json", 3),
        ("trace7.json", None),
        ("node1_rank5.json", 5),
        ("node12_4242.1700000000000000000.pt.trace.json", None),
        ("rank_2_4242.1700000000000000000.pt.trace.json", 2),
        ("rank_3.1700000000000000000.pt.trace.json", 3),
        ("node1_rank_3.pt.trace.json", 3),
        ("frank.json", None),
        ("1700000000000.json", None),
    ],
)
def test_the_rank_from_the_name(tmp_path: Path, name: str, rank: int | None) -> None:
    source = kb.write(tmp_path / "traces" / name, kb.trace(kb.training_steps(1), rank=None))
    info = read_kineto(source, tmp_path / "out.parquet")
    assert (info.ranks, info.rank_known) == ((rank or 0,), rank is not None)


def test_the_trace_s_own_rank_beats_the_name_and_the_hint(tmp_path: Path) -> None:
    source = kb.write(tmp_path / "rank9.json", kb.trace(kb.training_steps(1), rank=4))
    assert read_kineto(source, tmp_path / "out.parquet", rank_hint=7).ranks == (4,)


def test_steps_share_a_row_group_as_far_as_there_is_room_for_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format_of_fragments, "ROWS_AT_A_TIME", 30)
    read_kineto(kb.write(tmp_path / "a.json", kb.trace(kb.training_steps(5))), tmp_path / "out.parquet")
    file = pq.ParquetFile(tmp_path / "out.parquet")
    groups = [file.read_row_group(at)["step"].to_pylist() for at in range(file.num_row_groups)]
    assert groups == [[2] * 15 + [3] * 15, [4] * 15 + [5] * 15, [6] * 15]


def test_a_row_group_carries_only_its_own_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_of_fragments, "ROWS_AT_A_TIME", 2)
    events = [kb.step(0, 0, 100), kb.step(1, 100, 100), kb.op("only_0", 5, 1), kb.op("only_1", 105, 1)]
    read_kineto(kb.write(tmp_path / "a.json", kb.trace(events)), tmp_path / "out.parquet")
    groups = [pq.ParquetFile(tmp_path / "out.parquet").read_row_group(at)["name"] for at in (0, 1)]
    names = [{name for chunk in group.chunks for name in chunk.dictionary.to_pylist()} for group in groups]
    assert names == [{"step", "only_0"}, {"step", "only_1"}]


def test_long_names_are_cut_and_stay_apart() -> None:
    first, second = "k" * 5000 + "1", "k" * 5000 + "2"
    rows, _ = read([kb.step(0, 0, 100), kb.op(first, 1, 1), kb.op(second, 2, 1), kb.op(first, 3, 1)])
    names = rows.filter(pl.col("name").str.starts_with("kkk"))["name"]
    assert names.n_unique() == 2
    assert names.str.len_chars().max() == MAX_NAME_LENGTH


def test_large_recordings_spill_and_give_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = kb.write(tmp_path / "a.json", kb.trace(kb.training_steps(5)))
    read_kineto(source, tmp_path / "in_memory.parquet")
    monkeypatch.setattr("kair_engine.readers.kineto.events._IN_MEMORY", 0)
    monkeypatch.setattr("kair_engine.readers.kineto.reader._BATCH", 8)
    read_kineto(source, tmp_path / "spilled.parquet")
    assert pl.read_parquet(tmp_path / "in_memory.parquet").equals(pl.read_parquet(tmp_path / "spilled.parquet"))
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "in_memory.parquet", "spilled.parquet"}
