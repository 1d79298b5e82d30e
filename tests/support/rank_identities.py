"""Identities of jobs' ranks, which differ as healthy ranks do: by place, host, process and design; and planted ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from uuid import UUID

from kair_engine.trace.identity import DeviceIdentity, RankIdentity

Identities = dict[int, RankIdentity]
_BUSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")
_MORE_BUSES = ("0000:9d:00.0", "0000:c3:00.0", "0000:d1:00.0", "0000:df:00.0")
BUSES = _BUSES + _MORE_BUSES
NICS = ("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11")
"""The nearest to each device of a DGX H100."""


@dataclass(frozen=True)
class HealthyJob:
    """Ranks that were set up alike, and their roles."""

    identities: Identities
    roles: dict[int, str]


@dataclass(frozen=True)
class Planted:
    """What was made to differ."""

    what: str
    ranks: tuple[int, ...]
    value: str
    identities: Identities


@dataclass(frozen=True)
class _Seat:
    """Where a rank sits."""

    rank: int
    host: str
    host_number: int
    local_rank: int
    stage: int
    pid: int
    stage_is_seen: bool = True
    """Whether what its first stage has cannot be what a single rank has, or a single host."""


def healthy_job(random: Random) -> HealthyJob:
    """A job of 3 to 128 ranks."""
    seats = _seats(random)
    setup = _Setup(random)
    of = {seat.rank: setup.identity(seat) for seat in seats}
    return HealthyJob(of, {seat.rank: f"stage {seat.stage}" for seat in seats})


def _seats(random: Random) -> list[_Seat]:
    per_host = random.choice((1, 2, 4, 8, 8))
    hosts = random.choice([n for n in (1, 2, 3, 4, 5, 8, 16) if n * per_host >= 3])
    name = random.choice(("node-{}", "gpu{:03d}.cluster.local", "ip-10-0-3-{}", "trainer-7f9c-worker-{}"))
    stages = random.choice([n for n in (1, 1, 2, 4) if n <= hosts * per_host])
    ranks = hosts * per_host - (random.randrange(per_host) if hosts > 3 else 0)  # the last host may have fewer
    cyclic = random.random() < 0.2 and ranks == hosts * per_host
    small_pids = random.random() < 0.3
    seats = []
    for rank in range(ranks):
        host, local = (rank % hosts, rank // hosts) if cyclic else divmod(rank, per_host)
        pid = (1 if per_host == 1 else 20 + 3 * local) if small_pids else random.randrange(2_000, 4_000_000)
        stage = rank * stages // ranks
        seats.append(_Seat(rank, name.format(host), host, local, stage, pid))
    first = {seat.rank for seat in seats if seat.stage == 0}
    alone = [{seat.rank for seat in seats if seat.host_number == host} for host in range(hosts)]
    rest = {seat.rank for seat in seats} - first
    seen = min(len(first), len(rest)) > 1 and first not in alone and rest not in alone
    return [replace(seat, stage_is_seen=seen) for seat in seats]


class _Setup:
    """How all ranks of a job were set up."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.versions = {
            "driver": "550.54.15",
            "cuda": "12.4",
            "nccl": "2.21.5",
            "kernel": "5.15.0-1053",
            "os": "22.04",
        }
        self.settings = {"governor": "performance", "pcie_width": "16", "pcie_generation": "5", "power_limit_w": "700"}
        self.model = random.choice(("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"))
        self.cgroup = random.choice((_slurm, _kubernetes, _docker, _session))
        self.container = random.choice((None, "nvcr.io/nvidia/pytorch:24.07-py3", "k8s_trainer_worker-{host}_ml_{id}"))
        self.all_cores = random.random() < 0.3
        self.without_environment = random.random() < 0.1
        kinds = random.sample(sorted(_NATURAL), k=random.randrange(4, len(_NATURAL)))
        self.natural: dict[str, Callable[[_Seat, Random], str | None]] = {name: _NATURAL[name] for name in kinds}

    def identity(self, seat: _Seat) -> RankIdentity:
        random, local = self.random, seat.local_rank
        first = 0 if self.all_cores else 12 * local
        environment = {"NCCL_ALGO": "Ring", "NCCL_IB_DISABLE": "0", "OMP_NUM_THREADS": "8", "NCCL_P2P_LEVEL": "NVL"}
        for name, of in self.natural.items():
            if (value := of(seat, random)) is not None:
                environment[name] = value
        return RankIdentity(
            rank=seat.rank,
            host=seat.host,
            boot=f"boot of {seat.host}",
            pid=seat.pid,
            process_s=1_700_000_000 + random.randrange(5),
            local_rank=local,
            device=DeviceIdentity(f"GPU-{UUID(int=random.getrandbits(128))}", BUSES[local], local, 0, self.model),
            numa_node=local // 4,
            nics=(f"{NICS[local]}/1",),
            cpus=tuple(range(96)) if self.all_cores else tuple(range(first, first + 12)),
            cgroup=self.cgroup(seat, random),
            container=None if self.container is None else self.container.format(host=seat.host_number, id=_hex(random)),
            versions=dict(self.versions),
            environment={} if self.without_environment else environment,
            settings=dict(self.settings),
        )


