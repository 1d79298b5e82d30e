"""Profiles of XLA: what JAX really recorded, a pod of TPUs as its profiler writes it, and what is damaged."""

import gzip
import random
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from support.answers import recorded
from support.places import RECORDINGS
from support.xplane_builder import BEGIN_NS, PlaneBuilder, message, module, number, tpu_host, varint, write_pod

from kair_engine.errors import InputError
from kair_engine.readers.xplane.hlo import Groups, device_groups, mesh_groups, read_module
from kair_engine.readers.xplane.messages import MESSAGES
from kair_engine.readers.xplane.reader import read_xplane
from kair_engine.recording.opening import open_trace
from kair_engine.trace.model import Trace
from kair_engine.triage.analysis import triage


def rows(trace: Trace, *names: str) -> pl.DataFrame:
    chosen = trace.scan().with_columns(pl.col("kind", "phase", "group", "name", "lane").cast(pl.String)).collect()
    return chosen.filter(pl.col("name").is_in(names)) if names else chosen


@pytest.fixture(scope="module")
def jax_job() -> Trace:
    return recorded(RECORDINGS / "xplane" / "slow_input")


def test_what_jax_recorded_on_two_processes(jax_job: Trace) -> None:
    job = jax_job.job
    assert (job.format, job.ranks, job.world_size, job.steps) == ("xplane", (0, 1), 2, tuple(range(10, 16)))
    assert (job.device, job.absolute_time, job.missing_ranks) == ("CPU", True, ())
    assert [warning.code for warning in job.warnings] == ["rank_from_order"]
    reduced = rows(jax_job, "all-reduce.3")
    assert set(reduced["group"]) == {"all devices"}
    # Two gradients of 128 × 128 and the loss, float32.
    assert set(reduced["bytes"]) == {2 * 128 * 128 * 4 + 4}
    assert reduced.height == 12
    phases = rows(jax_job).filter(pl.col("kind") == "compute").group_by("phase").agg(pl.col("name").unique().sort())
    named = dict(phases.iter_rows())
    assert named["optimizer"] == ["copy_subtract_fusion", "copy_subtract_fusion.1"]
    assert "dot.3" in named["backward"]
    assert "wrapped_tanh" in named["forward"]


def test_triage_of_what_jax_recorded_names_the_slow_input(jax_job: Trace) -> None:
    result = triage(jax_job)
    (accused,) = (finding for finding in result.findings if finding.ranks)
    assert (result.verdict, accused.ranks, accused.cause, accused.operator) == ("straggler", (1,), "input", "input")
    assert 18_000 < accused.time_lost_us_per_step < 21_000


def test_devices_of_a_process_are_ranks_of_their_own() -> None:
    job = recorded(RECORDINGS / "xplane" / "two_by_two").job
    assert (job.ranks, job.world_size, len(job.steps)) == ((0, 1, 2, 3), 4, 6)
    assert job.files == {0: 1, 1: 1, 2: 1, 3: 1}


def test_a_pod_of_two_hosts(tmp_path: Path) -> None:
    trace = open_trace(write_pod(tmp_path / "pod", slow=2, steps=8), cache=tmp_path / "cache")
    job = trace.job
    assert (job.ranks, job.world_size, job.steps, job.device) == ((0, 1, 2, 3), 4, tuple(range(5, 13)), "TPU v4")
    assert job.hosts == {0: "tpu-host-0", 1: "tpu-host-0", 2: "tpu-host-1", 3: "tpu-host-1"}
    first = rows(trace).filter((pl.col("step") == 5) & (pl.col("rank") == 2))
    by_name = {row["name"]: row for row in first.iter_rows(named=True)}
    # A loop's time is that of what runs in it.
    assert "while.5" not in by_name
    assert (by_name["fusion.1"]["phase"], by_name["fusion.4"]["phase"]) == ("forward", "optimizer")
    reduced = by_name["all-reduce.3"]
    assert (reduced["kind"], reduced["group"], reduced["bytes"]) == ("collective", "devices [2, 3]", 4000)
    assert reduced["duration_ns"] == (780 - 705) * 1000
    result = triage(trace)
    (finding,) = (one for one in result.findings if one.ranks)
    assert (finding.ranks, finding.cause) == ((2,), "compute")


