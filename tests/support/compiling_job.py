"""A small job of three ranks, one of which torch.compile compiles anew every few steps: its batches have new sizes.

torchrun --standalone --nproc-per-node 3 compiling_job.py
"""

import os
import time

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, COMPILING_RANK = 160, 3, 1
WIDTH = 16


class Layer(nn.Module):
    """A product that is compiled for every size of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.compiled = torch.compile(self.linear.forward, backend="aot_eager", dynamic=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.relu(self.compiled(values))
        return result


def main() -> None:
    torch._dynamo.config.recompile_limit = STEPS
    torch._dynamo.config.accumulated_recompile_limit = STEPS
    torch._dynamo.config.optimize_ddp = False
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    net = DistributedDataParallel(nn.Sequential(Layer(), Layer()))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for step in range(STEPS):
        is_new = dist.get_rank() == COMPILING_RANK and step % EVERY == 0
        loss = net(torch.ones(8 + is_new * (1 + step // EVERY), WIDTH)).square().mean()
        time.sleep(0.02)  # an emulated device
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    # By the launcher's store: of gloo's barrier the last message can get lost with the rank that leaves first.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store.set(f"over {dist.get_rank()}", "")
    store.wait([f"over {rank}" for rank in range(dist.get_world_size())])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
