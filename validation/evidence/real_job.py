"""One rank of a job that `real.py` watches: short steps, most of them an emulated device's, and real faults.

Run by torchrun under `kair capture run`, with a plan of takes, one after the other. Who causes a fault from outside
(`real.py`) is told of the victim's process at the onset, and the victim waits until the fault is there.
"""

from __future__ import annotations

import gc
import hashlib
import json
import mmap
import os
import random
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from history_job import WIDTH, AnyTake, Device, cycles  # noqa: E402  (of the folder above this one)
from slow_sources import BYTES_OF_ANSWER, BYTES_OF_REQUEST  # noqa: E402

PINNED = ("quota", "priority", "neighbour")
"""The victim has core 1 to itself, its peers share core 0: or they would lack what it lacks."""
FROM_OUTSIDE = (*PINNED, "cores", "memory", "storage", "disk", "service")
FROM_WITHIN = ("sleep", "gc", "leak")
KINDS = (*FROM_OUTSIDE, *FROM_WITHIN)
READ_BYTES = 1 << 16
"""Of a file, for each batch."""
FILE_BYTES = 64 << 20
TABLE_BYTES = 192 << 20
"""Of what the victim keeps in memory and walks through, where memory is to become short."""
_FAULT_S = 60e-6
"""That a page takes which was swapped out, about: so many are touched that half of them make a step as much longer."""
_BYTES_PER_S = 8e9
"""That are summed, about: so much is kept by what leaks."""
PAGE = 4096
HASHED_BYTES = 64 << 20
"""At once, by a helper thread, which does not need the interpreter meanwhile."""
OWN_S = 1e-3
"""That any rank computes in a step."""
MEASURED = 100
"""Steps before the onset by which the victim tells how long its steps are."""


@dataclass(frozen=True)
class Take(AnyTake):
    """One of KINDS; then some steps that are nobody's, until the next take."""

    own_ms: float
    """That the victim computes in a step, before the fault as well."""
    level: int
    """Of what a fault is made with besides: how nice the victim becomes, how many of its helper threads run."""
    rest: int

    @property
    def steps_until_next(self) -> int:
        """From its first step to that of the next take."""
        return self.steps + self.rest


class Samples(Dataset[torch.Tensor]):
    """Fetched in the training thread; what a batch needs besides is set from outside."""

    fetch: Callable[[], None] | None = None

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 8 == 0 and self.fetch is not None:
            self.fetch()
        return torch.full((WIDTH,), float(index % 7))