def test_two_sessions_of_one_host_are_two_runs(tmp_path: Path) -> None:
    for session, begin in (("2026_01_01", 0), ("2026_01_02", 10**12)):
        folder = tmp_path / "plugins" / "profile" / session
        folder.mkdir(parents=True)
        (folder / "host.xplane.pb").write_bytes(tpu_host((0, 1), begin_ns=BEGIN_NS + begin))
    with pytest.raises(InputError, match="holds 2 runs"):
        open_trace(tmp_path, cache=tmp_path / "cache")


def test_streams_of_a_gpu_with_the_calls_that_launched_them(tmp_path: Path) -> None:
    device, host = PlaneBuilder("/device:GPU:0"), PlaneBuilder("/host:CPU")
    kernels, calls, marks = [], [], []
    for step in range(3):
        at = 1000.0 * step
        marks.append(host.event("train", at, 100, step_num=step))
        for place, (name, begin, length) in enumerate(
            (
                ("loop_fusion_2", 200, 300),
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 500, 900),
                ("MemcpyD2H", 1400, 20),
            )
        ):
            correlation = 10 * step + place
            calls.append(host.event("cuLaunchKernelEx", at + 10 + place, 1, correlation_id=correlation))
            kernels.append(device.event(name, at + begin, length, correlation_id=correlation, hlo_op=name))
    device.line("Stream #13(Compute)", kernels, begin_ns=BEGIN_NS)
    device.line("XLA Ops", kernels, begin_ns=BEGIN_NS)
    host.line("python", [*marks, *calls], begin_ns=BEGIN_NS)
    folder = tmp_path / "profile"
    folder.mkdir()
    (folder / "gpu.xplane.pb").write_bytes(device.plane() + host.plane())
    # JAX writes the same once more for a browser.
    (folder / "gpu.trace.json.gz").write_bytes(
        gzip.compress(b'{"traceEvents": [{"ph": "X", "name": "train", "ts": 1}]}')
    )
    trace = open_trace(folder, cache=tmp_path / "cache")
    assert not [one for one in trace.job.warnings if "trace.json" in one.message]
    assert trace.job.steps == (0, 1, 2)
    # The host runs ahead: a kernel is of the step in which it was launched, once.
    found = rows(trace).filter(pl.col("lane") == "stream 13")
    kinds = dict(found.select("name", "kind").unique().iter_rows())
    assert found.group_by("step").len()["len"].to_list() == [3, 3, 3]
    assert kinds == {
        "loop_fusion_2": "compute",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "collective",
        "MemcpyD2H": "memory",
    }


def unmarked_host(*, devices: int = 2, steps: int = 6, idle: bool = False, ms: float = 1.0) -> bytes:
    """A host whose one thread drives all devices and marks no step: it runs ahead until the queue is full.

    Each device all-reduces twice, and runs `jit_f` so many times, a copy from HBM of 0.6 of `ms` in it, which takes 0.2
    longer now and then, at other times on each; on `idle` a further device is only copied to.
    """
    host, planes, us = PlaneBuilder("/host:CPU"), [], 1000 * ms
    calls = [host.event("PjitFunction(f)", us * (3 + step / 100), us / 200) for step in range(2)]
    for step in range(2, steps):
        # It goes on when the first device is done with a step, which it may be late to be told.
        late = 0.2 if step % 4 == 2 else 0
        calls.append(host.event("PjitFunction(f)", us * (3.1 + step - 2 + late), us * (0.99 - late)))
    host.line("main/1", calls, begin_ns=BEGIN_NS)
    for ordinal in range(devices):
        plane = PlaneBuilder(f"/device:TPU:{ordinal}")
        modules = [plane.event("jit__psum(9)", us * at, us * 0.2) for at in range(2)]
        operations = [plane.event("all-reduce", us * at, us * 0.19) for at in range(2)]
        for step in range(steps):
            at, late = us * (4 + step), us * 0.2 if (step + ordinal) % 4 == 0 else 0
            modules.append(plane.event("jit_f(12190760917)", at, us * 0.7 + late))
            operations.append(plane.event("copy-done", at, us * 0.6 + late))
            operations.append(plane.event("broadcast_add_fusion", at + us * 0.6 + late, us * 0.09))
        plane.line("XLA Modules", modules, begin_ns=BEGIN_NS)
        plane.line("XLA Ops", operations, begin_ns=BEGIN_NS)
        planes.append(plane.plane())
    if idle:
        plane = PlaneBuilder(f"/device:TPU:{devices}")
        plane.line("XLA Ops", [plane.event("copy-start", 10.0 * at, 2) for at in range(19)], begin_ns=BEGIN_NS)
        planes.append(plane.plane())
    return b"".join([*planes, host.plane()])


