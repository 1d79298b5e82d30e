"""A language model whose layers are split over ranks (tensor parallel), in two dimensions where ranks are left."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from written.script import Hooks, Script
from written.transformer import HEAD, Language, average, forward_backward, gradients, reader, update


def build(options: dict[str, Any], rank: int, ranks: int, hooks: Hooks) -> Script:
    over, width = options["over"], options["width"]
    mesh = init_device_mesh("cpu", (ranks // over, over), mesh_dim_names=("dp", "tp"))
    heads = HEAD * over * max(1, round(width / HEAD / over))
    model = Language(hooks, width, options["layers"], heads=heads, inner=over * max(1, 4 * width // over))
    columns = ("attention.query", "attention.key", "attention.value", "feed.up")
    plan = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel() for name in ("attention.out", "feed.down")}
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], plan)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-4, foreach=False)
    # The ranks that share layers train on the same words.
    read = reader(options, rank // over, hooks)

    def step() -> None:
        forward_backward(model, read, hooks)
        if ranks > over:
            with hooks.named("grad_sync"):
                average(gradients(parameters), mesh.get_group("dp"))
        update(optimizer, hooks)

    return Script(step, parameters)
