"""Rows sent from each rank to each, going forward and back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Exchange(torch.autograd.Function):
    """`sent` and `received`: how many rows go to each rank, and come from it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, received: list[int], sent: list[int]) -> Tensor:  # noqa: ANN401 -- as torch calls it
        ctx.sizes = received, sent
        return exchanged(x, received, sent)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401 -- as torch calls it
        received, sent = ctx.sizes
        return exchanged(gradient, sent, received), None, None


def exchanged(x: Tensor, received: list[int], sent: list[int]) -> Tensor:
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), received, sent)
    return out


def counts(sent: Tensor) -> list[int]:
    """How many rows come from each rank, of how many go to each."""
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return received.tolist()