def test_runs_of_the_module_that_takes_most_time_are_the_steps(tmp_path: Path) -> None:
    (tmp_path / "host.xplane.pb").write_bytes(unmarked_host())
    job = open_trace(tmp_path / "host.xplane.pb", cache=tmp_path / "cache").job
    assert job.steps == tuple(range(8)), "two all-reduces before, each a step of its own, and six runs"
    assert any("8 steps are found by jit_f" in warning.message for warning in job.warnings)


@pytest.mark.slow
@pytest.mark.parametrize("with_host", [True, False])
def test_a_device_that_waits_for_its_own_memory_lacks_no_core(tmp_path: Path, with_host: bool) -> None:
    """One thread drives all devices, or none is recorded: no host is late."""
    content = unmarked_host(devices=4, steps=40, ms=800)
    if not with_host:
        content = content[: content.index(PlaneBuilder("/host:CPU").name.encode()) - 6]
    (tmp_path / "host.xplane.pb").write_bytes(content)
    trace = open_trace(tmp_path / "host.xplane.pb", cache=tmp_path / "cache")
    assert len(trace.job.ranks) == 4
    assert not {one.cause for one in triage(trace).findings} & {"contention", "host", "launch_bound", "input_bound"}
    assert set(rows(trace).filter(pl.col("kind") != "scope")["lane"]) == {"stream XLA Ops"}


def test_a_device_that_ran_no_step_is_no_rank(tmp_path: Path) -> None:
    (tmp_path / "host.xplane.pb").write_bytes(unmarked_host(idle=True))
    job = open_trace(tmp_path / "host.xplane.pb", cache=tmp_path / "cache").job
    assert (job.ranks, job.missing_ranks) == ((0, 1), ())
    assert [one.message for one in job.warnings if one.code == "idle_devices"] == [
        "host.xplane.pb: device 2 ran no step, and is no rank"
    ]


def test_a_device_without_steps_among_those_that_tell_them_is_no_rank(tmp_path: Path) -> None:
    stray = PlaneBuilder("/device:TPU:1")
    stray.line("XLA Ops", [stray.event("fusion.9", 0, 900)], begin_ns=BEGIN_NS)
    (tmp_path / "host.xplane.pb").write_bytes(stray.plane() + tpu_host((0,)))
    info = read_xplane(tmp_path / "host.xplane.pb", tmp_path / "out.parquet")
    assert info.ranks == (0,)
    assert info.identity[0].device.ordinal == 0


@pytest.mark.parametrize(("devices", "ranks", "known"), [((0,), (3,), True), ((0, 1), (0, 1), False)])
def test_a_number_in_the_name_of_a_profile_of_several_devices_is_no_rank(
    tmp_path: Path, devices: tuple[int, ...], ranks: tuple[int, ...], known: bool
) -> None:
    (tmp_path / "worker-3.xplane.pb").write_bytes(tpu_host(devices))
    info = read_xplane(tmp_path / "worker-3.xplane.pb", tmp_path / "out.parquet")
    assert (info.ranks, info.rank_known) == (ranks, known)


def groups_of(content: bytes) -> Groups:
    return device_groups(MESSAGES["DeviceList"].FromString(content))


def mesh_groups_of(axes: Sequence[int], sizes: Sequence[int] = (2, 2), *, order: bytes = b"") -> Groups:
    mesh = message(1, *(message(1, message(1, f"axis{at}"), number(2, size)) for at, size in enumerate(sizes)), order)
    chosen = b"".join(message(2, number(1, axis) if axis else b"") for axis in axes)
    return mesh_groups(MESSAGES["MeshAxes"].FromString(mesh + chosen))


