"""A job of two ranks that one process starts: `started_job.py METHOD PORT STEPS`."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, port: str, steps: int) -> None:
    meeting = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= meeting
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    method, port, steps = sys.argv[1:]
    torch.multiprocessing.start_processes(train, (port, int(steps)), nprocs=2, start_method=method)
