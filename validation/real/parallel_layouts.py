"""How the ranks of a take train together: what one of them does with a batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from drawing import MICROBATCHES, Take
from models import example_input, hidden_shape, make_block
from on_gpu.gpu_drawing import GpuTake
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

Between = Callable[[str], None]
Precision = Callable[[], AbstractContextManager[object]]
"""The context that a rank's forward pass runs in: of the precision that it computes with."""


@dataclass
class Program:
    """A rank's part of the job: `step(batch)` is forward and backward, `parameters` what is optimized.

    `spare` is a block as the rank's own are, outside of the job, and `spare_input` what it takes.
    """

    step: Callable[[Tensor], None]
    parameters: list[nn.Parameter]
    spare: nn.Module
    spare_input: Tensor
    block_calls: int


class Hooked(nn.Module):
    """A block, and before it whatever a fault does between operators."""

    def __init__(self, block: nn.Module, between: Between) -> None:
        super().__init__()
        self.block, self.between = block, between

    def forward(self, x: Tensor) -> Tensor:
        self.between("blocks")
        out: Tensor = self.block(x)
        return out


def build(take: Take, rank: int, between: Between, precision: Precision) -> Program:
    """The program of `rank`; `between(place)` is called at each place that a fault can be at, and "reduced"."""
    stage = rank // (take.ranks // 2) if take.parallel == "pipeline" else 0
    indices = range(stage * take.blocks, (stage + 1) * take.blocks)
    blocks: list[nn.Module] = [make_block(take, index).to(take.device) for index in indices]
    if isinstance(take, GpuTake) and take.graphs:
        blocks = captured(take, blocks)
    if not take.compile:
        blocks = [Hooked(block, between) for block in blocks]
    layers = nn.Sequential(*blocks)
    calls = take.blocks * (MICROBATCHES if take.parallel == "pipeline" else 1)
    pipeline = staged if isinstance(take, GpuTake) else pipelined
    step = {"ddp": data_parallel, "fsdp2": sharded, "pipeline": pipeline, "two_groups": tensor_parallel}[take.parallel]
    stepping = step(take, layers, between, precision)
    spare_input = torch.randn(take.examples, *hidden_shape(take), device=take.device)
    return Program(stepping, list(layers.parameters()), make_block(take, 1).to(take.device), spare_input, calls)


def captured(take: GpuTake, blocks: list[nn.Module]) -> list[nn.Module]:
    """Each block as two CUDA graphs, one forward and one backward."""
    if take.device == "cpu":
        return blocks
    first, hidden = example_input(take, take.examples), torch.randn(take.examples, *hidden_shape(take), device="cuda")
    samples = [(first if index == 0 else hidden.clone().requires_grad_(),) for index in range(len(blocks))]
    return list(torch.cuda.make_graphed_callables(tuple(blocks), tuple(samples)))


def backward(output: Tensor, between: Between) -> None:
    loss = output.square().mean()
    between("backward")
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
    between("reduced")


def data_parallel(take: Take, layers: nn.Module, between: Between, precision: Precision) -> Callable[[Tensor], None]:
    """Gradients averaged over all ranks in buckets."""
    if take.compile:
        layers = compiled_in_turn(take, layers)
    model = DistributedDataParallel(layers, bucket_cap_mb=take.bucket_mb)

    def step(batch: Tensor) -> None:
        between("forward")
        with precision():
            output = model(batch)
        backward(output, between)

    return step


def compiled_in_turn(take: Take, layers: nn.Module) -> nn.Module:
    """The compiled layers; one rank compiles, and the others find its kernels in the cache."""
    compiled: Any = torch.compile(layers)
    if dist.get_rank() != 0:
        dist.barrier()
    compiled(example_input(take, take.examples)).square().mean().backward()
    layers.zero_grad()
    if dist.get_rank() == 0:
        dist.barrier()
    model: nn.Module = compiled
    return model


def sharded(take: Take, layers: nn.Module, between: Between, precision: Precision) -> Callable[[Tensor], None]:
    """Weights gathered block by block, gradients scattered (FSDP2)."""
    mesh = init_device_mesh(take.device, (dist.get_world_size(),))
    for block in layers.children():
        fully_shard(block, mesh=mesh)
    fully_shard(layers, mesh=mesh)

    def step(batch: Tensor) -> None:
        between("forward")
        with precision():
            output = layers(batch)
        backward(output, between)

    return step