def test_groups_as_lists_iotas_and_mesh_axes() -> None:
    def iota(count: int, size: int, shape: Sequence[int], order: Sequence[int]) -> bytes:
        packed = (message(at, *map(varint, values)) for at, values in ((3, shape), (4, order)))
        return message(2, number(1, count), number(2, size), *packed)

    # [2,2]<=[2,2]T(1,0): the second half of each pair.
    assert groups_of(iota(2, 2, (2, 2), (1, 0))) == ((0, 2), (1, 3))
    assert groups_of(message(1, message(1, varint(0), varint(5)))) == ((0, 5),)
    assert groups_of(b"") == ()
    assert mesh_groups_of([0]) == ((0, 2), (1, 3))
    # What gives no groups: other numbers of devices, negative and too many axes, one axis twice, an order of its own.
    for refused in (iota(2, 3, (2, 2), (1, 0)), iota(-2, -2, (2, 2), (1, 0)), iota(1, 1, [1] * 99, range(99))):
        assert groups_of(refused) == ()
    assert mesh_groups_of([0, 0]) == mesh_groups_of([2]) == mesh_groups_of([]) == ()
    assert mesh_groups_of([0], [1] * 99) == mesh_groups_of([0], order=number(2, 1)) == ()


def test_sizes_of_tuples_and_of_what_no_array_can_be() -> None:
    def size_of(*shape: bytes) -> int | None:
        content = module("m", 1, 1, [message(2, message(1, "x"), message(3, *shape))])
        return read_module(content).instructions["x"].size

    floats = number(2, 11)
    assert size_of(floats, message(3, varint(10), varint(3))) == 120
    assert size_of(message(4, floats, message(3, varint(10))), message(4, floats)) == 44
    huge = message(4, floats, message(3, varint(-1)))
    assert size_of(huge, huge, huge) == 1 << 62
    assert size_of(floats, message(3, *[varint(-1)] * 100_000)) is None


def test_a_profile_that_is_cut_off_keeps_the_planes_before(tmp_path: Path) -> None:
    content, source = tpu_host((0, 1)), tmp_path / "a.xplane.pb"
    second = content.index(b"/device:TPU:1")
    source.write_bytes(content[: second + 300])
    info = read_xplane(source, tmp_path / "out.parquet")
    assert (info.ranks, [one.code for one in info.warnings]) == ((0,), ["truncated_file"])


