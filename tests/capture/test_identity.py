"""Who ranks are: as their processes say it, as their host completes it, and as it is read from a job's folder."""

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.captured import OneRank, agent_of
from support.cli_samples import job as stored_job

import kair_capture.agent.identity
from kair.app.identities import all_identities_of, identities_of
from kair_capture.agent import host_facts
from kair_capture.agent.identity import ProcessOf, RankIdentities, completed, device_of
from kair_capture.agent.ring_reader import Trainer
from kair_capture.job.framework import COMMUNICATION_UNTIL, Framework
from kair_capture.job.identity import (
    MOST_CHARACTERS,
    IdentityFile,
    device,
    identity_file,
    identity_of,
    image,
    local_rank,
    scheduled,
    torch_ordinal,
    variables,
)
from kair_capture.job.session import Session
from kair_capture.ring import process_namespace, start_ticks
from kair_capture.settings import settings_of
from kair_engine.errors import UsageError
from kair_engine.store.remote import mirror_of
from kair_engine.trace.identity import DeviceIdentity, RankIdentity
from kair_engine.trace.identity_file import LARGEST, identity_in, identity_json
from kair_engine.trace.model import Job

UUID = "5f3e0000-1111-2222-3333-444455556666"
OTHER_UUID = "5f3e0000-1111-2222-3333-444455557777"
HOSTS_PROCESSES = 0xEFFFFFFC
TRAINER = Trainer(3, os.getpid())
WITH_SECRETS = (
    "a=1 token=abc", "http://me:pw@host/", "--key: v", '{"password": "x"}', "--token abc", "https://h/x?sv=1&sig=AbC",
    "X-Amz-Signature=aa", "Bearer eyJhbGciOi", "ghp_0123456789", "pwd=hunter2",
)  # fmt: skip


# In the training process.


@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from(["NCCL_", "OMP_", "CUDA_", "HOME_", "TF_VAR_"]),
            st.sampled_from(["DEBUG", "api_token", "SSL_KEY", "Secret", "DB_PASSWORD", "X"]),
        ),
        st.one_of(st.text(max_size=300), st.sampled_from([*WITH_SECRETS, "mlx5_0"])),
    )
)
def test_what_may_be_a_secret_is_not_kept(given_variables: dict[tuple[str, str], str]) -> None:
    environment = {"".join(name): value for name, value in given_variables.items()}
    kept = variables(environment)
    secret = ("TOKEN", "KEY", "SECRET", "PASSWORD")
    for name, value in kept.items():
        assert name.startswith(("NCCL_", "OMP_", "CUDA_"))
        assert not any(word in name.upper() for word in secret)
        assert value not in WITH_SECRETS
        assert len(value) <= MOST_CHARACTERS
    assert all(kept[name] == "mlx5_0" for name in ("NCCL_DEBUG", "CUDA_X") if environment.get(name) == "mlx5_0")


@pytest.mark.parametrize("name", ["TORCH_HUB_PAT", "UCX_PWD", "OMPI_MCA_PASS", "NCCL_API_TOKEN"])
def test_a_name_that_says_secret_is_not_kept_whatever_it_holds(name: str) -> None:
    assert variables({name: "hunter2"}) == {}


def test_what_is_no_secret_is_kept() -> None:
    told = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "NCCL_IB_HCA": "mlx5_0:1",
        "LD_LIBRARY_PATH": "/usr/lib/keyring:/x",
    }
    assert variables(told) == told


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"POD_NAME": "train-0-x7k2p", "POD_NAMESPACE": "ml", "HOSTNAME": "train-0"}, ["pod:ml/train-0-x7k2p"]),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-0"}, ["pod:default/train-0"]),
        ({"HOSTNAME": "node-7"}, []),
        (
            {"SLURM_JOB_ID": "4713", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"},
            ["job:4713", "job:4711_3"],
        ),
        ({"SLURM_JOB_ID": "$(reboot)"}, []),
    ],
)
def test_a_process_knows_how_its_scheduler_calls_it(
    tmp_path: Path, environment: dict[str, str], expected: list[str]
) -> None:
    (tmp_path / "namespace").write_text("default\n")
    assert scheduled(environment, tmp_path / "namespace") == expected


