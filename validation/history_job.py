"""One rank of a job that `history.py` watches: short steps, most of them an emulated device's, and faults since a step.

Run by torchrun under `kair capture run`, with a plan of takes, one after the other. The ranks are data-parallel, or the
stages of a pipeline.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

KINDS = ("sleep", "work", "gc", "data", "quota", "core", "stage", "device")
"""The last is an emulated device's operator that takes longer: its host waits for it.

`bursts`, which is drawn only where it is asked for, sleeps in two of five steps, two and a half times as long.
"""
FROM_OUTSIDE = ("quota", "core")
WIDTH = 64


class Samples(Dataset[torch.Tensor]):
    """Fetched in the training thread; what a batch takes is set from outside."""

    delay_s = 0.0

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 8 == 0 and self.delay_s:
            time.sleep(self.delay_s)
        return torch.full((WIDTH,), float(index % 7))


class Busy:
    """So much computing, counted in matrix products of known length, whatever else runs."""

    def __init__(self) -> None:
        self._left = torch.randn(96, 96)
        self.run(50)
        begin = time.thread_time_ns()
        self.run(200)
        self._each_s = (time.thread_time_ns() - begin) / 200e9

    def run(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._left, self._left)

    def for_seconds(self, seconds: float) -> None:
        self.run(max(round(seconds / self._each_s), 0))


class Device(nn.Module):
    """An emulated device: its host waits for it, computing nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.seconds, self.work_s, self.busy = 0.0, 0.0, Busy()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        self.busy.for_seconds(self.work_s)
        result: torch.Tensor = self.layer(x)
        return result


@dataclass(frozen=True)
class AnyTake:
    """So many steps, from one of which on a rank is slow."""

    seed: int
    kind: str
    """What happens, or `healthy`."""
    ranks: int
    victim: int
    device_ms: float
    fault_ms: float
    steps: int
    onset: int

    @property
    def is_healthy(self) -> bool:
        """Whether nothing happens."""
        return self.onset >= self.steps

    @property
    def name(self) -> str:
        """For files."""
        return f"{self.kind}-{self.seed}"

    @property
    def steps_until_next(self) -> int:
        """From its first step to that of the next take."""
        return self.steps


@dataclass(frozen=True)
class Take(AnyTake):
    """One of KINDS, until that is lifted."""

    lifted: int | None = None
    """The first step without the fault again; None where it stays."""


def main() -> None:
    """Trains one take after the other."""
    plan, folder = (Path(one) for one in sys.argv[1:])
    takes = [Take(**one) for one in json.loads(plan.read_text(encoding="utf-8"))]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    samples, device = Samples(), Device()
    batches = iter(DataLoader(samples, batch_size=8))
    is_pipeline = takes[0].kind.startswith("stage")
    model = device if is_pipeline else DistributedDataParallel(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    gc.collect()
    gc.freeze()  # what was imported is not looked through again: a collection takes what the fault says
    for take in takes:
        live: list[object] = []
        often = random.Random(take.seed)
        outside = take.kind in FROM_OUTSIDE
        lifted = take.steps if take.lifted is None else take.lifted
        done = folder / f"done-{take.name}" if outside and rank == take.victim else None
        if outside:
            # The victim has a core of its own, or its peers would lack it as well.
            os.sched_setaffinity(0, {1 if rank == take.victim else 0})
        for step in range(take.steps):
            fault_s = take.fault_ms / 1e3 if rank == take.victim and take.onset <= step < lifted else 0.0
            if step == lifted:
                mend(live, done)
            if done is not None and step == take.onset:
                wait_for_fault(folder / f"pid-{take.name}")
            if fault_s and take.kind == "gc":
                live = live or cycles(fault_s)
                gc.collect()
            if fault_s and take.kind == "sleep":
                time.sleep(fault_s)
            if fault_s and take.kind == "bursts" and often.random() < 0.4:
                time.sleep(fault_s * 2.5)
            samples.delay_s = fault_s if take.kind == "data" else 0.0
            # Who is to lack its core has to want it, before the fault as well.
            own_s = take.fault_ms / 1e3 if outside else 1e-3
            device.work_s = own_s + (fault_s if take.kind == "work" else 0.0)
            device.seconds = take.device_ms / 1e3 + (fault_s if take.kind in ("device", "stage") else 0.0)
            batch = next(batches)
            if is_pipeline:
                through_stages(model, batch, rank, world)
            else:
                model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        mend(live, done)
        if outside:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
    del model, optimizer
    end_group()


def end_group() -> None:
    """Ends it here, and not with the interpreter, in which its threads would abort: what was frozen holds it."""
    gc.unfreeze()
    gc.collect()
    dist.destroy_process_group()


def wait_for_fault(at: Path) -> None:
    """Says which process is to have it, and waits until it has."""
    at.with_suffix(".new").write_text(str(os.getpid()), encoding="ascii")
    at.with_suffix(".new").rename(at)
    while at.exists():
        time.sleep(0.02)


def mend(live: list[object], done: Path | None) -> None:
    """Ends a fault of this process; of one from outside, says so to whoever made it."""
    if live:
        live.clear()
        gc.collect()
    if done is not None:
        done.touch()


def through_stages(model: nn.Module, batch: torch.Tensor, rank: int, world: int) -> None:
    """A micro-batch forward and backward through the stages, which are the ranks."""
    inputs = batch
    if rank:
        dist.recv(inputs, rank - 1)
        inputs.requires_grad_()
    outputs = model(inputs)
    if rank < world - 1:
        dist.send(outputs.detach(), rank + 1)
        gradient = torch.empty_like(outputs)
        dist.recv(gradient, rank + 1)
        outputs.backward(gradient)
    else:
        outputs.square().mean().backward()
    if rank:
        dist.send(inputs.grad, rank - 1)  # type: ignore[arg-type]  # it requires a gradient


def cycles(seconds: float) -> list[object]:
    """So many living objects that to look through them takes so long."""
    live: list[object] = []
    while True:
        live += [[[], []] for _ in range(5000)]
        begin = time.perf_counter()
        gc.collect()
        if time.perf_counter() - begin >= seconds:
            return live


if __name__ == "__main__":
    main()
