"""Long sequences over ranks: keys and values travel round a ring, each rank with its part of the sequence."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from written.script import Hooks, Script
from written.transformer import WORDS, FeedForward, entropy, reader, update


def build(options: dict[str, Any], rank: int, ranks: int, hooks: Hooks) -> Script:
    width, layers = options["width"], options["layers"]
    model = nn.ModuleDict(
        {
            "embedding": nn.Embedding(WORDS, width),
            "into": nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers)),
            "feed": nn.ModuleList(FeedForward(width) for _ in range(layers)),
            "head": nn.Linear(width, WORDS),
        }
    )
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-4)
    read = reader(options, rank, hooks)

    def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Of the rank's own part, and of the others' as they come by."""
        out, here = functional.scaled_dot_product_attention(query, key, value), torch.stack([key, value]).detach()
        for _ in range(ranks - 1):
            coming = torch.empty_like(here)
            for work in (dist.isend(here, (rank + 1) % ranks), dist.irecv(coming, (rank - 1) % ranks)):
                work.wait()
            out, here = out + functional.scaled_dot_product_attention(query, coming[0], coming[1]), coming
        return out / ranks

    def step() -> None:
        words, target = read()
        hooks.between("forward")
        with hooks.named("forward"):
            x = model["embedding"](words)
            for into, feed in zip(model["into"], model["feed"], strict=True):
                x = x + attended(*into(x).chunk(3, -1))
                x = hooks.hidden(x + feed(x))
            loss = entropy(model["head"](x), target)
        hooks.between("backward")
        with hooks.named("backward"):
            loss.backward()
        for one in parameters:
            dist.all_reduce(one.grad)
            one.grad /= ranks
        update(optimizer, hooks)

    return Script(step, parameters)
