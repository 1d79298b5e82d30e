"""A small job of three ranks with short steps, one of which becomes slow in forward; capture thins what it records.

torchrun --standalone --nproc-per-node 3 short_steps_job.py
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from kair_capture.job import thinning

STEPS, FROM_STEP, SLOW_RANK, SLOWER_S = 700, 350, 1, 0.008


class Net(nn.Module):
    """Two layers, and what a device would take."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        self.waits_s = 0.002

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(self.waits_s)
        result: torch.Tensor = self.layers(values)
        return result


def main() -> None:
    # However slow this machine is: its steps are too short to record all of them.
    thinning.SHARE = 1e-4  # type: ignore[misc]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters())
    for step, (batch,) in enumerate(DataLoader(TensorDataset(torch.randn(STEPS * 4, 16)), 4)):
        if dist.get_rank() == SLOW_RANK and step == FROM_STEP:
            net.waits_s += SLOWER_S
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