def _hex(random: Random) -> str:
    return f"{random.getrandbits(256):064x}"


def _slurm(seat: _Seat, _: Random) -> str:
    return f"/system.slice/slurmstepd.scope/job_4711/step_0/user/task_{seat.local_rank}"


def _kubernetes(_: _Seat, random: Random) -> str:
    pod = str(UUID(int=random.getrandbits(128))).replace("-", "_")
    return f"/kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-{_hex(random)}.scope"


def _docker(_: _Seat, random: Random) -> str:
    return f"/docker/{_hex(random)}"


def _session(_: _Seat, random: Random) -> str:
    return f"/user.slice/user-1000.slice/session-{random.randrange(1, 900)}.scope"


_NATURAL: Mapping[str, Callable[[_Seat, Random], str | None]] = {
    "CUDA_VISIBLE_DEVICES": lambda seat, _: str(seat.local_rank),
    "NVIDIA_VISIBLE_DEVICES": lambda _, random: f"GPU-{UUID(int=random.getrandbits(128))}",
    "GOMP_CPU_AFFINITY": lambda seat, _: f"{12 * seat.local_rank}-{12 * seat.local_rank + 11}",
    "NCCL_DEBUG_FILE": lambda seat, _: f"/logs/nccl.{seat.host}.{seat.pid}",
    "NCCL_HOSTID": lambda seat, _: seat.host,
    "NCCL_COMM_ID": lambda *_: "10.0.0.17:29500",
    "GLOO_ADDRESS": lambda seat, _: f"10.0.3.{seat.host_number}",
    "GLOO_PORT": lambda _, random: str(random.randrange(30_000, 60_000)),
    "UCX_NET_DEVICES": lambda seat, _: f"{NICS[seat.local_rank]}:1",
    "TRITON_CACHE_DIR": lambda seat, random: f"/tmp/triton/{random.getrandbits(64):016x}/rank{seat.rank}",
    "TORCHINDUCTOR_CACHE_DIR": lambda seat, _: f"/scratch/inductor_{seat.host}_{seat.local_rank}",
    "TORCH_LOCAL_RANK": lambda seat, _: str(seat.local_rank),
    "TORCH_RANK": lambda seat, _: str(seat.rank),
    "OMP_PLACES": lambda seat, _: f"{{{12 * seat.local_rank}:12}}",
    "NCCL_STAGE_CHANNELS": lambda seat, _: str(8 if seat.stage == 0 and seat.stage_is_seen else 16),
    "CUDA_MPS_PIPE_DIRECTORY": lambda seat, _: f"/tmp/mps-{seat.local_rank}",
    "TORCH_NODE": lambda seat, _: f"worker-{seat.host_number}",
    "NCCL_TOPO_FILE": lambda *_: "/etc/nccl/topology-8.xml",
    "TORCH_MASTER_HOST": lambda *_: "node-0",
    "XLA_FLAGS": lambda *_: "--xla_gpu_enable_async_collectives=true --xla_dump_to=/tmp/dump8",
}


