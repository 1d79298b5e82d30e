"""A mixture of experts, one a rank: words go where they belong by all to all, to some ranks more than to others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from written.exchange import Exchange, counts
from written.script import Hooks, Script
from written.transformer import WORDS, Attention, FeedForward, average, entropy, gradients, reader, update


def build(options: dict[str, Any], rank: int, ranks: int, hooks: Hooks) -> Script:
    width, layers = options["width"], options["layers"]
    embedding, head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
    attentions = nn.ModuleList(Attention(width) for _ in range(layers))
    experts = nn.ModuleList(FeedForward(width) for _ in range(layers))
    everywhere = [*embedding.parameters(), *attentions.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW([*everywhere, *experts.parameters()], 1e-4)
    read, source = reader(options, rank, hooks), torch.Generator().manual_seed(rank)
    # The same on all ranks, and other in every layer and step.
    popularity = np.random.default_rng(0)

    def asked(x: Tensor, expert: nn.Module) -> Tensor:
        words = x.flatten(0, 1)
        shares = torch.tensor(popularity.dirichlet([10.0 / options["skew"]] * ranks), dtype=torch.float)
        target = torch.multinomial(shares, len(words), replacement=True, generator=source)
        order = target.argsort()
        sent = torch.bincount(target, minlength=ranks)
        received = counts(sent)
        here = Exchange.apply(words[order], received, sent.tolist())  # type: ignore[no-untyped-call]  # torch has no types for it
        known = expert(here) if len(here) else here
        back = Exchange.apply(known, sent.tolist(), received)  # type: ignore[no-untyped-call]  # torch has no types for it
        out: Tensor = back[order.argsort()].view_as(x)
        return out

    def step() -> None:
        words, target = read()
        hooks.between("forward")
        with hooks.named("forward"):
            x = embedding(words)
            for attention, expert in zip(attentions, experts, strict=True):
                x = hooks.hidden(x + attention(x))
                x = x + asked(x, expert)
            loss = entropy(head(x), target)
        hooks.between("backward")
        with hooks.named("backward"):
            loss.backward()
        with hooks.named("grad_sync"):
            average(gradients(everywhere))
        update(optimizer, hooks)

    return Script(step, [*everywhere, *experts.parameters()])
