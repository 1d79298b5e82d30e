"""Faults and loads from outside of the ranks: other processes, signals, quotas, priorities and links.

Everything that a take begins is ended when its `ExitStack` is closed, whatever happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from cpu_groups import CpuGroup
from drawing import AnyTake, Fault

NS_PER_S = 1e9
NEW_NETWORK = 0x40000000
DIE_WITH_PARENT = 1
SLICE_S = 0.02
LIBC = ctypes.CDLL(None, use_errno=True)


def fork(work: Callable[[], object], log: Path) -> int:
    """The id of a process, leader of a group of its own, that does `work` and ends; a failure goes to `log`."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)
        work()
        status = 0
    except BaseException:
        log.write_text(traceback.format_exc(), encoding="utf-8")
    finally:
        sys.stdout.flush()
        os._exit(status)


def end(pid: int) -> None:
    """Kill the process that `fork` gave, and its children, and wait for it."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


class Outside:
    """What surrounds a take's ranks; `pids` are theirs, `folder` is the take's own."""

    def __init__(self, take: AnyTake, folder: Path, stack: ExitStack) -> None:
        self.take, self.folder, self.stack = take, folder, stack
        self.pids: list[int] = []
        self.measures: dict[str, object] = {}
        self.groups: dict[int, CpuGroup] = {}
        self.network = make_network(take, stack)

    def start(self, work: Callable[[], object], name: str) -> None:
        """Run `work` in a process until the take ends."""
        self.stack.callback(end, fork(work, self.folder / f"{name}.error"))

    def begin_load(self) -> None:
        """Begin what else runs on the machine."""
        take = self.take
        if take.load == "other_job":
            for rank in range(take.load_processes):
                self.start(lambda rank=rank: other_job(rank, take.load_processes, self.folder), f"load{rank}")  # type: ignore[misc]  # a lambda with a default
            return
        work = {"steady": hog, "bursts": lambda: bursts(take.seed)}.get(take.load)
        for index in range(take.load_processes if work else 0):
            self.start(work, f"load{index}")  # type: ignore[arg-type]  # it never returns

    def prepare_groups(self) -> list[str | None]:
        """For each rank the file that tells of its throttling, where it will have a quota."""
        for index, fault in enumerate(self.take.faults):
            if fault.kind in ("quota", "quota_on_all"):
                self.groups[index] = CpuGroup.make(f"kair{os.getpid()}_{index}", self.stack)
        stat: list[str | None] = [None] * self.take.ranks
        for index, group in self.groups.items():
            for rank in self.take.faults[index].ranks:
                stat[rank] = str(group.stat)
        return stat

    def begin_fault(self, index: int, references: Sequence[dict[str, float]]) -> None:
        """Begin fault `index` if it is one from outside."""
        fault = self.take.faults[index]
        begin = {
            "sigstop": self.stop_in_spells,
            "stops_on_all": self.stop_all,
            "nice": self.be_nice,
            "quota": self.limit,
            "quota_on_all": self.limit,
            "core_hog": self.hog_core,
            "bandwidth_hog": self.hog_core,
            "slow_link": self.slow_links,
            "slow_links": self.slow_links,
            "busy_processes_x2": self.oversubscribe,
            "busy_processes_x4": self.oversubscribe,
            "gpu_hog": self.hog_gpu,
        }.get(fault.kind)
        if begin:
            begin(index, fault, references)

    def stop_in_spells(self, index: int, fault: Fault, references: Sequence[dict[str, float]]) -> None:
        """About one stop for every affected step, at no set time."""
        step_s = references[fault.ranks[0]]["step_ns"] / NS_PER_S
        stopped_s = fault.severity * step_s
        mean_run_s = step_s / fault.share_of_steps
        pids = [self.pids[rank] for rank in fault.ranks]
        rng = random.Random(self.take.seed)
        self.start_stops(index, pids, lambda: (rng.uniform(0.5, 1.5) * mean_run_s, stopped_s))

    def stop_all(self, index: int, fault: Fault, _references: Sequence[dict[str, float]]) -> None:
        """As a limiter of CPU time by signals: a stop in every ten milliseconds."""
        stopped_s = 0.01 * fault.severity / (1 + fault.severity)
        self.start_stops(index, list(self.pids), lambda: (0.01 - stopped_s, stopped_s))

    def start_stops(self, index: int, pids: list[int], lengths: Callable[[], tuple[float, float]]) -> None:
        log = self.folder / f"stops{index}.txt"
        # This comes to its turn after the process that stops has been ended.
        self.stack.callback(signal_all, pids, signal.SIGCONT)
        self.start(lambda: stop_and_go(pids, lengths, log), f"stops{index}")

    def be_nice(self, index: int, fault: Fault, _references: Sequence[dict[str, float]]) -> None:
        """Lower priority for every thread of the rank: a share of s of what an equal has, s = 1 / (1 + severity)."""
        # Each level is a factor of 1.25 in weight.
        level = max(1, min(19, round(np.log(1 + 4 * fault.severity) / np.log(1.25))))
        pid = self.pids[fault.ranks[0]]
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), level)
        self.measures[f"nice{index}"] = level

    def limit(self, index: int, fault: Fault, references: Sequence[dict[str, float]]) -> None:
        """A quota with which the ranks' own CPU time of a step takes 1 + severity steps."""
        needed = sum(references[rank]["process_ns"] / references[rank]["step_ns"] for rank in fault.ranks)
        period_us = random.Random(self.take.seed).choice([10_000, 20_000, 50_000, 100_000])
        quota_us = max(1000, int(period_us * needed / (1 + fault.severity)))
        group = self.groups[index]
        group.limit(quota_us, period_us)
        self.stack.callback(group.lift)
        for rank in fault.ranks:
            group.add(self.pids[rank])
        self.measures[f"quota{index}"] = {"period_us": period_us, "quota_us": quota_us}

    def hog_core(self, index: int, fault: Fault, _references: Sequence[dict[str, float]]) -> None:
        """Busy processes on the rank's core, for as much of the time as makes it slower by the severity."""
        cores, count = self.take.cores_of(fault.ranks[0]) or set(), 1 if fault.severity <= 1 else 2
        duty = min(1.0, (1 - 1 / (1 + fault.severity)) * (count + 1) / count)
        work = copy_memory if fault.kind == "bandwidth_hog" else spin

        def on_core() -> None:
            os.sched_setaffinity(0, cores)
            in_slices(work, duty)

        for number in range(count * len(cores)):
            self.start(on_core, f"hog{index}_{number}")

    def prepare_hogs(self) -> None:
        """Have a process ready that computes on the GPU as soon as it is let; its beginning takes seconds."""
        for index, fault in enumerate(self.take.faults):
            if fault.kind == "gpu_hog":
                go, ready = (self.folder / f"{name}{index}" for name in ("go", "ready"))
                self.start(lambda go=go, ready=ready, fault=fault: multiply(fault.severity, ready, go), f"hog{index}")  # type: ignore[misc]  # a lambda with defaults
                wait_for(ready)

    def hog_gpu(self, index: int, _fault: Fault, _references: Sequence[dict[str, float]]) -> None:
        """Let the prepared process begin."""
        (self.folder / f"go{index}").touch()

    def oversubscribe(self, index: int, fault: Fault, _references: Sequence[dict[str, float]]) -> None:
        """So many busy processes per core that a rank has a half or a quarter of it."""
        for number in range(self.take.cores * (int(fault.kind[-1]) - 1)):
            self.start(hog, f"busy{index}_{number}")

    def slow_links(self, index: int, fault: Fault, references: Sequence[dict[str, float]]) -> None:
        """So low a rate that what a host sends in a step takes `severity` of a step: the most that one sends."""
        hosts = {self.take.host_of_rank[rank]: references[rank] for rank in fault.ranks}
        most = max(hosts.values(), key=lambda of: of["sent_bytes"])
        seconds = fault.severity * most["step_ns"] / NS_PER_S
        bits = max(1_000_000, int(8 * most["sent_bytes"] / seconds))
        burst = max(70_000, bits // 8 // 500)
        for name, device in (self.network[host] for host in hosts):
            shaper = f"tc qdisc add dev {device} root tbf rate {bits}bit burst {burst} limit 8000000"
            call(f"ip netns exec {name} {shaper}")
        self.measures[f"link{index}"] = {"bits_per_s": bits, "sent_bytes": most["sent_bytes"]}


def call(line: str) -> None:
    subprocess.run(line.split(), check=True, capture_output=True)


def signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def stop_and_go(pids: list[int], lengths: Callable[[], tuple[float, float]], log: Path) -> None:
    """Stop and continue the processes for ever; each stop's begin and end go to `log` (ns since the epoch)."""
    with log.open("w", encoding="ascii", buffering=1) as stops:
        while True:
            running_s, stopped_s = lengths()
            time.sleep(running_s)
            begin = time.time_ns()
            signal_all(pids, signal.SIGSTOP)
            time.sleep(stopped_s)
            signal_all(pids, signal.SIGCONT)
            stops.write(f"{begin} {time.time_ns()}\n")


def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(200))