class EmulatedDevice(Device):
    """A device, whose host waits for it as one does for a driver, which is no sleep of the script's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        select.select([], [], [], self.seconds)
        self.busy.for_seconds(self.work_s)
        result: torch.Tensor = self.layer(x)
        return result


Fetch = Callable[[float], None]
"""Gets what a batch needs; it is told by how much a fault from within is to make that longer, in seconds."""


@contextmanager
def source_of(take: Take, rank: int, folder: Path) -> Iterator[Fetch | None]:
    """What the loader gets its data from in this take."""
    is_victim = rank == take.victim
    chosen = random.Random(f"{take.seed} {rank}")
    if take.kind in ("storage", "disk"):
        below = folder / ("mount" if take.kind == "storage" and is_victim else "files")
        file = os.open(below / "shard.bin", os.O_RDONLY | (os.O_DIRECT if take.kind == "disk" else 0))
        page = mmap.mmap(-1, READ_BYTES)  # direct reads need its alignment
        yield lambda _: _read(file, page, chosen.randrange(FILE_BYTES // READ_BYTES) * READ_BYTES)
        os.close(file)
    elif take.kind == "service":
        port = int((folder / "port").read_text(encoding="ascii"))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            yield lambda _: _ask(connection, rank)
    elif take.kind == "memory" and is_victim:
        (Path((folder / f"group-{take.name}").read_text()) / "cgroup.procs").write_text(str(os.getpid()))
        table = mmap.mmap(-1, TABLE_BYTES)
        for at in range(0, TABLE_BYTES, PAGE):
            table[at : at + 8] = os.urandom(8)
        touched = round(2 * take.fault_ms / 1e3 / _FAULT_S)
        yield lambda _: _walk(table, touched, chosen)
        table.close()
    elif take.kind == "leak" and is_victim:
        kept: list[np.ndarray] = []
        # It grows to twice the drawn size, which is its mean.
        each = round(2 * take.fault_ms / 1e3 * _BYTES_PER_S / (take.steps - take.onset))
        yield lambda fault_s: _keep(kept, each) if fault_s else None
        kept.clear()
    else:
        yield None


def _read(file: int, page: mmap.mmap, offset: int) -> None:
    if os.preadv(file, [page], offset) != READ_BYTES:
        raise SystemExit("a file that is read is too short")


def _ask(connection: socket.socket, rank: int) -> None:
    connection.sendall(rank.to_bytes(BYTES_OF_REQUEST, "little"))
    left = BYTES_OF_ANSWER
    while left:
        left -= len(connection.recv(left))


def _walk(table: mmap.mmap, touched: int, chosen: random.Random) -> None:
    for _ in range(touched):
        table[chosen.randrange(TABLE_BYTES // PAGE) * PAGE]


def _keep(kept: list[np.ndarray], each: int) -> None:
    kept.append(np.ones(max(each // 8, 1)))
    for one in kept:
        one.sum()


@contextmanager
def helpers(number: int) -> Iterator[None]:
    """Threads of the process that compute all the time, and do not hold the interpreter."""
    ended, data = threading.Event(), bytes(HASHED_BYTES if number else 0)

    def compute() -> None:
        while not ended.is_set():
            hashlib.sha256(data)

    threads = [threading.Thread(target=compute) for _ in range(number)]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        ended.set()
        for one in threads:
            one.join()


class Pace:
    """How long the last steps took, and how much of a core all threads of the process had in them."""

    def __init__(self) -> None:
        self._begin = time.perf_counter(), time.process_time()

    def told(self, steps: int) -> str:
        """`PID SECONDS CPU_SECONDS`, of one step."""
        length, computed = time.perf_counter() - self._begin[0], time.process_time() - self._begin[1]
        return f"{os.getpid()} {length / steps} {computed / steps}"


def wait_for_the_fault(take: Take, folder: Path, pace: Pace) -> None:
    """Tells who one is, and waits until that is known."""
    at = folder / f"pid-{take.name}"
    at.with_suffix(".new").write_text(pace.told(min(MEASURED, take.onset)), encoding="ascii")
    at.with_suffix(".new").rename(at)
    while at.exists():
        time.sleep(0.02)


def main() -> None:
    """Trains one take after the other."""
    plan, folder = (Path(one) for one in sys.argv[1:])
    takes = [Take(**one) for one in json.loads(plan.read_text(encoding="utf-8"))]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    samples, device = Samples(), EmulatedDevice()
    batches = iter(DataLoader(samples, batch_size=8))
    model = DistributedDataParallel(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    gc.collect()
    gc.freeze()  # what was imported is not looked through again: a collection takes what the fault says
    for take in takes:
        is_victim = rank == take.victim
        if take.kind in PINNED:
            os.sched_setaffinity(0, {1 if is_victim else 0})
        threads = take.level if take.kind == "cores" and is_victim else 0
        live: list[object] = []
        pace = Pace()
        with source_of(take, rank, folder) as fetch, helpers(threads):
            for step in range(take.steps_until_next):
                slow = is_victim and take.onset <= step < take.steps
                fault_s = take.fault_ms / 1e3 if slow and take.kind in FROM_WITHIN else 0.0
                if step == take.onset - MEASURED:
                    pace = Pace()
                if slow and step == take.onset and take.kind in FROM_OUTSIDE:
                    wait_for_the_fault(take, folder, pace)
                if step == take.steps and is_victim and take.kind in FROM_OUTSIDE:
                    (folder / f"done-{take.name}").touch()
                if fault_s and take.kind == "gc":
                    live = live or cycles(fault_s)
                    gc.collect()
                if fault_s and take.kind == "sleep":
                    time.sleep(fault_s)
                samples.fetch = None if fetch is None or step >= take.steps else (lambda of=fault_s: fetch(of))
                device.work_s = take.own_ms / 1e3 if is_victim else OWN_S
                # What the victim computes, its peers wait for: before the fault nobody is slower.
                device.seconds = take.device_ms / 1e3 + (0.0 if is_victim else take.own_ms / 1e3 - OWN_S)
                model(next(batches)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        if live:
            live.clear()
            gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
