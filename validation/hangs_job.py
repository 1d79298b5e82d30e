"""One rank of a job that `hangs.py` watches: short steps of a data-parallel model; in one of them something happens.

Run by torchrun under `kair capture run`: `hangs_job.py SITUATION RANK STEP`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64


class Net(nn.Module):
    """Two layers, and what may happen between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.happens: str | None = None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.first(batch).relu()
        if self.happens is not None:
            happen_in_forward(self.happens)
        out: torch.Tensor = self.second(hidden)
        return out


def wait_for_ever() -> None:
    """A lock that nobody gives back, a read that never ends."""
    while True:
        time.sleep(3600)


def happen_before(what: str) -> None:
    """Between the step before and forward."""
    if what == "before":
        wait_for_ever()
    if what == "exception":
        raise ValueError("the batch is empty")


def happen_in_forward(what: str) -> None:
    """In the middle of the model."""
    if what == "forward":
        wait_for_ever()
    if what == "leave":
        os._exit(0)
    if what == "segv":
        ctypes.string_at(0)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "oom":
        held = []
        while True:
            held.append(bytearray(32 << 20))


def happen_after(what: str) -> None:
    """Between forward and backward."""
    if what == "after":
        wait_for_ever()


def main(what: str, victim: int, at: int) -> None:
    """For ever, or until it happens."""
    torch.set_num_threads(1)
    if (group := os.environ.get("MEMORY_GROUP")) and int(os.environ["RANK"]) == victim:
        Path(group, "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen, second = torch.zeros(16), dist.new_group()
    for step in range(100_000):
        due = what if step == at and rank == victim else ""
        happen_before(due)
        net.happens = due or None
        loss = model(torch.randn(16, WIDTH)).square().mean()
        happen_after(due)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if due == "mismatch":
            dist.broadcast(seen, 0)
        elif due == "collective":
            dist.all_reduce(seen, group=second)
        elif due != "skip":
            dist.all_reduce(seen)
        time.sleep(0.035 if what in ("cancel", "interrupt") and rank == victim else 0.02)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
