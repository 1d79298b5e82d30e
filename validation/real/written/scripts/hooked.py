"""DDP with a hook of its own, norms over all ranks, validation, and checkpoints by the first rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from written.script import Hooks, Script
from written.transformer import (
    Checkpoints,
    Language,
    SynchronisedNorm,
    entropy,
    forward_backward,
    reader,
    texts,
    update,
)


def clipped(ranks, bucket):  # noqa: ANN001, ANN201 -- DDP refuses annotations that are strings, as all are here
    """Each bucket clipped, then averaged."""
    gradient = bucket.buffer()
    gradient.mul_(torch.clamp(1.0 / (gradient.norm() + 1e-6), max=1.0) / ranks)
    reduction = dist.all_reduce(gradient, async_op=True).get_future()
    return reduction.then(lambda done: done.value()[0])


HOOKS = {"fp16": default_hooks.fp16_compress_hook, "allreduce": default_hooks.allreduce_hook}


def build(options: dict[str, Any], rank: int, ranks: int, hooks: Hooks) -> Script:
    width, layers, validates = options["width"], options["layers"], options["validates"]
    norm = SynchronisedNorm if options["synchronised_norm"] else nn.LayerNorm
    language = Language(hooks, width, layers, norm)
    # Where one rank validates alone its model may not wait for others.
    validated = Language(hooks, width, layers) if validates == "first" else language
    model = DistributedDataParallel(
        language,
        static_graph=options["static_graph"],
        gradient_as_bucket_view=options["as_bucket_view"],
        bucket_cap_mb=1,
    )
    if options["hook"] == "clip":
        model.register_comm_hook(ranks, clipped)
    elif options["hook"]:
        model.register_comm_hook(None, HOOKS[options["hook"]])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    read, source = reader(options, rank, hooks), torch.Generator().manual_seed(rank)
    checkpoints, steps = Checkpoints(rank, options["checkpoint_every"], hooks), 0

    def validate() -> None:
        with torch.no_grad(), hooks.named("validate"):
            for _ in range(options["validate_batches"]):
                words, target = texts(options["batch"], options["length"], source)
                entropy(validated(words), target).item()

    def step() -> None:
        nonlocal steps
        forward_backward(model, read, hooks)
        update(optimizer, hooks)
        steps += 1
        if steps % options["validate_every"] == 0 and (validates == "all" or (validates == "first" and rank == 0)):
            validate()
        checkpoints.after(model=language, optimizer=optimizer)

    return Script(step, list(model.parameters()))
