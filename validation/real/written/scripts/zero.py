"""DDP with the optimizer's state spread over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from written.script import Hooks, Script
from written.transformer import Language, forward_backward, reader, update


def build(options: dict[str, Any], rank: int, _ranks: int, hooks: Hooks) -> Script:
    language = Language(hooks, options["width"], options["layers"])
    model = DistributedDataParallel(language, gradient_as_bucket_view=options["as_bucket_view"])
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    read = reader(options, rank, hooks)

    def step() -> None:
        forward_backward(model, read, hooks)
        update(optimizer, hooks)

    return Script(step, list(model.parameters()))
