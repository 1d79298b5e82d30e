"""Recommendations: tables of embeddings spread over ranks, exchanged by all to all; the rest data parallel by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from written.exchange import Exchange, counts, exchanged
from written.script import Hooks, Script
from written.transformer import average, gradients

NUMBERS = 13


class Dense(nn.Module):
    """What is made of the numbers and all tables' rows, each with each."""

    def __init__(self, hooks: Hooks, tables: int, width: int, hidden: int) -> None:
        super().__init__()
        self.hooks = hooks
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, hidden), nn.ReLU(), nn.Linear(hidden, width), nn.ReLU())
        pairs = torch.triu_indices(tables + 1, tables + 1, 1)
        self.register_buffer("pairs", pairs)
        wide = width + pairs.shape[1]
        self.top = nn.Sequential(
            nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, numbers: Tensor, rows: Tensor) -> Tensor:
        x = self.hooks.hidden(self.bottom(numbers))
        every = torch.cat([x.unsqueeze(1), rows], 1)
        products = torch.bmm(every, every.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        out: Tensor = self.top(torch.cat([x, products], 1)).squeeze(1)
        return out


def build(options: dict[str, Any], _rank: int, ranks: int, hooks: Hooks) -> Script:
    width, bag, count = options["width"], options["bag"], options["tables"]
    tables = nn.ModuleList(nn.EmbeddingBag(options["rows"], width, mode="sum", sparse=True) for _ in range(count))
    dense = Dense(hooks, count * ranks, width, options["hidden"])
    of_dense = torch.optim.Adagrad(dense.parameters(), lr=0.01)
    of_tables = torch.optim.SGD(tables.parameters(), lr=0.1)

    def read() -> tuple[Tensor, Tensor, Tensor]:
        """Numbers, each table's words by the rank that has the table, and what was clicked."""
        examples = hooks.batch(options["batch"])
        numbers = torch.rand(examples, NUMBERS).log1p()
        words = torch.randint(options["rows"], (ranks, examples, count, bag))
        hooks.fetched()
        return numbers, words, (torch.rand(examples) < 0.2).float()

    def looked_up(words: Tensor) -> Tensor:
        """Of the ranks that have the tables."""
        examples = words.shape[1]
        sent = [examples] * ranks
        received = counts(torch.tensor(sent))
        asked = exchanged(words.view(ranks * examples, count, bag), received, sent)
        found = torch.stack([table(asked[:, number]) for number, table in enumerate(tables)], 1)
        back = Exchange.apply(found, sent, received)  # type: ignore[no-untyped-call]  # torch has no types for it
        rows: Tensor = back.view(ranks, examples, count, width).transpose(0, 1).reshape(examples, -1, width)
        return rows

    def replicated(words: Tensor) -> Tensor:
        """Of tables that every rank has; only their mean is told to all."""
        of_tables = [table(words[owner, :, number]) for owner in range(ranks) for number, table in enumerate(tables)]
        rows = torch.stack(of_tables, 1)
        mean = rows.detach().mean((0, 1))
        means = [torch.empty_like(mean) for _ in range(ranks)]
        dist.all_gather(means, mean)
        return rows - 0.01 * torch.stack(means).mean(0)

    def step() -> None:
        with hooks.named("data"):
            numbers, words, clicked = read()
        hooks.between("forward")
        with hooks.named("embedding_exchange"):
            rows = looked_up(words) if options["exchange"] == "all_to_all" else replicated(words)
        loss = functional.binary_cross_entropy_with_logits(dense(numbers, rows), clicked)
        hooks.between("backward")
        of_dense.zero_grad()
        of_tables.zero_grad()
        loss.backward()
        average(gradients(list(dense.parameters())))
        hooks.between("optimizer")
        of_dense.step()
        of_tables.step()
        loss.item()

    return Script(step, [*dense.parameters(), *tables.parameters()])
