"""Data parallel by hand: no DDP, gradients in one piece, in four ways."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from written.script import Hooks, Script

CLASSES, EXAMPLES, KEPT, RATE = 10, 4096, 0.9, 0.01


def build(options: dict[str, Any], rank: int, ranks: int, hooks: Hooks) -> Script:
    inputs, hidden, layers, mode = (options[name] for name in ("inputs", "hidden", "layers", "mode"))
    widths = [inputs, *[hidden] * (layers - 1), CLASSES]
    weights = [nn.Parameter(0.05 * torch.randn(wide, wider)) for wide, wider in pairwise(widths)]
    biases = [nn.Parameter(torch.zeros(wide)) for wide in widths[1:]]
    parameters = weights + biases
    count = sum(one.numel() for one in parameters)
    part = -(-count // ranks)
    momentum = torch.zeros(part if mode == "sharded" else count)
    source = torch.Generator().manual_seed(rank)
    pool = torch.randn(EXAMPLES, inputs, generator=source), torch.randint(CLASSES, (EXAMPLES,), generator=source)

    def forward(x: Tensor) -> Tensor:
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            x = x @ weight + bias
            if number < layers - 1:
                x = hooks.hidden(torch.tanh(x))
        return x

    def averaged(gradient: Tensor) -> Tensor:
        if mode == "all_gather":
            parts = [torch.empty_like(gradient) for _ in range(ranks)]
            dist.all_gather(parts, gradient)
            return torch.stack(parts).mean(0)
        if mode == "per_tensor":
            for reduction in [dist.all_reduce(one.grad, async_op=True) for one in parameters]:
                reduction.wait()
            return torch.cat([one.grad.view(-1) for one in parameters if one.grad is not None]) / ranks
        dist.all_reduce(gradient)
        return gradient / ranks

    def change(gradient: Tensor) -> Tensor:
        if mode != "sharded":
            return momentum.mul_(KEPT).add_(averaged(gradient))
        padded = functional.pad(gradient, (0, part * ranks - count))
        mine, whole = torch.empty(part), torch.empty(part * ranks)
        dist.reduce_scatter(mine, list(padded.chunk(ranks)))
        dist.all_gather_into_tensor(whole, momentum.mul_(KEPT).add_(mine / ranks))
        return whole[:count]

    def step() -> None:
        chosen = torch.randint(EXAMPLES, (hooks.batch(options["batch"]),))
        x, y = pool[0][chosen], pool[1][chosen]
        hooks.fetched()
        x = x + 0.01 * torch.randn_like(x)
        hooks.between("forward")
        with hooks.named("fwd"):
            loss = functional.cross_entropy(forward(x), y)
        hooks.between("backward")
        with hooks.named("bwd"):
            loss.backward()
        hooks.between("optimizer")
        with hooks.named("sync"), torch.no_grad():
            gradient = torch.cat([one.grad.view(-1) for one in parameters if one.grad is not None])
            sizes = [one.numel() for one in parameters]
            for one, moved in zip(parameters, change(gradient).split(sizes), strict=True):
                one.sub_(moved.view_as(one), alpha=RATE)
                one.grad = None

    return Script(step, parameters)