def test_a_pod_that_may_not_ask_the_api_is_called_by_its_name_alone(tmp_path: Path) -> None:
    assert scheduled({"POD_NAME": "train-0"}, tmp_path / "none") == ["pod:train-0"]


def test_a_variable_that_is_no_text_is_kept_as_json_can_have_it() -> None:
    found = variables({"NCCL_X": os.fsdecode(b"a\xff")})
    assert json.loads(json.dumps(found)) == {"NCCL_X": "a\N{REPLACEMENT CHARACTER}"}
    json.dumps(found).encode("ascii")


def test_the_rank_on_the_host_is_said_by_who_started_this_very_rank() -> None:
    torchrun_in_slurm = {"LOCAL_RANK": "3", "RANK": "11", "SLURM_LOCALID": "0", "SLURM_PROCID": "1"}
    assert local_rank(11, torchrun_in_slurm) == 3
    assert local_rank(5, {"SLURM_LOCALID": "1", "SLURM_PROCID": "5"}) == 1
    # One task of Slurm's that starts several ranks by itself says the same to all of them.
    assert local_rank(6, {"SLURM_LOCALID": "1", "SLURM_PROCID": "5"}) is None
    assert local_rank(0, {"LOCAL_RANK": "-1", "RANK": "0"}) is None


def test_the_image_is_named_by_what_the_runtime_sets() -> None:
    assert image({"APPTAINER_CONTAINER": "/images/train.sif"}) == "/images/train.sif"
    assert image({"_SLURM_SPANK_OPTION_pyxis_container_image": "nvcr.io#nvidia/pytorch:24.05-py3"}) is not None
    assert image({"NVIDIA_PRODUCT_NAME": "PyTorch", "NVIDIA_PYTORCH_VERSION": "24.05"}) == "PyTorch 24.05"
    assert image({"CONTAINER_IMAGE": "https://me:secret@registry/x"}) is None
    assert image({}) is None


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.data())
def test_a_rank_is_on_the_device_that_holds_most_of_its_tensors(held: list[int], data: st.DataObject) -> None:
    current = data.draw(st.integers(0, len(held) - 1))
    found = torch_ordinal(len(held), current, held.__getitem__)
    if len(held) == 1:
        assert found == 0
    elif not any(held):
        # Device 0 is current wherever a script names its devices itself: it says nothing.
        assert found == (current or None)
    elif found is None:
        assert max(held) * 2 <= sum(held)
    else:
        assert held[found] * 2 > sum(held)


def fake_torch(*, initialized: bool, uuid: object = UUID) -> ModuleType:
    """PyTorch with four devices, the tensors on the third; it must not be asked before it has started them."""

    def count() -> int:
        assert initialized, "CUDA would be initialised"
        return 4

    def current() -> int:
        assert initialized, "CUDA would be initialised"
        return 0

    def memory(ordinal: int) -> dict[str, Any]:
        return {"allocated_bytes": {"all": {"current": 5 << 30 if ordinal == 2 else 1 << 10}}}

    def properties(ordinal: int) -> SimpleNamespace:
        assert ordinal == 2
        return SimpleNamespace(uuid=uuid, pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0, name="H100")

    module = ModuleType("torch")
    module.__dict__["__version__"] = "2.9.0"
    module.__dict__["version"] = SimpleNamespace(cuda="12.8")
    module.__dict__["cuda"] = SimpleNamespace(
        is_initialized=lambda: initialized,
        device_count=count,
        current_device=current,
        memory_stats_as_nested_dict=memory,
        get_device_properties=properties,
    )
    module.__dict__["_C"] = SimpleNamespace(
        _cudnn=SimpleNamespace(getRuntimeVersion=lambda: (9, 10, 2)), _cuda_getDriverVersion=lambda: 13000
    )
    return module


def test_pytorchs_device_is_told_by_uuid_and_address_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(initialized=False))
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.setitem(sys.modules, "torch.cuda.nccl", SimpleNamespace(version=lambda: (2, 27, 3)))
    assert device() == {}
    assert identity_of(0, {}, {})["versions"]["cuda"] == "12.8"  # type: ignore[index]
    monkeypatch.setitem(sys.modules, "torch", fake_torch(initialized=True))
    assert device() == {"ordinal": 2, "uuid": UUID, "pci": "0000:1b:00.0", "model": "H100"}
    versions = identity_of(0, {"framework": "torch", "framework_version": "2.9.0"}, {})["versions"]
    expected = {"framework": "torch 2.9.0", "nccl": "2.27.3", "cudnn": "9.10.2", "cuda_driver": "13.0"}
    assert isinstance(versions, dict) and versions | expected == versions
    assert "torch" not in versions


