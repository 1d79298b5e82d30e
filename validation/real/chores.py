"""What real loops let rank 0 do at a step's end: save, evaluate, log. A job is healthy with it where it costs little.

`drawing.draw_chores` draws such takes, and `job.py` does the chores after the optimizer's step. Each is real work at
least once, whatever it costs, and as often as its drawn size takes; what it cost is measured as of other faults.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable

import torch
from drawing import Fault
from torch import Tensor, nn

Chore = Callable[[], object]


def chore(fault: Fault, lost_ns: float, model: nn.Module, batch: Tensor) -> Chore:
    """Return what the loop does in a step of the chore, as often as takes about `lost_ns`, but at least once."""
    weights = [weight.detach() for weight in model.parameters()]
    chores: dict[str, Callable[[int], object]] = {
        "checkpointing": lambda times: save(weights, times),
        "evaluating": lambda times: evaluate(model, batch, times),
        "logging": lambda times: log(weights, times),
    }
    once = chores[fault.kind]
    once(1)
    begin = time.monotonic_ns()
    once(1)
    times = max(1, round(lost_ns / max(time.monotonic_ns() - begin, 1000)))
    return lambda: once(times)


def save(weights: list[Tensor], times: int) -> None:
    """Save the weights and as many copies of them, as a mean of weights or moments would be, onto the disk."""
    state = {f"{copy}.{index}": weight.clone() for copy in range(times) for index, weight in enumerate(weights)}
    with tempfile.TemporaryFile() as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def evaluate(model: nn.Module, batch: Tensor, times: int) -> float:
    """Compute the loss of so many batches."""
    model.eval()
    with torch.no_grad():
        losses = [float(model(batch).square().mean().item()) for _ in range(times)]
    model.train()
    return sum(losses) / times


def log(weights: list[Tensor], times: int) -> None:
    """Write a line of so many figures, each a norm of some weights."""
    figures = {f"norm/{at}": float(torch.linalg.vector_norm(weights[at % len(weights)])) for at in range(times)}
    with tempfile.TemporaryFile("w", encoding="utf-8") as file:
        print(json.dumps({"time": time.time()} | figures), file=file, flush=True)