def pipelined(take: Take, layers: nn.Module, between: Between, _precision: Precision) -> Callable[[Tensor], None]:
    """Two stages, each of half the ranks, which average their gradients."""
    mesh = init_device_mesh("cpu", (2, take.ranks // 2), mesh_dim_names=("pp", "dp"))
    number, examples = mesh.get_local_rank("pp"), take.examples // MICROBATCHES
    hidden = torch.empty(examples, *hidden_shape(take), requires_grad=True)
    stage = PipelineStage(
        DistributedDataParallel(layers, process_group=mesh.get_group("dp"), bucket_cap_mb=take.bucket_mb),
        number,
        2,
        torch.device("cpu"),
        input_args=example_input(take, examples) if number == 0 else hidden,
        output_args=hidden,
        group=mesh.get_group("pp"),
    )
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=lambda output, _target: output.square().mean())
    target = torch.zeros(take.examples)

    def step(batch: Tensor) -> None:
        between("forward")
        if number == 0:
            schedule.step(batch)
        else:
            schedule.step(target=target)

    return step


def tensor_parallel(
    take: Take, layers: nn.Sequential, between: Between, _precision: Precision
) -> Callable[[Tensor], None]:
    """Pairs of ranks add up what each block gives, and counterparts average the gradients."""
    mesh = init_device_mesh(take.device, (take.ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    pair, counterparts = mesh.get_group("tp"), mesh.get_group("dp")
    parameters = list(layers.parameters())

    def step(batch: Tensor) -> None:
        between("forward")
        x = batch
        for block in layers:
            x = Added.apply(block(Shared.apply(x, pair) if x.requires_grad else x), pair)  # type: ignore[no-untyped-call]  # torch has no types for it
        backward(x, between)
        gradients = [weight.grad for weight in parameters if weight.grad is not None]
        average(gradients, counterparts, take.ranks // 2)

    return step


def staged(take: Take, layers: nn.Module, between: Between, _precision: Precision) -> Callable[[Tensor], None]:
    """Two stages, each of half the ranks, whose tensors pass through the host: gloo sends none of a GPU's.

    All microbatches go forward, then all backward.
    """
    stages = take.ranks // 2
    mesh = init_device_mesh("cpu", (2, stages), mesh_dim_names=("pp", "dp"))
    rank, counterparts = dist.get_rank(), mesh.get_group("dp")
    first, other, parameters = rank < stages, (rank + stages) % take.ranks, list(layers.parameters())
    hidden = torch.empty(take.examples // MICROBATCHES, *hidden_shape(take))

    def received() -> Tensor:
        dist.recv(hidden, other)
        return hidden.to(take.device)

    def step(batch: Tensor) -> None:
        between("forward")
        outputs, inputs = [], []
        for part in batch.chunk(MICROBATCHES):
            inputs.append(part if first else received().requires_grad_())
            outputs.append(layers(inputs[-1]))
            if first:
                dist.send(outputs[-1].detach().cpu(), other)
        between("backward")
        for x, output in zip(inputs, outputs, strict=True):
            if first:
                output.backward(received())
            else:
                output.square().mean().backward()
                assert x.grad is not None
                dist.send(x.grad.cpu(), other)
        average([weight.grad for weight in parameters if weight.grad is not None], counterparts, stages)

    return step


def average(gradients: list[Tensor], group: dist.ProcessGroup, ranks: int) -> None:
    """All gradients averaged over the group at once."""
    for reduction in [dist.all_reduce(gradient, group=group, async_op=True) for gradient in gradients]:
        reduction.wait()
    torch._foreach_div_(gradients, ranks)


# What autograd passes as ctx has no public type.
class Added(torch.autograd.Function):
    """The mean over the pair, going forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pair: dist.ProcessGroup) -> Tensor:  # noqa: ANN401, ARG004 -- as torch calls it
        x = x / 2
        dist.all_reduce(x, group=pair)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401, ARG004 -- as torch calls it
        return gradient / 2, None


class Shared(torch.autograd.Function):
    """The sum over the pair, going backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pair: dist.ProcessGroup) -> Tensor:  # noqa: ANN401 -- as torch calls it
        ctx.pair = pair
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 -- as torch calls it
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.pair)
        return gradient, None