class NoFramework(Framework):
    """What a session asks; nothing is known of devices."""

    def place(self) -> tuple[int, int]:
        return TRAINER.rank, 8

    def description(self) -> Mapping[str, Any]:
        return {"framework": "none", "framework_version": "1", "device": "cpu"}


def test_a_session_says_who_it_is_at_once_and_again_when_it_knows_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.setitem(sys.modules, "torch", fake_torch(initialized=False))
    session = Session(settings_of({"KAIR_RUN_DIR": str(tmp_path), "KAIR_RING_RECORDS": "4096"}), NoFramework(), begin=0)
    file = identity_file(tmp_path, *vars(TRAINER).values())
    first = identity_in(file.read_bytes())
    assert first is not None
    assert (first.rank, first.pid, first.environment["NCCL_DEBUG"]) == (3, os.getpid(), "WARN")
    assert (first.versions["framework"], first.device) == ("none 1", DeviceIdentity())
    assert first.cpus == tuple(sorted(os.sched_getaffinity(0)))
    monkeypatch.setitem(sys.modules, "torch", fake_torch(initialized=True))
    for _ in range(COMMUNICATION_UNTIL + 1):
        session.steps.step()
    session.close()
    second = identity_in(file.read_bytes())
    assert second is not None
    assert second.device == DeviceIdentity(f"GPU-{UUID}", "0000:1b:00.0", None, 2, "H100")
    assert replace(second, device=first.device, versions=first.versions) == first


def test_a_rank_that_cannot_say_who_it_is_trains_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = IdentityFile(tmp_path / "not there", 0, {})
    file.tell()
    file.tell()
    assert capsys.readouterr().err.count("who this rank is") == 1


# On its host.


@dataclass
class FakeDevice:
    index: int
    uuid: str | None = None
    pci: str | None = None
    model: str | None = None
    pids: tuple[int, ...] = ()

    def processes(self) -> tuple[int, ...]:
        return self.pids

    def settings(self) -> dict[str, str]:
        return {"power_limit_w": "700"}


@dataclass
class FakeNvml:
    """What another driver would say."""

    of: tuple[FakeDevice, ...] = ()
    asked: list[int] = field(default_factory=list)

    def driver_version(self) -> str:
        return "580.65.06"

    def devices(self) -> tuple[FakeDevice, ...]:
        return self.of


DEVICES = (
    FakeDevice(0, f"GPU-{OTHER_UUID}", "00000000:3B:00.0", "H100", pids=(50, 70)),
    FakeDevice(1, f"GPU-{UUID}", "00000000:1B:00.0", "H100", pids=(60, 70)),
)


@pytest.mark.parametrize(
    ("said", "visible", "pid", "index"),
    [
        (DeviceIdentity(uuid=f"GPU-{UUID}", pci="0000:3b:00.0"), "", None, 1),
        (DeviceIdentity(pci="0000:1b:00.0", ordinal=0), "", None, 1),
        # Part of a device (MIG), which has a UUID of its own, is at its address.
        (DeviceIdentity(uuid=f"MIG-{'0' * 8}{UUID[8:]}", pci="0000:1b:00.0"), "", None, 1),
        # The order in which a process counts is not the driver's; but UUIDs name devices.
        (DeviceIdentity(ordinal=0), "", None, None),
        (DeviceIdentity(ordinal=1), "0,1", None, None),
        (DeviceIdentity(ordinal=0), f"GPU-{UUID},GPU-{OTHER_UUID}", None, 1),
        (DeviceIdentity(ordinal=1), f"GPU-{UUID},GPU-{OTHER_UUID}", None, 0),
        (DeviceIdentity(ordinal=0), "GPU-5f3e", None, None),
        (DeviceIdentity(ordinal=0), "GPU-", None, None),
        (DeviceIdentity(), "", 60, 1),
        (DeviceIdentity(), "", 70, None),
        (DeviceIdentity(), "", 80, None),
        (DeviceIdentity(pci="0000:99:00.0"), "", 60, None),
    ],
)
def test_a_ranks_device_is_found_by_its_name_and_not_by_its_number(
    said: DeviceIdentity, visible: str, pid: int | None, index: int | None
) -> None:
    found = device_of(said, {"CUDA_VISIBLE_DEVICES": visible}, DEVICES, pid)
    assert (None if found is None else found.index) == index


