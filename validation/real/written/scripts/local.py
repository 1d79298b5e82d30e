"""Local SGD: every rank for itself, and every few steps the weights are averaged; a checkpoint by the first rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from written.script import Hooks, Script
from written.transformer import Checkpoints, Language, average, forward_backward, reader, update


def build(options: dict[str, Any], rank: int, ranks: int, hooks: Hooks) -> Script:
    model = Language(hooks, options["width"], options["layers"])
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, 1e-2, momentum=0.9)
    read, checkpoints = reader(options, rank, hooks), Checkpoints(rank, options["checkpoint_every"], hooks)
    steps = 0

    def step() -> None:
        nonlocal steps
        forward_backward(model, read, hooks)
        update(optimizer, hooks)
        steps += 1
        if steps % options["every"] == 0:
            with torch.no_grad(), hooks.named("average"):
                if options["flat"]:
                    average([one.data for one in parameters])
                else:
                    for one in parameters:
                        dist.all_reduce(one.data)
                        one.data /= ranks
        checkpoints.after(model=model, optimizer=optimizer)

    return Script(step, parameters)
