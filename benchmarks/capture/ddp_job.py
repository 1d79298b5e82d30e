"""A small data-parallel job on gloo, one of whose ranks becomes slower: what `benchmarks/capture/fault.py` watches.

Most of a step is an operator that keeps the host waiting as an accelerator would: were all ranks to compute, they would
fight for the cores of a small machine, and the fight would drown the fault. With `--device cuda` the matrix products
and the model are on the GPU, which the ranks share (NCCL refuses that, gloo does not).

kair capture run --job j -- torchrun --nproc-per-node 4 benchmarks/capture/ddp_job.py --steps 300 --slow 2:0.2:100
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def device_work(x: torch.Tensor, seconds: float) -> torch.Tensor:
    """A copy of x, after so long."""
    until = time.perf_counter() + seconds
    result = x.clone()
    time.sleep(max(0.0, until - time.perf_counter()))
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--slow", default="", help="RANK:SHARE:FROM_STEP: that rank works so much longer")
    parser.add_argument("--products", type=int, default=20, help="matrix products of a step, about a millisecond each")
    parser.add_argument("--product-size", type=int, default=256)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--device-ms", type=float, default=0.0, help="and so long an emulated device's work")
    given = parser.parse_args()
    slow_rank, share, first = -1, 0.0, 0
    if given.slow:
        rank, part, begin = given.slow.split(":")
        slow_rank, share, first = int(rank), float(part), int(begin)
    torch.library.define("kair_benchmark::device_work", "(Tensor x, float seconds) -> Tensor")
    torch.library.impl("kair_benchmark::device_work", "cpu", device_work)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(128, 128), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(128, 10)).to(given.device))
    optimizer = torch.optim.AdamW(model.parameters())
    left, right = torch.randn(2, given.product_size, given.product_size, device=given.device)
    began = time.perf_counter()
    for step in range(given.steps):
        batch = torch.randn(32, 128)
        extra = share if rank == slow_rank and step >= first else 0.0
        for _ in range(round(given.products * (1 + extra))):
            torch.mm(left, right)
        batch = torch.ops.kair_benchmark.device_work(batch, given.device_ms / 1000 * (1 + extra))
        loss = model(batch.to(given.device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    took = time.perf_counter() - began
    if rank == 0:
        print(json.dumps({"steps": given.steps, "ms_a_step": took / given.steps * 1000, "pid": os.getpid()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