def host_tree(root: Path) -> Path:
    """A host with two switches: a device and a NIC below one, another NIC below the other."""
    files = {
        "proc/sys/kernel/random/boot_id": "b007\n",
        "proc/sys/kernel/osrelease": "6.8.0\n",
        "proc/sys/kernel/numa_balancing": "1",
        "proc/cpuinfo": "processor : 0\nmodel name : EPYC 9654\nmicrocode : 0xa1\n",
        "proc/meminfo": "MemTotal: 2113536000 kB\nHugePages_Total:      16\n",
        "proc/1/cgroup": "0::/init.scope\n",
        "etc/os-release": 'NAME=x\nPRETTY_NAME="Ubuntu 24.04"\n',
        "sys/devices/system/cpu/online": "0-7",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "1",
        "sys/devices/system/cpu/smt/active": "0",
        "sys/devices/system/node/node0/cpulist": "0-3",
        "sys/devices/system/node/node1/cpulist": "4-7",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "sys/devices/pci0000:17/0000:17:01.0/0000:1b:00.0/numa_node": "1",
        "sys/devices/pci0000:17/0000:17:01.0/0000:1c:00.0/numa_node": "1",
        "sys/devices/pci0000:30/0000:30:01.0/0000:3c:00.0/numa_node": "0",
        "sys/devices/pci0000:30/0000:30:01.0/0000:3d:00.0/numa_node": "0",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "sys/class/infiniband/mlx5_0/fw_ver": "28.40",
        "sys/class/infiniband/mlx5_1/ports/1/state": "4: ACTIVE",
        "sys/class/infiniband/mlx5_1/fw_ver": "28.39",
        "sys/class/infiniband/mlx5_2/ports/1/state": "1: DOWN",
        "sys/class/net/eth0/operstate": "up",
        "sys/class/net/eth1/operstate": "down",
        "sys/class/net/docker0/operstate": "up",
        "sys/class/net/docker0/speed": "10000",
        "sys/class/net/docker0/bridge/x": "",
        "sys/class/net/lo/operstate": "unknown",
    }
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    links = {
        "sys/bus/pci/devices/0000:1b:00.0": "sys/devices/pci0000:17/0000:17:01.0/0000:1b:00.0",
        "sys/class/infiniband/mlx5_0/device": "sys/devices/pci0000:30/0000:30:01.0/0000:3c:00.0",
        "sys/class/infiniband/mlx5_1/device": "sys/devices/pci0000:17/0000:17:01.0/0000:1c:00.0",
        "sys/class/net/eth0/device": "sys/devices/pci0000:30/0000:30:01.0/0000:3d:00.0",
    }
    for name, target in links.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(root / target)
    return root


@pytest.mark.parametrize(
    ("variables_of", "pci", "expected"),
    [
        ({}, "0000:1b:00.0", ("mlx5_1/1",)),
        ({}, None, ("mlx5_0/1", "mlx5_1/1")),
        ({"NCCL_IB_HCA": "=mlx5_0:1"}, "0000:1b:00.0", ("mlx5_0/1",)),
        ({"NCCL_IB_HCA": "^mlx5_1"}, "0000:1b:00.0", ("mlx5_0/1",)),
        ({"NCCL_IB_HCA": "mlx5"}, None, ("mlx5_0/1", "mlx5_1/1")),
        ({"NCCL_IB_DISABLE": "1"}, "0000:1b:00.0", ("eth0",)),
        ({"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "^eth"}, None, ()),
    ],
)
def test_the_nics_are_those_that_nccl_may_use_nearest_to_the_device(
    tmp_path: Path, variables_of: dict[str, str], pci: str | None, expected: tuple[str, ...]
) -> None:
    assert host_facts.nics(host_tree(tmp_path), variables_of, pci) == expected


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (f"/system.slice/docker-{'3f' * 32}.scope", "docker"),
        (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{'ab' * 32}.scope", "containerd"),
        (f"/kubepods/burstable/pod1/{'cd' * 32}", "kubernetes"),
        ("/system.slice/docker.service", None),
        ("/system.slice/slurmstepd.scope/job_7/step_0", None),
        ("/", None),
    ],
)
def test_a_container_is_told_by_its_control_group(tmp_path: Path, group: str, expected: str | None) -> None:
    assert host_facts.container(tmp_path, tmp_path, group) == expected


def test_a_container_is_told_by_its_image_where_the_runtime_says_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".containerenv").write_text('engine="podman-4"\nimage="quay.io/train:7"\n')
    assert host_facts.container(tmp_path, tmp_path, "/") == "quay.io/train:7"
    (tmp_path / "run" / ".containerenv").write_text("")
    assert host_facts.container(tmp_path, tmp_path, "/") == "podman"


