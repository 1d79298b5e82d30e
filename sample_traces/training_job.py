"""One rank of a small training job on an emulated accelerator, recorded by torch.profiler.

Its matrices are too small to matter. A step takes its time because two operators keep the host waiting. The
rest is real: DDP, device meshes and pipeline stages over gloo, a DataLoader, an optimizer, the profiler.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from emulated_device import register_device_operators
from faults import FaultPlan
from job import WARMUP_STEPS, Job
from model import Host, Layer, Samples, device_seconds, fetch_s
from parallelism import ForwardBackward, parallel
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, DistributedSampler

# What the guilty rank compiled for in recorded steps, in seconds: the time that the machine took.
COMPILED = "compiled"


def run_rank(rank: int, job: Job, folder: str, plan: FaultPlan) -> None:
    """Train as `rank`, meet the others in `folder`, and leave `<host>_<pid>.<time>.pt.trace.json` there."""
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    # A file to meet at, and not a port: nobody can take it before the ranks do.
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=job.world_size)
    register_device_operators(device_seconds(plan, job, rank))
    host = Host(plan, job, rank)
    compiles = plan.fault == "recompilation"
    layers = nn.Sequential(*(Layer(index, host, compiles=compiles) for index in range(job.layers)))
    # fused: one operator in the trace, where the default writes eight for each parameter.
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3, momentum=0.9, fused=True)
    with recording(plan.steps, folder, job.host_name(rank)) as profiler:
        train(parallel(layers, host, job), optimizer, batches(plan, job, rank), host, profiler)
    if compiles and rank in plan.ranks:
        Path(folder, COMPILED).write_text(repr(host.compiled_s), encoding="utf-8")
    dist.destroy_process_group()


def batches(plan: FaultPlan, job: Job, rank: int) -> DataLoader[Tensor]:
    """A batch for each step; the stages of one pipeline get the same."""
    samples = Samples(plan.steps.stop * job.batch * job.replicas, fetch_s(plan, job, rank))
    replica = rank % job.replicas
    sampler: DistributedSampler[Tensor] = DistributedSampler(samples, job.replicas, replica, seed=plan.seed)
    return DataLoader(samples, job.batch, sampler=sampler)


def recording(steps: range, folder: str, host_name: str) -> profile:
    """A profiler that writes `steps`, the N of ProfilerStep#N."""
    return profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=steps.start - WARMUP_STEPS, warmup=WARMUP_STEPS, active=len(steps), repeat=1),
        on_trace_ready=tensorboard_trace_handler(folder, f"{host_name}_{os.getpid()}"),
        record_shapes=True,
    )


def train(
    forward_backward: ForwardBackward,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Tensor],
    host: Host,
    profiler: profile,
) -> None:
    """Pass once over `loader`; each batch is a step."""
    for step, batch in enumerate(loader):
        host.begin_step(step)
        forward_backward(torch.cat([batch, batch[:1].expand(host.more_samples(step), -1)]))
        host.between_operators()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
