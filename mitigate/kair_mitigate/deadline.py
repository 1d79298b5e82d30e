"""Enforces a deadline on a step's batches: a rank that takes longer leaves the rest for later steps.

Gradients are weighted for all of the step's samples. Once the ranks know how many each has done, they multiply them by
all over done, which gives the gradient of the mean over the samples done (like DropCompute, which drops the rest).
"""

import time
from collections.abc import Sequence
from typing import Any

import torch

FEWER = 0.9
"""If at least this share of a step's samples is trained, the learning rate stays."""
_EASED = 0.9
"""A rank whose first batch is always its last cannot time one; it lowers its estimate by this factor every step."""


class Pace:
    """Decides when a rank stops, from the duration of its batches."""

    def __init__(self) -> None:
        self._batch_s = 0.0
        self._begun = 0.0

    def is_last(self, at: int, deadline_us: int) -> bool:
        """Return whether the batch that begins now, the step's `at`-th from 0, leaves no time for another one.

        The first batch is always done, so that every step progresses.
        """
        now = time.perf_counter()
        if at == 0:
            self._begun = now
            self._batch_s *= _EASED
        else:
            self._batch_s = (now - self._begun) / at
        return now - self._begun + 2 * self._batch_s > deadline_us / 1e6


def scale(model: torch.nn.Module, factor: float) -> None:
    """Multiply all gradients by `factor`; 1 leaves them bit-identical."""
    if factor != 1.0:
        torch._foreach_mul_([one.grad for one in model.parameters() if one.grad is not None], factor)


class LearningRate:
    """Scales an optimizer's learning rates during its step and restores them afterwards.

    So each step is scaled exactly once, and schedulers and checkpoints see the job's own rates.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.share = 1.0
        """Share of the step's samples that were done."""
        self.factor = 1.0
        """Factor from the plan, for its samples per step compared with the job's own."""
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