@given(st.text(alphabet="0123456789-, x", max_size=20))
def test_a_list_of_cores_is_read_or_passed_over(listed: str) -> None:
    assert all(cpu >= 0 for cpu in host_facts.cpus_in(listed[:8]))
    assert host_facts.cpus_in("0-2,8") == {0, 1, 2, 8}


def test_the_host_and_the_driver_complete_what_a_process_says(tmp_path: Path) -> None:
    root = host_tree(tmp_path)
    said = RankIdentity(3, host="node-1", pid=7, cpus=(0, 1), device=DeviceIdentity(uuid=f"GPU-{UUID}", ordinal=5))
    found = completed(said, ProcessOf(7), FakeNvml(DEVICES), root)
    assert found.device == DeviceIdentity(f"GPU-{UUID}", "0000:1b:00.0", 1, 5, "H100")
    assert found.device_in_words() == f"node-1 GPU 1, GPU-{UUID}, 0000:1b:00.0"
    assert (found.boot, found.numa_node, found.nics, found.container) == ("b007", 1, ("mlx5_1/1",), None)
    assert found.versions == {
        "kernel": "6.8.0", "os": "Ubuntu 24.04", "microcode": "0xa1", "nic_firmware": "28.39, 28.40",
        "driver": "580.65.06",
    }  # fmt: skip
    assert found.settings == {
        "cpu_model": "EPYC 9654", "cpus_online": "8", "governor": "performance, powersave", "boost": "off",
        "smt": "off", "transparent_hugepages": "madvise", "numa_balancing": "1", "numa_nodes": "2",
        "memory_gib": "2016", "hugepages": "16", "power_limit_w": "700",
    }  # fmt: skip
    alone = completed(replace(said, device=DeviceIdentity()), ProcessOf(7), None, root)
    assert (alone.numa_node, alone.device) == (0, DeviceIdentity())


def say(run_dir: Path, **more: object) -> Path:
    """This process says who it is, as a rank."""
    run_dir.mkdir(exist_ok=True, mode=0o700)
    file = identity_file(run_dir, TRAINER.rank, TRAINER.pid)
    said = identity_of(TRAINER.rank, {"framework": "torch", "framework_version": "2"}, {"OMP_NUM_THREADS": "1"})
    file.write_text(json.dumps({**said, **more}))
    return file


def delivered(folder: Path) -> list[RankIdentity]:
    found = [identity_in(file.read_bytes()) for file in sorted(folder.rglob("identity-*.json"))]
    assert None not in found
    return [one for one in found if one is not None]


@pytest.mark.parametrize("is_remote", [False, True])
def test_an_agent_delivers_who_its_ranks_are_and_readers_find_it(tmp_path: Path, is_remote: bool) -> None:
    url, cache = f"file://{tmp_path}/there", tmp_path / "cache"
    store = url if is_remote else str(tmp_path / "store")
    with agent_of(tmp_path, KAIR_STORE=store, KAIR_CACHE=str(cache)) as agent:
        rank = OneRank(tmp_path / "run", TRAINER.rank)
        rank.step(1, 100)
        file = say(tmp_path / "run")
        agent._look()
        agent.identities.stop(60)
        assert agent.identities.is_idle
        reader = mirror_of(url, tmp_path / "readers") if is_remote else tmp_path / "store"
        (reader / "job" / "recording").mkdir(parents=True, exist_ok=True)
        job = replace(stored_job(), stored_in=str(reader / "job" / "recording"))
        found = identities_of(job)[TRAINER.rank]
        assert (found.host, found.pid, found.versions["framework"]) == ("node-1", os.getpid(), "torch 2")
        assert found.environment == {"OMP_NUM_THREADS": "1"}
        assert found.boot and found.process_s and found.versions["kernel"]
        agent._look()
        assert file.exists()
        agent._trainers.clear()
        rank_files = list((tmp_path / "run").glob("rank-*.ring"))
        for one in rank_files:
            one.unlink()
        agent._look()  # the process is gone
        assert not file.exists()


