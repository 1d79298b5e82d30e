"""A language model of characters: DDP, AdamW, accumulated gradients, clipping."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from written.script import Hooks, Script

LETTERS, HEADS = 96, 4


class SelfAttention(nn.Module):
    def __init__(self, width: int, length: int, fused: bool) -> None:
        super().__init__()
        self.into, self.out, self.fused = nn.Linear(width, 3 * width), nn.Linear(width, width), fused
        self.register_buffer("seen", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.into(x).chunk(3, -1))
        if self.fused:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            fits = (query @ key.transpose(-2, -1)) / math.sqrt(key.shape[-1])
            mixed = functional.softmax(fits.masked_fill(self.seen == 0, float("-inf")), dim=-1) @ value
        out: Tensor = self.out(mixed.transpose(1, 2).contiguous().flatten(-2))
        return out


class Block(nn.Module):
    def __init__(self, hooks: Hooks, width: int, length: int, fused: bool) -> None:
        super().__init__()
        self.hooks = hooks
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = SelfAttention(width, length, fused)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.hooks.hidden(x + self.attention(self.norms[0](x)))
        out: Tensor = x + self.feed(self.norms[1](x))
        return out


class Characters(nn.Module):
    def __init__(self, hooks: Hooks, options: dict[str, Any]) -> None:
        super().__init__()
        width, length = options["width"], options["length"]
        self.letters, self.places = nn.Embedding(LETTERS, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            Block(hooks, width, length, options["fused_attention"]) for _ in range(options["layers"])
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, LETTERS, bias=False)

    def forward(self, text: Tensor, target: Tensor) -> Tensor:
        x = self.letters(text) + self.places(torch.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), target.flatten())


def build(options: dict[str, Any], rank: int, _ranks: int, hooks: Hooks) -> Script:
    text = np.random.default_rng(rank).integers(LETTERS, size=200_000).astype(np.uint16)
    model = DistributedDataParallel(Characters(hooks, options), bucket_cap_mb=options["bucket_mb"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    length, passes = options["length"], options["accumulate"]

    def read() -> tuple[Tensor, Tensor]:
        begins = torch.randint(len(text) - length - 1, (hooks.batch(options["batch"]),)).tolist()
        pieces = [torch.from_numpy(text[at : at + length + 1].astype(np.int64)) for at in begins]
        return torch.stack([piece[:-1] for piece in pieces]), torch.stack([piece[1:] for piece in pieces])

    def step() -> None:
        hooks.fetched()
        for number in range(passes):
            words, target = read()
            with model.no_sync() if number < passes - 1 else nullcontext():
                if number == 0:
                    hooks.between("forward")
                with hooks.named("forward"):
                    loss = model(words, target) / passes
                if number == 0:
                    hooks.between("backward")
                with hooks.named("backward"):
                    loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        hooks.between("optimizer")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Script(step, list(model.parameters()))