def test_a_compressed_profile_is_the_same(tmp_path: Path) -> None:
    content = tpu_host((0, 1))
    for name, text in (("a.xplane.pb", content), ("b.xplane.pb.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(text)
    plain, packed = (
        read_xplane(tmp_path / name, tmp_path / "out.parquet") for name in ("a.xplane.pb", "b.xplane.pb.gz")
    )
    assert plain.step_times == packed.step_times
    assert plain.operations == packed.operations == 2 * 3 * 4


@pytest.mark.slow
def test_steps_that_no_clock_reads_are_told_by_what_ran(tmp_path: Path) -> None:
    plane = PlaneBuilder("/device:TPU:0")
    plane.line("Steps", [plane.event("9" * 12, 1000.0 * at, 1000) for at in range(3)], begin_ns=BEGIN_NS)
    modules = [plane.event("jit_train_step(7)", 1000.0 * at, 990, run_id=at) for at in range(3)]
    operations = [plane.event("fusion.1", 1000.0 * at + 1, 900, program_id=7) for at in range(3)]
    plane.line("XLA Modules", modules, begin_ns=BEGIN_NS)
    plane.line("XLA Ops", operations, begin_ns=BEGIN_NS)
    (tmp_path / "a.xplane.pb").write_bytes(plane.plane())
    job = open_trace(tmp_path / "a.xplane.pb", cache=tmp_path / "cache").job
    assert job.steps == (0, 1, 2)
    assert "steps_inferred" in {warning.code for warning in job.warnings}


@pytest.mark.slow
def test_damaged_profiles_give_an_answer_or_one_line(tmp_path: Path) -> None:
    content, chance = tpu_host((0, 1)), random.Random(3)
    source, refused = tmp_path / "a.xplane.pb", 0
    for _ in range(150):
        text = bytearray(content[: chance.randrange(1, len(content))] if chance.random() < 0.3 else content)
        for _ in range(chance.randrange(4)):
            text[chance.randrange(len(text))] = chance.randrange(256)
        source.write_bytes(text)
        try:
            read_xplane(source, tmp_path / "out.parquet")
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert 0 < refused < 150


def tensorflow_host(*, compiles: bool) -> bytes:
    """A step of TensorFlow on processors alone, marked by the script and by capture; what waits is on two threads."""
    plane = PlaneBuilder("/host:CPU")

    def operator(name: str, kind: str, start_us: float, length_us: float) -> bytes:
        plane.kind_stats[f"{name}:{kind}"] = message(4, kind)
        return plane.event(f"{name}:{kind}", start_us, length_us)

    waits = {"name": "CollectiveReduceV2", "kernel_type": "CollectiveReduceV2"}
    main = [
        plane.event("train", 0, 1000, step_num=77),
        plane.event("kair step", 0, 1000, step_num=4),
        plane.event("EagerLocalExecute: MatMul", 10, 100),
    ]
    plane.line("python", main, begin_ns=BEGIN_NS)
    if compiles:
        call = operator("StatefulPartitionedCall", "StatefulPartitionedCall", 0, 900)
        forward = operator("StatefulPartitionedCall/model/MatMul", "MatMul", 100, 200)
        begun = plane.event("ExecutorState::ProcessAsync::Start", 310, 1, _p=9, **waits)
        plane.line("tf_Compute/1", [call, forward, begun], begin_ns=BEGIN_NS)
        backward = operator("gradient_tape/model/MatMul", "MatMul", 300, 10)
        own = operator("CollectiveReduceV2", "CollectiveReduceV2", 320, 2)
        done = plane.event("ExecutorState::ProcessAsync::Done", 800, 5, _c=9, **waits)
        update = operator("adam/update", "AssignAddVariableOp", 810, 20)
        plane.line("tf_Compute/2", [backward, own, done, update], begin_ns=BEGIN_NS)
        plane.line("tf_data_private/3", [operator("Map", "GatherV2", 0, 500)], begin_ns=BEGIN_NS)
    return plane.plane()


def test_tensorflows_operators_where_no_device_has_a_plane(tmp_path: Path) -> None:
    (tmp_path / "rank-0.xplane.pb").write_bytes(tensorflow_host(compiles=True))
    trace = open_trace(tmp_path, cache=tmp_path / "cache")
    # Capture's marks go before the script's.
    assert trace.steps == (4,)
    seen = rows(trace).filter(pl.col("lane").str.starts_with("stream")).select("name", "kind", "phase", "duration_ns")
    assert sorted(seen.iter_rows()) == [
        ("CollectiveReduceV2", "collective", "forward", 495_000),
        ("adam/update", "compute", "optimizer", 20_000),
        ("gradient_tape/model/MatMul", "compute", "backward", 10_000),
        ("model/MatMul", "compute", "forward", 200_000),
    ]


def test_tensorflows_operators_where_nothing_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "rank-0.xplane.pb").write_bytes(tensorflow_host(compiles=False))
    trace = open_trace(tmp_path, cache=tmp_path / "cache")
    seen = rows(trace).filter(pl.col("lane").str.starts_with("stream"))
    assert seen.select("name", "kind", "duration_ns").rows() == [("MatMul", "compute", 100_000)]


@pytest.mark.slow
def test_what_jax_recorded_on_a_gpu() -> None:
    trace = recorded(RECORDINGS / "xplane" / "twice_the_work")
    assert (trace.job.ranks, trace.job.device, trace.job.steps) == ((0, 1), "NVIDIA H100 80GB HBM3", tuple(range(8)))
    kernels = rows(trace).filter(pl.col("lane").str.starts_with("stream") & (pl.col("kind") == "compute"))
    assert kernels.group_by("rank").len().sort("rank")["len"].to_list() == [208, 416]
    # Each was launched by a call of its host before it began.
    calls = rows(trace).filter(pl.col("kind") == "host").select("rank", "correlation", called_ns="start_ns")
    launched = kernels.join(calls.drop_nulls(), on=["rank", "correlation"])
    assert launched.height == kernels.height
    assert (launched["called_ns"] <= launched["start_ns"]).all()
    (finding,) = (one for one in triage(trace).findings if one.ranks)
    assert finding.ranks == (1,)
