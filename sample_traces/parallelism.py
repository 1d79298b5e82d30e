"""How the ranks of a job train together: the forward and backward pass of one of them, gradients averaged."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from job import MICROBATCHES, Job
from model import WIDTH, Host
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

# Room for two weights, a layer's: an all-reduce for every layer, all but the last during the backward pass.
BUCKET_MB = 0.03

ForwardBackward = Callable[[Tensor], None]


def parallel(layers: nn.Module, host: Host, job: Job) -> ForwardBackward:
    """What a rank of the job does with a batch, up to the optimizer."""
    if job.stages > 1:
        return pipelined(layers, host, job)
    return across_hosts(layers, host, job) if job.hosts > 1 else data_parallel(layers, host)


def data_parallel(layers: nn.Module, host: Host, group: dist.ProcessGroup | None = None) -> ForwardBackward:
    """Gradients are averaged over `group`, or over all ranks."""
    model = distributed(layers, group)

    def forward_backward(batch: Tensor) -> None:
        loss = nn.functional.mse_loss(model(batch), batch)
        host.between_operators()
        loss.backward()

    return forward_backward


def across_hosts(layers: nn.Module, host: Host, job: Job) -> ForwardBackward:
    """Gradients are averaged on each host during the backward pass, then summed over the hosts.

    Every rank of a host takes part in both, in the second with its counterparts on the other hosts.
    """
    mesh = init_device_mesh("cpu", (job.hosts, job.ranks_per_host), mesh_dim_names=("across_hosts", "on_host"))
    on_host, counterparts = data_parallel(layers, host, mesh.get_group("on_host")), mesh.get_group("across_hosts")

    def forward_backward(batch: Tensor) -> None:
        on_host(batch)
        gradients = [weight.grad for weight in layers.parameters() if weight.grad is not None]
        reductions = [dist.all_reduce(gradient, group=counterparts, async_op=True) for gradient in gradients]
        for reduction in reductions:
            reduction.wait()

    return forward_backward


def pipelined(layers: nn.Module, host: Host, job: Job) -> ForwardBackward:
    """The layers are a stage of a pipeline; gradients are averaged over the stage's ranks."""
    mesh = init_device_mesh("cpu", (job.stages, job.replicas), mesh_dim_names=("pp", "dp"))
    number, last = mesh.get_local_rank("pp"), job.stages - 1
    # What stages pass on to one another; stated, since the device operators cannot run without data to find it out.
    activations = torch.empty(job.batch // job.passes, WIDTH, requires_grad=True)
    stage = PipelineStage(
        distributed(layers, mesh.get_group("dp")),
        number,
        job.stages,
        torch.device("cpu"),
        input_args=activations,
        output_args=activations,
        group=mesh.get_group("pp"),
    )
    pipeline = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)

    def forward_backward(batch: Tensor) -> None:
        inputs = (batch,) if number == 0 else ()
        pipeline.step(*inputs, target=batch if number == last else None)
        host.between_operators()

    return forward_backward


def distributed(layers: nn.Module, group: dist.ProcessGroup | None) -> DistributedDataParallel:
    """Average the layers' gradients over `group` in their backward pass."""
    return DistributedDataParallel(layers, process_group=group, bucket_cap_mb=BUCKET_MB)
