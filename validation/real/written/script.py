"""What a training script is to the recorder, and where it lets faults come in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Script:
    """One rank's part: `step()` is a whole step, from the batch to the optimizer."""

    step: Callable[[], None]
    parameters: list[nn.Parameter]


class Hooks:
    """The places of a script; on a healthy rank they do nothing.

    `between` and `within` are the faults' own; `slowness` and `enlargement` are set by what is wrong with the input.
    """

    def __init__(self, between: Callable[[str], None], within: Callable[[Tensor], Tensor], ranges: bool) -> None:
        self.between, self.within, self.ranges = between, within, ranges
        self.slowness: Callable[[], object] = lambda: None
        self.enlargement: Callable[[], float] = lambda: 1.0
        self.calls = 0

    def hidden(self, x: Tensor) -> Tensor:
        """Between two layers."""
        self.calls += 1
        self.between("blocks")
        return self.within(x)

    def fetched(self) -> None:
        """A batch is being fetched."""
        self.slowness()

    def batch(self, examples: int) -> int:
        """How many examples the rank takes."""
        return max(1, round(examples * self.enlargement()))

    def named(self, part: str) -> AbstractContextManager[object]:
        """A part of the step, where the script's author names them."""
        return torch.profiler.record_function(part) if self.ranges else nullcontext()


def build_of(name: str) -> Callable[[dict[str, Any], int, int, Hooks], Script]:
    """Gives a rank's part of the script of this name: of its options, the rank, how many there are, and the hooks."""
    build: Callable[[dict[str, Any], int, int, Hooks], Script] = import_module(f"written.scripts.{name}").build
    return build