class Store:
    """Where an agent puts files: a folder that can be away."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.is_away = folder, False
        self.puts = 0

    def put(self, file: Path, name: str) -> None:
        if self.is_away:
            raise OSError("away")
        self.puts += 1
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(file.read_bytes())


def test_what_a_rank_says_is_delivered_when_the_store_is_back_and_again_when_it_says_more(tmp_path: Path) -> None:
    store, run = Store(tmp_path / "store"), tmp_path / "run"
    host = RankIdentities(run, "node-1", store.put, lambda: FakeNvml(DEVICES))
    file = say(run)
    store.is_away = True
    host.look([TRAINER])
    host.stop(60)
    assert not host.is_idle and delivered(store.folder) == []
    host.look([])
    assert file.exists()  # it is not delivered yet
    store.is_away, host._not_before = False, float("-inf")
    host.look([TRAINER])
    host.stop(60)
    host.look([TRAINER])
    assert host.is_idle and store.puts == 1
    assert delivered(store.folder)[0].device == DeviceIdentity()
    say(run, device={"uuid": UUID, "ordinal": 0})
    host.look([TRAINER])
    host.stop(60)
    (found,) = delivered(store.folder)
    assert (found.device.index, found.device.pci) == (1, "0000:1b:00.0")
    assert found.versions["driver"] == "580.65.06"
    host.look([])
    assert not file.exists() and store.puts == 2
    assert [path.name for path in run.iterdir()] == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b'{"rank": "3"}', b'{"rank": 4, "pid": 1}', b"[" * 9999, b" " * (LARGEST + 1)],
)
def test_a_file_that_says_nothing_is_passed_over(tmp_path: Path, content: bytes) -> None:
    store, run = Store(tmp_path / "store"), tmp_path / "run"
    host = RankIdentities(run, "node-1", store.put, lambda: None)
    say(run).write_bytes(content)
    host.look([TRAINER])
    host.stop(60)
    host.look([])
    assert host.is_idle and store.puts == 0
    assert list(run.iterdir()) == []


def test_a_process_of_another_container_is_not_taken_for_the_one_that_has_its_number_here() -> None:
    here = ProcessOf(os.getpid(), start_ticks(os.getpid()), process_namespace())
    said = RankIdentity(3, pid=os.getpid())
    devices = FakeNvml((FakeDevice(0, f"GPU-{UUID}", pids=(os.getpid(),)),))
    told = completed(said, here, devices, Path("/"))
    # Only where processes are numbered as the driver does.
    assert told.device.index == (0 if process_namespace() == HOSTS_PROCESSES else None)
    assert told.cgroup is not None
    other = completed(said, ProcessOf(os.getpid(), here.start_ticks, 1), devices, Path("/"))
    assert (other.cgroup, other.device.index) == (None, None)


def test_a_store_that_cannot_be_used_is_asked_again_later_and_not_at_each_look(tmp_path: Path) -> None:
    asked = []

    def refuse(_: Path, name: str) -> None:
        asked.append(name)
        raise UsageError("no such kind of store")

    host = RankIdentities(tmp_path / "run", "node-1", refuse, lambda: None)
    say(tmp_path / "run")
    for _ in range(5):
        host.look([TRAINER])
        host.stop(60)
    assert len(asked) == 1 and not host.is_idle


def test_without_room_for_a_thread_the_agent_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, run = Store(tmp_path / "store"), tmp_path / "run"
    host = RankIdentities(run, "node-1", store.put, lambda: None)
    say(run)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_room)
        host.look([TRAINER])
        host.stop(60)
    assert store.puts == 0
    host.look([TRAINER])
    host.stop(60)
    assert store.puts == 1


def no_room(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_driver_that_never_answers_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kair_capture.agent.identity, "_DRIVER_S", 0.01)
    store, run, never = Store(tmp_path / "store"), tmp_path / "run", threading.Event()
    host = RankIdentities(run, "node-1", store.put, lambda: never.wait(60) and None)
    say(run)
    host.look([TRAINER])
    host.stop(60)
    assert [one.host for one in delivered(store.folder)] == ["node-1"]
    never.set()


def test_nothing_is_started_for_a_host_without_ranks(tmp_path: Path) -> None:
    threads = threading.active_count()

    def refuse() -> None:
        raise AssertionError("NVML is opened")

    host = RankIdentities(tmp_path, "node-1", lambda *_: None, refuse)
    host.look([])
    assert host.is_idle and threading.active_count() == threads


# Read from a job's folder.


def kept(folder: Path, *identities: RankIdentity) -> Job:
    """A stored job with these identities, and one that is damaged."""
    for number, one in enumerate(identities):
        file = folder / "evidence" / f"host={one.host}" / f"identity-rank-{one.rank}.{number}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(identity_json(one))
    (folder / "evidence" / "identity-damaged.json").write_bytes(b'{"rank": 0, "pid": ')
    (folder / "evidence" / "identity-pipe.json").mkdir()
    job: Job = replace(stored_job(), stored_in=str(folder / "recording"))
    return job


def test_the_last_process_of_each_rank_is_meant_and_all_attempts_are_there(tmp_path: Path) -> None:
    job = kept(
        tmp_path,
        RankIdentity(1, "node-1", process_s=200, pid=7, device=DeviceIdentity(uuid=f"GPU-{UUID}")),
        RankIdentity(1, "node-2", process_s=100, pid=7),
        RankIdentity(0, "node-1", process_s=100, pid=6),
    )
    assert [(one.rank, one.host, one.process_s) for one in all_identities_of(job)] == [
        (0, "node-1", 100), (1, "node-2", 100), (1, "node-1", 200),
    ]  # fmt: skip
    assert {rank: one.host for rank, one in identities_of(job).items()} == {0: "node-1", 1: "node-1"}


def test_a_recording_completes_what_capture_knew_where_it_can_be_of_the_same_process(tmp_path: Path) -> None:
    job = kept(
        tmp_path,
        RankIdentity(0, "node-1", device=DeviceIdentity(uuid=f"GPU-{UUID}"), versions={"nccl": "2.27"}),
        RankIdentity(1, "node-1", device=DeviceIdentity(uuid=f"GPU-{UUID}")),
    )
    recorded = {
        0: RankIdentity(0, device=DeviceIdentity(pci="0000:1b:00.0"), versions={"nccl": "2.20", "cuda": "12.8"}),
        1: RankIdentity(1, device=DeviceIdentity(uuid=f"GPU-{OTHER_UUID}", pci="0000:3b:00.0", model="H100")),
        2: RankIdentity(2, "node-3"),
    }
    found = identities_of(replace(job, identity=recorded))
    assert found[0].device == DeviceIdentity(f"GPU-{UUID}", "0000:1b:00.0")
    assert found[0].versions == {"nccl": "2.27", "cuda": "12.8"}
    # No device made of two.
    assert found[1].device == DeviceIdentity(f"GPU-{UUID}")
    assert found[2] == recorded[2]
    assert identities_of(replace(stored_job(), identity=recorded)) == recorded


def test_nothing_that_is_read_reaches_a_terminal_as_more_than_text() -> None:
    hostile = "\x1b[2Jno\u202e\n"
    of = RankIdentity(
        0, hostile, cgroup=hostile, nics=(hostile,), versions={hostile: hostile}, environment={"NCCL_X": "x" * 10_000},
        device=DeviceIdentity(uuid=hostile, pci=hostile, model=hostile),
    )  # fmt: skip
    found = identity_in(identity_json(of))
    assert found is not None
    for text in (found.host, found.cgroup, found.nics[0], *found.versions, found.versions["[2Jno"], found.device.model):
        assert text is not None and text.isprintable()
    assert (found.device.uuid, found.device.pci) == (None, None)
    assert len(found.environment["NCCL_X"]) <= 400


@given(st.binary(max_size=200))
def test_any_bytes_are_an_identity_or_none(content: bytes) -> None:
    found = identity_in(content)
    assert found is None or found.rank >= 0
