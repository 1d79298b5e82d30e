"""A deadline on the batches of a step: whoever computes longer leaves the rest for later steps.

Gradients were weighed for all of the step's samples. Once the ranks know how many each has done they multiply them by
all over done, so that they are those of the mean over what was done (after DropCompute, which drops the rest).
"""

import time
from collections.abc import Sequence
from typing import Any

import torch

FEWER = 0.9
"""While a step trains this share of its samples its learning rate stays."""
_EASED = 0.9
"""A rank that never times a batch, since its first is its last, expects it to take this much less from step to step."""


class Pace:
    """When a rank has to leave off, by how long its batches take."""

    def __init__(self) -> None:
        self._batch_s = 0.0
        self._begun = 0.0

    def is_last(self, at: int, deadline_us: int) -> bool:
        """Whether the batch that begins now, the `at`-th of the step from 0 on, leaves no time for another.

        The first one is always done, so that every step goes on.
        """
        now = time.perf_counter()
        if at == 0:
            self._begun = now
            self._batch_s *= _EASED
        else:
            self._batch_s = (now - self._begun) / at
        return now - self._begun + 2 * self._batch_s > deadline_us / 1e6


def scale(model: torch.nn.Module, factor: float) -> None:
    """Multiplies all gradients; 1 leaves every bit as it is."""
    if factor != 1.0:
        torch._foreach_mul_([one.grad for one in model.parameters() if one.grad is not None], factor)


class LearningRate:
    """Multiplies an optimizer's learning rates while it takes a step, and puts them back after it.

    So each step is scaled exactly once: schedulers and checkpoints see the job's own rates.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.share = 1.0
        """Of the samples of the step that were done."""
        self.factor = 1.0
        """By the plan: its samples of a step against the job's own."""
        self._before: list[Any] = []
        optimizer.register_step_pre_hook(self._lower)
        optimizer.register_step_post_hook(self._restore)

    def _lower(self, optimizer: torch.optim.Optimizer, _: Sequence[Any], __: dict[str, Any]) -> None:
        factor = self.factor * (self.share if self.share < FEWER else 1.0)
        self._before = [group["lr"] for group in optimizer.param_groups] if factor != 1 else []
        for group, rate in zip(optimizer.param_groups, self._before, strict=False):
            group["lr"] = rate * factor

    def _restore(self, optimizer: torch.optim.Optimizer, _: Sequence[Any], __: dict[str, Any]) -> None:
        for group, rate in zip(optimizer.param_groups, self._before, strict=False):
            group["lr"] = rate
        self._before = []