def _in(mapping: str, name: str, value: str) -> Callable[[RankIdentity], RankIdentity]:
    def change(one: RankIdentity) -> RankIdentity:
        changed: Any = {mapping: {**getattr(one, mapping), name: value}}
        return replace(one, **changed)

    return change


def _without(name: str) -> Callable[[RankIdentity], RankIdentity]:
    def change(one: RankIdentity) -> RankIdentity:
        return replace(one, environment={key: of for key, of in one.environment.items() if key != name})

    return change


PLANTS: tuple[tuple[str, str, Callable[[RankIdentity], RankIdentity]], ...] = (
    ("settings governor", "powersave", _in("settings", "governor", "powersave")),
    ("settings pcie_width", "8", _in("settings", "pcie_width", "8")),
    ("settings pcie_generation", "3", _in("settings", "pcie_generation", "3")),
    ("settings power_limit_w", "500", _in("settings", "power_limit_w", "500")),
    ("versions driver", "535.161.08", _in("versions", "driver", "535.161.08")),
    ("versions nccl", "2.19.3", _in("versions", "nccl", "2.19.3")),
    ("versions kernel", "5.15.0-1049", _in("versions", "kernel", "5.15.0-1049")),
    ("environment NCCL_ALGO", "Tree", _in("environment", "NCCL_ALGO", "Tree")),
    ("environment NCCL_ALGO", "(unset)", _without("NCCL_ALGO")),
    ("environment NCCL_IB_DISABLE", "1", _in("environment", "NCCL_IB_DISABLE", "1")),
    ("environment NCCL_PROTO", "LL", _in("environment", "NCCL_PROTO", "LL")),
    ("environment OMP_NUM_THREADS", "1", _in("environment", "OMP_NUM_THREADS", "1")),
    ("environment NCCL_SOCKET_IFNAME", "eth0", _in("environment", "NCCL_SOCKET_IFNAME", "eth0")),
    (
        "device model",
        "NVIDIA H100 PCIe",
        lambda one: replace(one, device=replace(one.device, model="NVIDIA H100 PCIe")),
    ),
    ("number of cores", "4", lambda one: replace(one, cpus=(0, 1, 2, 3))),
    ("list of NICs", "eth0", lambda one: replace(one, nics=("eth0",))),
    ("cgroup", "/", lambda one: replace(one, cgroup="/")),
    (
        "container",
        "nvcr.io/nvidia/pytorch:24.05-py3",
        lambda one: replace(one, container="nvcr.io/nvidia/pytorch:24.05-py3"),
    ),
)
"""What can be made to differ, and the value that it then has."""


def planted(random: Random, number: int) -> tuple[HealthyJob, Planted]:
    """A healthy job, and the same with one thing that one rank or one host of several has otherwise."""
    what, value, change = PLANTS[number % len(PLANTS)]
    while True:
        job = healthy_job(random)
        known = [rank for rank, one in job.identities.items() if change(one) != one]
        tells = not what.startswith("environment") or all(one.environment for one in job.identities.values())
        if known and tells and (what != "container" or job.identities[0].container is not None):
            break
    of_host: dict[str, list[int]] = {}
    for rank, one in job.identities.items():
        of_host.setdefault(str(one.host), []).append(rank)
    # Half of the ranks, or one host of two, is nobody's minority.
    hosts = [ranks for ranks in of_host.values() if len(of_host) > 2 and 2 * len(ranks) < len(job.identities)]
    ranks = random.choice(hosts) if hosts and random.random() < 0.5 else [random.choice(known)]
    of = {rank: change(one) if rank in ranks else one for rank, one in job.identities.items()}
    return job, Planted(what, tuple(sorted(ranks)), value, of)
