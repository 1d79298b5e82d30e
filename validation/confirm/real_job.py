"""A rank of a PyTorch job (gloo, DistributedDataParallel) that computes by sleeping; `real.py` starts four of them.

Which rank is slow, and by how much of the step, is read from a file before each step, so that one job has many faults.
"""

import argparse
import json
import random
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NOISE = 0.02
"""Standard deviation of a rank's step, as a share."""


class Sleeper(nn.Module):
    """Takes as long as it is told, and has some parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.seconds = 0.0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """A layer."""
        time.sleep(self.seconds)
        out: torch.Tensor = self.linear(batch)
        return out


def main() -> None:
    """Until the file of faults is gone, or so many steps are over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", type=Path, required=True)
    parser.add_argument("--step-ms", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--losses", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Sleeper()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    noise = random.Random(rank)
    losses = []
    is_over = torch.zeros(1)
    for _ in range(options.steps):
        fault = {}
        with suppress(OSError, ValueError):
            fault = json.loads(options.fault.read_text())
        excess = fault.get("excess", 0.0) if fault.get("rank") == rank else 0.0
        model.seconds = max(options.step_ms / 1e3 * (1 + excess + NOISE * noise.gauss(0, 1)), 0)
        loss = parallel(torch.randn(8, 64)).square().mean()
        # All end in the same step.
        is_over.fill_(float(not options.fault.exists()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        dist.all_reduce(is_over)
        if is_over.item():
            break
    if options.losses is not None:
        options.losses.with_suffix(f".{rank}").write_text(json.dumps([loss.hex() for loss in losses]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