def copy_memory(seconds: float) -> None:
    """Copy more than a cache holds."""
    global ARRAYS  # noqa: PLW0603 -- made once in each hog
    if ARRAYS is None:
        ARRAYS = (np.ones(2_000_000), np.ones(2_000_000))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        np.copyto(*ARRAYS)


ARRAYS: tuple[np.ndarray, np.ndarray] | None = None


def multiply(severity: float, ready: Path, go: Path) -> None:
    """Multiply matrices on the GPU for a share of the time, for ever, once `go` is there."""
    import torch

    factor = torch.randn(4096, 4096, device="cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16)
    ready.touch()
    wait_for(go)

    def work(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            torch.matmul(factor, factor)
            if torch.cuda.is_available():
                torch.cuda.synchronize()

    in_slices(work, min(1.0, severity))


def wait_for(path: Path) -> None:
    """Until the file is there, half a minute at most."""
    until = time.monotonic() + 30
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.001)


def in_slices(work: Callable[[float], None], duty: float) -> None:
    """Work for `duty` of the time, for ever."""
    while True:
        work(duty * SLICE_S)
        time.sleep((1 - duty) * SLICE_S)


def hog() -> None:
    """Be busy for ever."""
    while True:
        spin(1.0)


def bursts(seed: int) -> None:
    """Be busy now and then."""
    rng = random.Random(seed)
    while True:
        time.sleep(rng.expovariate(1 / 0.4))
        spin(rng.expovariate(1 / 0.2))


def other_job(rank: int, ranks: int, folder: Path) -> None:
    """Train something else, for ever."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/other", rank=rank, world_size=ranks)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        model(torch.randn(512, 256)).square().mean().backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()


def make_network(take: AnyTake, stack: ExitStack) -> list[tuple[str, str]]:
    """For each host the names of its network and its device; nothing where there is one host.

    Two are joined by a cable, more by a switch.
    """
    if take.hosts == 1:
        return []
    hosts = [(f"kair{os.getpid()}h{host}", f"kr{os.getpid()}h{host}") for host in range(take.hosts)]
    for name, _ in hosts:
        add_network(name, stack)
    if len(hosts) == 2:
        (first, device), (second, other) = hosts
        call(f"ip link add {device} netns {first} type veth peer name {other} netns {second}")
    else:
        join_by_switch(hosts, f"kair{os.getpid()}s", stack)
    for host, (name, own) in enumerate(hosts):
        call(f"ip -n {name} addr add 10.77.0.{host + 1}/24 dev {own}")
        call(f"ip -n {name} link set {own} up")
        call(f"ip -n {name} link set lo up")
    return hosts


def add_network(name: str, stack: ExitStack) -> None:
    call(f"ip netns add {name}")
    stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False, capture_output=True)


def join_by_switch(hosts: Sequence[tuple[str, str]], switch: str, stack: ExitStack) -> None:
    add_network(switch, stack)
    call(f"ip -n {switch} link add switch type bridge")
    call(f"ip -n {switch} link set switch up")
    for name, own in hosts:
        call(f"ip link add {own} netns {name} type veth peer name {own} netns {switch}")
        call(f"ip -n {switch} link set {own} master switch")
        call(f"ip -n {switch} link set {own} up")


def enter_network(name: str) -> None:
    """Make this process one of the host's."""
    with Path(f"/var/run/netns/{name}").open("rb") as network:
        if LIBC.setns(network.fileno(), NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network {name}")
