"""Gradients averaged one by one by hand, with metrics, checkpoints and a barrier as scripts have them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from written.script import Hooks, Script
from written.transformer import Checkpoints, Language, forward_backward, reader, update


def build(options: dict[str, Any], rank: int, ranks: int, hooks: Hooks) -> Script:
    model = Language(hooks, options["width"], options["layers"])
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-4)
    read, checkpoints = reader(options, rank, hooks), Checkpoints(rank, options["checkpoint_every"], hooks)
    steps = 0

    def tell(loss: torch.Tensor) -> None:
        if options["metrics"] == "reduce":
            dist.reduce(loss.detach().clone(), 0)
        elif options["metrics"] and steps % 3 == 0:
            dist.all_gather_object([None] * ranks, {"loss": float(loss)})

    def step() -> None:
        nonlocal steps
        loss = forward_backward(model, read, hooks)
        with hooks.named("grad_sync"):
            if options["asynchronous"]:
                for reduction in [dist.all_reduce(one.grad, async_op=True) for one in parameters]:
                    reduction.wait()
            else:
                for one in parameters:
                    dist.all_reduce(one.grad)
            for one in parameters:
                one.grad /= ranks
        update(optimizer, hooks)
        steps += 1
        tell(loss)
        checkpoints.after(model=model, optimizer=optimizer)
        if options["barrier"]:
            dist.barrier()

    return Script(step, parameters)
