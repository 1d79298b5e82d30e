"""Words tagged by an LSTM or GRU: sequences of many lengths, packed; DDP, Adam, a rate that falls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from written.script import Hooks, Script

WORDS, TAGS = 2000, 20


class Tagger(nn.Module):
    def __init__(self, hooks: Hooks, options: dict[str, Any]) -> None:
        super().__init__()
        self.hooks, self.embedding, self.drop = (
            hooks,
            nn.Embedding(WORDS, options["width"], padding_idx=0),
            nn.Dropout(0.1),
        )
        cell = nn.LSTM if options["cell"] == "lstm" else nn.GRU
        both = options["both_ways"]
        self.cells = cell(options["width"], options["hidden"], options["layers"], batch_first=True, bidirectional=both)
        self.out = nn.Linear(options["hidden"] * (2 if both else 1), TAGS)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        x = self.hooks.hidden(self.drop(self.embedding(words)))
        packed, _ = self.cells(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        x, _ = pad_packed_sequence(packed, batch_first=True)
        out: Tensor = self.out(self.hooks.hidden(x))
        return out


def build(options: dict[str, Any], rank: int, _ranks: int, hooks: Hooks) -> Script:
    model = DistributedDataParallel(Tagger(hooks, options))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    source = torch.Generator().manual_seed(rank)

    def read() -> tuple[Tensor, Tensor, Tensor]:
        examples, shortest, longest = hooks.batch(options["batch"]), options["shortest"], options["longest"]
        lengths = torch.randint(shortest, longest + 1, (examples,), generator=source)
        sentences = [torch.randint(1, WORDS, (int(length),), generator=source) for length in lengths]
        hooks.fetched()
        tags = [sentence % TAGS for sentence in sentences]
        return (
            pad_sequence(sentences, batch_first=True),
            lengths,
            pad_sequence(tags, batch_first=True, padding_value=-1),
        )

    def step() -> None:
        words, lengths, tags = read()
        optimizer.zero_grad(set_to_none=True)
        hooks.between("forward")
        with hooks.named("forward"):
            logits = model(words, lengths)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-1)
        hooks.between("backward")
        with hooks.named("backward"):
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        hooks.between("optimizer")
        with hooks.named("optimizer"):
            optimizer.step()
        rate.step()
        if options["logs"]:
            loss.item()

    return Script(step, list(model.parameters()))
