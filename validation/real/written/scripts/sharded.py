"""FSDP2, with or without clipped gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from written.script import Hooks, Script
from written.transformer import Language, forward_backward, reader, update


def build(options: dict[str, Any], rank: int, ranks: int, hooks: Hooks) -> Script:
    model = Language(hooks, options["width"], options["layers"])
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=options["reshard"])
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    read = reader(options, rank, hooks)

    def step() -> None:
        forward_backward(model, read, hooks)
        if options["clip"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update(optimizer, hooks)

    return Script(step, list(model.parameters()))
