"""Who ranks are, as each format tells it: process, device, software; and what of it a job keeps."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import recorded
from support.chrome_builder import ascend, rocprof_hip, rocprofv3
from support.kineto_builder import event, kernel, trace, training_steps, write
from support.nsys_builder import Export, training
from support.places import CASES, MEGATRON, RECORDINGS

from kair_engine.readers.kineto.reader import read_kineto
from kair_engine.readers.nsys import read_nsys
from kair_engine.readers.rank_identity import cuda_version, hip_version, one_line, variables_that_matter
from kair_engine.recording.fragments import Fragment
from kair_engine.recording.job_assembly import assemble
from kair_engine.recording.opening import open_trace
from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_engine.trace.model import FragmentInfo

UUID = "GPU-5f3e0000-1111-2222-3333-444444444444"
H100 = {"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000, "numSms": 132}
OF_H100 = {"device_memory_bytes": "85000000000", "multiprocessors": "132"}


def kineto(path: Path, device: int | str = 0, rank: int | None = 0, **header: Any) -> FragmentInfo:  # noqa: ANN401
    """A trace whose kernels ran on `device`."""
    events = [
        one if one["cat"] not in ("kernel", "gpu_memcpy") else {**one, "pid": device} for one in training_steps(2)
    ]
    return read_kineto(write(path / "t.json", trace(events, rank=rank, **header)), path / "t.parquet")


def test_the_device_of_a_rank_is_the_one_that_its_kernels_name(tmp_path: Path) -> None:
    listed = [{"id": 2, "name": "NVIDIA A10"}, {"id": 3, **H100}]
    distributed = {"backend": "nccl", "rank": 5, "world_size": 8, "nccl_version": "2.27.5"}
    info = kineto(
        tmp_path,
        3,
        None,
        deviceProperties=listed,
        distributedInfo=distributed,
        cuda_runtime_version=12040,
        cuda_driver_version=13000,
        cupti_version=24,
    )
    assert info.identity == {
        5: RankIdentity(
            5,
            pid=100,
            device=DeviceIdentity(ordinal=3, model="NVIDIA H100 80GB HBM3"),
            versions={"cuda": "12.4", "cuda_driver": "13.0", "cupti": "24", "nccl": "2.27.5"},
            settings=OF_H100,
        )
    }


def test_of_several_devices_the_one_that_ran_most_is_the_ranks(tmp_path: Path) -> None:
    copies = [event("Memcpy PtoP", "gpu_memcpy", 10_100 + at, 1, pid=0, tid=9) for at in range(3)]
    events = [{**one, "pid": 1} if one["cat"] == "kernel" else one for one in training_steps(2)] + copies
    info = read_kineto(write(tmp_path / "t.json", trace(events)), tmp_path / "t.parquet")
    assert info.identity[0].device == DeviceIdentity(ordinal=1)


@pytest.mark.parametrize(
    ("device", "properties", "known"),
    [
        (1_000_002, [{"id": 2, **H100}], DeviceIdentity()),
        (4, [{"id": 2, **H100}], DeviceIdentity()),
        ("GPU 2", [{"id": 2, **H100}], DeviceIdentity(ordinal=2, model="NVIDIA H100 80GB HBM3")),
        (2, ["x", None, {"id": "2"}, {"id": 2, "name": 7, "numSms": "many"}], DeviceIdentity(ordinal=2)),
        (2, {"id": 2}, DeviceIdentity(ordinal=2)),
        (-1, [{"id": -1, **H100}], DeviceIdentity()),
    ],
    ids=["merged by others", "not listed", "named", "damaged entries", "no list", "no device"],
)
def test_what_names_no_device_is_not_taken_for_one(
    tmp_path: Path, device: int | str, properties: object, known: DeviceIdentity
) -> None:
    assert kineto(tmp_path, device, deviceProperties=properties).identity[0].device == known


def test_other_tools_numbers_of_processes_are_no_processes(tmp_path: Path) -> None:
    content = trace(training_steps(2), rank=None)
    del content["schemaVersion"]
    assert read_kineto(write(tmp_path / "t.json", content), tmp_path / "t.parquet").identity == {}


def test_ranks_of_a_merged_file_have_their_own_processes_and_devices(tmp_path: Path) -> None:
    events = []
    for rank in range(2):
        for one in training_steps(2):
            on_device = one["cat"] == "kernel"
            events.append({**one, "pid": rank if on_device else 100 + rank})
    both: dict[str, Any] = {"deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}]}
    info = read_kineto(write(tmp_path / "t.json", trace(events, **both)), tmp_path / "t.parquet")
    assert {rank: (one.pid, one.device.model) for rank, one in info.identity.items()} == {0: (100, "A"), 1: (101, "B")}


def test_text_of_a_trace_stays_on_one_line_of_bounded_length(tmp_path: Path) -> None:
    """Nor is a sign in it that cannot be written."""
    name = "\ud800H100\n\x1b[2J" + "x" * 10_000
    info = kineto(tmp_path, deviceProperties=[{"id": 0, "name": name}], host_name=name)
    for text in (info.identity[0].device.model, info.device, info.hosts[0]):
        assert text is not None
        assert (text[:6], len(text), "\n" in text) == ("?H100 ", 200, False)


def test_a_recording_that_was_parsed_before_tells_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    content = trace(training_steps(2), deviceProperties=[{"id": 0, **H100}], host_name="node-7")
    write(folder / "rank0.json", content)
    first = open_trace(folder, cache=tmp_path / "cache").job.identity
    assert first[0].device.model == "NVIDIA H100 80GB HBM3"
    assert first[0].host == "node-7"
    assert open_trace(folder, cache=tmp_path / "cache").job.identity == first


def test_what_is_stored_without_identities_is_read(tmp_path: Path) -> None:
    info = kineto(tmp_path, deviceProperties=[{"id": 0, **H100}])
    stored = msgspec.to_builtins(info, str_keys=True)
    assert msgspec.convert(json.loads(json.dumps(stored)), FragmentInfo, strict=False) == info
    del stored["identity"]
    assert msgspec.convert(stored, FragmentInfo, strict=False) == replace(info, identity={})


def test_several_files_of_a_rank_tell_it_together(tmp_path: Path) -> None:
    info = kineto(tmp_path, deviceProperties=[{"id": 0, **H100}])
    later = replace(
        info,
        source="later",
        step_times=replace(info.step_times, step=tuple(step + 9 for step in info.step_times.step)),
        identity={0: RankIdentity(0, pid=7, versions={"nccl": "2.27.5"}, environment={"NCCL_ALGO": "Ring"})},
    )
    fragments = [Fragment(tmp_path / "t.parquet", info), Fragment(tmp_path / "t.parquet", later)]
    (one,) = assemble("job", "here", fragments, ()).trace.job.identity.values()
    assert (one.pid, one.device.ordinal, one.versions) == (100, 0, {"nccl": "2.27.5"})
    assert one.environment == {"NCCL_ALGO": "Ring"}


def test_ranks_that_are_numbered_by_order_keep_who_they_are(tmp_path: Path) -> None:
    for at, device in enumerate((3, 1)):
        events = [{**one, "pid": device} if one["cat"] == "kernel" else one for one in training_steps(2)]
        properties = [{"id": device, "name": f"device {device}"}]
        write(
            tmp_path / "job" / f"libkineto_activities_{4000 + at}.json",
            trace(events, rank=None, deviceProperties=properties),
        )
    identity = open_trace(tmp_path / "job", cache=tmp_path / "cache").job.identity
    assert {rank: (one.rank, one.device.ordinal) for rank, one in identity.items()} == {0: (0, 3), 1: (1, 1)}


GPUS = [(3, "0000:1b:00.0", UUID), (4, "0000:43:00.0", "GPU-" + UUID[4:].replace("5f3e", "aaaa"))]


def nsys(path: Path, *, seen: Sequence[tuple[int, int, int | None, str]], gpus: int = 2) -> RankIdentity:
    """Of a report of process 4000, which runs on its device 0; `seen`: rows of TARGET_INFO_CUDA_DEVICE."""
    export = Export(path / "report0.sqlite", host="node-7")
    export.connection.executescript(
        "DROP TABLE TARGET_INFO_GPU;"
        "CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT, busLocation TEXT, uuid TEXT,"
        " smCount INTEGER, totalMemory INTEGER);"
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT);"
        "CREATE TABLE TARGET_INFO_NIC_INFO (nicId INTEGER, name TEXT);"
    )
    for number, bus, uuid in GPUS[:gpus]:
        export.insert("TARGET_INFO_GPU", 0, number, H100["name"], bus, uuid, 132, 85_000_000_000)
    for row in seen:
        export.insert("TARGET_INFO_CUDA_DEVICE", *row)
    export.insert("TARGET_INFO_NIC_INFO", 0, "mlx5_3")
    export.insert("TARGET_INFO_SYSTEM_ENV", 0, "", "CudaDriverVersion", 0, "13000")
    variables = (
        "HOME=/root;NCCL_ALGO=Ring;CUDA_VISIBLE_DEVICES=3,4;HF_TOKEN=hf_x;NCCL_API_KEY=x;CUDA_INJECTION64_PATH=/x"
    )
    export.insert("TARGET_INFO_SYSTEM_ENV", 0, "", "DeviceEnvironment", 0, variables)
    export.environment(RANK=0, OMP_NUM_THREADS=8, SECRET_WORD="x")
    training(export, 4000)
    return read_nsys(export.close(), path / "t.parquet").identity[0]


def test_nsight_systems_tells_a_device_by_its_tables_not_by_its_number(tmp_path: Path) -> None:
    found = nsys(tmp_path, seen=[(4, 0, 4001, GPUS[1][2]), (3, 0, 4000, UUID[4:].upper()), (4, 1, 4000, GPUS[1][2])])
    assert found == RankIdentity(
        0,
        pid=4000,
        device=DeviceIdentity(uuid=UUID, pci="0000:1b:00.0", ordinal=0, model="NVIDIA H100 80GB HBM3"),
        nics=("mlx5_3",),
        versions={"cuda_driver": "13.0"},
        environment={"CUDA_VISIBLE_DEVICES": "3,4", "NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "8"},
        settings=OF_H100,
    )


def test_without_these_tables_a_device_is_told_where_the_host_has_one(tmp_path: Path) -> None:
    assert nsys(tmp_path / "one", seen=[], gpus=1).device.uuid == UUID
    several = nsys(tmp_path / "two", seen=[]).device
    assert several == DeviceIdentity(ordinal=0, model="NVIDIA H100 80GB HBM3")


def test_processes_that_see_other_devices_under_one_number_tell_nothing_of_a_third(tmp_path: Path) -> None:
    seen = [(3, 0, 4001, UUID), (4, 0, 4002, GPUS[1][2])]
    assert nsys(tmp_path, seen=seen).device == DeviceIdentity(ordinal=0, model="NVIDIA H100 80GB HBM3")


def test_rocprofv3_tells_the_agent_that_ran_the_kernels(tmp_path: Path) -> None:
    path = rocprofv3(tmp_path / "rank3.json")
    document = json.loads(path.read_text())
    (tool,) = document["rocprofiler-sdk-tool"]
    tool["metadata"]["node"] = {"hostname": "node-7", "release": "6.8.0-45"}
    tool["agents"][0] |= {"location_id": 0x1B << 8 | 2 << 3 | 1, "domain": 1, "logical_node_type_id": 2}
    tool["agents"].insert(0, {"id": {"handle": 3}, "type": 2, "product_name": "AMD Instinct MI210"})
    path.write_text(json.dumps(document))
    job = open_trace(path, cache=tmp_path / "cache").job
    assert job.hosts == {3: "node-7"}
    assert job.identity[3] == RankIdentity(
        3,
        host="node-7",
        pid=44,
        device=DeviceIdentity(pci="0001:1b:02.1", ordinal=2, model="AMD Instinct MI300X"),
        versions={"kernel": "6.8.0-45"},
    )


def test_the_older_rocprof_tells_the_number_of_a_gpu(tmp_path: Path) -> None:
    job = open_trace(rocprof_hip(tmp_path / "rank1.json"), cache=tmp_path / "cache").job
    assert job.identity == {1: RankIdentity(1, device=DeviceIdentity(ordinal=0))}


def test_ascends_folder_tells_host_and_process_and_the_files_beside_it_software(tmp_path: Path) -> None:
    written = ascend(tmp_path / "made", 2)
    output = written.parents[1].rename(tmp_path / "node7_4711_20260314093042123_ascend_pt")
    (output / "profiler_info_2.json").write_text(json.dumps({"torch_npu_version": "2.7.1", "cann_version": "8.2.RC1"}))
    (output / "profiler_metadata.json").write_text(json.dumps({"ENV_VARIABLES": {"HCCL_ALGO": "x", "HOME": "/root"}}))
    job = open_trace(output / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", cache=tmp_path / "cache").job
    assert job.identity[2] == RankIdentity(
        2,
        host="node7",
        pid=4711,
        versions={"framework": "torch_npu 2.7.1", "cann": "8.2.RC1"},
        environment={"HCCL_ALGO": "x"},
    )


@pytest.mark.parametrize("text", ["", "[1]", '{"ENV_VARIABLES": 3}', "{" * 100_000, "\xff"])
def test_damaged_files_beside_ascends_trace_tell_nothing(tmp_path: Path, text: str) -> None:
    written = ascend(tmp_path, 2)
    for name in ("profiler_info_2.json", "profiler_metadata.json"):
        (written.parents[1] / name).write_text(text, encoding="latin-1")
    assert open_trace(written, cache=tmp_path / "cache").job.identity == {}


@pytest.mark.slow
def test_xla_profiles_of_a_gpu_tell_process_device_and_software() -> None:
    job = recorded(RECORDINGS / "xplane" / "twice_the_work").job
    assert job.identity[1] == RankIdentity(
        1,
        host="vm",
        pid=867,
        device=DeviceIdentity(ordinal=0, model="NVIDIA H100 80GB HBM3"),
        versions={"framework": "jax 0.11.2", "cuda": "13.0", "cuda_driver": "13.0"},
        settings={"device_memory_bytes": "85017493504", "multiprocessors": "132"},
    )


def test_the_processors_of_a_host_are_no_device_of_an_xla_profile() -> None:
    identity = recorded(RECORDINGS / "xplane" / "two_by_two").job.identity
    assert {one.device for one in identity.values()} == {DeviceIdentity()}
    assert {one.pid for one in identity.values()} == {19007, 19008}


@pytest.mark.skipif(not MEGATRON.is_dir(), reason=f"the real traces are not at {MEGATRON}")
def test_each_rank_of_the_megatron_job_ran_on_the_device_of_its_number() -> None:
    identity = recorded(MEGATRON).job.identity
    assert {rank: one.device.ordinal for rank, one in identity.items()} == {rank: rank for rank in range(8)}
    assert {one.device.model for one in identity.values()} == {"NVIDIA A100-SXM4-80GB"}
    assert (identity[0].pid, identity[3].pid) == (2590092, 2590095)


@pytest.mark.skipif(not CASES.is_dir(), reason=f"the cases are not at {CASES}")
def test_recordings_that_say_no_rank_still_say_their_devices() -> None:
    identity = recorded(CASES / "ondemand_no_rank_info" / "input").job.identity
    assert sorted(one.device.ordinal or 0 for one in identity.values()) == [0, 1, 2, 3]
    assert identity[0] == RankIdentity(
        0, pid=4987, device=DeviceIdentity(ordinal=1, model="NVIDIA H100 80GB HBM3"), settings=OF_H100
    )


@pytest.mark.parametrize(
    ("value", "cuda", "hip"),
    [
        (12040, "12.4", None),
        ("13000", "13.0", None),
        (11080, "11.8", None),
        (60241133, None, "6.2.41133"),
        ("70051831", None, "7.0.51831"),
        (0, None, None),
        (True, None, None),
        (-12040, None, None),
        ("²", None, None),
        (12.04, None, None),
    ],
)
def test_versions_are_spelt_as_people_know_them(value: object, cuda: str | None, hip: str | None) -> None:
    assert (cuda_version(value), hip_version(value)) == (cuda, hip)


@given(st.dictionaries(st.text(), st.text() | st.integers()))
def test_of_an_environment_only_short_lines_of_known_names_are_kept(variables: dict[str, str | int]) -> None:
    kept = variables_that_matter({**variables, "NCCL_DEBUG": "INFO", "WANDB_API_KEY": "x", "NCCL_TOKEN": "x"})
    assert kept["NCCL_DEBUG"] == "INFO"
    assert not {"WANDB_API_KEY", "NCCL_TOKEN"} & kept.keys()
    assert all(len(value) <= 200 and "\n" not in value for value in kept.values())


@given(st.text() | st.integers() | st.none())
def test_text_is_one_line_that_can_be_written(value: object) -> None:
    line = one_line(value)
    assert line is None or (line.encode() and len(line.splitlines()) == 1 and len(line) <= 200)


def test_kernels_alone_tell_the_device_and_no_process(tmp_path: Path) -> None:
    events = [kernel(f"k{at % 2}", 10_000 + 100 * at, 50, at) for at in range(6)]
    info = read_kineto(write(tmp_path / "t.json", trace(events)), tmp_path / "t.parquet")
    assert info.identity == {0: RankIdentity(0, device=DeviceIdentity(ordinal=0))}
